"""`at` and `with_column`: event time after parsing, held by the watermark."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference, run_in_process
from tests.variants import variants

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "came timestamp, made bigint, x bigint"


def flow_of(when: Any, **options: Any) -> ms.Flow:
    flow = ms.Flow("at")
    source = ms.Generator(tuple, time="came", schema=SCHEMA, lateness="5s")
    timed = flow.source(source, name="in").at(when, **options)
    windows = timed.key_by("x").window(ms.tumbling("10s")).agg(n=ms.count())
    windows.sink(ms.Memory(), name="out")
    windows.late().sink(ms.Memory(), name="late")
    return flow


def records(seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    out = []
    for second in range(150):
        came = START + timedelta(seconds=second + draw.randint(0, 7))
        made = int(came.timestamp()) - draw.choice([0, 1, 5, 20, 40])
        out.append({"came": came, "made": made, "x": draw.randint(0, 1)})
    return out


def told_in_some_way(made: int) -> Any:
    moment = datetime.fromtimestamp(made, UTC)
    return [made, float(made), Decimal(made), moment.isoformat(), moment][made % 5]


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str([(name, str(value)) for name, value in row.items()]) for row in rows)


@pytest.mark.parametrize(
    "when",
    [
        "made",
        "timestamp_seconds(made)",
        lambda row: row["made"],
        lambda row: datetime.fromtimestamp(row["made"], UTC),
        lambda row: told_in_some_way(row["made"]),
    ],
    ids=["number", "sql", "function", "datetime", "several"],
)
@pytest.mark.parametrize("behind", ["0s", "20s", "1m"])
@pytest.mark.parametrize("seed", variants(range(2)))
def test_windows_go_by_the_new_time_and_wait_for_it(when: Any, behind: str, seed: int) -> None:
    flow, rows = flow_of(when, behind=behind), records(seed)
    expected = reference(flow, {"in": rows})
    draw = random.Random(seed)
    with Driver(flow, parallelism=draw.choice([1, 2]), now=START.timestamp()) as driver:
        at = 0
        while at < len(rows):
            size = draw.randint(1, 30)
            driver.push("in", rows[at : at + size]).step()
            at += size
        driver.end()
        assert counted(driver.output("out")) == counted(expected["out"])
        assert counted(driver.output("late")) == counted(expected["late"])
        assert (behind == "1m") or driver.output("late")
        assert sum(row["n"] for row in driver.output("out")) + len(driver.output("late")) == len(
            rows
        )


def test_without_lateness_nothing_is_late_however_far_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flights.csv").write_text("day,n\n12/31/2013,1\n01/02/2013,2\n01/01/2013,4\n")
    flow, memory = ms.Flow("days"), ms.Memory()
    days = flow.source(ms.Files("flights.csv")).at("day", format="%m/%d/%Y", zone="UTC")
    days.key_by().window(ms.tumbling("1d")).agg(n=ms.sum("n")).sink(memory)
    run_in_process(flow, "ck")
    assert [(row["window_start"].strftime("%Y-%m-%d"), row["n"]) for row in memory.rows] == [
        ("2013-01-01", 4),
        ("2013-01-02", 2),
        ("2013-12-31", 1),
    ]


def test_a_record_without_a_time_is_a_dead_letter() -> None:
    def when(row: dict[str, Any]) -> Any:
        told = [lambda: None, lambda: 1 // row["x"], lambda: 10**15, lambda: "yesterday"]
        return told[row["made"]]()

    rows = [{"came": START, "made": kind, "x": 0} for kind in range(4)]
    with Driver(flow_of(when), now=START.timestamp(), dead_letter_limit=1.0) as driver:
        driver.push("in", rows).end()
        errors = sorted(letter["error"] for letter in driver.dead)
    for why in ("is null", "ZeroDivisionError", "1000000000000000", "yesterday"):
        assert sum(why in one for one in errors) == 1, (why, errors)
    assert len(errors) == 4


@pytest.mark.parametrize("together", [True, False])
def test_a_time_means_the_same_whatever_stands_beside_it(together: bool) -> None:
    midnight = datetime(2025, 12, 31, 19)  # of UTC, on the clocks of New York
    told = [midnight, START, True, {"at": 1}, {"at": "x"}]
    rows = [{"came": START, "made": which, "x": 0} for which in range(len(told))]
    flow = flow_of(lambda row: told[row["made"]], zone="America/New_York")
    with Driver(flow, now=START.timestamp(), dead_letter_limit=1.0) as driver:
        for some in [rows] if together else [[row] for row in rows]:
            driver.push("in", some).step()
        driver.end()
        assert [(row["window_start"], row["n"]) for row in driver.output("out")] == [(START, 2)]
        assert len(driver.dead) == 3
        assert all("is not a timestamp" in letter["error"] for letter in driver.dead)


def test_mistakes_are_found_when_the_step_is_made() -> None:
    stream = ms.Flow("x").source(ms.Rate(1))
    for mistake, told in [
        (lambda: stream.at("ts +"), "cannot parse"),
        (lambda: stream.at(5), "or a function that gets a record, got int 5"),
        (lambda: stream.at("ts", unit="hours"), "at(unit='hours')"),
        (lambda: stream.at("ts", zone="Mars"), "at(): zone= is 'Mars'"),
        (lambda: stream.at("ts", behind="soon"), "at(behind=)"),
        (lambda: stream.at("ts, value"), "expected one expression"),
        (lambda: stream.at("ts", format="%m/%d/%Y"), "do not say their zone: add zone="),
        (lambda: stream.with_column("", "1"), "expected the name of a column"),
    ]:
        with pytest.raises(ms.ConfigError) as caught:
            mistake()
        assert told in str(caught.value)


def test_a_column_is_added_or_replaced() -> None:
    flow = ms.Flow("columns")
    source = flow.source(
        ms.Generator(lambda: [{"price": 2, "qty": 3}], schema="price int, qty int")
    )
    both = source.with_column("total", "price * qty").with_column("price", "price + 1")
    assert both.head().rows == [{"price": 3, "qty": 3, "total": 6}]
    assert "with_column = select *, price * qty AS total" in repr(flow)
    odd = source.with_column("a`b", "price -- in cents").with_column("price", "qty AS other")
    assert odd.head().rows == [{"price": 3, "qty": 3, "a`b": 2}]


KINDS: list[Any] = [
    1767225600,
    1767225601.5,
    "2026-01-01T00:00:02Z",
    START + timedelta(seconds=3),
    (START + timedelta(seconds=4)).astimezone(timezone(timedelta(hours=5, minutes=45))),
    Decimal("1767225605.25"),
    Decimal("1767225606"),
]
NO_TIMES: list[Any] = [
    *(None, True, [1], {"a": 1}, b"x", 2**70, float("nan"), Decimal("1e30"), "soon"),
    *(date(2026, 1, 1), datetime(2026, 1, 1), timedelta(days=1)),
]


@pytest.mark.parametrize("cut", [1, 2, 5, 100])
def test_what_a_function_gives_is_read_whatever_its_neighbours_give(cut: int) -> None:
    given = [one for pair in zip_longest(KINDS, NO_TIMES, fillvalue=None) for one in pair]
    flow = ms.Flow("kinds")
    source = flow.source(ms.Generator(tuple, schema="i bigint"), name="in")
    timed = source.at(lambda row: given[row["i"]], behind="100000d")
    windows = timed.key_by("i").window(ms.tumbling("1s")).agg(n=ms.count())
    windows.sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp(), dead_letter_limit=1.0) as driver:
        for at in range(0, len(given), cut):
            driver.push("in", [{"i": i} for i in range(len(given))[at : at + cut]]).step()
        driver.end()
        found = sorted(row["window_start"] for row in driver.output("out"))
        assert found == [START + timedelta(seconds=second) for second in range(len(KINDS))]
        assert len(driver.dead) == len(given) - len(KINDS)


@pytest.mark.parametrize(
    ("expr", "good"),
    [
        ("CAST(1767225600.5 AS DECIMAL(20, 3))", True),
        ("x = 1", False),
    ],
)
def test_an_expression_of_any_type_gives_times_or_dead_letters(expr: str, good: bool) -> None:
    with Driver(flow_of(expr), now=START.timestamp(), dead_letter_limit=1.0) as driver:
        driver.push("in", [{"came": START, "made": 0, "x": 1}]).end()
        assert (len(driver.output("out")), len(driver.dead)) == (int(good), int(not good))


def test_a_zone_for_what_has_one_is_refused_and_the_way_that_is_told_is_right(
    tmp_path: Path,
) -> None:
    (tmp_path / "in.csv").write_text("y,m,d,h,day\n2026,7,4,20,2026-07-04\n")
    source = ms.Flow("zones").source(ms.Files(tmp_path / "in.csv"))
    clock = "timestampadd(hour, h, make_date(y, m, d))"
    with pytest.raises(ms.ConfigError, match=r"write to_utc_timestamp\(\.\.\., 'America/New_York'"):
        source.at(clock, zone="America/New_York").head()
    days = ms.tumbling("1d", zone="America/New_York")
    for timed in (
        source.at(f"to_utc_timestamp({clock}, 'America/New_York')"),
        source.at("day", zone="America/New_York"),
    ):
        (row,) = timed.key_by().window(days).agg(n=ms.count()).head().rows
        assert row["window_start"] == datetime(2026, 7, 4, 4, tzinfo=UTC)

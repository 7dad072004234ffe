"""When early results leave: by records wherever a multiple is crossed, by event time exactly.

What `every_event` gives is computed here once more in plain Python from its definition: at every
multiple, the windows that are open then, over the records before it.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, run_in_process
from tests.deployments.running import read
from tests.variants import variants

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
PERIOD = 4  # seconds
LATENESS = 3


def source(flow: ms.Flow) -> ms.Stream:
    files = ms.Files(
        "nowhere",
        schema="ts timestamp, k string, v bigint",
        time="ts",
        lateness=f"{LATENESS}s",
        follow=True,
    )
    return flow.source(files, name="in")


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def rows_at(*seconds: float, key: str = "a") -> list[dict[str, Any]]:
    return [{"ts": at(second), "k": key, "v": 1} for second in seconds]


# -- by records -----------------------------------------------------------------------------------


def test_every_batch_that_crosses_a_multiple_of_rows_fires() -> None:
    flow = ms.Flow("rows")
    early = source(flow).key_by("k").window(ms.tumbling("1h"), emit="early", every_rows=10)
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        for batch in range(10):  # 7, 14, 21, ... records: 14, 21, 35, 42, 56, 63 and 70 cross
            driver.push("in", rows_at(*(batch * 7 + i for i in range(7)))).step()
            driver.restart()
        assert [row["n"] for row in driver.output()] == [14, 21, 35, 42, 56, 63, 70]
        assert [row["revision"] for row in driver.output()] == list(range(7))


@pytest.mark.parametrize(
    "window",
    [ms.tumbling("10s"), ms.landmark("10s"), ms.session("2s"), ms.count_window(5)],
    ids=str,
)
def test_rows_fire_also_in_the_batch_that_closes_the_window(window: Any) -> None:
    flow = ms.Flow("closing")
    early = source(flow).key_by("k").window(window, emit="early", every_rows=3)
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", rows_at(0, 1, 2, 3, 4, 50, 90)).step()
        found = [(row["n"], row["revision"], row["final"]) for row in driver.output()]
    assert found[:2] == [(5, 0, False), (5, 1, True)]


def test_a_window_that_was_given_as_it_is_only_becomes_final() -> None:
    flow = ms.Flow("same")
    early = source(flow).key_by("k").window(ms.tumbling("10s"), emit="early", every_rows=2)
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", rows_at(0, 1)).step()
        driver.push("in", rows_at(50, 51)).step()
        found = [(row["n"], row["revision"], row["final"]) for row in driver.output()]
    assert found == [(2, 0, False), (2, 1, True), (2, 0, False)]


# -- by event time --------------------------------------------------------------------------------

WINDOWS = {
    "tumbling": ms.tumbling("10s"),
    "finer than a pane": ms.tumbling("8s"),
    "sliding": ms.sliding("12s", "5s"),
    "hopping": ms.hopping("6s", "9s"),
    "landmark": ms.landmark("10s"),
    "session": ms.session("3s"),
    "count": ms.count_window(7),
    "count overlapping": ms.count_window(9, 4),
}


def records(seed: int, count: int = 120) -> list[dict[str, Any]]:
    """Records out of order by less than the lateness, with silent stretches."""
    rng = random.Random(seed)
    times = [i * 0.4 + 20 * (i // 60) + rng.uniform(0, LATENESS - 0.1) for i in range(count)]
    return [{"ts": at(t), "k": rng.choice("ab"), "v": rng.randint(0, 9)} for t in times]


def cuts(kind: str, rows: list[dict[str, Any]], until: float) -> dict[Any, tuple[bool, list[int]]]:
    """The windows of one key over records before `until`: whether each has left, and its values."""
    seconds = [((row["ts"] - BEGIN).total_seconds(), row["v"]) for row in rows]
    seconds = sorted((second, v) for second, v in seconds if second < until)
    window = WINDOWS[kind]
    found: dict[Any, tuple[bool, list[int]]] = {}
    if kind == "session":
        runs: list[list[tuple[float, int]]] = []
        for one in seconds:
            if runs and one[0] - runs[-1][-1][0] < 3:
                runs[-1].append(one)
            else:
                runs.append([one])
        for run in runs:
            found[run[0][0]] = (run[-1][0] + 3 <= until, [v for _, v in run])
    elif kind.startswith("count"):
        size, slide = window.logical.size, window.logical.slide
        for start in range(0, len(seconds), slide):
            values = [v for _, v in seconds[start : start + size]]
            found[start] = (len(values) == size, values)
    else:
        size, slide = window.span.size / 1e6, window.span.slide / 1e6
        for number in range(-3, 30):
            start, end = number * slide, number * slide + size
            inside = [v for second, v in seconds if start <= second < end]
            if inside and kind == "landmark":
                inside = [v for second, v in seconds if second < end]
            if inside:
                found[end] = (end <= until, inside)
    return found


def expected(kind: str, rows: list[dict[str, Any]]) -> Counter[Any]:
    """(key, revision, final, values) of all results, by the definition."""
    out: Counter[Any] = Counter()
    latest = max((row["ts"] - BEGIN).total_seconds() for row in rows)
    for key in "ab":
        mine = [row for row in rows if row["k"] == key]
        last: dict[Any, tuple[int, list[int]]] = {}
        multiple = PERIOD
        while multiple <= latest:
            for name, (left, values) in cuts(kind, mine, multiple).items():
                revision, known = last.get(name, (-1, []))
                if not left and values != known:
                    last[name] = (revision + 1, values)
                    out[key, revision + 1, False, tuple(values)] += 1
            multiple += PERIOD
        for name, (_, values) in cuts(kind, mine, 10**6).items():
            out[key, last.get(name, (-1, []))[0] + 1, True, tuple(values)] += 1
    return out


MORE = [(1, 1), (5, 1), (11, 3)]


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(
    ("cut", "parallelism"),
    variants([(40, 2), (1000, 1), *MORE]),
)
def test_event_time_gives_the_same_revisions_whatever_the_batches(
    kind: str, cut: int, parallelism: int
) -> None:
    flow = ms.Flow("event")
    early = source(flow).key_by("k").window(WINDOWS[kind], emit="early", every_event=f"{PERIOD}s")
    early.agg(v=ms.collect("v")).sink(ms.Memory(), name="values")
    early.agg(n=ms.count(), total=ms.sum("v")).sink(ms.Memory(), name="states")
    rows = records(len(kind))
    with Driver(flow, parallelism=parallelism) as driver:
        for number, start in enumerate(range(0, len(rows), cut)):
            driver.push("in", rows[start : start + cut]).step()
            if number % 5 == 2:
                driver.restart()
        driver.end()
        want = expected(kind, rows)
        values = [
            (r["k"], r["revision"], r["final"], tuple(r["v"])) for r in driver.output("values")
        ]
        assert Counter(values) == want
        states = [
            (r["k"], r["revision"], r["final"], r["n"], r["total"]) for r in driver.output("states")
        ]
        assert Counter(states) == Counter(
            (key, revision, final, len(values), sum(values))
            for key, revision, final, values in want.elements()
        )
    assert any(not final for _, _, final, _ in want)


def test_results_of_one_window_come_in_the_order_of_revisions() -> None:
    flow = ms.Flow("order")
    early = source(flow).key_by("k").window(ms.tumbling("20s"), emit="early", every_event="4s")
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", rows_at(*range(40))).step()
        driver.end()
        found = [(row["n"], row["revision"], row["final"]) for row in driver.output()]
    one = [(4, 0, False), (8, 1, False), (12, 2, False), (16, 3, False), (20, 4, True)]
    assert found == [*one, *one]


def test_a_silent_century_costs_nothing() -> None:
    flow = ms.Flow("gap")
    early = source(flow).key_by("k").window(ms.landmark("1d"), emit="early", every_event="1s")
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [{"ts": datetime(1924, 1, 1, tzinfo=UTC), "k": "a", "v": 0}]).step()
        driver.push("in", rows_at(0.5, 2.5)).step()
        driver.end()
        found = [(row["n"], row["final"]) for row in driver.output()]
    assert found == [(1, False), (1, True), (2, False), (3, True)]


@pytest.mark.parametrize("batch_rows", [1, 2, 500])
def test_a_file_that_waits_skips_no_multiple(tmp_path: Path, batch_rows: int) -> None:
    """It is known to begin late, so windows leave before it is read; their early results too."""
    (tmp_path / "in").mkdir()
    for name, seconds in (("a", (8, 13)), ("b", (61, 64))):
        lines = "".join(f"{int(at(second).timestamp())},a\n" for second in seconds)
        (tmp_path / "in" / f"{name}.csv").write_text("ts,k\n" + lines)
    flow = ms.Flow("waiting")
    files = flow.source(ms.Files(tmp_path / "in", time="ts", lateness="3s"), name="in")
    for name, window in (("time", ms.tumbling("20s")), ("session", ms.session("8s"))):
        early = files.key_by("k").window(window, emit="early", every_event="4s")
        early.agg(n=ms.count()).sink(ms.Jsonl(tmp_path / name), name=name)
    run_in_process(flow, tmp_path / "ck", batch_rows=batch_rows)
    for name in ("time", "session"):
        rows = [(r["n"], r["revision"], r["final"]) for r in read(tmp_path / name)]
        first, second = [(1, 0, False), (2, 1, False), (2, 2, True)], [(1, 0, False), (2, 1, True)]
        assert rows == first + second, name

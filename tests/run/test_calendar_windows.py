"""Windows by a calendar: days, weeks and months of a zone, as DuckDB's date_trunc has them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import Driver, run_in_process
from millstream.testing.reference.calendars import local_window
from tests.variants import variants

ZONES = [
    *("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo"),
    *("Asia/Kathmandu", "Pacific/Apia", "Africa/Cairo", "Asia/Beirut"),
]
SIZES = {
    "day": ("1d", None),
    "week": ("1w", "monday"),
    "month": ("1mo", None),
    "quarter": ("3mo", None),
    "year": ("1y", None),
}


def moments(zone: str) -> list[datetime]:
    """Times around the changes of clocks of some years, and some in between."""
    rng = random.Random(zone)
    found = []
    for year in (1999, 2011, 2016, 2018, 2024):
        at = datetime(year, 1, 1, tzinfo=UTC)
        offset = at.astimezone(ZoneInfo(zone)).utcoffset()
        while at.year == year:
            at += timedelta(hours=3)
            now = at.astimezone(ZoneInfo(zone)).utcoffset()
            if now != offset:
                found += [at + timedelta(minutes=rng.randint(-1700, 1700)) for _ in range(12)]
            offset = now
        found += [at - timedelta(seconds=rng.randint(1, 31_000_000)) for _ in range(8)]
    midnights = [
        datetime(2024, month, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC) for month in range(1, 13)
    ]
    return [*found, *midnights, *(one - timedelta(microseconds=1) for one in midnights)]


def by_duckdb(times: list[datetime], unit: str, zone: str) -> list[tuple[datetime, int]]:
    """How many times there are in each day (week ...) of the zone, by its beginning."""
    given = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))})
    with duckdb.connect() as db:
        db.execute(f"SET TimeZone='{zone}'")
        db.register("given", given)
        rows = db.execute(
            f"SELECT epoch_us(date_trunc('{unit}', t)) AS start, count(*) FROM given "
            "GROUP BY start ORDER BY start"
        ).fetchall()
    return [(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=s), n) for s, n in rows]


def counted(tmp_path: Path, times: list[datetime], window: Any) -> list[tuple[datetime, int]]:
    lines = "".join(f"{one.isoformat()},1\n" for one in times)
    (tmp_path / "in.csv").write_text("at,n\n" + lines)
    out = ms.Memory()
    flow = ms.Flow("local")
    source = ms.Files(tmp_path / "in.csv", schema="at timestamp, n int", time="at")
    flow.source(source).key_by().window(window).agg(n=ms.count()).sink(out)
    run_in_process(flow, tmp_path / "ck")
    return sorted((row["window_start"], row["n"]) for row in out.rows)


@pytest.mark.parametrize("zone", variants(ZONES, 3))  # all of them below, without a run
def test_windows_are_those_of_duckdb(tmp_path: Path, zone: str) -> None:
    times = moments(zone)
    for unit, (size, start) in SIZES.items():
        place = tmp_path / unit
        place.mkdir()
        window = ms.tumbling(size, zone=zone, start=start)
        assert counted(place, times, window) == by_duckdb(times, unit, zone), unit


def test_a_midnight_that_comes_twice_is_the_first(tmp_path: Path) -> None:
    """DuckDB has the same days, but calls this one by the second: after it has begun."""
    zone = ZoneInfo("America/Havana")
    times = moments("America/Havana")
    ours = counted(tmp_path, times, ms.tumbling("1d", zone="America/Havana"))
    theirs = by_duckdb(times, "day", "America/Havana")
    assert [(start.astimezone(zone).date(), n) for start, n in ours] == [
        (start.astimezone(zone).date(), n) for start, n in theirs
    ]
    later = [(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=True) if a != b]
    assert later and all(b - a == timedelta(hours=1) for a, b in later)


@pytest.mark.parametrize("zone", [*ZONES, "UTC", "America/Havana", "America/St_Johns"])
def test_panes_are_where_pythons_calendar_has_them(zone: str) -> None:
    micros = [int(one.timestamp()) * 1_000_000 for one in moments(zone)]
    for size, start in [*SIZES.values(), ("1d", "06:30"), ("2w", "sunday 23:00"), ("3d", None)]:
        span = ms.tumbling(size, zone=zone, start=start).span
        if span.calendar is None:
            continue
        panes = span.pane_of(np.array(micros))
        bounds = [local_window(span.calendar, one) for one in micros]
        assert span.moments(panes).tolist() == [low for low, _ in bounds]
        assert span.moments(panes + 1).tolist() == [high for _, high in bounds]
        assert [span.pane_at(one) for one in micros] == panes.tolist()
        few = np.array(micros)[:: len(micros) - 1]  # few times that lie far apart
        assert span.pane_of(few).tolist() == panes[:: len(micros) - 1].tolist()


def test_weeks_and_days_begin_when_they_are_told(tmp_path: Path) -> None:
    times = [datetime(2024, 3, day, 5, 59, tzinfo=UTC) for day in range(1, 29)]
    weeks = counted(tmp_path, times, ms.tumbling("1w", start="monday"))
    assert weeks == by_duckdb(times, "week", "UTC")
    (tmp_path / "days").mkdir()
    days = counted(tmp_path / "days", times, ms.tumbling("1d", start="06:00"))
    assert days == [(one - timedelta(hours=23, minutes=59), 1) for one in times]


def test_they_leave_with_the_watermark_and_survive_restarts() -> None:
    """A day of New York leaves at its midnight, at 05:00 UTC in winter and 04:00 in summer."""
    flow = ms.Flow("local")
    source = ms.Generator(list, schema="at timestamp, n bigint", time="at", lateness="0s")
    days = flow.source(source, name="s").key_by().window(ms.tumbling("1d", zone="America/New_York"))
    days.agg(n=ms.sum("n")).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for at, left in [
            ("2024-03-09T12:00:00Z", 0),
            ("2024-03-10T04:59:59Z", 0),
            ("2024-03-10T05:00:00Z", 1),
            ("2024-03-11T03:59:59Z", 1),
            ("2024-03-11T04:00:00Z", 2),
            ("2024-11-03T12:00:00Z", 3),
            ("2024-11-04T04:59:59Z", 3),
            ("2024-11-04T05:00:00Z", 4),
        ]:
            driver.push("s", [{"at": at, "n": 1}])
            while driver.step():
                pass
            assert len(driver.output("out")) == left, at
            driver.restart()
        hours = [row["window_end"] - row["window_start"] for row in driver.output("out")]
        assert [one // timedelta(hours=1) for one in hours] == [24, 23, 24, 25]


def test_the_reference_agrees(tmp_path: Path) -> None:
    times = moments("America/New_York")
    window = ms.tumbling("1w", zone="America/New_York", start="sunday")
    found = counted(tmp_path, times, window)
    bounds = [local_window(window.span.calendar, int(t.timestamp() * 1e6)) for t in times]
    starts = sorted({low for low, _ in bounds})
    assert [start for start, _ in found] == [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=one) for one in starts
    ]


@pytest.mark.parametrize(
    ("size", "options", "part"),
    [
        ("1d", {"zone": "Mars/Base"}, "no such zone"),
        ("1h", {"zone": "Asia/Tokyo"}, "whole days"),
        ("1w", {"zone": "Asia/Tokyo"}, 'start="monday"'),
        ("1w", {"zone": "UTC"}, 'start="monday"'),
        ("1d", {"start": "monday"}, "a day is for weeks"),
        ("1h", {"start": "06:00"}, "within a window"),
        ("1d", {"start": "noon"}, '"06:00"'),
        ("1mo", {"start": "monday"}, "leave start= out"),
        ("0mo", {}, "from one to"),
    ],
)
def test_mistakes(size: str, options: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        ms.tumbling(size, **options)


def test_how_they_are_told() -> None:
    assert str(ms.tumbling("1d", zone="Europe/Paris")) == 'tumbling(1d, zone="Europe/Paris")'
    assert str(ms.tumbling("1w", start="monday")) == 'tumbling(1w, start="monday")'
    assert str(ms.tumbling("1mo")) == "tumbling(1mo)"
    assert ms.tumbling("1d", zone="UTC") == ms.tumbling("1d")
    assert [ms.tumbling(one).span.pane_text for one in ("1mo", "1y", "1w")] == ["1mo", "12mo", "7d"]


@pytest.mark.parametrize(("emit", "options"), [("early", {"every_rows": 1}), ("delta", {})])
def test_results_before_they_leave(emit: str, options: dict[str, Any]) -> None:
    flow = ms.Flow("local")
    source = ms.Generator(list, schema="at timestamp, n bigint", time="at", lateness="0s")
    window = ms.tumbling("1d", zone="America/New_York")
    days = flow.source(source, name="s").key_by().window(window, emit=emit, **options)
    days.agg(n=ms.sum("n")).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for at in ("2024-03-10T12:00:00Z", "2024-03-11T03:59:59Z", "2024-03-11T04:00:00Z"):
            driver.push("s", [{"at": at, "n": 1}]).step()
        driver.end()
        last = {row["window_start"].isoformat(): row["n"] for row in driver.output("out")}
    assert last == {"2024-03-10T05:00:00+00:00": 2, "2024-03-11T04:00:00+00:00": 1}
    with pytest.raises(ConfigError, match="every_event="):
        flow.source(source, name="t").key_by().window(window, emit="early", every_event="1h")


def test_sql_has_months_too(tmp_path: Path) -> None:
    times = moments("UTC")
    lines = "".join(f"{one.isoformat()}\n" for one in times)
    (tmp_path / "in.csv").write_text("at\n" + lines)
    for unit in ("month", "quarter", "year"):
        flow, out = ms.Flow("months"), ms.Memory()
        flow.source(ms.Files(tmp_path / "in.csv", time="at", schema="at timestamp"), name="t")
        flow.sql(
            f"SELECT window_start, COUNT(*) AS n FROM TUMBLE(t, at, INTERVAL '1' {unit}) "
            "GROUP BY window_start, window_end"
        ).sink(out)
        run_in_process(flow, tmp_path / unit)
        found = sorted((row["window_start"], row["n"]) for row in out.rows)
        assert found == by_duckdb(times, unit, "UTC")

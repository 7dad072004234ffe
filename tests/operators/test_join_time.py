"""Joins of records by time: in an interval, and as of a moment; the oracle is DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
NEAR = "r.k = l.k AND r.s - l.s BETWEEN {low} AND {high}"
SQL = {
    "inner": f"SELECT l.k, l.s, r.s FROM l JOIN r ON {NEAR}",
    "left": f"SELECT l.k, l.s, r.s FROM l LEFT JOIN r ON {NEAR}",
    "right": f"SELECT r.k, l.s, r.s FROM l RIGHT JOIN r ON {NEAR}",
    "full": f"SELECT coalesce(l.k, r.k), l.s, r.s FROM l FULL JOIN r ON {NEAR}",
    "semi": f"SELECT l.k, l.s, NULL FROM l WHERE EXISTS (FROM r WHERE {NEAR})",
    "anti": f"SELECT l.k, l.s, NULL FROM l WHERE NOT EXISTS (FROM r WHERE {NEAR})",
}
AROUND, AHEAD, BEHIND = ("-4s", "6s"), ("3s", "9s"), ("-9s", "-2s")
INTERVALS = [
    *((how, AROUND) for how in SQL),
    *(("full", AHEAD), ("full", BEHIND)),  # with the rows of all the others
    *((how, bounds) for bounds in (AHEAD, BEHIND) for how in SQL if how != "full"),
]
ASOF = "SELECT l.k, l.s, r.s FROM l ASOF LEFT JOIN r ON r.k = l.k AND r.s <= l.s"


def records(rng: random.Random, count: int) -> list[Row]:
    """Records out of order by less than the lateness; `s` is their time in seconds."""
    found = []
    for i in range(count):
        second = max(0, 2 * i - rng.randrange(12))
        ts = START + timedelta(seconds=second)
        found.append({"ts": ts, "k": rng.choice([None, 1, 2, 3]), "s": second})
    return found


def sides(flow: ms.Flow) -> list[ms.Stream]:
    schema = "ts timestamp, k long, s long"
    return [
        flow.source(
            ms.Generator(tuple, time="ts", lateness="15s", schema=schema), name=name
        ).select("k", "s")
        for name in ("left", "right")
    ]


def by_duckdb(sql: str, given: dict[str, list[Row]]) -> Counter[Any]:
    with duckdb.connect() as connection:
        for name, rows in zip("lr", given.values(), strict=True):
            connection.execute(f"CREATE TABLE {name} (k BIGINT, s BIGINT)")
            connection.executemany(
                f"INSERT INTO {name} VALUES (?, ?)", [(row["k"], row["s"]) for row in rows]
            )
        return Counter(connection.execute(sql).fetchall())


def drive(flow: ms.Flow, given: dict[str, list[Row]], rng: random.Random, path: Any) -> Driver:
    """The whole input in random batches, begun anew now and then."""
    left = {name: list(rows) for name, rows in given.items()}
    driver = Driver(flow, parallelism=rng.randrange(1, 4), checkpoint=path)
    while any(left.values()):
        for name, rows in left.items():
            size = rng.choice([0, 4, 17])
            driver.push(name, rows[:size])
            left[name] = rows[size:]
        driver.step()
        if rng.random() < 0.3:
            driver.restart()
    return driver.end()


@pytest.mark.parametrize(("how", "bounds"), variants(INTERVALS, len(SQL) + 2))
def test_pairs_in_an_interval(how: str, bounds: tuple[str, str], tmp_path: Any) -> None:
    rng = random.Random(f"{how} {bounds}")
    flow = ms.Flow("interval")
    left, right = sides(flow)
    joined = left.join(right, on="k", how=how, between=bounds, suffix="_r")
    joined.sink(ms.Memory(), name="out")
    counts = joined.key_by("k", nulls="keep").window(ms.tumbling("10s")).agg(n=ms.count())
    counts.sink(ms.Memory(), name="windows")
    given = {name: records(rng, 40) for name in ("left", "right")}
    low, high = (int(bound.removesuffix("s")) for bound in bounds)
    expected = by_duckdb(SQL[how].format(low=low, high=high), given)
    with drive(flow, given, rng, tmp_path) as driver:
        out = driver.output("out")
        assert not any("op" in row for row in out)
        found = Counter((row["k"], row["s"], row.get("s_r")) for row in out)
        assert found == expected
        answer = reference(flow, given)["windows"]  # nothing comes too late for what is behind
        assert sorted(driver.output("windows"), key=repr) == sorted(answer, key=repr)


@pytest.mark.parametrize("seed", variants(range(3)))
def test_the_latest_row_as_of_a_moment(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("asof")
    left, right = sides(flow)
    joined = left.join(right, on="k", how="asof", suffix="_r")
    joined.sink(ms.Memory(), name="out")
    near = left.join(right, on="k", how="asof", suffix="_r", within="3s")
    near.sink(ms.Memory(), name="near")
    counts = joined.key_by("k", nulls="keep").window(ms.tumbling("10s")).agg(n=ms.count())
    counts.sink(ms.Memory(), name="windows")
    given = {name: records(rng, 40) for name in ("left", "right")}
    expected = by_duckdb(ASOF, given)
    answer = reference(flow, given)
    with drive(flow, given, rng, tmp_path) as driver:
        found = Counter((row["k"], row["s"], row["s_r"]) for row in driver.output("out"))
        assert found == expected
        close: Counter[Any] = Counter()
        for (k, s, r), count in expected.items():
            close[k, s, r if r is not None and s - r <= 3 else None] += count
        assert Counter((r["k"], r["s"], r["s_r"]) for r in driver.output("near")) == close
        for sink in ("out", "near", "windows"):
            assert sorted(driver.output(sink), key=repr) == sorted(answer[sink], key=repr)


@pytest.mark.parametrize("seed", variants(range(2)))
def test_what_a_semi_join_lets_through_has_its_time(seed: int, tmp_path: Any) -> None:
    """The first match in time counts, whatever came first."""
    rng = random.Random(seed)
    flow = ms.Flow("semi")
    left, right = sides(flow)
    semi = left.join(right.where("s > 20"), on="k", how="semi")
    semi.key_by("k").window(ms.tumbling("5s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    given = {name: records(rng, 40) for name in ("left", "right")}
    answer = reference(flow, given)["out"]
    with drive(flow, given, rng, tmp_path) as driver:
        assert sorted(driver.output("out"), key=repr) == sorted(answer, key=repr)


@pytest.mark.parametrize("how", ["inner", "full", "semi", "asof"])
def test_what_time_has_passed_is_forgotten(how: str, tmp_path: Any) -> None:
    flow = ms.Flow("short")
    left, right = sides(flow)
    left.join(right, on="k", how=how, within="10s").sink(ms.Memory(), name="out")
    stored = []
    with Driver(flow, checkpoint=tmp_path, shards=2) as driver:
        for batch in range(40):
            rows = [
                {"ts": START + timedelta(seconds=s), "k": s, "s": s}
                for s in range(20 * batch, 20 * batch + 20)
            ]
            driver.push("left", rows).push("right", rows).step()
            tables = driver.engine.manifest.segments["join"].values()
            segments = (s for table in tables for shard in table.values() for s in shard)
            stored.append(sum(segment.rows for segment in segments))
        assert len(driver.output("out")) >= 700
    assert max(stored[20:]) <= 2 * max(stored[:20])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"within": "10s", "between": ("0s", "1s")}, "either within= or between="),
        ({"between": "5s"}, "two durations"),
        ({"between": ("5s", "-5s")}, "must not be after"),
        ({"within": "soon"}, "not a duration"),
        ({"how": "asof", "between": ("0s", "1s")}, "use within="),
    ],
)
def test_bounds_are_checked(options: Any, told: str) -> None:
    left, right = sides(ms.Flow("wrong"))
    with pytest.raises(ms.ConfigError, match=told):
        left.join(right, on="k", **options)


@pytest.mark.parametrize("options", [{"within": "1s"}, {"how": "asof"}])
def test_changes_have_no_time_of_their_own(options: Any) -> None:
    flow = ms.Flow("wrong")
    left, right = sides(flow)
    left.changes(key="k").join(right, on="k", **options).sink(ms.Memory())
    with pytest.raises(ms.ConfigError, match="is for records"):
        Driver(flow)

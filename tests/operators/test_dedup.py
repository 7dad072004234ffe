"""`dedup`: a record is left out if its like was given shortly before; whatever the batches."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.plan.stages import timeless_windows
from millstream.run.planning import plan_flow
from millstream.testing import Driver, reference
from tests.variants import variants

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, id string, x bigint"


def flow_of(*columns: str, within: str | None, lateness: str = "20s") -> ms.Flow:
    flow = ms.Flow("dedup")
    source = ms.Generator(tuple, time="ts", schema=SCHEMA, lateness=lateness)
    stream = flow.source(source, name="in").dedup(*columns, within=within)
    stream.sink(ms.Memory(), name="out")
    stream.late().sink(ms.Memory(), name="late")
    return flow


def records(seed: int, count: int = 120) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "ts": START + timedelta(seconds=second + draw.randint(0, 25)),
            "id": draw.choice(["a", "b", "c", None]),
            "x": draw.randint(0, 2),
        }
        for second in range(count)
    ]


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str([(name, str(value)) for name, value in row.items()]) for row in rows)


@pytest.mark.parametrize("columns", [("id",), ("id", "x"), ()], ids=str)
@pytest.mark.parametrize("within", ["10s", "1h", None])
@pytest.mark.parametrize("seed", variants(range(9)))
def test_what_is_given_does_not_depend_on_batches_tasks_or_restarts(
    columns: tuple[str, ...], within: str | None, seed: int
) -> None:
    flow, rows = flow_of(*columns, within=within), records(seed)
    expected = reference(flow, {"in": rows})
    draw = random.Random(seed + 100)
    with Driver(flow, parallelism=draw.choice([1, 3]), now=START.timestamp()) as driver:
        at = 0
        while at < len(rows):
            size = draw.randint(1, 40)
            driver.push("in", rows[at : at + size]).step()
            at += size
            if draw.random() < 0.3:
                driver.restart()
        driver.end()
        assert counted(driver.output("out")) == counted(expected["out"])
        assert counted(driver.output("late")) == counted(expected["late"])
        assert len(expected["late"]) > 0


def test_without_a_time_it_is_the_first_of_each_as_in_sql() -> None:
    rows = [one for one in records(7) if one["id"] is not None]
    rows.sort(key=lambda one: one["ts"])
    with Driver(flow_of("id", "x", within=None), now=START.timestamp()) as driver:
        found = driver.push("in", rows).end().output("out")
    table = duckdb.connect()
    table.execute("CREATE TABLE t (n BIGINT, ts TIMESTAMPTZ, id VARCHAR, x BIGINT)")
    table.executemany(
        "INSERT INTO t VALUES (?, ?, ?, ?)",
        [[n, one["ts"], one["id"], one["x"]] for n, one in enumerate(rows)],
    )
    first = table.execute(
        "SELECT id, x, epoch_us(min(ts)) FROM t GROUP BY id, x ORDER BY min(n)"
    ).fetchall()
    assert [(r["id"], r["x"], round(r["ts"].timestamp() * 1e6)) for r in found] == first


def test_what_was_given_long_ago_is_forgotten() -> None:
    with Driver(flow_of("id", within="10s", lateness="0s"), now=START.timestamp()) as driver:
        for minute in range(60):
            at = START + timedelta(minutes=minute)
            driver.push("in", [{"ts": at, "id": f"k{minute}", "x": 0}]).step()
        held = driver.engine.manifest.segments["dedup"]["given"]
        rows = sum(segment.rows for found in held.values() for segment in found)
        assert rows < 40, held


def test_it_is_refused_on_changes() -> None:
    flow = ms.Flow("changes")
    changes = flow.source(ms.Generator(tuple, time="ts", schema=SCHEMA)).changes(key="id")
    changes.dedup("id", within="1h").sink(ms.Memory())
    with pytest.raises(ms.ConfigError, match=r"dedup: dedup\(\) works on records"):
        Driver(flow)


def test_a_view_has_a_record_as_often_as_it_was_given(tmp_path: Path) -> None:
    flow = ms.Flow("kept")
    source = ms.Generator(tuple, time="ts", schema=SCHEMA, lateness="0s")
    flow.source(source, name="in").dedup("id", within="10s").select("id").view("kept")
    with Driver(flow, checkpoint=tmp_path, now=START.timestamp()) as driver:
        for minute in range(3):  # in a batch each
            rows = [{"ts": START + timedelta(minutes=minute), "id": "a", "x": 0}]
            driver.push("in", rows).step()
        driver.end()
        assert ms.views(tmp_path, "kept").arrow().to_pylist() == [{"id": "a"}] * 3


ALIKE: list[list[Any]] = [
    [Decimal("1.10"), Decimal("1.1"), Decimal("2"), Decimal("0.00"), Decimal("0")],
    [
        Decimal("123456789012345678901234567890123.4"),
        Decimal("123456789012345678901234567890123.5"),
    ],
    [[1], [1.0], (1,), [1.5], [2.0, None], [2, None]],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": None}, {"b": 1}],
    [{"a": {"x": 1.0, "y": "z"}}, {"a": {"y": "z", "x": 1}}, {"a": {"y": "z"}}],
    [2**53 + 1, 1.0, 1, 2**53 + 1],  # no column of doubles has both
]


@pytest.mark.parametrize("values", ALIKE, ids=str)
@pytest.mark.parametrize("step", ["dedup", "distinct", "groups"])
def test_what_is_equal_does_not_depend_on_what_else_is_in_a_batch(
    values: list[Any], step: str
) -> None:
    """The type of a column follows from the records of a batch, and must not tell them apart."""
    found = set()
    for cut in (1, 2, len(values)):
        flow = ms.Flow("alike")
        source = ms.Generator(tuple, time="ts", schema="ts timestamp, i bigint", lateness="0s")
        stream = flow.source(source, name="in").map(lambda row: {"k": values[row["i"]]})
        match step:
            case "dedup":
                stream = stream.dedup("k")
            case "distinct":
                stream = stream.distinct("k")
            case "groups":
                stream = stream.key_by("k").window(ms.tumbling("1h")).agg(n=ms.count())
        stream.sink(ms.Memory(), name="out")
        with Driver(flow, now=START.timestamp(), shards=7) as driver:
            for at in range(0, len(values), cut):
                rows = [
                    {"ts": START + timedelta(seconds=i), "i": i}
                    for i in range(len(values))[at : at + cut]
                ]
                driver.push("in", rows).step()
            driver.end()
            found.add(len(driver.output("out")))
            assert not driver.dead
    assert len(found) == 1


def test_within_over_records_that_say_no_time_is_told(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n1\n")
    for within, told in (("1h", True), (None, False)):
        flow = ms.Flow("told")
        flow.source(ms.Files(tmp_path / "in.csv"), name="in").dedup("id", within=within).sink(
            ms.Memory()
        )
        notes = " ".join(timeless_windows(plan_flow(flow)))
        assert ("within= goes by the time at which records are read" in notes) is told

"""The law of steps with two inputs: what their changes come to is what they give for the tables.

All of them over the same two tables, in which rows come, change and go at random, in any batches,
with any parallelism, begun anew at any time. What is stored is what is there, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import millstream as ms
from millstream.ops.chunks import concat
from millstream.ops.keys.joins import numbers, settled
from millstream.state.segments import read_segments
from millstream.state.tables import KeyedTable
from millstream.testing import Driver

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, id long, k long, v long, here boolean"
HOW = ("inner", "left", "right", "full", "semi", "anti")
Row = dict[str, Any]
Rows = list[Row]


def build() -> ms.Flow:
    flow = ms.Flow("law")
    left, right = (
        flow.source(ms.Generator(tuple, time="ts", lateness="1h", schema=SCHEMA), name=name)
        .changes(key="id")
        .where("here")
        .select("id", "k", "v")
        for name in ("left", "right")
    )
    for how in HOW:
        left.join(right, on="k", how=how).named(f"{how} join").sink(ms.Memory(), name=f"{how} rows")
    left.join(left, on=[("k", "v")]).named("itself").sink(ms.Memory(), name="itself rows")
    ours, theirs = left.select("k", "v"), right.select("k", "v")
    for each in (False, True):
        for how in ("intersect", "difference"):
            made: ms.Stream = getattr(ours, how)(theirs, all=each)
            made.sink(ms.Memory(), name=f"{how} {each}")
    return flow


def joined(left: Rows, right: Rows, how: str) -> Counter[Any]:
    """Every pair is looked at."""
    out: Counter[Any] = Counter()
    met: set[int] = set()
    for one in left:
        matches = [other for other in right if one["k"] is not None and one["k"] == other["k"]]
        met.update(other["id"] for other in matches)
        mine = (one["id"], one["k"], one["v"])
        if how in ("semi", "anti"):
            out[mine] += bool(matches) == (how == "semi")
            continue
        out.update((*mine, other["id"], other["v"]) for other in matches)
        if not matches and how in ("left", "full"):
            out[(*mine, None, None)] += 1
    if how in ("right", "full"):
        for other in right:
            if other["id"] not in met:
                out[(None, other["k"], None, other["id"], other["v"])] += 1
    return +out


def compared(left: Rows, right: Rows, how: str, each: bool) -> Counter[Any]:
    ours, theirs = (Counter((row["k"], row["v"]) for row in side) for side in (left, right))
    if each:
        return ours & theirs if how == "intersect" else ours - theirs
    same = set(ours) & set(theirs) if how == "intersect" else set(ours) - set(theirs)
    return Counter(same)


class Reader:
    """What a reader makes of a sink: of each batch it takes those first that take back."""

    def __init__(self, columns: tuple[str, ...], key: tuple[str, ...]) -> None:
        self.columns, self.key, self.taken = columns, key, 0
        self.rows: dict[Any, list[tuple[Any, ...]]] = {}

    def read(self, output: Rows) -> Counter[Any]:
        new, self.taken = output[self.taken :], len(output)
        for row in sorted(new, key=lambda row: row["op"] != "-"):
            mine = self.rows.setdefault(tuple(row[name] for name in self.key), [])
            value = tuple(row[name] for name in self.columns)
            if row["op"] == "-":
                assert value in mine, row  # else it was never shown
                mine.remove(value)
            elif row["op"] == "u":
                assert len(mine) == 1 and mine != [value], row
                mine[:] = [value]
            else:
                mine.append(value)
        return Counter(value for mine in self.rows.values() for value in mine)


ALONE = {"left": ("left",), "right": ("right",), "full": ("left", "right"), "anti": ("left",)}
BOTH = ("id", "k", "v", "id_right", "v_right")


def readers() -> dict[str, Reader]:
    found = {f"{how} rows": Reader(BOTH, ("id", "id_right")) for how in HOW}
    for how in ("semi", "anti"):
        found[f"{how} rows"] = Reader(("id", "k", "v"), ("id",))
    found["itself rows"] = Reader(("id", "k", "v", "id_right", "k_right"), ("id", "id_right"))
    for how in ("intersect", "difference"):
        for each in (False, True):
            found[f"{how} {each}"] = Reader(("k", "v"), ("k", "v"))
    return found


def check_stored(driver: Driver, left: Rows, right: Rows) -> None:
    """Nothing is at rest that comes to nothing."""
    manifest, state = driver.engine.manifest, driver.engine.checkpoint.state
    for how in HOW:
        tables = manifest.segments.get(f"{how} join", {})
        for name, rows in (("left", left), ("right", right)):
            segments = [one for shard in tables.get(name, {}).values() for one in shard]
            found = read_segments(state, segments, manifest.files, "expires")
            if found:
                whole = settled(concat(found))
                assert (numbers(whole, "weight") > 0).all()
            kept = [row for row in rows if row["k"] is not None or name in ALONE.get(how, ())]
            assert (numbers(whole, "weight").sum() if found else 0) == len(kept), (how, name)
        for table in KeyedTable(state, tables.get("keys", {}), manifest.files).scan():
            assert (numbers(table, "count.0") + numbers(table, "count.1") > 0).all()
            assert (np.minimum(numbers(table, "count.0"), numbers(table, "count.1")) >= 0).all()


ROW = st.tuples(
    st.sampled_from(["left", "right"]),
    st.integers(0, 4),  # id
    st.sampled_from([None, 1, 2]),  # k
    st.sampled_from([1, 2]),  # v
    st.sampled_from([True, True, False]),  # here
)
BATCHES = st.lists(st.tuples(st.lists(ROW, max_size=8), st.booleans()), min_size=1, max_size=6)


def hold(batches: Any, parallelism: int) -> None:
    now: dict[str, dict[int, Row]] = {"left": {}, "right": {}}
    reading = readers()
    second = 0
    with Driver(build(), parallelism=parallelism, shards=4) as driver:
        for rows, again in batches:
            for side, number, k, v, here in rows:
                second += 1
                row = {"ts": START + timedelta(seconds=second), "id": number, "k": k, "v": v}
                driver.push(side, [row | {"here": here}])
                now[side].pop(number, None)
                if here:
                    now[side][number] = row
            driver.step()
            if again:
                driver.restart()
            left, right = (list(side.values()) for side in now.values())
            for how in HOW:
                found = reading[f"{how} rows"].read(driver.output(f"{how} rows"))
                assert found == joined(left, right, how), how
            pairs = Counter(
                (a["id"], a["k"], a["v"], b["id"], b["k"])
                for a in left
                for b in left
                if a["k"] is not None and a["k"] == b["v"]
            )
            assert reading["itself rows"].read(driver.output("itself rows")) == pairs
            for how in ("intersect", "difference"):
                for each in (False, True):
                    found = reading[f"{how} {each}"].read(driver.output(f"{how} {each}"))
                    assert found == compared(left, right, how, each), (how, each)
            check_stored(driver, left, right)


@settings(max_examples=4, derandomize=True)
@given(BATCHES, st.integers(1, 4))
def test_changes_come_to_what_the_tables_give(batches: Any, parallelism: int) -> None:
    hold(batches, parallelism)


@pytest.mark.long
@settings(max_examples=400)
@given(BATCHES, st.integers(1, 4))
def test_changes_come_to_what_the_tables_give_very_often(batches: Any, parallelism: int) -> None:
    hold(batches, parallelism)

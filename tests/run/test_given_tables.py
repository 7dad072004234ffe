"""Tables that functions give: whatever Arrow types other systems use, and names that are clear."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import millstream as ms
from millstream.run.batches.letters import letters_in
from millstream.state.checkpoint import Checkpoint
from millstream.testing import Driver, run_in_process

RECORDS = [{"k": n} for n in range(4)]
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["x", "y"]))
GIVEN: dict[str, tuple[pa.Array, list[Any]]] = {
    "texts": (pa.array([*"abca"], pa.string_view()), [*"abca"]),
    "bytes": (pa.array([b"a", None] * 2, pa.binary_view()), [b"a", None] * 2),
    "lists": (pa.array([[1], [2, 3]] * 2, pa.list_view(pa.int64())), [[1], [2, 3]] * 2),
    "parts": (
        pa.array([{"q": "x"}] * 4, pa.struct([("q", pa.string_view())])),
        [{"q": "x"}] * 4,
    ),
    "runs": (RUNS, [*"xyyy"]),
    "large lists": (pa.array([["a"]] * 4, pa.large_list(pa.string_view())), [["a"]] * 4),
    "fixed lists": (pa.array([["a"]] * 4, pa.list_(pa.string_view(), 1)), [["a"]] * 4),
    "maps": (pa.array([[(1, "a")]] * 4, pa.map_(pa.int64(), pa.string_view())), [[(1, "a")]] * 4),
    "decimals": (pa.array([Decimal("1.5")] * 4, pa.decimal32(5, 1)), [Decimal("1.5")] * 4),
    "dictionary": (
        pa.DictionaryArray.from_arrays([0, 1, 0, 1], pa.array(["x", "y"], pa.string_view())),
        [*"xyxy"],
    ),
    "unions": (
        pa.UnionArray.from_sparse(
            pa.array([0, 1] * 2, pa.int8()), [pa.array([1, 2, 3, 4]), pa.array([*"abcd"])]
        ),
        [1, "b", 3, "d"],
    ),
    "uuids": (pa.array([bytes(16)] * 4, pa.uuid()), [str(UUID(int=0))] * 4),
}


def given(flow_of: Callable[[ms.Stream], ms.Stream], *batches: list[dict[str, Any]]) -> list[Any]:
    flow = ms.Flow("tables")
    records = flow.source(ms.Generator(tuple, schema="k bigint"), name="in")
    flow_of(records).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for records in batches:
            driver.push("in", records).step()
        return driver.end().output("out")


@pytest.mark.parametrize("kind", GIVEN)
def test_views_and_runs_are_the_values_they_stand_for(kind: str) -> None:
    column, values = GIVEN[kind]
    found = given(lambda rows: rows.map_batches(lambda _: pa.table({"a": column})), RECORDS)
    assert [row["a"] for row in found] == values


BROKEN = pa.Array.from_buffers(
    pa.string(),
    4,
    [None, pa.array([0, 1, 2, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffbc")],
)
FAR: dict[str, pa.Array] = {
    "texts": BROKEN,
    "dates": pa.array([0, 2**31 - 1, 1, 2], pa.date32()),
    "milliseconds": pa.array([0, 2**62, 86_400_000, None], pa.date64()),
    "times": pa.array([0, 2**62, 1, None], pa.timestamp("us", "UTC")),
    "seconds": pa.array([0, 2**60, 1, 2], pa.timestamp("s")),
    "durations": pa.array([0, 2**62, 1, 2], pa.duration("s")),
    "lists": pa.array([[0], [1, 2**31 - 1], [], None], pa.list_(pa.date32())),
}
SINKS = {
    "parquet": lambda rows, out: rows.sink(ms.Parquet(out / "p")),
    "jsonl": lambda rows, out: rows.sink(ms.Jsonl(out / "j")),
    "call": lambda rows, _: rows.sink(ms.Call(lambda row: None)),
    "slates": lambda rows, _: rows.key_by("__k").update(lambda event, slate, ctx: event.value),
    "groups": lambda rows, _: rows.key_by("a", nulls="keep").agg(n=ms.count()).sink(ms.Memory()),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("kind", FAR)
def test_values_that_nobody_can_read_cost_their_records(
    tmp_path: Path, kind: str, sink: str
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"k": {n}}}\n' for n in range(4)))
    flow = ms.Flow("far")
    records = flow.source(ms.Files(tmp_path / "in.jsonl"), name="in")
    made = records.map_batches(lambda table: pa.table({"__k": table["k"], "a": FAR[kind]}))
    SINKS[sink](made, tmp_path)
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1.0)
    assert ledger["map_batches"]["dead"] == 1
    assert [row["k"] for row in map(raw_of, letters_in(Checkpoint(tmp_path / "ck").dead))] == [1]


def raw_of(letter: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(letter["raw"])
    return found


def test_times_of_nanoseconds_are_events() -> None:
    column = pa.array([1, 2_000, 3, None], pa.timestamp("ns", "UTC"))
    got: list[Any] = []
    given(
        lambda rows: (
            rows.map_batches(lambda t: t.append_column("a", column))
            .key_by("k")
            .update(lambda event, slate, ctx: got.append(event.value["a"]))
        ),
        RECORDS,
    )
    assert sorted(at.microsecond for at in got if at is not None) == [0, 0, 2]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()), "month_day_nano_interval"),
        (pa.array([0] * 4, pa.timestamp("us", "Mars/X")), "time zone that nobody knows"),
        (pa.StructArray.from_arrays([pa.array([1] * 4)] * 2, ["x", "x"]), "a name twice"),
    ],
)
def test_types_that_nothing_takes_are_refused_by_their_name(column: Any, why: str) -> None:
    with pytest.raises(ms.RunError, match=f"column 'a' of .*{why}"):
        given(lambda rows: rows.map_batches(lambda _: pa.table({"a": column})), RECORDS)


def test_views_are_keys() -> None:
    column, values = GIVEN["texts"]
    found = given(
        lambda rows: (
            rows.map_batches(lambda _: pa.table({"a": column})).key_by("a").agg(n=ms.count())
        ),
        RECORDS,
    )
    assert {row["a"]: row["n"] for row in found} == Counter(values)


def test_two_columns_of_one_name_are_refused_by_that_name() -> None:
    def double(table: pa.Table) -> pa.Table:
        return pa.table([table["k"], table["k"]], names=["a", "a"])

    with pytest.raises(ms.RunError, match="map_batches gave 2 columns, several of them called 'a'"):
        given(lambda rows: rows.map_batches(double).key_by("a").agg(n=ms.count()), RECORDS)


def test_unsigned_keys_beyond_64_bits_are_keys_beside_small_ones() -> None:
    def unsigned(table: pa.Table) -> pa.Table:
        values = [2**64 - 1 if k == 3 else k for k in table["k"].to_pylist()]
        return pa.table({"a": pa.array(values, pa.uint64())})

    found = given(
        lambda rows: rows.map_batches(unsigned).key_by("a").agg(n=ms.count()),
        RECORDS[:3],
        RECORDS,
    )
    assert {row["a"]: row["n"] for row in found} == {0: 2, 1: 2, 2: 2, 2**64 - 1: 1}


class Longest(ms.Aggregate):
    """With a constructor of its own, which knows nothing of columns."""

    def __init__(self, least: int) -> None:
        self.least = least

    def zero(self) -> int:
        return self.least

    def add(self, state: int, value: dict[str, Any]) -> int:
        return max(state, value["k"])

    def combine(self, left: int, right: int) -> int:
        return max(left, right)


def test_an_aggregate_that_does_not_call_the_constructor_takes_whole_records() -> None:
    found = given(lambda rows: rows.key_by().agg(m=Longest(2)), RECORDS)
    assert [row["m"] for row in found] == [3]

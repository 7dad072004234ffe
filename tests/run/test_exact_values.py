"""Values of random kinds through MapReduce jobs: what comes out is what went in, type for type.

The oracle is MapReduce over a dict of lists in plain Python. Batches and tasks are drawn too: which
values happen to stand in one column must not change any of them.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.ops.mixed import column_of, exactly, together
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)

PLAIN = st.one_of(
    st.integers(-3, 3),
    st.integers(2**53 - 2, 2**53 + 2),
    st.integers(2**63 - 2, 2**70),
    st.sampled_from([0.0, 1.0, 2.5, -0.5, 1e300]),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "a", "1"]),
    st.sampled_from([b"", b"a"]),
    st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("1E+2")]),
    st.sampled_from([date(2024, 1, 2), time(3, 4, 5), timedelta(microseconds=1)]),
    st.sampled_from([datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)]),
    st.sampled_from([{1, 2}, {"a", "b"}, frozenset({1.0}), set()]),
)
VALUES = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), PLAIN, max_size=2),
)


def told(value: Any) -> Any:
    """A value with the types of all that is in it, so that 1, 1.0 and True differ."""
    if isinstance(value, list):
        return ("list", [told(one) for one in value])
    if isinstance(value, dict):
        return ("dict", sorted((name, told(one)) for name, one in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value).__name__, sorted(map(repr, value)))
    if isinstance(value, datetime):  # its zone may have another name
        return ("datetime", value.isoformat())
    return (type(value).__name__, repr(value))


def flow_of(values: list[Any], got: list[Any]) -> ms.Flow:
    class First(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["at"] % 4, values[value["at"]]

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            for value in values:
                yield key, value

    class Second(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield key % 2, value

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            got.append((key, values))
            yield key, values

    flow = ms.Flow("exact")
    source = flow.source(ms.Generator(tuple, time="ts"), name="in")
    first = source.map_reduce(First(), ms.tumbling("4s"))
    first.sink(ms.Memory(), name="first")
    first.select("key", "value").sink(ms.Memory(), name="selected")
    first.map_reduce(Second(), ms.tumbling("1h")).sink(ms.Memory(), name="second")
    return flow


RUNS = (st.lists(VALUES, min_size=1, max_size=16), st.integers(1, 16), st.sampled_from([1, 3]))


@settings(max_examples=10)
@given(*RUNS)
def test_no_value_changes_whatever_the_batches(
    values: list[Any], batch: int, parallelism: int
) -> None:
    check_values(values, batch, parallelism)


@pytest.mark.long
@settings(max_examples=2_000)
@given(*RUNS)
def test_no_value_of_many_changes(values: list[Any], batch: int, parallelism: int) -> None:
    check_values(values, batch, parallelism)


def check_values(values: list[Any], batch: int, parallelism: int) -> None:
    got: list[Any] = []
    rows = [{"ts": START + timedelta(seconds=i), "at": i} for i in range(len(values))]
    with Driver(flow_of(values, got), now=START.timestamp(), parallelism=parallelism) as driver:
        for start in range(0, len(rows), batch):
            driver.push("in", rows[start : start + batch]).step()
        driver.end()
        assert driver.dead == []
        for sink in ("first", "selected"):
            out = [(row["key"], told(row["value"])) for row in driver.output(sink)]
            assert sorted(out) == sorted((at % 4, told(one)) for at, one in enumerate(values))
        lists: dict[int, list[Any]] = {}
        for at, one in enumerate(values):
            lists.setdefault(at % 4 % 2, []).append(told(one))
        found = {key: sorted(map(told, several)) for key, several in got}
        assert found == {key: sorted(several) for key, several in lists.items()}
        second = {row["key"]: told(row["value"]) for row in driver.output("second")}
        assert {key: sorted(several) for key, (_, several) in second.items()} == found


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=i), "at": i} for i in range(count)]


NUMBERS = [1, 2.5, 2**53 + 1, True, 3.0]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_records_after_a_job_keep_their_numbers_apart(batch: int) -> None:
    """Lists, reduce functions and users' aggregates after a job, and the results of these."""

    class Job(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["at"], NUMBERS[value["at"]]

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield key, values[0]

    class Last(ms.Aggregate):
        def zero(self) -> Any:
            return None

        def add(self, state: Any, value: Any) -> Any:
            return value

        def combine(self, left: Any, right: Any) -> Any:
            return right

        def result(self, state: Any) -> Any:
            return state

    flow = ms.Flow("after")
    source = flow.source(ms.Generator(tuple, time="ts"), name="in")
    given = source.map_reduce(Job(), ms.tumbling("1s"))
    whole = given.key_by().window(ms.tumbling("1h"))
    whole.agg(all=ms.collect("value")).sink(ms.Memory(), name="lists")
    each = given.key_by("key").window(ms.tumbling("1s"))
    each.reduce(lambda key, rows, window: {"last": rows[-1]["value"]}).sink(ms.Memory(), name="fn")
    each.agg(last=Last("value")).sink(ms.Memory(), name="agg")
    with Driver(flow, now=START.timestamp(), parallelism=3) as driver:
        rows = rows_of(len(NUMBERS))
        for start in range(0, len(rows), batch):
            driver.push("in", rows[start : start + batch]).step()
        driver.end()
        assert driver.dead == []
        (row,) = driver.output("lists")
        assert list(map(told, row["all"])) == list(map(told, NUMBERS))
        for sink in ("fn", "agg"):
            found = {row["key"]: told(row["last"]) for row in driver.output(sink)}
            assert found == {at: told(one) for at, one in enumerate(NUMBERS)}, sink


class Lines(ms.MapReduce):
    """Pairs as Python writes them, one a line."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield literal_eval(value)

    def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
        yield key, values[0]


def written(path: Path, values: list[Any], sink: Any) -> None:
    (path / "in.txt").write_text("".join(f"{pair!r}\n" for pair in enumerate(values)))
    flow = ms.Flow("files")
    flow.source(ms.Files(path / "in.txt", format="text")).map_reduce(Lines()).sink(sink)
    ledger = run_in_process(flow, path / "ck", parallelism=2)
    assert sum(account["dead"] for account in ledger.values()) == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5, 3], [1.0, 2.5, 3.0]),
        ([[1, 2.5], [3]], [[1.0, 2.5], [3.0]]),
        ([1, 2.5, 2**53 + 1], ["1", "2.5", str(2**53 + 1)]),
    ],
)
def test_parquet_has_one_column_of_numbers(
    tmp_path: Path, values: list[Any], expected: list[Any]
) -> None:
    """What is apart for functions are doubles in files, as long as that loses no digit."""
    written(tmp_path, values, ms.Parquet(tmp_path / "out"))
    files = sorted((tmp_path / "out").glob("part-*"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    found = [row["value"] for row in sorted(rows, key=lambda row: row["key"])]
    assert list(map(told, found)) == list(map(told, expected))


def test_sets_are_lists_in_json_always_in_the_same_order(tmp_path: Path) -> None:
    names = {f"n{at}" for at in range(20)}
    written(tmp_path, [1, names, {"in": {3, 1, 2}}], ms.Jsonl(tmp_path / "out"))
    files = sorted((tmp_path / "out").glob("part-*"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = {row["key"]: row["value"] for row in rows}
    assert found == {0: 1, 1: sorted(names), 2: {"in": [1, 2, 3]}}


def test_columns_below_each_other_change_no_value() -> None:
    parts: list[list[Any]] = [
        [1, 2],
        [2.5],
        [None],
        ["a", 1],
        [{"a": 1}],
        [{"b": 1}],
        [[1]],
        [[2.5], []],
        [Decimal("1.10")],
        [Decimal("1.1")],
        [True],
        [time(1, tzinfo=UTC)],
    ]
    for first in parts:
        for second in parts:
            tables = [exactly({"v": column_of(part, {})}) for part in (first, second)]
            back = together(tables).column("v").to_pylist()
            assert list(map(told, back)) == list(map(told, [*first, *second]))


def test_columns_of_records_follow_sql() -> None:
    """Without the mark, numbers are widened: a sum over them has one type."""
    tables = [pa.table({"v": [1]}), pa.table({"v": [2.5]})]
    assert together(tables).column("v").to_pylist() == [1.0, 2.5]

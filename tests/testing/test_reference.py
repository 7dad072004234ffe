"""The oracle itself, against answers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import reference

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(seconds: float, **columns: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=seconds), **columns}


def flow_of(build: Any, **options: Any) -> ms.Flow:
    flow = ms.Flow("oracle")
    build(flow.source(ms.Generator(tuple, **{"time": "ts", **options}), name="in"))
    return flow


def test_a_sliding_window_holds_each_record_twice() -> None:
    def build(stream: ms.Stream) -> None:
        keyed = stream.key_by("k").window(ms.sliding("10s", "5s"))
        keyed.agg(n=ms.count(), t=ms.sum("v"), z=ms.last("v")).sink(ms.Memory(), name="out")

    rows = [at(1, k="a", v=1), at(7, k="a", v=2), at(2, k=None, v=5)]
    found = reference(flow_of(build), {"in": rows})["out"]
    assert [(row["window_end"] - START).total_seconds() for row in found] == [5, 10, 15]
    assert [(row["n"], row["t"], row["z"]) for row in found] == [(1, 1, 1), (2, 3, 2), (1, 2, 2)]


def test_a_record_in_a_gap_is_in_no_window() -> None:
    def build(stream: ms.Stream) -> None:
        stream.key_by().window(ms.hopping("1s", "10s")).agg(n=ms.count()).sink(
            ms.Memory(), name="out"
        )

    assert reference(flow_of(build), {"in": [at(5)]})["out"] == []


def test_functions_that_fail_cost_their_record() -> None:
    def build(stream: ms.Stream) -> None:
        stream.map(lambda row: {"v": 1 // row["v"]}).sink(ms.Memory(), name="out")

    assert reference(flow_of(build), {"in": [at(0, v=0), at(1, v=1)]})["out"] == [{"v": 1}]


def test_reduce_gets_records_in_the_order_of_time_then_arrival() -> None:
    def build(stream: ms.Stream) -> None:
        stream.key_by().reduce(lambda key, rows, window: "".join(r["v"] for r in rows)).sink(
            ms.Memory(), name="out"
        )

    rows = [at(2, v="d"), at(1, v="b"), at(1, v="c"), at(0, v="a")]
    assert reference(flow_of(build), {"in": rows})["out"] == [{"value": "abcd"}]


def test_mapreduce_jobs_chain_by_key_and_value() -> None:
    class Count(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["w"], 1

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield key, len(values)

    class Swap(Count):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value, key

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield key, sorted(values)

    def build(stream: ms.Stream) -> None:
        stream.map_reduce(Count()).map_reduce(Swap()).sink(ms.Memory(), name="out")

    rows = [at(0, w=word) for word in "abba c".replace(" ", "")]
    assert reference(flow_of(build), {"in": rows})["out"] == [
        {"key": 1, "value": ["c"]},
        {"key": 2, "value": ["a", "b"]},
    ]


def test_batches_make_records_late_or_late_for_some_windows() -> None:
    def build(stream: ms.Stream) -> None:
        result = stream.key_by().window(ms.sliding("10s", "5s")).agg(n=ms.count())
        result.sink(ms.Memory(), name="out")
        result.late().sink(ms.Memory(), name="late")

    batches = [{"in": [at(10, v=0)]}, {"in": [at(6, v=1), at(3, v=2)]}]
    found = reference(flow_of(build, lateness="0s"), batches=batches)
    assert [row["v"] for row in found["late"]] == [2]
    ends = {(row["window_end"] - START).total_seconds(): row["n"] for row in found["out"]}
    assert ends == {15: 2, 20: 1}  # the window to 10 had left when 6 came


def test_what_it_cannot_tell_is_refused() -> None:
    def build(stream: ms.Stream) -> None:
        stream.key_by().window(ms.tumbling("1s")).agg(n=ms.count()).sink(ms.Memory())

    with pytest.raises(ms.ConfigError, match="either inputs or batches"):
        reference(flow_of(build))
    with pytest.raises(ms.ConfigError, match="there is no source 'other'"):
        reference(flow_of(build), {"other": []})
    with pytest.raises(ms.ConfigError, match="needs a source with a time column"):
        reference(flow_of(build, time=None), {"in": [{"v": 1}]})

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
    build(
        flow.source(ms.Generator(tuple, **{"time": "ts", "lateness": "1h", **options}), name="in")
    )
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


def test_late_is_what_lies_too_far_before_what_precedes_it_whatever_the_batches() -> None:
    def build(stream: ms.Stream) -> None:
        result = stream.key_by().window(ms.sliding("10s", "5s")).agg(n=ms.count())
        result.sink(ms.Memory(), name="out")
        result.late().sink(ms.Memory(), name="late")

    rows = [at(10, v=0), at(6, v=1), at(5.9, v=2), at(11, v=3), at(6.5, v=4)]
    flow = flow_of(build, lateness="4s")
    for batches in ([{"in": rows}], [{"in": [row]} for row in rows]):
        found = reference(flow, batches=batches)
        assert [row["v"] for row in found["late"]] == [2, 4]
        ends = {(row["window_end"] - START).total_seconds(): row["n"] for row in found["out"]}
        assert ends == {10: 1, 15: 3, 20: 2}


def seconds(row: dict[str, Any], bound: str) -> float | None:
    return None if row[bound] is None else (row[bound] - START).total_seconds()


def cut(window: Any, rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    """Start, end and the values of every window."""

    def build(stream: ms.Stream) -> None:
        keyed = stream.key_by(*keys).window(window)
        keyed.agg(all=ms.collect("v")).sink(ms.Memory(), name="out")

    found = reference(flow_of(build), {"in": rows})["out"]
    return [(seconds(row, "window_start"), seconds(row, "window_end"), row["all"]) for row in found]


def test_a_session_ends_where_the_next_record_is_a_gap_away() -> None:
    rows = [at(9, k="a", v=4), at(0, k="a", v=1), at(3.9, k="a", v=2), at(7.9, k="a", v=3)]
    rows.append(at(5, k="b", v=5))
    assert cut(ms.session("4s"), rows, "k") == [
        (0, 7.9, [1, 2]),
        (5, 9, [5]),
        (7.9, 13, [3, 4]),
    ]
    assert cut(ms.session("4s"), rows) == [(0, 13, [1, 2, 5, 3, 4])]


def test_a_landmark_grows_where_a_key_got_records() -> None:
    rows = [at(1, k="a", v=1), at(2, k="b", v=2), at(25, k="a", v=3), at(11, k="b", v=4)]
    assert cut(ms.landmark("10s"), rows, "k") == [
        (None, 10, [1]),
        (None, 10, [2]),
        (None, 20, [2, 4]),
        (None, 30, [1, 3]),
    ]


def test_rows_are_counted_in_order_and_the_last_windows_are_unfilled() -> None:
    rows = [at(second, k="a", v=second) for second in (2, 0, 1, 4, 3)] + [at(9, k="b", v=9)]
    micro = 0.000001
    assert cut(ms.count_window(3, 2), rows, "k") == [
        (0, 2 + micro, [0, 1, 2]),
        (2, 4 + micro, [2, 3, 4]),
        (4, 4 + micro, [4]),
        (9, 9 + micro, [9]),
    ]
    assert [values for _, _, values in cut(ms.count_window(1, 4), rows)] == [[0], [4]]


def test_a_record_is_in_the_window_of_bytes_in_which_it_begins() -> None:
    rows = [at(0, v="é"), at(1, v=""), at(2, v=None), at(3, v="xx")]  # begin at 0, 10, 18 and 26
    found = [values for _, _, values in cut(ms.bytes_window(10), rows)]
    assert found == [["é"], ["", None], ["xx"]]
    assert [values for _, _, values in cut(ms.bytes_window(1, 18), rows)] == [["é"], [None]]


def test_other_windows_chain_and_take_jobs_and_functions() -> None:
    class Total(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["k"], value["v"]

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield key, (sum(values), window.start is None)

    def build(stream: ms.Stream) -> None:
        stream.map_reduce(Total(), ms.landmark("10s")).sink(ms.Memory(), name="job")
        pairs = stream.key_by("k").window(ms.count_window(2)).reduce(lambda k, rows, w: len(rows))
        sessions = pairs.key_by().window(ms.session("5s"))
        sessions.agg(n=ms.sum("value")).sink(ms.Memory(), name="chained")

    rows = [at(second, k="a", v=second) for second in (0, 1, 5, 30)]
    found = reference(flow_of(build), {"in": rows})
    assert [row["value"] for row in found["job"]] == [(6, True), (36, True)]
    ends = [(seconds(row, "window_start"), seconds(row, "window_end")) for row in found["chained"]]
    assert ends == [(1, 6), (30, 35)]


def test_early_results_and_changes_are_given_as_they_end() -> None:
    def build(stream: ms.Stream) -> None:
        keyed = stream.key_by()
        early = keyed.window(ms.tumbling("10s"), emit="early", every_rows=1).agg(n=ms.count())
        early.where("final").sink(ms.Memory(), name="early")
        delta = keyed.window(ms.tumbling("10s"), emit="delta").agg(n=ms.count())
        delta.sink(ms.Memory(), name="delta")
        further = delta.key_by().window(ms.tumbling("1m")).agg(t=ms.sum("n"))
        further.sink(ms.Memory(), name="further")

    found = reference(flow_of(build), {"in": [at(1), at(12), at(2)]})
    assert [(row["n"], row["final"]) for row in found["early"]] == [(2, True), (1, True)]
    assert all("revision" not in row for row in found["early"])
    assert [row["n"] for row in found["delta"]] == [2, 1]
    assert all("op" not in row for row in found["delta"])
    assert [row["t"] for row in found["further"]] == [3]


def refused(build: Any, says: str) -> None:
    with pytest.raises(ms.ConfigError, match=says):
        reference(flow_of(build), {"in": [at(0, k="a", v=[1])]})


def test_other_windows_it_cannot_tell_are_refused() -> None:
    class Job(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield 1, 1

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield 1, 1

    def early(stream: ms.Stream) -> ms.Stream:
        keyed = stream.key_by().window(ms.tumbling("1s"), emit="early", every_rows=1)
        return keyed.agg(n=ms.count())

    def changes(stream: ms.Stream) -> ms.Stream:
        return stream.key_by().window(ms.tumbling("1s"), emit="delta").agg(n=ms.count())

    refused(lambda s: s.map_reduce(Job(), ms.bytes_window(9)).sink(ms.Memory()), "bytes a pair")
    refused(
        lambda s: s.key_by().window(ms.bytes_window(9)).agg(n=ms.count()).sink(ms.Memory()),
        "bytes column 'v' has",
    )
    refused(lambda s: early(s).where("revision = 0").sink(ms.Memory()), "column 'revision'")
    refused(lambda s: changes(s).select("n", "op").sink(ms.Memory()), "column 'op'")


def test_what_it_cannot_tell_is_refused() -> None:
    def build(stream: ms.Stream) -> None:
        stream.key_by().window(ms.tumbling("1s")).agg(n=ms.count()).sink(ms.Memory())

    with pytest.raises(ms.ConfigError, match="either inputs or batches"):
        reference(flow_of(build))
    with pytest.raises(ms.ConfigError, match="there is no source 'other'"):
        reference(flow_of(build), {"other": []})
    with pytest.raises(ms.ConfigError, match="needs a source with a time column"):
        reference(flow_of(build, time=None), {"in": [{"v": 1}]})


# -- participants --------------------------------------------------------------------------------


def late_and_counted(inputs: Any, **options: Any) -> tuple[list[int], dict[str, int]]:
    flow = ms.Flow("oracle")
    source = ms.Files("in/", "json", schema="ts timestamp, k string, v int", time="ts", **options)
    windows = flow.source(source, name="in").key_by("k").window(ms.tumbling("1m"))
    counted = windows.agg(n=ms.count())
    counted.sink(ms.Memory(), name="out")
    counted.late().sink(ms.Memory(), name="late")
    found = reference(flow, {"in": inputs})
    return [row["v"] for row in found["late"]], {row["k"]: row["n"] for row in found["out"]}


def test_a_file_is_late_by_what_precedes_in_it_only() -> None:
    ahead = [at(50, k="a", v=1), at(39, k="a", v=2), at(40, k="a", v=3)]
    behind = [at(5, k="b", v=4), at(16, k="b", v=5), at(5, k="b", v=6)]
    files = {"a.json": ahead, "b.json": behind}
    assert late_and_counted(files, lateness="10s") == ([6, 2], {"a": 2, "b": 2})
    assert late_and_counted(behind + ahead, lateness="10s") == ([6, 2], {"a": 2, "b": 2})
    assert late_and_counted(ahead + behind, lateness="10s") == ([4, 6, 5, 2], {"a": 2})
    assert late_and_counted(files) == ([], {"a": 3, "b": 3})


def test_a_participant_by_a_column_goes_through_files_in_the_order_of_their_first_times() -> None:
    one = [at(20, k="a", v=1), at(30, k="b", v=2)]
    other = [at(10, k="b", v=3), at(50, k="a", v=4), at(5, k="b", v=5), at(0, k="b", v=6)]
    found = late_and_counted({"1": one, "2": other}, lateness="5s", participant="k")
    assert found == ([6, 1], {"a": 1, "b": 3})  # "2" begins first, so "a" is at 50 before its 20

"""Sliding over panes by blocks and by two stacks gives what recomputing every window gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.ops.aggregates.grid import find_runs
from millstream.ops.aggregates.holding import ObjectKernel, gather_lists
from millstream.ops.chunks import Chunk
from millstream.ops.times.spans import NOTHING_CLOSED, Span
from millstream.ops.windows.closing import close
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import merge_panes, prepare
from millstream.testing.laws import alike
from millstream.testing.reference import aggregate

BUILTINS = {
    "count": ms.count(),
    "count_x": ms.count("x"),
    "sum": ms.sum("x"),
    "mean": ms.mean("x"),
    "var": ms.var("x"),
    "std": ms.std("x"),
    "min": ms.min("x"),
    "max": ms.max("x"),
    "first": ms.first("x"),
    "last": ms.last("x"),
    "collect": ms.collect("x"),
}
EVERYTHING = 2**61
SPANS = [(1, 1), (4, 1), (4, 2), (5, 3), (3, 5), (12, 12), (100, 1), (6, 4)]


def slide(rows: list[tuple[int, int, Any]], size: int, step: int) -> dict[tuple[int, int], Any]:
    """(key, window end) -> results of all built-ins over rows of (key, ts, x), by the engine."""
    ts = np.array([row[1] for row in rows], np.int64)
    table = pa.table({"k": [row[0] for row in rows], "x": pa.array([row[2] for row in rows])})
    chunk = Chunk(table, ts, np.arange(len(rows)), 0)
    measures = tuple(agg.measure(name) for name, agg in BUILTINS.items())
    job = WindowJob("job", ("k",), Span(size, step), measures)
    prepared = prepare(Family("all", (job,)), chunk, {"job": NOTHING_CLOSED}, 8)
    if prepared.panes is None:
        return {}
    panes = merge_panes(Family("all", (job,)), prepared.panes)
    out, *_ = close(job, panes, prepared.values, NOTHING_CLOSED, EVERYTHING, 0)
    return {
        (row["k"], int(end) + 1): {name: row[name] for name in BUILTINS}
        for row, end in zip(out.table.to_pylist(), out.ts, strict=True)
    }


def naive(rows: list[tuple[int, int, Any]], size: int, step: int) -> dict[tuple[int, int], Any]:
    """The same, window by window."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for key, ts, x in sorted(rows, key=lambda row: row[1]):
        start = ts // step * step
        while start > ts - size:
            groups.setdefault((key, start + size), []).append({"x": x})
            start -= step
    return {
        at: {name: aggregate(agg, found) for name, agg in BUILTINS.items()}
        for at, found in groups.items()
    }


def check(rows: list[tuple[int, int, Any]], size: int, step: int) -> None:
    scale = max((abs(x) for _, _, x in rows if x is not None and x == x), default=0.0) ** 2
    found, expected = slide(rows, size, step), naive(rows, size, step)
    assert found.keys() == expected.keys()
    for at, results in expected.items():
        assert alike(found[at], results, 1e-12, scale), (at, found[at], results)


numbers = st.one_of(
    st.none(), st.just(float("nan")), st.floats(-1e3, 1e3, allow_nan=False, width=32)
)
some_rows = st.lists(st.tuples(st.integers(0, 2), st.integers(-40, 40), numbers), max_size=30)


@settings(max_examples=30, derandomize=True)
@given(some_rows, st.sampled_from(SPANS))
def test_blocks_give_what_recomputing_gives(rows: Any, span: tuple[int, int]) -> None:
    check(rows, *span)


@pytest.mark.long
@settings(max_examples=3_000)
@given(some_rows, st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_blocks_give_what_recomputing_gives_at_length(rows: Any, span: tuple[int, int]) -> None:
    check(rows, *span)


@pytest.mark.parametrize("span", SPANS)
def test_a_single_row(span: tuple[int, int]) -> None:
    check([(0, -1, 2.5)], *span)


def test_whole_numbers_stay_whole() -> None:
    found = slide([(0, 0, 1), (0, 1, 2)], 2, 1)[0, 2]
    assert (found["sum"], found["min"], found["max"]) == (3, 1, 2)
    assert all(isinstance(found[name], int) for name in ("sum", "min", "max", "first"))


def test_texts_have_extremes_and_edges() -> None:
    table = pa.table({"k": [1, 1, 1], "x": ["b", None, "a"]})
    chunk = Chunk(table, np.array([0, 1, 2]), np.arange(3), 0)
    aggs = {"lo": ms.min("x"), "hi": ms.max("x"), "end": ms.last("x"), "all": ms.collect("x")}
    measures = tuple(agg.measure(name) for name, agg in aggs.items())
    job = WindowJob("job", ("k",), Span(10, 10), measures)
    prepared = prepare(Family("all", (job,)), chunk, {"job": NOTHING_CLOSED}, 8)
    out, *_ = close(job, prepared.panes, prepared.values, NOTHING_CLOSED, EVERYTHING, 0)
    (row,) = out.table.to_pylist()
    assert {name: row[name] for name in aggs} == {
        "lo": "a",
        "hi": "b",
        "end": "a",
        "all": ["b", None, "a"],
    }


def test_a_huge_gap_costs_no_memory() -> None:
    far = 10**15
    check([(0, -far, 1.0), (0, 0, 2.0), (0, far, 3.0), (1, far, 4.0)], 100, 1)


def test_runs_are_split_where_no_window_reaches_across() -> None:
    panes = np.array([-10, -8, 0, 3, 4])
    runs = find_runs(Span(3, 1), np.zeros(5, np.int64), panes, NOTHING_CLOSED, EVERYTHING)
    assert runs.first.tolist() == [-10, 0]
    assert runs.last.tolist() == [-8, 4]


def test_only_windows_that_close_now_are_given() -> None:
    keys, panes = np.zeros(3, np.int64), np.array([-1, 0, 5])
    runs = find_runs(Span(2, 1), keys, panes, 0, 2)
    key, end, low, high = runs.slices(panes)
    assert key.tolist() == [0, 0]
    assert end.tolist() == [1, 2]
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [(0, 2), (1, 2)]


def test_sums_do_not_depend_on_batches() -> None:
    """Blocks are aligned to pane numbers: rows before a window do not change how it is added."""
    rows = [(0, ts, 0.1 * ts) for ts in range(50)]
    all_of_them, the_end = slide(rows, 7, 1), slide(rows[20:], 7, 1)
    assert all_of_them[0, 40]["sum"] == the_end[0, 40]["sum"]


# -- two stacks -----------------------------------------------------------------------------------


def joined() -> tuple[ObjectKernel, list[int]]:
    calls: list[int] = []

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        calls.append(1)
        left.extend(right)  # in place: the engine must hand out copies
        return left

    return ObjectKernel("joined", list, lambda s, v: [*s, v], combine, tuple), calls


def states(kernel: ObjectKernel, count: int) -> pa.Array:
    lifted, bad = kernel.lift(list(range(count)), np.arange(count), count)
    assert not bad
    return lifted


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20])
def test_two_stacks_keep_order_and_states_apart(width: int) -> None:
    kernel, _ = joined()
    low = np.arange(20)
    high = np.minimum(low + width, 20)
    found = [kernel.finish(one) for one in kernel.slide(states(kernel, 20), low, high)]
    expected = [tuple(range(a, b)) for a, b in zip(low, high, strict=True)]
    assert found == expected


def test_two_stacks_start_over_after_a_gap() -> None:
    kernel, _ = joined()
    low, high = np.array([0, 1, 5, 6]), np.array([2, 3, 7, 8])
    found = [kernel.finish(one) for one in kernel.slide(states(kernel, 8), low, high)]
    assert found == [(0, 1), (1, 2), (5, 6), (6, 7)]


def test_two_stacks_combine_about_thrice_per_row_however_wide_the_window() -> None:
    kernel, calls = joined()
    low = np.arange(1000)
    kernel.slide(states(kernel, 1100), low, low + 100)
    assert len(calls) < 3.2 * 1100


def test_a_value_on_which_add_fails_is_given_back() -> None:
    kernel = ObjectKernel("k", int, lambda s, v: s + 1 // v, lambda a, b: a + b, int)
    _, bad = kernel.lift([1, 0, None, 1], np.array([0, 0, 0, 1]), 2)
    assert bad == {1: "ZeroDivisionError: integer division or modulo by zero"}


def test_lists_of_windows_share_their_values() -> None:
    values = pa.array(["a", None, "c"])
    lists = gather_lists(values, np.array([0, 1, 2]), np.array([2, 3, 2]))
    assert lists.to_pylist() == [["a", None], [None, "c"], []]

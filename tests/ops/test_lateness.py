"""Which records are late follows from positions alone; compared with the definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.ops.chunks import Chunk
from millstream.ops.times.lateness import Extent, Watch, out_of_order
from millstream.ops.times.progress import BEGIN, Horizon, SourceProgress

FUTURE = 1_000
Rows = list[tuple[str, int]]  # participant, time

rows_of = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40)
cuts_of = st.lists(st.integers(0, 40), max_size=5)


def chunk_of(rows: Rows, start: int) -> Chunk:
    ts = np.array([at for _, at in rows], np.int64)
    table = pa.table({"who": pa.array([who for who, _ in rows], pa.string())})
    return Chunk(table, ts, np.arange(start, start + len(rows)), 0)


def pieces(rows: Rows, cuts: list[int]) -> list[tuple[int, Rows]]:
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    return [(low, rows[low:high]) for low, high in pairwise(bounds)]


def late_by_definition(rows: Rows, lateness: int, alone: bool) -> list[bool]:
    """More than the lateness before the latest time that precedes it in its own participant."""
    found = []
    for index, (who, at) in enumerate(rows):
        before = [t for other, t in rows[:index] if (alone or other == who) and t <= FUTURE]
        found.append(bool(before) and at < max(before) - lateness)
    return found


def dues(watch: Watch, rows: Rows, start: int, file: int | None, after: int | None) -> list[int]:
    chunk = chunk_of(rows, start)
    due = watch.mark(chunk, (file or 0, start), file, after)
    return (chunk.ts if due is None else due).tolist()


def marks(watch: Watch, rows: Rows, start: int, file: int | None, after: int | None) -> list[bool]:
    found = dues(watch, rows, start, file, after)
    return [due > at for due, (_, at) in zip(found, rows, strict=True)]


@given(rows_of, cuts_of, st.integers(0, 20))
def test_late_is_what_the_definition_says_whatever_the_pieces(
    rows: Rows, cuts: list[int], lateness: int
) -> None:
    watch = Watch(SourceProgress(lateness), None, FUTURE)
    found = [late for low, some in pieces(rows, cuts) for late in marks(watch, some, low, 3, None)]
    assert found == late_by_definition(rows, lateness, alone=True)


@given(rows_of, cuts_of, st.integers(0, 20))
def test_bounded_participants_are_judged_by_their_own_past(
    rows: Rows, cuts: list[int], lateness: int
) -> None:
    watch = Watch(SourceProgress(lateness, undeclared=True), "who", FUTURE)
    found = [
        late for low, some in pieces(rows, cuts) for late in marks(watch, some, low, None, None)
    ]
    assert found == late_by_definition(rows, lateness, alone=False)


def simulate(rows: Rows, lateness: int, declared: frozenset[str]) -> list[bool]:
    """Records read one at a time: somebody new joins at the watermark, which never goes back."""
    reached: dict[str, int] = {}  # up to where each takes nothing more
    watermark = BEGIN
    found = []
    for who, at in rows:
        known = who in reached or who in declared
        late = at < (reached.get(who, BEGIN) if known else watermark)
        if at <= FUTURE and not late:
            reached[who] = max(at - lateness, reached.get(who, BEGIN if known else watermark))
        if reached and not declared - reached.keys():
            watermark = max(watermark, min(reached.values()))
        found.append(late)
    return found


some_in_the_future = st.one_of(st.integers(0, 60), st.just(FUTURE + 1))
rows_of_many = st.lists(st.tuples(st.sampled_from("abcde"), some_in_the_future), max_size=40)


@given(rows_of_many, cuts_of, st.integers(0, 20), st.sets(st.sampled_from("ab")))
def test_new_participants_join_at_the_watermark_of_the_others(
    rows: Rows, cuts: list[int], lateness: int, names: set[str]
) -> None:
    declared = frozenset(names)
    watch = Watch(SourceProgress(lateness, awaited=declared), "who", FUTURE)
    found = [
        late for low, some in pieces(rows, cuts) for late in marks(watch, some, low, None, None)
    ]
    assert found == simulate(rows, lateness, declared)


@given(rows_of_many, cuts_of, st.integers(0, 20), st.booleans())
@example([("a", 20), ("a", 15), ("a", 0)], [1], 5, False)  # late either way, but when does it count
@example([("a", 20), ("a", 15), ("a", 0)], [1], 5, True)
def test_pieces_in_several_tasks_agree_or_are_found_out(
    rows: Rows, cuts: list[int], lateness: int, by_value: bool
) -> None:
    progress = SourceProgress(lateness)
    column = "who" if by_value else None
    together = Watch(progress, column, FUTURE)
    expected = [
        due for low, some in pieces(rows, cuts) for due in dues(together, some, low, None, None)
    ]
    found: list[int] = []
    extents: list[Extent] = []
    for low, some in pieces(rows, cuts):
        alone = Watch(progress, column, FUTURE)  # a task of its own: it knows nothing of the others
        found.extend(dues(alone, some, low, None, None))
        extents.extend(alone.extents.values())
    assert found == expected or out_of_order(extents, progress)


def test_input_in_order_within_its_lateness_is_never_read_twice() -> None:
    progress = SourceProgress(5)
    extents = []
    for low, times in ((0, [1, 3, 6]), (3, [4, 7, 9]), (6, [5, 12])):
        watch = Watch(progress, None, FUTURE)
        assert not any(marks(watch, [("a", at) for at in times], low, 1, None))
        extents.extend(watch.extents.values())
    assert not out_of_order(extents, progress)


def test_what_was_committed_before_counts() -> None:
    watch = Watch(SourceProgress(5, horizon=Horizon(files={4: 50})), None, FUTURE)
    assert marks(watch, [("a", 44), ("a", 45)], 0, 4, 50) == [True, False]
    assert watch.reached.files == {4: 45}
    assert Watch(SourceProgress(5, latest={"": 50}), None, FUTURE).mark(
        chunk_of([("a", 44)], 0), (0, 0), None, None
    ) == pytest.approx([45])


def test_a_time_far_ahead_of_the_clock_makes_nothing_late() -> None:
    watch = Watch(SourceProgress(5), None, FUTURE)
    assert marks(watch, [("a", 10), ("a", FUTURE + 1), ("a", 8)], 0, 1, None) == [False] * 3
    assert watch.reached.top == 10


def test_nothing_is_late_by_arrival_or_without_a_lateness() -> None:
    rows = [("a", 50), ("a", 1)]
    by_arrival = Watch(SourceProgress(0, horizon=Horizon(clock=9)), None, FUTURE)
    assert marks(by_arrival, rows, 0, None, None) == [False, False]
    assert marks(Watch(SourceProgress(None), None, FUTURE), rows, 0, 1, None) == [False, False]


def test_a_late_record_counts_when_its_participant_has_come_so_far() -> None:
    watch = Watch(SourceProgress(5), None, FUTURE)
    due = watch.mark(chunk_of([("a", 50), ("a", 1), ("a", 60), ("a", 2)], 0), (0, 0), 1, None)
    assert due is not None
    assert due.tolist() == [50, 45, 60, 55]

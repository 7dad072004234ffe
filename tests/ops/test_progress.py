"""Watermarks follow from what was seen, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.times.progress import (
    BEGIN,
    END,
    Horizon,
    Reached,
    SourceProgress,
    merge_reached,
)
from millstream.ops.times.spans import NOTHING_CLOSED, Span


def test_nothing_seen_holds_everything_back() -> None:
    assert SourceProgress(lateness=5).watermark() == BEGIN


def test_the_watermark_is_the_latest_time_less_the_lateness() -> None:
    assert SourceProgress(lateness=5).seen(Reached(100, {"": 100})).watermark() == 95


def test_an_earlier_time_does_not_move_it_back() -> None:
    assert (
        SourceProgress(lateness=0)
        .seen(Reached(100, {"": 100}))
        .seen(Reached(50, {"": 50}))
        .watermark()
        == 100
    )


def test_the_slowest_participant_holds_it_back() -> None:
    progress = SourceProgress(lateness=0).seen(Reached(100, {"a": 100, "b": 10}))
    assert progress.watermark() == 10
    assert progress.holder() == "b"


def test_an_idle_participant_does_not_and_comes_back_when_seen() -> None:
    progress = SourceProgress(lateness=0, latest={"a": 100, "b": 10}, idle=frozenset({"b"}))
    assert progress.watermark() == 100
    assert progress.seen(Reached(20, {"b": 20})).watermark() == 20


def test_a_complete_source_waits_for_its_end() -> None:
    assert SourceProgress(lateness=None, latest={"": 100}).watermark() == BEGIN
    assert SourceProgress(lateness=None, latest={"": 100}, ended=True).watermark() == END


def test_the_clock_is_the_progress_of_arrival_time() -> None:
    assert SourceProgress(lateness=3, horizon=Horizon(clock=50)).watermark() == 47


def test_a_silent_source_holds_nothing_until_it_is_seen() -> None:
    progress = SourceProgress(lateness=0, silent=True)
    assert progress.watermark() is None
    assert progress.seen(Reached(7, {"": 7})).watermark() == 7


def test_reports_of_tasks_merge_to_the_latest() -> None:
    parts = [
        {"s": Reached(9, {"a": 1, "b": 9}, {3: 4})},
        {"s": Reached(5, {"a": 5}, {3: 2}), "t": Reached(2, {"": 2})},
    ]
    assert merge_reached(parts) == {
        "s": Reached(9, {"a": 5, "b": 9}, {3: 4}),
        "t": Reached(2, {"": 2}),
    }


def test_files_that_go_on_and_files_not_begun_hold_the_watermark() -> None:
    going_on = SourceProgress(lateness=2, horizon=Horizon(files={0: 50, 1: 70}))
    assert going_on.watermark() == 48
    assert going_on.holder() == 0
    moved = going_on.seen(Reached(90, files={0: 80, 7: 90}))  # 7 was read to its end
    assert moved.watermark() == 68
    unread = SourceProgress(lateness=2, horizon=Horizon(unread=60, files={0: 90}))
    assert unread.watermark() == 58


def test_declared_participants_hold_everything_until_each_was_seen() -> None:
    waiting = SourceProgress(lateness=0, awaited=frozenset({"a", "b"})).seen(Reached(5, {"a": 5}))
    assert waiting.watermark() == BEGIN
    assert waiting.holder() == "b"
    assert waiting.seen(Reached(4, {"b": 4})).watermark() == 4


def test_bounded_input_with_undeclared_participants_waits_for_its_end() -> None:
    progress = SourceProgress(lateness=0, undeclared=True).seen(Reached(5, {"a": 5}))
    assert progress.watermark() == BEGIN


@pytest.mark.parametrize(
    ("span", "watermark", "end"),
    [
        (Span(10, 10), 9, 0),
        (Span(10, 10), 10, 1),
        (Span(10, 10), -1, -1),
        (Span(10, 5), 14, 2),
        (Span(3, 7), 2, -4),  # panes of 1: windows end at 3, 10, ... and at -4
        (Span(3, 7), 3, 3),
        (Span(10, 10), BEGIN, NOTHING_CLOSED),
        (Span(0, 0), 10**9, NOTHING_CLOSED),
    ],
)
def test_windows_close_at_the_watermark(span: Span, watermark: int, end: int) -> None:
    assert span.closes_at(watermark) == end


def test_results_to_come_are_not_before_the_output_watermark() -> None:
    for size, slide in [(10, 10), (10, 3), (3, 7)]:
        span = Span(size, slide)
        for watermark in range(-30, 30):
            closed = span.closes_at(watermark)
            next_result = (closed + span.step) * span.pane - 1
            assert span.output_watermark(watermark) == next_result >= watermark - size - 1
            assert next_result + 1 > watermark


def test_gaps_between_hopping_windows_are_not_covered() -> None:
    span = Span(3, 7)
    ts = np.arange(-14, 14)
    covered = span.covered(span.pane_of(ts))
    assert ts[covered].tolist() == [-14, -13, -12, -7, -6, -5, 0, 1, 2, 7, 8, 9]

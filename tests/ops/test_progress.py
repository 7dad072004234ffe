"""Watermarks follow from what was seen, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.progress import BEGIN, END, SourceProgress, lowest, merge_latest
from millstream.ops.spans import NOTHING_CLOSED, Span


def test_nothing_seen_holds_everything_back() -> None:
    assert SourceProgress(lateness=5).watermark() == BEGIN


def test_the_watermark_is_the_latest_time_less_the_lateness() -> None:
    assert SourceProgress(lateness=5).seen({"": 100}).watermark() == 95


def test_an_earlier_time_does_not_move_it_back() -> None:
    assert SourceProgress(lateness=0).seen({"": 100}).seen({"": 50}).watermark() == 100


def test_the_slowest_participant_holds_it_back() -> None:
    progress = SourceProgress(lateness=0).seen({"a": 100, "b": 10})
    assert progress.watermark() == 10
    assert progress.holder() == "b"


def test_an_idle_participant_does_not_and_comes_back_when_seen() -> None:
    progress = SourceProgress(lateness=0, latest={"a": 100, "b": 10}, idle=frozenset({"b"}))
    assert progress.watermark() == 100
    assert progress.seen({"b": 20}).watermark() == 20


def test_a_complete_source_waits_for_its_end() -> None:
    assert SourceProgress(lateness=None, latest={"": 100}).watermark() == BEGIN
    assert SourceProgress(lateness=None, latest={"": 100}, ended=True).watermark() == END


def test_the_clock_is_the_progress_of_arrival_time() -> None:
    assert SourceProgress(lateness=3, clock=50).watermark() == 47


def test_a_silent_source_holds_nothing_until_it_is_seen() -> None:
    progress = SourceProgress(lateness=0, silent=True)
    assert progress.watermark() is None
    assert progress.seen({"": 7}).watermark() == 7


def test_reports_of_tasks_merge_to_the_latest() -> None:
    parts = [{"s": {"a": 1, "b": 9}}, {"s": {"a": 5}, "t": {"": 2}}]
    assert merge_latest(parts) == {"s": {"a": 5, "b": 9}, "t": {"": 2}}


def test_the_lowest_of_those_that_hold() -> None:
    assert lowest([5, None, 3]) == 3
    assert lowest([None]) == BEGIN


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

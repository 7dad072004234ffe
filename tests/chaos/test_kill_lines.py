"""Killed at any moment and started again, programs of lines leave exactly the lines they should."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millstream.run.faults import POINTS
from tests import prepared
from tests.adapters.programs import lines_in

APP = Path(__file__).parent / "apps" / "lines.py"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SIZE, SLIDE = timedelta(minutes=2), timedelta(minutes=1)
EVENTS = [(START + timedelta(seconds=n), f"word{n * n % 7}") for n in range(300)]


def run(place: Path, window: str, crash: str | None = None) -> int:
    environment = {**os.environ, **({"MILLSTREAM_CRASH_AT": crash} if crash else {})}
    root = Path(__file__).parents[2]
    return prepared.run(str(APP), str(place), window, cwd=root, env=environment)[0]


def expected(window: str) -> Counter[bytes]:
    """By definition, from the events themselves."""
    if window == "whole":
        words = Counter(word for _, word in EVENTS)
        return Counter(f"{word}\t{number}".encode() for word, number in words.items())
    found: Counter[bytes] = Counter()
    end = START + SLIDE
    while end - SIZE < EVENTS[-1][0]:
        words = Counter(word for ts, word in EVENTS if end - SIZE <= ts < end)
        bounds = "".join(f"{one:%Y-%m-%dT%H:%M:%SZ}\t" for one in (end - SIZE, end))
        found.update(f"{bounds}{word}\t{number}".encode() for word, number in words.items())
        end += SLIDE
    return found


SOME = ("2m,1m", "half-published:1")
ALL = [
    # Over the whole input only the last batch has anything to publish.
    (window, "half-published:1+" if point == "half-published" else f"{point}:{1 + number % 2}")
    for window in ("2m,1m", "whole")
    for number, point in enumerate(POINTS)
]


@pytest.mark.parametrize(
    ("window", "crash"),
    [SOME, *(pytest.param(*one, marks=pytest.mark.long) for one in ALL if one != SOME)],
)
def test_a_killed_program_of_lines_goes_on(window: str, crash: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for half in (0, 1):
        lines = [f"{ts:%Y-%m-%dT%H:%M:%SZ} {word}\n" for ts, word in EVENTS[half::2]]
        (tmp_path / "in" / f"{half}.log").write_text("".join(lines))
    assert run(tmp_path, window, crash) == -signal.SIGKILL
    assert run(tmp_path, window) == 0
    assert lines_in(tmp_path / "out") == expected(window)

"""Running programs of lines in this process, for tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.adapters.flows import COUNTERS, Reading, build_flow, parse_window
from millstream.adapters.lines import Stage
from millstream.testing import run_in_process


def run_stages(
    stages: Sequence[Stage],
    inputs: Sequence[str | Path],
    place: Path,
    *,
    window: str | None = None,
    **reading: Any,
) -> Counter[bytes]:
    """The lines a program gives, as a multiset."""
    given = Reading([str(one) for one in inputs], **reading)
    span = None if window is None else parse_window(window)
    flow = build_flow("program", stages, given, place / "out", span)
    run_in_process(flow, place / "checkpoint")
    return lines_in(place / "out")


def lines_in(directory: Path) -> Counter[bytes]:
    """All lines of the files of a directory."""
    parts = sorted(directory.glob("part-*"))
    return Counter(line for part in parts for line in part.read_bytes().split(b"\n")[:-1])


def counted(place: Path) -> Counter[tuple[str, str, str]]:
    """What a program counted."""
    amounts: Counter[tuple[str, str, str]] = Counter()
    for part in (place / "out" / COUNTERS).glob("part-*"):
        for line in part.read_text().splitlines():
            one = json.loads(line)
            amounts[one["step"], one["group"], one["counter"]] += one["amount"]
    return amounts

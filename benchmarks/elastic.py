"""Claim: workers that come, go and slow down hardly hold a flow up, and change no answer.

A flow on a standalone cluster of Spark on this machine, two workers with a core each. A third one
comes while it runs; then the first is killed; then the second is let run for a tenth of the time
(SIGSTOP and SIGCONT in turns), and backup tasks do its work. The peer is the same flow before any
of that. All windows are compared with counts made while the records were.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common import goal, markdown, workspace

TIMES = 1.5
UNDISTURBED = "undisturbed"


def run(quick: bool = False) -> dict[str, Any]:
    """One run; a quick one is the same."""
    from tests.chaos.test_elastic import run_with_changes

    with workspace("elastic") as work:
        told = run_with_changes(work)
    figures: dict[str, Any] = {
        "batches": {
            phase: [round(s, 3) for s in several] for phase, several in told.seconds.items()
        },
        "tasks": told.tasks,
        "agree": told.exact,
    }
    print(f"  {figures}", flush=True)
    usual = statistics.median(told.seconds[UNDISTURBED])
    figures["goals"] = []
    for phase, several in told.seconds.items():
        if phase != UNDISTURBED:
            times = statistics.median(several) / usual
            what = f"batch with {phase} beside an undisturbed one"
            figures["goals"].append(goal(what, f"at most {TIMES} times", times, times <= TIMES))
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for the page."""
    rows = [
        [phase, len(several), statistics.median(several), max(several)]
        for phase, several in figures["batches"].items()
    ]
    return markdown(["workers", "batches", "median, s", "longest, s"], rows)

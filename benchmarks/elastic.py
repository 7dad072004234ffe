"""Claim: workers that come, go and slow down hardly hold a flow up, and change no answer.

A flow on a standalone cluster of Spark on this machine, with workers of a core each: two at first,
then a third, of which one is let run for a tenth of the time (SIGSTOP and SIGCONT in turns) and
then as before; one is killed, one of the two that are left is slowed down again, and killed, so
that one is alone. The peer is the same flow before any of that. All windows are compared with
counts made while the records were. A phase has the batches that begin and end in it: none is begun
while a worker comes.

A batch takes records for the cores that keep up, so its time alone would say little: what a record
takes is compared too. One worker alone is the floor of two of which one hardly works. It needs up
to twice as long for a record as both of them, whatever the engine does: that figure is given as
well.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.common import goal, markdown, workspace

if TYPE_CHECKING:
    from tests.chaos.test_elastic import Done

TIMES = 1.5


def run(quick: bool = False) -> dict[str, Any]:
    """One run; a quick one is the same."""
    from tests.chaos import test_elastic as elastic

    with workspace("elastic") as work:
        told = elastic.run_with_changes(work)
    phases = {phase: figures_of(batches) for phase, batches in told.batches.items()}
    figures: dict[str, Any] = {
        "phases": phases,
        "batches until a worker that was slow had tasks again": told.until_back,
        "agree": told.exact,
    }
    print(f"  {figures}", flush=True)
    usual = elastic.UNDISTURBED
    compared = [
        ("s", elastic.ONE_MORE, usual),
        ("s", elastic.ONE_LESS, usual),
        ("s", elastic.ONE_OF_THREE, usual),
        ("s", elastic.ONE_OF_TWO, usual),
        ("us_per_record", elastic.ONE_OF_THREE, elastic.ONE_MORE),
        ("us_per_record", elastic.ONE_OF_TWO, elastic.ONE_ALONE),
        ("us_per_record", elastic.ONE_OF_TWO, elastic.ONE_LESS),
    ]
    figures["goals"] = []
    for what, phase, peer in compared:
        times = phases[phase][what] / phases[peer][what]
        name = f"{WORDS[what]} with {phase} beside {peer}"
        figures["goals"].append(goal(name, f"at most {TIMES} times", times, times <= TIMES))
    return figures


WORDS = {"s": "batch", "us_per_record": "time of a record"}


def figures_of(batches: list[Done]) -> dict[str, Any]:
    """What is kept of a phase."""
    return {
        "seconds": [round(one.seconds, 3) for one in batches],
        "rows": [one.rows for one in batches],
        "s": statistics.median(one.seconds for one in batches),
        "us_per_record": statistics.median(1e6 * one.seconds / one.rows for one in batches),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for the page."""
    rows = [
        [
            phase,
            len(one["seconds"]),
            one["s"],
            max(one["seconds"]),
            statistics.median(one["rows"]),
            one["us_per_record"],
        ]
        for phase, one in figures["phases"].items()
    ]
    heads = ["workers", "batches", "median, s", "longest, s", "records", "µs per record"]
    return markdown(heads, rows)

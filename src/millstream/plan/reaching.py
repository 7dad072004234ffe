"""Where time ends: how far it comes at every keyed step if no more input follows.

Time ends at a step with the latest record of the sources above it, or with the windows in between
that this record is in; where `at()` gives records their times, with the latest of those. So it
follows from the input alone: neither how that was cut, nor who was held back, nor other sources,
nor the clock on the wall have a part in it (unless times are those of arrival).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.graph import nodes as graph
from millstream.ops.times.progress import BEGIN, SourceProgress
from millstream.plan.stages import Plan, held_by

Progress = Mapping[str, SourceProgress]
Told = Mapping[str, int]  # steps that give times, and the latest that each gave


@dataclass(frozen=True)
class _Reach:
    """How far time comes behind a step."""

    watermark: int  # no watermark passes this before the end
    latest: int  # the latest time above
    whole: bool = False  # nothing leaves before all of it was read: there are no watermarks


def ends(plan: Plan, progress: Progress, told: Told) -> dict[str, int]:
    """Where time ends at the input of every keyed operator once all of that was read."""
    reaches = _reaches(plan, progress, told).items()
    return {name: max(one.watermark, one.latest) for name, one in reaches}


def latest(plan: Plan, progress: Progress, told: Told) -> dict[str, int]:
    """The latest time above the input of every keyed operator: nothing later was read so far."""
    return {name: one.latest for name, one in _reaches(plan, progress, told).items()}


def furthest(plan: Plan, progress: Progress, told: Told) -> dict[str, int]:
    """A time at the input of every keyed operator that no watermark passes before the end."""
    return {name: one.watermark for name, one in _reaches(plan, progress, told).items()}


def _reaches(plan: Plan, progress: Progress, told: Told) -> dict[str, _Reach]:
    out: dict[str, _Reach] = {}
    inputs: dict[str, _Reach] = {}
    for members, feeding in plan.walk():
        above = [out[name] for name in feeding]
        came = _Reach(
            max((one.watermark for one in above), default=BEGIN),
            max((one.latest for one in above), default=BEGIN),
            all(one.whole for one in above),
        )
        for node in members:
            out[node.name] = came
            if isinstance(node, graph.Source):
                at = progress[node.name].furthest()
                out[node.name] = _Reach(at, at, progress[node.name].lateness is None)
            elif isinstance(node, graph.At) and len(members) == 1:
                out[node.name] = _timed(node, came, told.get(node.name))
            elif isinstance(node, graph.Keyed):
                inputs[node.name] = came
                moved = node.output_watermark(came.watermark)
                if moved is not None:
                    # Results of the whole input have no time, so time has not begun behind them.
                    latest = came.latest if moved > BEGIN else BEGIN
                    out[node.name] = _Reach(moved, latest, came.whole)
    return inputs


def _timed(node: graph.At, came: _Reach, given: int | None) -> _Reach:
    """Behind a step that gives times: what it gave counts, not the times from before.

    given: the latest; None if it gave none, or an older version did not write it down.
    """
    if came.whole:
        return came if given is None else _Reach(given, given, whole=True)
    high = held_by(node.behind, came.latest)
    return _Reach(held_by(node.behind, came.watermark), high if given is None else max(given, high))

"""How the windows of an operator are computed, and why: what plans say before anything runs.

Operators decide batch by batch (`operators/windows/sliding.py`); here stands what they can choose
from, by the very conditions they ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.graph import nodes
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.rates import FULL, PANES, VALUES, flips_at, has_choice, sides
from millstream.ops.windows.running import LEAST_PANES, can_run, has_inverse
from millstream.ops.windows.stacks import can_stack
from millstream.plan.figures import Figures
from millstream.plan.stages import changes_of


@dataclass(frozen=True)
class Choice:
    """How the windows of an operator are computed, and the reason."""

    name: str
    why: str


def choose(node: nodes.Windowed, job: WindowJob) -> Choice:
    """The strategy of a keyed operator: live batches by what is kept, others by the rest."""
    if job.changes:
        moments = job.emission.by_event and changes_of(node) is None
        early = "early results by event time are over the records before each moment"
        return Choice("kept values", early if moments else "what comes in may be taken back")
    if node.job is not None and not node.job.can("combine"):
        return Choice("kept values", "all are handed to reduce, it has no combine")
    if node.reducer is not None and node.job is None:
        return Choice("kept values", f"reduce {function_name(node.reducer)} gets records in order")
    name = _plain_name(node, job)
    panes = f"a window has {job.span.panes} panes"
    if can_run(job):
        have = "it has uncombine" if node.job is not None else "every aggregate has an inverse"
        early = "" if job.emission.mode == "final" else ", in batches without early results"
        return Choice(
            f"running values, else {name}", f"{have}, and {panes} (from {LEAST_PANES} on){early}"
        )
    if can_stack(job):
        return Choice(f"kept stacks, else {name}", f"{_without_inverse(node, job)}, and {panes}")
    combines = "it has combine, and " if node.job is not None else ""
    return Choice(name, combines + _why(node, job, panes))


def _plain_name(node: nodes.Windowed, job: WindowJob) -> str:
    """The ways of all aggregates together, where nothing is kept from batch to batch."""
    if node.job is not None:
        return _OTHER_WAYS.get(job.kind, "two stacks")
    ways = list(dict.fromkeys(_way(agg, job) for _, agg in node.aggs))
    return " and ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


def _way(agg: Any, job: WindowJob) -> str:
    if agg.strategy == "kept values":
        return "kept values"
    return _OTHER_WAYS.get(job.kind, str(agg.strategy))


def _why(node: nodes.Windowed, job: WindowJob, panes: str) -> str:
    """Why windows are computed from all their panes in every batch."""
    if all(m.held for m in job.measures):
        return "nothing can be combined"
    if job.changes:
        return "values that may be taken back are kept, and combined when windows leave"
    if job.kind in _OTHER_WHY:
        return _OTHER_WHY[job.kind]
    if job.span.whole:
        return "one window never slides"
    if job.span.size <= job.span.slide:
        return "windows do not overlap"
    if job.span.panes < LEAST_PANES:
        return f"{panes}, nothing is gained below {LEAST_PANES}"
    if any(m.held for m in job.measures):
        return "all values of a window are needed"
    return f"{_without_inverse(node, job)}, and results leave early"


def _without_inverse(node: nodes.Windowed, job: WindowJob) -> str:
    if node.job is not None:
        return "it has combine, but no uncombine"
    aggs = zip(node.aggs, job.measures, strict=True)
    without = [str(agg) for (_, agg), measure in aggs if not has_inverse(measure)]
    return f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no inverse"


def how_of(agg: Any, job: WindowJob) -> str:
    """The way of one aggregate, in words."""
    if job.changes:
        return _HOW["kept values"]
    kept = "running values" if can_run(job) else "kept stacks" if can_stack(job) else None
    return _HOW[kept or _way(agg, job)]


_OTHER_WAYS = {"landmark": "totals", "session": "joined pieces"}
_OTHER_WHY = {
    "landmark": "nothing ever leaves the window",
    "session": "a session does not slide",
    "rows": "its rows are numbered, and kept, before anything is combined",
    "bytes": "its rows are numbered, and kept, before anything is combined",
}
_HOW = {
    "running values": "running values, panes are added as they enter and taken away as they leave",
    "kept stacks": "kept stacks, what is left once a pane leaves is stored with it",
    "blocks": "blocks, one combine per result however many panes",
    "totals": "totals, each pane is added once to that of its key",
    "joined pieces": "joined pieces, combined when sessions leave",
    "two stacks": "two stacks, one or two combines per result, because it has combine",
    "running tallies": "running tallies, panes are counted in as they enter, out as they leave",
    "kept values": "kept values, all values of a window are needed",
}


# -- panes or single values -----------------------------------------------------------------------


def keeps(family: Family, figures: Figures | None) -> str | None:
    """What a family keeps and why: as planned, or as it was measured; None if it has no choice."""
    if not has_choice(family):
        return None
    rate = None if figures is None else figures.measured(family)
    if rate is None or not rate.seconds:
        return _as_planned(family)
    gain, panes = sides(family, rate.per_key)
    left, right = _sides_named(family)
    sign = ">" if gain > panes else "<="
    since = f" since batch {rate.since}" if rate.since else ""
    return (
        f"keeps: {_KEPT[rate.kept]}{since}, measured {number(rate.per_key)} values per second and "
        f"key: {left} = {number(gain)} {sign} {right} = {number(panes)}; "
        f"{number(rate.per_pane)} values per pane that has any (panes from {FULL} on)"
    )


def _as_planned(family: Family) -> str:
    left, right = _sides_named(family)
    at = flips_at(family)
    few = f"a pane that has any has fewer than {FULL}"
    if at is None:  # windows do not overlap
        return f"keeps: panes until a rate is measured, then single values if {few}"
    return (
        f"keeps: panes until a rate is measured, then single values if {left} <= {right}, below "
        f"{number(at)} values per second and key, and {few}"
    )


def _sides_named(family: Family) -> tuple[str, str]:
    if len(family.users("panes")) == 1:
        return "t*(w - s)", "w/gcd"
    return "t*(sum of w/s - 1)", "sum of w/gcd/s"


_KEPT = {PANES: "panes", VALUES: "single values"}


def number(value: float) -> str:
    """Three digits are enough."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -- how much is combined on the map side ----------------------------------------------------------


def combines(family: Family, figures: Figures | None) -> str | None:
    """Whether what the chunks of a task gave is merged before it is sent, if that was measured."""
    known = None if figures is None or not family.combines else figures.combining(family)
    if known is None or known.left is None:
        return None
    how = "across the chunks of a task" if known.merges else "chunk by chunk"
    since = f" since batch {known.since}" if known.since else ""
    sign = "<" if known.cost < known.gain else ">="
    return (
        f"combines: {how}{since}, because merging leaves {known.left:.0%} of the rows and costs "
        f"{number(known.cost * 1e6)} {sign} {number(known.gain * 1e6)} us a row that the reduce "
        f"side is spared ({number(known.mappers)} mappers, {number(known.reducers)} reducers at a "
        "time)"
    )


# -- what was used ---------------------------------------------------------------------------------


def used_strategy(figures: Figures, job: WindowJob) -> str | None:
    """How the windows of a job slid last; the manifest says "blocks" for stacks and tallies too."""
    used = figures.strategy(job.name)
    objects = [m.objects for m in job.measures if not m.held]
    if used != "blocks" or None in objects:
        return used
    tallies = all(one is not None and one.windows is not None for one in objects)
    return "running tallies" if tallies else "two stacks"


def function_name(fn: Any) -> str:
    """What a function is called in plans."""
    return getattr(fn, "__qualname__", type(fn).__qualname__).replace("<locals>.", "")

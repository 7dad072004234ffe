"""What is written on each node of a picture of the plan, and how large that makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.api.programs import job_name
from millstream.graph import nodes
from millstream.ops.windows.rates import flips_at, has_choice
from millstream.plan.explain import (
    how_it_updates,
    keys_of,
    place_of,
    reading_of,
    results_of,
    sink_name,
    update_keys,
    what_of,
)
from millstream.plan.figures import Figures, moment
from millstream.plan.stages import Plan
from millstream.plan.strategies import choose, number, used_strategy
from millstream.plan.svg import FIGURE, INK, LINE, PAD, STRATEGY, Line, width_of, wrapped

_MOST_WIDE = 236.0  # longer texts are cut; the whole one is shown as a tooltip
_MOST_AGGREGATES = 4


@dataclass(frozen=True)
class Drawn:
    """A node with what is written on it."""

    node: nodes.Node
    shape: str
    lines: tuple[Line, ...]

    @property
    def width(self) -> float:
        """As wide as its longest line, within reason."""
        longest = max(width_of(line.text, bold=line.bold) for line in self.lines)
        return min(max(longest, 72.0), _MOST_WIDE) + 2 * self.indent

    @property
    def indent(self) -> float:
        """Where text begins; the round ends of sources need more."""
        return PAD + (6.0 if self.shape == "source" else 0.0)

    @property
    def head(self) -> float:
        """What is above the text: a window has its strip of panes there."""
        return PAD + (5.0 if self.shape == "window" else -2.0)

    @property
    def height(self) -> float:
        """As high as its lines."""
        return self.head + LINE * len(self.lines) + PAD - 4.0


def group_of(plan: Plan, node: nodes.Node) -> str:
    if not isinstance(node, nodes.Windowed):
        return ""
    family = plan.family_of(node.name)
    return family.name if len(family.jobs) > 1 else ""


def drawn_as(plan: Plan, node: nodes.Node, figures: Figures | None) -> Drawn:
    lines = [Line(node.name, INK, bold=True)]
    match node:
        case nodes.Source():
            shape = "source"
            lines.extend(wrapped(f"{type(node.spec).__name__} {place_of(node.spec)}"))
            lines.append(Line(", ".join(reading_of(node.spec))))
        case nodes.Windowed():
            shape = "window"
            lines.extend(_window_lines(plan, node))
        case nodes.Update():
            shape = "update"
            lines.append(Line(f"{what_of(node)} by {update_keys(node)}"))
            for phrase in how_it_updates(plan, node):
                lines.extend(replace(line, colour=STRATEGY) for line in wrapped(phrase))
        case nodes.Published():
            shape = "stream"
            lines.append(Line("of what is too much" if plan.diverting(node) else "published to"))
        case nodes.Sink():
            shape = "sink"
            lines.extend(wrapped(sink_name(node.spec)))
        case _:
            shape = "late" if isinstance(node, nodes.Late) else "step"
            if what_of(node) != node.name:
                lines.extend(wrapped(what_of(node)))
    lines.extend(_figure_lines(plan, node, figures))
    return Drawn(node, shape, tuple(lines))


def _window_lines(plan: Plan, node: nodes.Windowed) -> list[Line]:
    job = plan.jobs[node.name]
    lines = [Line(f"{node.window} by {keys_of(node)}")]
    if results := results_of(node):
        lines.append(Line(results))
    if node.job is not None:
        lines.append(Line(f"reduce of {job_name(node.job)}"))
    shown = node.aggs if len(node.aggs) <= _MOST_AGGREGATES else node.aggs[: _MOST_AGGREGATES - 1]
    lines.extend(Line(f"{name} = {agg}") for name, agg in shown)
    if len(shown) < len(node.aggs):
        lines.append(Line(f"and {len(node.aggs) - len(shown)} more"))
    lines.append(Line(choose(node, job).name, STRATEGY, slanted=True))
    if job.kind == "time" and not job.span.whole and not group_of(plan, node):
        family = plan.family_of(node.name)
        above = flips_at(family) if has_choice(family) else None
        panes = f"{job.span.panes} pane{'s'[: job.span.panes != 1]} of {job.span.pane_text}"
        lines.append(Line(panes, STRATEGY, slanted=True))
        if above is not None:
            pays = f"pays off above {number(above)}/s and key"
            lines.append(Line(pays, STRATEGY, slanted=True))
    elif job.kind == "time" and not job.span.whole:
        panes = f"{job.span.panes} panes a window, {job.span.step} a slide"
        lines.append(Line(panes, STRATEGY, slanted=True))
    return lines


def _figure_lines(plan: Plan, node: nodes.Node, figures: Figures | None) -> list[Line]:
    if figures is None:
        return []
    rate = figures.rate(node.name)
    came = f"{figures.account(node.name).get('offered', 0):,} in"
    parts = [came + (f", {number(rate)}/s" if rate else ""), *figures.losses(node.name)]
    lines = [", ".join(parts)]
    if isinstance(node, nodes.Windowed):
        job = plan.jobs[node.name]
        results = figures.results(node)
        if results is not None:
            lines.append(f"{results:,} results")
        until = figures.left_until(node.name)
        if until is not None:
            lines.append(f"left until {moment(until)}")
        used = used_strategy(figures, job)
        if used is not None:
            lines.append(f"slid last by {used}")
        measured = figures.measured(plan.family_of(node.name))
        if measured is not None and measured.seconds:
            lines.append(f"keeps {measured.kept}, {number(measured.per_key)}/s and key")
    elif isinstance(node, nodes.Source) and node.name in figures.watermarks:
        lines.append(f"watermark {moment(figures.watermarks[node.name])}")
    return [Line(line, FIGURE) for line in lines]


def stored_lines(plan: Plan, figures: Figures | None) -> dict[int, list[str]]:
    """What each stage stores."""
    found: dict[int, list[str]] = {}
    if figures is None:
        return found
    for family in plan.families.values():
        stored = figures.tables(family.name)
        rows, segments = sum(s.rows for s in stored), sum(s.segments for s in stored)
        plural = "s"[: segments != 1]
        line = f"stored for {family.jobs[0].name}: {rows:,} rows in {segments:,} segment{plural}"
        if len(family.jobs) > 1:
            line = f"stored panes: {rows:,} rows in {segments:,} segment{plural}"
        found.setdefault(plan.levels[family.jobs[0].name], []).append(line)
    for node in plan.updaters():
        tables = {one.table: one.rows for one in figures.tables(node.name)}
        slates, waiting = tables.get("slates", 0), tables.get("waiting", 0)
        line = f"{node.name}: {slates:,} rows of slates, {waiting:,} waiting"
        found.setdefault(plan.levels[node.name], []).append(line)
    return found

"""The plan as a picture: an SVG file, drawn here so that nothing has to be installed.

Stages are shaded bands from left to right. Sources are pills, steps boxes, windows boxes with a
strip of panes, sinks sheets; windows that share their panes stand in a frame. Names and paths are
whatever a user wrote, so every text is cleaned and escaped, and the file has no scripts and no
links.
"""

from __future__ import annotations

import os
from pathlib import Path

from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.plan.explain import members_of, places
from millstream.plan.figures import read_figures
from millstream.plan.labels import drawn_as, group_of, stored_lines
from millstream.plan.layout import Box, Layout, Space, arrange
from millstream.plan.planner import sketch
from millstream.plan.shapes import shape_of
from millstream.plan.stages import Plan
from millstream.plan.svg import (
    EDGE,
    FIGURE,
    INK,
    LINE,
    MARGIN,
    PAD,
    STRATEGY,
    Line,
    curve,
    document,
    n,
    rect,
    text_at,
    tooltip,
    width_of,
)

_HEAD = 84.0  # above the first row: the title and the names of the stages
_SPACE = Space()
_BANDS = ("#f5f7f9", "#edf1f5")


def picture(
    flow: str, graph: tuple[nodes.Node, ...], path: str | Path, checkpoint: str | Path | None = None
) -> Path:
    """What `Flow.picture()` and `millstream plan --picture` write."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigError(f"picture(): {path} must end in .svg, the only kind that is drawn")
    drawing = draw(flow, graph, checkpoint)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(drawing, encoding="utf-8")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"picture(): {path} cannot be written ({reason})") from error
    return target


def draw(flow: str, graph: tuple[nodes.Node, ...], checkpoint: str | Path | None = None) -> str:
    """The plan of a flow as SVG."""
    plan = sketch(flow, graph)
    figures = read_figures(plan, checkpoint) if checkpoint is not None else None
    place = places(plan)
    drawn = {node.name: drawn_as(plan, node, figures) for node in plan.nodes}
    columns = _columns(plan, place)
    boxes = {
        node.name: Box(
            node.name,
            drawn[node.name].width,
            drawn[node.name].height,
            columns[node],
            group_of(plan, node),
        )
        for node in plan.nodes
    }
    edges = [
        (one.name, node.name)
        for node in plan.nodes
        for one in plan.feeding(node)
        if columns[one] < columns[node]
    ]
    stages = {columns[node]: place[node] for node in plan.nodes}
    layout = arrange(boxes.values(), edges, stages, _SPACE, _HEAD, 2 * MARGIN)
    subtitle = ""
    if checkpoint is not None:
        subtitle = f"as of {figures.title}" if figures else "no batch committed yet"
    stored = stored_lines(plan, figures)
    parts = [
        *_bands(plan, layout, stages, stored),
        *_frames(plan, layout),
        *_edges(plan, layout, boxes),
        *(part for name, box in boxes.items() for part in shape_of(drawn[name], box)),
    ]
    below = layout.bottom + 2 * MARGIN + LINE * max(map(len, stored.values()), default=0)
    return document(flow, subtitle, layout.right + 2 * MARGIN, below, parts)


def _columns(plan: Plan, place: dict[nodes.Node, int]) -> dict[nodes.Node, int]:
    """Each node one column after its inputs, and each stage after the one before."""
    columns: dict[nodes.Node, int] = {}
    for stage in range(plan.depth + 1):
        first = max(columns.values(), default=-1) + 1
        for name in (name for names in plan.order for name in names):
            node = plan.node(name)
            if place[node] == stage:
                above = [columns[one] for one in plan.feeding(node) if one in columns]
                columns[node] = max([first, *(column + 1 for column in above)])
    return columns


# -- drawing ---------------------------------------------------------------------------------------


def _bands(
    plan: Plan, layout: Layout, stages: dict[int, int], stored: dict[int, list[str]]
) -> list[str]:
    """A shaded band per stage, its title above and what it stores below."""
    parts = []
    most = max(map(len, stored.values()), default=0)
    for stage in range(plan.depth + 1):
        columns = [column for column, its in stages.items() if its == stage]
        if not columns:  # only results on their way to be sorted
            continue
        left = layout.left[min(columns)] - MARGIN
        right = layout.left[max(columns)] + layout.width[max(columns)] + MARGIN
        bottom = layout.bottom + MARGIN + LINE * most
        height = bottom - _HEAD + 44
        parts.append(rect(left, _HEAD - 44, right - left, height, 10, _BANDS[stage % 2], "none"))
        title, about = f"stage {stage}", "read, map, combine"
        if stage:
            about = "after 1 exchange" if stage == 1 else f"after {stage} exchanges"
        wide = right - left - 2 * PAD
        if width_of(f"{title}  {about}", bold=True) > wide:
            about = ""
        parts.append(text_at(left + PAD, _HEAD - 24, Line(title, INK, bold=True), wide))
        x = left + PAD + width_of(title, bold=True) + 8
        parts.append(text_at(x, _HEAD - 24, Line(about), wide))
        for i, line in enumerate(stored.get(stage, [])):
            y = layout.bottom + MARGIN + LINE * (i + 0.4)
            parts.append(text_at(left + PAD, y, Line(line, FIGURE), wide))
    return parts


def _frames(plan: Plan, layout: Layout) -> list[str]:
    """The frames of windows that share their panes."""
    parts = []
    for name, (x, y, width, height) in layout.frames.items():
        family = plan.families[name]
        names = ", ".join(node.name for node in members_of(plan, family))
        parts.append(f"<g>{tooltip(f'panes computed once, shared by {names}')}")
        parts.append(rect(x, y, width, height, 10, "#f7f9fd", "#8fa7d2", dashed=True))
        title = Line(f"panes of {family.span.pane_text}, shared", STRATEGY, bold=True)
        parts.append(text_at(x + PAD, y + 18, title, width - 2 * PAD) + "</g>")
    return parts


def _edges(plan: Plan, layout: Layout, boxes: dict[str, Box]) -> list[str]:
    lines: dict[str, None] = {}
    heads: dict[str, None] = {}
    for node in plan.nodes:
        for one in plan.feeding(node):
            start, end = boxes[one.name], boxes[node.name]
            if (one.name, node.name) not in layout.passes:
                lines[_around(start, end, layout.bottom)] = None
                continue
            x, y = start.x + start.width, start.middle
            path = [f"M{n(x)} {n(y)}"]
            for column, height in layout.passes[one.name, node.name]:
                path.append(curve(x, y, layout.left[column], height))
                x, y = layout.left[column] + layout.width[column], height
                path.append(f"H{n(x)}")
            to_x, to_y = end.x, end.middle
            if end.group:
                frame = layout.frames[end.group]
                to_x, to_y = frame[0], frame[1] + frame[3] / 2
            path.append(curve(x, y, to_x - 7, to_y))
            dashes = ' stroke-dasharray="4 4"' if isinstance(node, nodes.Late) else ""
            lines[
                f'<path d="{"".join(path)}" fill="none" stroke="{EDGE}" '
                f'stroke-width="1.5"{dashes}/>'
            ] = None
            tip = f"M{n(to_x)} {n(to_y)}l-9 -4.5v9z"
            heads[f'<path d="{tip}" fill="{EDGE}"/>'] = None
    return [*lines, *heads]


def _around(start: Box, end: Box, bottom: float) -> str:
    """The way back of a cycle: out on the right, below everything, and in from below."""
    x, y = start.x + start.width, start.middle
    to_x, to_y = end.x + end.width / 2, end.y + end.height
    low = bottom + 12
    path = (
        f"M{n(x)} {n(y)}c14 0 14 {n(low - y)} 0 {n(low - y)}H{n(to_x + 6)}q-6 0 -6 -6V{n(to_y + 7)}"
    )
    tip = f"M{n(to_x)} {n(to_y)}l-4.5 9h9z"
    return (
        f'<path d="{path}" fill="none" stroke="{EDGE}" stroke-width="1.5"/>'
        f'<path d="{tip}" fill="{EDGE}"/>'
    )

"""The plan as a picture: an SVG file, drawn here so that nothing has to be installed.

Stages are shaded bands from left to right. Sources are pills, steps boxes, windows boxes with a
strip of panes, sinks sheets; windows that share their panes stand in a frame. Names and paths are
whatever a user wrote, so every text is cleaned and escaped, and the file has no scripts and no
links.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from millstream.api.programs import job_name
from millstream.durations import text as duration
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.rates import flips_at, has_choice
from millstream.plan.explain import (
    how_it_updates,
    keys_of,
    members_of,
    place_of,
    places,
    reading_of,
    results_of,
    sink_name,
    update_keys,
    what_of,
)
from millstream.plan.figures import Figures, moment, read_figures
from millstream.plan.layout import Box, Layout, Space, arrange
from millstream.plan.planner import sketch
from millstream.plan.stages import Plan
from millstream.plan.strategies import choose, number, used_strategy

_FONT = "'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_SIZE = 12.0
_LINE = 17.0
_PAD = 12.0
_MOST_WIDE = 236.0  # longer texts are cut; the whole one is shown as a tooltip
_WRAP = 190.0  # where long texts go on in the next line
_MOST_LINES = 3
_MOST_AGGREGATES = 4
_MARGIN = 24.0
_HEAD = 84.0  # above the first row: the title and the names of the stages
_SPACE = Space()

# Kind of node: what it is filled with, its outline.
_COLOURS = {
    "source": ("#e4f1ea", "#5f9a80"),
    "step": ("#ffffff", "#9fabb8"),
    "window": ("#e9effa", "#6484bd"),
    "update": ("#f0eafa", "#8468bd"),
    "stream": ("#ffffff", "#8468bd"),
    "sink": ("#fbf2e2", "#c59c55"),
    "late": ("#fbeeee", "#bd8080"),
}
_BANDS = ("#f5f7f9", "#edf1f5")
_INK, _SOFT, _EDGE = "#1f2d3a", "#5a6875", "#8795a3"
_STRATEGY, _FIGURE = "#3f5f99", "#2f6f52"


@dataclass(frozen=True)
class _Line:
    text: str
    colour: str = _SOFT
    bold: bool = False
    slanted: bool = False


@dataclass(frozen=True)
class _Drawn:
    """A node with what is written on it."""

    node: nodes.Node
    shape: str
    lines: tuple[_Line, ...]

    @property
    def width(self) -> float:
        """As wide as its longest line, within reason."""
        longest = max(_width(line.text, bold=line.bold) for line in self.lines)
        return min(max(longest, 72.0), _MOST_WIDE) + 2 * self.indent

    @property
    def indent(self) -> float:
        """Where text begins; the round ends of sources need more."""
        return _PAD + (6.0 if self.shape == "source" else 0.0)

    @property
    def head(self) -> float:
        """What is above the text: a window has its strip of panes there."""
        return _PAD + (5.0 if self.shape == "window" else -2.0)

    @property
    def height(self) -> float:
        """As high as its lines."""
        return self.head + _LINE * len(self.lines) + _PAD - 4.0


def picture(
    flow: str,
    graph: tuple[nodes.Node, ...],
    path: str | Path,
    checkpoint: str | Path | None = None,
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
    drawn = {node.name: _drawn(plan, node, figures) for node in plan.nodes}
    columns = _columns(plan, place)
    boxes = {
        node.name: Box(
            node.name,
            drawn[node.name].width,
            drawn[node.name].height,
            columns[node],
            _group(plan, node),
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
    layout = arrange(boxes.values(), edges, stages, _SPACE, _HEAD, 2 * _MARGIN)
    subtitle = ""
    if checkpoint is not None:
        subtitle = f"as of {figures.title}" if figures else "no batch committed yet"
    stored = _stored_lines(plan, figures)
    parts = [
        *_bands(plan, layout, stages, stored),
        *_frames(plan, layout),
        *_edges(plan, layout, boxes),
        *(part for name, box in boxes.items() for part in _node(drawn[name], box)),
    ]
    below = layout.bottom + 2 * _MARGIN + _LINE * max(map(len, stored.values()), default=0)
    return _document(flow, subtitle, layout.right + 2 * _MARGIN, below, parts)


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


def _group(plan: Plan, node: nodes.Node) -> str:
    if not isinstance(node, nodes.Windowed):
        return ""
    family = plan.family_of(node.name)
    return family.name if len(family.jobs) > 1 else ""


# -- what is written -------------------------------------------------------------------------------


def _drawn(plan: Plan, node: nodes.Node, figures: Figures | None) -> _Drawn:
    lines = [_Line(node.name, _INK, bold=True)]
    match node:
        case nodes.Source():
            shape = "source"
            lines.extend(_wrapped(f"{type(node.spec).__name__} {place_of(node.spec)}"))
            lines.append(_Line(", ".join(reading_of(node.spec))))
        case nodes.Windowed():
            shape = "window"
            lines.extend(_window_lines(plan, node))
        case nodes.Update():
            shape = "update"
            lines.append(_Line(f"{what_of(node)} by {update_keys(node)}"))
            for phrase in how_it_updates(plan, node):
                lines.extend(replace(line, colour=_STRATEGY) for line in _wrapped(phrase))
        case nodes.Published():
            shape = "stream"
            lines.append(_Line("published to"))
        case nodes.Sink():
            shape = "sink"
            lines.extend(_wrapped(sink_name(node.spec)))
        case _:
            shape = "late" if isinstance(node, nodes.Late) else "step"
            if what_of(node) != node.name:
                lines.extend(_wrapped(what_of(node)))
    lines.extend(_figure_lines(plan, node, figures))
    return _Drawn(node, shape, tuple(lines))


def _window_lines(plan: Plan, node: nodes.Windowed) -> list[_Line]:
    job = plan.jobs[node.name]
    lines = [_Line(f"{node.window} by {keys_of(node)}")]
    if results := results_of(node):
        lines.append(_Line(results))
    if node.job is not None:
        lines.append(_Line(f"reduce of {job_name(node.job)}"))
    shown = node.aggs if len(node.aggs) <= _MOST_AGGREGATES else node.aggs[: _MOST_AGGREGATES - 1]
    lines.extend(_Line(f"{name} = {agg}") for name, agg in shown)
    if len(shown) < len(node.aggs):
        lines.append(_Line(f"and {len(node.aggs) - len(shown)} more"))
    lines.append(_Line(choose(node, job).name, _STRATEGY, slanted=True))
    if job.kind == "time" and not job.span.whole and not _group(plan, node):
        family = plan.family_of(node.name)
        above = flips_at(family) if has_choice(family) else None
        panes = f"{job.span.panes} pane{'s'[: job.span.panes != 1]} of {duration(job.span.pane)}"
        lines.append(_Line(panes, _STRATEGY, slanted=True))
        if above is not None:
            pays = f"pays off above {number(above)}/s and key"
            lines.append(_Line(pays, _STRATEGY, slanted=True))
    elif job.kind == "time" and not job.span.whole:
        panes = f"{job.span.panes} panes a window, {job.span.step} a slide"
        lines.append(_Line(panes, _STRATEGY, slanted=True))
    return lines


def _figure_lines(plan: Plan, node: nodes.Node, figures: Figures | None) -> list[_Line]:
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
    return [_Line(line, _FIGURE) for line in lines]


def _stored_lines(plan: Plan, figures: Figures | None) -> dict[int, list[str]]:
    """What each stage stores."""
    found: dict[int, list[str]] = {}
    for family in plan.families.values() if figures else ():
        assert figures is not None
        stored = figures.stored(family)
        rows, segments = sum(s.rows for s in stored), sum(s.segments for s in stored)
        plural = "s"[: segments != 1]
        line = f"stored for {family.jobs[0].name}: {rows:,} rows in {segments:,} segment{plural}"
        if len(family.jobs) > 1:
            line = f"stored panes: {rows:,} rows in {segments:,} segment{plural}"
        found.setdefault(plan.levels[family.jobs[0].name], []).append(line)
    for node in plan.updaters() if figures else ():
        assert figures is not None
        tables = {one.table: one.rows for one in figures.tables(node.name)}
        slates, waiting = tables.get("slates", 0), tables.get("waiting", 0)
        line = f"{node.name}: {slates:,} rows of slates, {waiting:,} waiting"
        found.setdefault(plan.levels[node.name], []).append(line)
    return found


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
        left = layout.left[min(columns)] - _MARGIN
        right = layout.left[max(columns)] + layout.width[max(columns)] + _MARGIN
        bottom = layout.bottom + _MARGIN + _LINE * most
        height = bottom - _HEAD + 44
        parts.append(_rect(left, _HEAD - 44, right - left, height, 10, _BANDS[stage % 2], "none"))
        title, about = f"stage {stage}", "read, map, combine"
        if stage:
            about = "after 1 exchange" if stage == 1 else f"after {stage} exchanges"
        wide = right - left - 2 * _PAD
        if _width(f"{title}  {about}", bold=True) > wide:
            about = ""
        parts.append(_text(left + _PAD, _HEAD - 24, _Line(title, _INK, bold=True), wide))
        x = left + _PAD + _width(title, bold=True) + 8
        parts.append(_text(x, _HEAD - 24, _Line(about), wide))
        for i, line in enumerate(stored.get(stage, [])):
            y = layout.bottom + _MARGIN + _LINE * (i + 0.4)
            parts.append(_text(left + _PAD, y, _Line(line, _FIGURE), wide))
    return parts


def _frames(plan: Plan, layout: Layout) -> list[str]:
    """The frames of windows that share their panes."""
    parts = []
    for name, (x, y, width, height) in layout.frames.items():
        family = plan.families[name]
        names = ", ".join(node.name for node in members_of(plan, family))
        parts.append(f"<g>{_title(f'panes computed once, shared by {names}')}")
        parts.append(_rect(x, y, width, height, 10, "#f7f9fd", "#8fa7d2", dashed=True))
        title = _Line(f"panes of {duration(family.span.pane)}, shared", _STRATEGY, bold=True)
        parts.append(_text(x + _PAD, y + 18, title, width - 2 * _PAD) + "</g>")
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
            path = [f"M{_n(x)} {_n(y)}"]
            for column, height in layout.passes[one.name, node.name]:
                path.append(_curve(x, y, layout.left[column], height))
                x, y = layout.left[column] + layout.width[column], height
                path.append(f"H{_n(x)}")
            to_x, to_y = end.x, end.middle
            if end.group:
                frame = layout.frames[end.group]
                to_x, to_y = frame[0], frame[1] + frame[3] / 2
            path.append(_curve(x, y, to_x - 7, to_y))
            dashes = ' stroke-dasharray="4 4"' if isinstance(node, nodes.Late) else ""
            lines[
                f'<path d="{"".join(path)}" fill="none" stroke="{_EDGE}" '
                f'stroke-width="1.5"{dashes}/>'
            ] = None
            tip = f"M{_n(to_x)} {_n(to_y)}l-9 -4.5v9z"
            heads[f'<path d="{tip}" fill="{_EDGE}"/>'] = None
    return [*lines, *heads]


def _around(start: Box, end: Box, bottom: float) -> str:
    """The way back of a cycle: out on the right, below everything, and in from below."""
    x, y = start.x + start.width, start.middle
    to_x, to_y = end.x + end.width / 2, end.y + end.height
    low = bottom + 12
    path = (
        f"M{_n(x)} {_n(y)}c14 0 14 {_n(low - y)} 0 {_n(low - y)}H{_n(to_x + 6)}"
        f"q-6 0 -6 -6V{_n(to_y + 7)}"
    )
    tip = f"M{_n(to_x)} {_n(to_y)}l-4.5 9h9z"
    return (
        f'<path d="{path}" fill="none" stroke="{_EDGE}" stroke-width="1.5"/>'
        f'<path d="{tip}" fill="{_EDGE}"/>'
    )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (to_x - x) / 2
    return f"C{_n(x + bend)} {_n(y)} {_n(to_x - bend)} {_n(to_y)} {_n(to_x)} {_n(to_y)}"


def _node(drawn: _Drawn, box: Box) -> list[str]:
    fill, stroke = _COLOURS[drawn.shape]
    x, y, width, height = box.x, box.y, box.width, box.height
    whole = "\n".join(line.text for line in drawn.lines)
    parts = [f"<g>{_title(whole)}"]
    match drawn.shape:
        case "source":
            parts.append(_rect(x, y, width, height, min(height / 2, 26), fill, stroke))
        case "sink":
            fold = 12.0
            parts.append(
                f'<path d="M{_n(x)} {_n(y)}h{_n(width - fold)}l{fold} {fold}v{_n(height - fold)}'
                f'h{_n(-width)}z" fill="{fill}" stroke="{stroke}" stroke-width="1.3" '
                'stroke-linejoin="round"/>'
                f'<path d="M{_n(x + width - fold)} {_n(y)}v{fold}h{fold}" fill="none" '
                f'stroke="{stroke}" stroke-width="1.3" stroke-linejoin="round"/>'
            )
        case "window":
            parts.append(_rect(x, y, width, height, 5, fill, stroke))
            parts.append(_panes(x + 5, y + 5, width - 10, stroke))
        case "update":
            parts.append(_rect(x, y, width, height, 5, fill, stroke))
            rule = f"M{_n(x)} {_n(y + 4)}h{_n(width)}"
            parts.append(f'<path d="{rule}" stroke="{stroke}" stroke-width="1.3"/>')
        case "stream":
            parts.append(_rect(x, y, width, height, height / 2, fill, stroke, dashed=True))
        case "late":
            parts.append(_rect(x, y, width, height, 7, fill, stroke, dashed=True))
        case _:
            parts.append(_rect(x, y, width, height, 7, fill, stroke))
    inner = width - 2 * drawn.indent
    for i, line in enumerate(drawn.lines):
        at = y + drawn.head + _LINE * i + _SIZE
        parts.append(_text(x + drawn.indent, at, line, inner + 4))
    parts.append("</g>")
    return parts


def _panes(x: float, y: float, width: float, colour: str) -> str:
    """The strip along the top of a window."""
    count = max(1, int(width // 16))
    step = width / count
    bars = "".join(
        f"M{_n(x + i * step + 1)} {_n(y)}h{_n(step - 2)}v4h{_n(2 - step)}z" for i in range(count)
    )
    return f'<path d="{bars}" fill="{colour}" fill-opacity="0.45"/>'


def _rect(
    x: float,
    y: float,
    width: float,
    height: float,
    radius: float,
    fill: str,
    stroke: str,
    *,
    dashed: bool = False,
) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
        f'rx="{_n(radius)}" fill="{fill}" stroke="{stroke}" stroke-width="1.3"{dashes}/>'
    )


def _text(x: float, y: float, line: _Line, room: float) -> str:
    if not line.text:
        return ""
    look = (' font-weight="600"' if line.bold else "") + (
        ' font-style="italic"' if line.slanted else ""
    )
    shown = _fitted(clean(line.text), room, bold=line.bold)
    return f'<text x="{_n(x)}" y="{_n(y)}" fill="{line.colour}"{look}>{escape(shown)}</text>'


def _title(whole: str) -> str:
    """A tooltip."""
    lines = "\n".join(clean(line) for line in whole.split("\n"))
    return f"<title>{escape(lines)}</title>"


def _document(flow: str, subtitle: str, width: float, height: float, parts: list[str]) -> str:
    name = _Line(flow, _INK, bold=True)
    shown = _fitted(clean(flow), max(width - 4 * _MARGIN, 80.0) * 0.75, bold=True)
    beside = _width(shown, bold=True) * 15 / _SIZE + _MARGIN + 14
    if subtitle and beside + _width(subtitle) + _MARGIN > width:
        width = beside + _width(subtitle) + _MARGIN
    head = (
        f'<text x="{_n(_MARGIN)}" y="26" font-size="15" font-weight="600" fill="{name.colour}">'
        f"{escape(shown)}</text>"
    )
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'font-family="{_FONT}" font-size="{_n(_SIZE)}">',
            _title(f"The plan of flow {flow}"),
            f'<rect width="{_n(width)}" height="{_n(height)}" fill="#ffffff"/>',
            head,
            *([_text(beside, 26, _Line(subtitle, _FIGURE), width)] if subtitle else []),
            *(part for part in parts if part),
            "</svg>\n",
        ]
    )


# -- text ------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Text without characters that XML forbids, that are invisible, or that turn text around."""
    flat = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c)[0] == "C" else c for c in flat)


_NARROW = {**dict.fromkeys("iljI.,:;|!'", 0.33), **dict.fromkeys(' ftr()[]-/\\"', 0.43)}
_BROAD = {**dict.fromkeys("mwMW@%", 0.95), **dict.fromkeys("—…", 1.0)}


def _width(text: str, *, bold: bool = False) -> float:
    """About how wide a text is, in a wide font to be safe: the viewer's is not known."""
    total = 0.0
    for c in text:
        if c in _NARROW:
            total += _NARROW[c]
        elif c in _BROAD:
            total += _BROAD[c]
        elif unicodedata.east_asian_width(c) in "WF":
            total += 1.05
        elif c.isupper() or c in "=+<>~#":
            total += 0.76
        else:
            total += 0.63
    return total * _SIZE * (1.1 if bold else 1.0)


def _fitted(text: str, room: float, *, bold: bool = False) -> str:
    """As much of a text as there is room for."""
    if _width(text, bold=bold) <= room:
        return text
    while text and _width(text + "…", bold=bold) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _wrapped(text: str) -> list[_Line]:
    """A text on up to three lines; words that are too long are cut when they are drawn."""
    lines = [""]
    for word in clean(text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(longer) > _WRAP and len(lines) < _MOST_LINES:
            lines.append(word)
        else:
            lines[-1] = longer
    return [_Line(line) for line in lines]


def _n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")

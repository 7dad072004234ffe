"""The nodes of a picture as SVG: pills, boxes with a strip of panes, sheets."""

from __future__ import annotations

from millstream.plan.labels import Drawn
from millstream.plan.layout import Box
from millstream.plan.svg import LINE, SIZE, n, rect, text_at, tooltip

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


def shape_of(drawn: Drawn, box: Box) -> list[str]:
    fill, stroke = _COLOURS[drawn.shape]
    x, y, width, height = box.x, box.y, box.width, box.height
    whole = "\n".join(line.text for line in drawn.lines)
    parts = [f"<g>{tooltip(whole)}"]
    match drawn.shape:
        case "source":
            parts.append(rect(x, y, width, height, min(height / 2, 26), fill, stroke))
        case "sink":
            fold = 12.0
            parts.append(
                f'<path d="M{n(x)} {n(y)}h{n(width - fold)}l{fold} {fold}v{n(height - fold)}'
                f'h{n(-width)}z" fill="{fill}" stroke="{stroke}" stroke-width="1.3" '
                'stroke-linejoin="round"/>'
                f'<path d="M{n(x + width - fold)} {n(y)}v{fold}h{fold}" fill="none" '
                f'stroke="{stroke}" stroke-width="1.3" stroke-linejoin="round"/>'
            )
        case "window":
            parts.append(rect(x, y, width, height, 5, fill, stroke))
            parts.append(_panes(x + 5, y + 5, width - 10, stroke))
        case "update":
            parts.append(rect(x, y, width, height, 5, fill, stroke))
            rule = f"M{n(x)} {n(y + 4)}h{n(width)}"
            parts.append(f'<path d="{rule}" stroke="{stroke}" stroke-width="1.3"/>')
        case "stream":
            parts.append(rect(x, y, width, height, height / 2, fill, stroke, dashed=True))
        case "late":
            parts.append(rect(x, y, width, height, 7, fill, stroke, dashed=True))
        case _:
            parts.append(rect(x, y, width, height, 7, fill, stroke))
    inner = width - 2 * drawn.indent
    for i, line in enumerate(drawn.lines):
        at = y + drawn.head + LINE * i + SIZE
        parts.append(text_at(x + drawn.indent, at, line, inner + 4))
    parts.append("</g>")
    return parts


def _panes(x: float, y: float, width: float, colour: str) -> str:
    """The strip along the top of a window."""
    count = max(1, int(width // 16))
    step = width / count
    bars = "".join(
        f"M{n(x + i * step + 1)} {n(y)}h{n(step - 2)}v4h{n(2 - step)}z" for i in range(count)
    )
    return f'<path d="{bars}" fill="{colour}" fill-opacity="0.45"/>'

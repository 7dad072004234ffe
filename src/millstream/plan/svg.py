"""Pieces of an SVG file: text that fits, rectangles, curves, and the document around them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape

_FONT = "'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
SIZE = 12.0
LINE = 17.0
PAD = 12.0
MARGIN = 24.0
_WRAP = 190.0  # where long texts go on in the next line
_MOST_LINES = 3
INK, SOFT, EDGE = "#1f2d3a", "#5a6875", "#8795a3"
STRATEGY, FIGURE = "#3f5f99", "#2f6f52"


@dataclass(frozen=True)
class Line:
    text: str
    colour: str = SOFT
    bold: bool = False
    slanted: bool = False


def rect(
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
        f'<rect x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}" '
        f'rx="{n(radius)}" fill="{fill}" stroke="{stroke}" stroke-width="1.3"{dashes}/>'
    )


def text_at(x: float, y: float, line: Line, room: float) -> str:
    if not line.text:
        return ""
    look = (' font-weight="600"' if line.bold else "") + (
        ' font-style="italic"' if line.slanted else ""
    )
    shown = fitted(clean(line.text), room, bold=line.bold)
    return f'<text x="{n(x)}" y="{n(y)}" fill="{line.colour}"{look}>{escape(shown)}</text>'


def tooltip(whole: str) -> str:
    """A tooltip."""
    lines = "\n".join(clean(line) for line in whole.split("\n"))
    return f"<title>{escape(lines)}</title>"


def curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (to_x - x) / 2
    return f"C{n(x + bend)} {n(y)} {n(to_x - bend)} {n(to_y)} {n(to_x)} {n(to_y)}"


def document(flow: str, subtitle: str, width: float, height: float, parts: list[str]) -> str:
    name = Line(flow, INK, bold=True)
    shown = fitted(clean(flow), max(width - 4 * MARGIN, 80.0) * 0.75, bold=True)
    beside = width_of(shown, bold=True) * 15 / SIZE + MARGIN + 14
    if subtitle and beside + width_of(subtitle) + MARGIN > width:
        width = beside + width_of(subtitle) + MARGIN
    head = (
        f'<text x="{n(MARGIN)}" y="26" font-size="15" font-weight="600" fill="{name.colour}">'
        f"{escape(shown)}</text>"
    )
    size = f'width="{n(width)}" height="{n(height)}" viewBox="0 0 {n(width)} {n(height)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'font-family="{_FONT}" font-size="{n(SIZE)}">',
            tooltip(f"The plan of flow {flow}"),
            f'<rect width="{n(width)}" height="{n(height)}" fill="#ffffff"/>',
            head,
            *([text_at(beside, 26, Line(subtitle, FIGURE), width)] if subtitle else []),
            *(part for part in parts if part),
            "</svg>\n",
        ]
    )


def clean(text: str) -> str:
    """Text without characters that XML forbids, that are invisible, or that turn text around."""
    flat = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c)[0] == "C" else c for c in flat)


_NARROW = {**dict.fromkeys("iljI.,:;|!'", 0.33), **dict.fromkeys(' ftr()[]-/\\"', 0.43)}
_BROAD = {**dict.fromkeys("mwMW@%", 0.95), **dict.fromkeys("—…", 1.0)}


def width_of(text: str, *, bold: bool = False) -> float:
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
    return total * SIZE * (1.1 if bold else 1.0)


def fitted(text: str, room: float, *, bold: bool = False) -> str:
    """As much of a text as there is room for."""
    if width_of(text, bold=bold) <= room:
        return text
    while text and width_of(text + "…", bold=bold) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str) -> list[Line]:
    """A text on up to three lines; words that are too long are cut when they are drawn."""
    lines = [""]
    for word in clean(text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer) > _WRAP and len(lines) < _MOST_LINES:
            lines.append(word)
        else:
            lines[-1] = longer
    return [Line(line) for line in lines]


def n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")

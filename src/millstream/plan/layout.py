"""Where things go in the picture of a plan: a small layered layout, left to right.

Boxes stand in columns; those of a group stay together. Edges over several columns pass through
free places in between. Places in a column are ordered so that few edges cross, and then moved
towards their neighbours as far as the order and the distances allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

_SWEEPS = 24
_SETTLING = 80
_PASSING = 14.0  # the height kept free for an edge that only passes a column


@dataclass
class Box:
    """A thing with a size that wants a place; `x` and `y` are its top left corner."""

    name: str
    width: float
    height: float
    column: int
    group: str = ""  # boxes of a group lie in one column
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        """The height at which edges meet it."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Space:
    """Distances."""

    rows: float = 26.0  # between boxes of a column
    columns: float = 64.0
    stages: float = 96.0  # between columns of two stages
    inside: float = 14.0  # between boxes of a group, and around them
    title: float = 26.0  # above the boxes of a group


@dataclass
class Slot:
    """What takes part in the order of a column: a group of boxes, or an edge that passes."""

    key: Hashable
    column: int
    boxes: list[Box] = field(default_factory=list)
    height: float = _PASSING
    y: float = 0.0

    @property
    def passing(self) -> bool:
        """Whether only an edge goes through here."""
        return not self.boxes


Link = tuple[Slot, int, Slot, int]  # from a slot and a box in it to a slot and a box


@dataclass(frozen=True)
class Layout:
    """Columns from left to right, and the heights at which edges pass them."""

    left: dict[int, float]
    width: dict[int, float]
    frames: dict[str, tuple[float, float, float, float]]  # group -> x, y, width, height
    passes: dict[tuple[str, str], list[tuple[int, float]]]  # edge -> columns passed, heights
    right: float
    bottom: float


def arrange(
    boxes: Iterable[Box],
    edges: Iterable[tuple[str, str]],
    stages: dict[int, int],
    space: Space,
    top: float,
    left: float,
) -> Layout:
    """Give every box its place; `stages` says to which stage each column belongs."""
    by_name = {box.name: box for box in boxes}
    slots, at = _slots(by_name, space)
    links: list[Link] = []
    routes: dict[tuple[str, str], list[Slot]] = {}
    passing: dict[Hashable, Slot] = {}
    for source, target in edges:
        before, place = at[source]
        route = routes[source, target] = []
        for column in range(by_name[source].column + 1, by_name[target].column):
            key = (source, column)  # edges of one box share their way
            known = key in passing
            slot = passing.setdefault(key, Slot(key, column))
            if not known:
                slots[column].append(slot)
                links.append((before, place, slot, 0))
            route.append(slot)
            before, place = slot, 0
        links.append((before, place, *at[target]))
    columns = [slots[column] for column in sorted(slots)]
    columns = _ordered(columns, links)
    _settle(columns, links, space)
    return _placed(columns, routes, stages, space, top, left)


def _slots(
    boxes: dict[str, Box], space: Space
) -> tuple[dict[int, list[Slot]], dict[str, tuple[Slot, int]]]:
    slots: dict[int, list[Slot]] = defaultdict(list)
    grouped: dict[str, Slot] = {}
    at: dict[str, tuple[Slot, int]] = {}
    for box in boxes.values():
        slot = grouped.get(box.group) if box.group else None
        if slot is None:
            slot = Slot(box.group or box.name, box.column)
            slots[box.column].append(slot)
            if box.group:
                grouped[box.group] = slot
        at[box.name] = (slot, len(slot.boxes))
        slot.boxes.append(box)
    for slot, _ in at.values():
        slot.height = sum(box.height for box in slot.boxes)
        if len(slot.boxes) > 1:
            slot.height += space.title + space.inside * len(slot.boxes)
    return slots, at


# -- order --------------------------------------------------------------------------------------


def _ordered(columns: list[list[Slot]], links: list[Link]) -> list[list[Slot]]:
    """Columns ordered by the mean place of their neighbours; the best of some sweeps."""
    best, fewest = columns, _crossings(columns, links)
    now = columns
    for sweep in range(_SWEEPS):
        now = _sweep(now, links, forward=sweep % 2 == 0)
        found = _crossings(now, links)
        if found < fewest:
            best, fewest = now, found
        if not fewest:
            break
    return best


def _sweep(columns: list[list[Slot]], links: list[Link], *, forward: bool) -> list[list[Slot]]:
    rank = _ranks(columns)
    near: dict[int, list[tuple[Slot, int]]] = defaultdict(list)
    for a, i, b, j in links:
        near[id(b if forward else a)].append((a, i) if forward else (b, j))
    done = [list(column) for column in columns]
    order = range(1, len(columns)) if forward else range(len(columns) - 2, -1, -1)
    for index in order:
        want: dict[int, float] = {}
        for place, slot in enumerate(done[index]):
            ranks = [rank[id(other)] + port / 100 for other, port in near[id(slot)]]
            want[id(slot)] = sum(ranks) / len(ranks) if ranks else float(place)
        done[index].sort(key=lambda slot: want[id(slot)])
        rank.update({id(slot): float(place) for place, slot in enumerate(done[index])})
    return done


def _ranks(columns: list[list[Slot]]) -> dict[int, float]:
    return {id(slot): float(place) for column in columns for place, slot in enumerate(column)}


def _crossings(columns: list[list[Slot]], links: list[Link]) -> int:
    rank = _ranks(columns)
    ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for a, i, b, j in links:
        ends[a.column].append((rank[id(a)] + i / 100, rank[id(b)] + j / 100))
    total = 0
    for pairs in ends.values():
        for n, (a0, b0) in enumerate(pairs):
            total += sum((a0 - a1) * (b0 - b1) < 0 for a1, b1 in pairs[:n])
    return total


# -- heights ------------------------------------------------------------------------------------


def _settle(columns: list[list[Slot]], links: list[Link], space: Space) -> None:
    """Move slots towards their neighbours, as far as their order and distances allow."""
    for column in columns:
        y = 0.0
        for slot in column:
            slot.y = y
            y += slot.height + space.rows
    near: dict[int, list[tuple[Slot, int, int, float]]] = defaultdict(list)
    for a, i, b, j in links:  # per slot: a neighbour, the ports on both sides, how much it pulls
        pull = 16.0 if a.passing and b.passing else 4.0 if a.passing or b.passing else 1.0
        near[id(b)].append((a, i, j, pull))
        near[id(a)].append((b, j, i, pull))
    for sweep in range(_SETTLING):
        order = columns if sweep % 2 == 0 else columns[::-1]
        for column in order:
            want, weight = [], []
            for slot in column:
                total = moved = 0.0
                for other, there, here, pull in near[id(slot)]:
                    moved += pull * (_port(other, there, space) - _port(slot, here, space))
                    total += pull
                want.append(slot.y + (moved / total if total else 0.0))
                weight.append(max(total, 0.01))
            for slot, y in zip(column, _apart(column, want, weight, space), strict=True):
                slot.y = y


def _port(slot: Slot, index: int, space: Space) -> float:
    """The height at which an edge meets the box with this number of a slot."""
    if slot.passing:
        return slot.y + slot.height / 2
    if len(slot.boxes) == 1:
        return slot.y + slot.boxes[0].height / 2
    before = sum(box.height + space.inside for box in slot.boxes[:index])
    return slot.y + space.title + before + slot.boxes[index].height / 2


def _apart(column: list[Slot], want: list[float], weight: list[float], space: Space) -> list[float]:
    """The heights nearest to those wanted that keep slots in order and apart."""
    offset, offsets = 0.0, []
    for slot in column:
        offsets.append(offset)
        offset += slot.height + space.rows
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of slots
    for wanted, heavy, shift in zip(want, weight, offsets, strict=True):
        mean, total, count = wanted - shift, heavy, 1
        while blocks and blocks[-1][0] > mean:
            other, its, n = blocks.pop()
            mean = (mean * total + other * its) / (total + its)
            total, count = total + its, count + n
        blocks.append((mean, total, count))
    level = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + shift for mean, shift in zip(level, offsets, strict=True)]


# -- places -------------------------------------------------------------------------------------


def _placed(
    columns: list[list[Slot]],
    routes: dict[tuple[str, str], list[Slot]],
    stages: dict[int, int],
    space: Space,
    top: float,
    left: float,
) -> Layout:
    shift = top - min((slot.y for column in columns for slot in column), default=0.0)
    lefts: dict[int, float] = {}
    widths: dict[int, float] = {}
    frames: dict[str, tuple[float, float, float, float]] = {}
    x, bottom = left, top
    before: int | None = None
    for column in columns:
        number = column[0].column
        stage = stages.get(number, 0)
        if before is not None:
            x += space.columns if before == stage else space.stages
        before = stage
        inner = max((box.width for slot in column for box in slot.boxes), default=0.0)
        pad = space.inside if any(len(slot.boxes) > 1 for slot in column) else 0.0
        lefts[number], widths[number] = x, inner + 2 * pad
        for slot in column:
            slot.y += shift
            bottom = max(bottom, slot.y + slot.height)
            y = slot.y
            if len(slot.boxes) > 1:
                frames[str(slot.key)] = (x, y, inner + 2 * pad, slot.height)
                y += space.title
            for box in slot.boxes:
                box.x, box.y, box.width = x + pad, y, inner
                y += box.height + space.inside
        x += widths[number]
    passes = {
        edge: [(slot.column, slot.y + slot.height / 2) for slot in route]
        for edge, route in routes.items()
    }
    return Layout(lefts, widths, frames, passes, x, bottom)

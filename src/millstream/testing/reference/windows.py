"""Windows by their definition: which records each holds, and what comes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from millstream.api.windows import WindowSpec
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.codec import encode
from millstream.ops.keys.names import hashes_of_values
from millstream.ops.windows.jobs import Window
from millstream.testing.reference.aggregates import aggregate
from millstream.testing.reference.calendars import local_window
from millstream.testing.reference.records import (
    Record,
    Row,
    as_key,
    filled,
    identity,
    moment,
    place,
    several,
)

PLAIN = ("tumbling", "sliding", "hopping")
KINDS = (*PLAIN, "whole", "session", "landmark", "count", "bytes")


@dataclass(frozen=True)
class _Cut:
    """One window of one key: its bounds, and its records in order."""

    start: float
    end: float
    records: list[Record]
    full: bool = True  # else it leaves because the input has ended
    slide: list[Record] | None = None  # of a landmark over rows or bytes: those that are new in it

    @property
    def counted(self) -> list[Record]:
        """The records whose keys have a result."""
        return self.records if self.slide is None else self.slide

    def window(self) -> Window:
        """As users see it: what has no bound has None."""
        start, end = (None if math.isinf(at) else moment(at) for at in (self.start, self.end))
        return Window(start, end)


class Result(NamedTuple):
    """A result, and the end of its window."""

    end: float
    record: Record


def results(
    node: nodes.Windowed, records: list[Record], number: int, ended: float, *, hashed: bool = False
) -> list[Result]:
    """All results over these records, in the order of windows, then of keys.

    number: what stands for the step in the places of its results. ended: when the input did.
    hashed: places at the same time follow from the hashes of keys, so that what an updater makes
    of results has an order too.
    """
    mine: dict[Any, list[Record]] = {}
    keys: dict[Any, list[Any]] = {}
    for record in sorted(records, key=place):
        key = [record.row.get(name) for name in node.keys]
        if node.job is None and None in key and node.null_keys == "dead":
            continue
        name = identity(key, exact=node.job is not None)
        keys.setdefault(name, key)
        mine.setdefault(name, []).append(record)
    if node.window.over == "stream":
        found = _of_stream(node, mine)
    else:
        found = [(name, one) for name, held in mine.items() for one in _cut(node, held)]
    found.sort(key=lambda one: (one[1].end, one[0]))
    out: list[Result] = []
    for position, (name, one) in enumerate(found):
        ts = 0 if math.isinf(one.end) else int(one.end) - 1
        if not one.full and not math.isinf(ended):
            ts = max(ts, int(ended))
        if hashed:
            position = _hashed(node, keys[name])
        for row in _reduced(node, keys[name], one.records, one.window()):
            out.append(Result(one.end, Record(ts, number, position, row)))
    full = filled([one.record.row for one in out])
    return [
        Result(one.end, replace(one.record, row=row)) for one, row in zip(out, full, strict=True)
    ]


def _of_stream(node: nodes.Windowed, mine: dict[Any, list[Record]]) -> list[tuple[Any, _Cut]]:
    """Windows over the records of all keys together; in each, what every key has of it."""
    owner = {id(record): name for name, held in mine.items() for record in held}
    everything = sorted((record for held in mine.values() for record in held), key=place)
    out = []
    for one in _cut(node, everything):
        for name in dict.fromkeys(owner[id(record)] for record in one.counted):
            held = [record for record in one.records if owner[id(record)] == name]
            out.append((name, replace(one, records=held)))
    return out


def _hashed(node: nodes.Windowed, key: list[Any]) -> int:
    one: Any = tuple(key) if node.job is None else encode(key[0])
    return int(hashes_of_values([one])[0][0]) >> 1


def _cut(node: nodes.Windowed, records: list[Record]) -> list[_Cut]:
    """The windows of one key, with its records in order."""
    spec = node.window
    match spec.kind:
        case "session":
            return _sessions(records, spec.span.size)
        case "landmark":
            ends = sorted({end for one in records for _, end in windows_of(spec, one.ts)})
            return [_Cut(-math.inf, end, [r for r in records if r.ts < end]) for end in ends]
        case "count":
            return _numbered(spec, records, [1] * len(records))
        case "bytes":
            sizes = [_bytes_of(node.name, one.row) for one in records]
            return _numbered(spec, records, sizes)
    held: dict[tuple[float, float], list[Record]] = {}
    for record in records:
        for bounds in windows_of(spec, record.ts):
            held.setdefault(bounds, []).append(record)
    return [_Cut(start, end, those) for (start, end), those in held.items()]


def _sessions(records: list[Record], gap: int) -> list[_Cut]:
    """Records less than the gap apart."""
    runs: list[list[Record]] = []
    for record in sorted(records, key=place):
        if runs and record.ts - runs[-1][-1].ts < gap:
            runs[-1].append(record)
        else:
            runs.append([record])
    return [_Cut(run[0].ts, run[-1].ts + gap, run) for run in runs]


def _numbered(spec: WindowSpec, records: list[Record], sizes: list[int]) -> list[_Cut]:
    """Windows of `size`, every `slide`, over what came before each record; unfilled ones too."""
    assert spec.logical is not None
    size, slide = spec.logical.size, spec.logical.slide
    places = [sum(sizes[:index]) for index in range(len(sizes))]
    out = []
    for start in range(0, sum(sizes), slide):
        inside = [start <= place < start + size for place in places]
        held = [one for one, there in zip(records, inside, strict=True) if there]
        if held:
            full = start + size <= sum(sizes)
            before = [r for r, at in zip(records, places, strict=True) if at < start + size]
            if spec.growing:
                out.append(_Cut(-math.inf, held[-1].ts + 1, before, full, held))
            else:
                out.append(_Cut(held[0].ts, held[-1].ts + 1, held, full))
    return out


def _bytes_of(name: str, row: Row) -> int:
    """Texts have their UTF-8 length, numbers and times 8, booleans 1, nulls 0; at least 1."""
    total = 0
    for column, value in row.items():
        if isinstance(value, str):
            total += len(value.encode())
        elif isinstance(value, bool):
            total += 1
        elif isinstance(value, int | float | date):
            total += 8
        elif value is not None:
            raise ConfigError(
                f"{name}: reference() does not know how many bytes column {column!r} has, "
                f"with values like {value!r}"
            )
    return max(total, 1)


def windows_of(window: WindowSpec, ts: int) -> list[tuple[float, float]]:
    """Every window [start, end) that holds a time; of other kinds, how long a record can matter."""
    size, slide = window.span.size, window.span.slide
    if window.span.whole:
        return [(-math.inf, math.inf)]
    if window.kind not in (*PLAIN, "landmark"):
        return [(ts, ts + size)]
    if window.span.calendar is not None:
        return [local_window(window.span.calendar, ts)]
    starts = []
    start = ts // slide * slide
    while start > ts - size:
        starts.append(start)
        start -= slide
    return [(start, start + size) for start in starts]


def _reduced(
    node: nodes.Windowed, key: list[Any], records: list[Record], window: Window
) -> list[Row]:
    """The rows of one window and key."""
    head: Row = dict(zip(node.keys, key, strict=True))
    bounds: Row = {}
    if window.end is not None:
        bounds = {"window_start": window.start, "window_end": window.end}
    final = {"final": True} if node.emission.mode == "early" else {}
    shown = as_key(key[0] if len(key) == 1 else key)
    try:
        if node.job is not None:
            values = [one.row["value"] for one in records]
            pairs = node.job.reduce(shown, values, window) or ()
            return [{"key": as_key(k), "value": v, **bounds, **final} for k, v in pairs]
        if node.reducer is not None:
            result = node.reducer(shown, [dict(one.row) for one in records], window)
            if not isinstance(result, Mapping | list | tuple) and not hasattr(result, "__next__"):
                result = None if result is None else {"value": result}
            return [{**head, **bounds, **row, **final} for row in several(result)]
    except Exception:  # a user's function may raise anything: this one result is lost
        return []
    rows = [one.row for one in records]
    return [{**head, **bounds, **{name: aggregate(agg, rows) for name, agg in node.aggs}, **final}]

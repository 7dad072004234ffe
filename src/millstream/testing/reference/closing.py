"""Windows that may be evicted, by their definition: steps of a clock, each with its records.

What is evicted depends on when records came and when somebody looked, so the input is what a
`Driver` gets: at each step the wall clock and the records of one batch. One source with declared
participants, windows over time with aggregates, and more of these over their results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.api.flow import Flow
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.times.fidelity import OpenWindow, Participant
from millstream.testing.reference.aggregates import aggregate
from millstream.testing.reference.records import Row, event_time, moment
from millstream.testing.reference.windows import windows_of

Step = tuple[float, list[Row]]  # the wall clock in seconds, and the records of a batch


@dataclass
class _Who:
    """How far somebody is who brings records to a window."""

    source: str
    name: str
    at: float = -math.inf  # the latest time
    passed: float = -math.inf  # before which nothing more comes
    heard: float = math.inf  # the wall clock when it was; never silent if it is a step of ours


@dataclass
class _Window:
    """A windowed step, with all records it ever took."""

    node: nodes.Windowed
    records: list[tuple[int, Row]] = field(default_factory=list)
    closed: float = -math.inf  # the end of the last window that left
    oldest: tuple[float, float] = (-math.inf, 0.0)  # the oldest open one, and since when
    late: Counter[str] = field(default_factory=Counter)

    def open_ends(self, after: float) -> list[float]:
        """The ends of windows with records that end later, the oldest first."""
        held = (end for ts, _ in self.records for _, end in windows_of(self.node.window, ts))
        return sorted({end for end in held if end > after})

    def ask(self, watermark: float, who: list[_Who], now: float, read: float) -> dict[float, str]:
        """Which windows leave before they are complete, and why.

        read: all that came until then has been read; nobody is silent after that.
        """
        evicted: dict[float, str] = {}
        if self.node.policy is None:
            return evicted
        for end in self.open_ends(max(self.closed, watermark)):
            start = end - self.node.window.span.size
            since = self.oldest[1] if end == self.oldest[0] else now
            one = OpenWindow(moment(start), moment(end), now - since, self._seen(who, end, read))
            why = self.node.policy.closes(one)
            if why is None:
                break
            evicted[end] = why
        return evicted

    def _seen(self, who: list[_Who], end: float, read: float) -> tuple[Participant, ...]:
        return tuple(
            Participant(
                one.source,
                one.name,
                self._share(one, end),
                one.passed >= end,
                max(0.0, read - one.heard),
            )
            for one in who
        )

    def _share(self, one: _Who, end: float) -> float:
        """How much of a window somebody has brought: up to the time it has come to."""
        size: int = self.node.window.span.size
        return min(1.0, max(0.0, (one.at - (end - size)) / size))

    def _begun(self, one: _Who, end: float) -> bool:
        """Whether somebody has brought a record of a window; a step of ours is at a watermark."""
        start = end - self.node.window.span.size
        return one.at > start or (one.at == start and one.heard < math.inf)

    def take(self, ts: int, row: Row, name: str) -> None:
        """A record that is not out of order; late if all its windows have left.

        One in a gap between windows is too late for none.
        """
        ends = [end for _, end in windows_of(self.node.window, ts)]
        if ends and max(ends) <= self.closed:
            self.late[name] += 1
        elif ends:
            self.records.append((ts, row))

    def leave(
        self, watermark: float, evicted: dict[float, str], who: list[_Who], now: float
    ) -> list[tuple[int, Row]]:
        """The results of windows that leave, with the time of each."""
        until = max([watermark, *evicted])
        out: list[tuple[int, Row]] = []
        for end in self.open_ends(self.closed):
            if end > until:
                break
            why = "watermark"
            if end > watermark:
                why = evicted[min(one for one in evicted if one >= end)]
            shares = [self._share(one, end) for one in who]
            figures = {
                "fidelity": sum(shares) / len(shares),
                "participants": f"{sum(self._begun(one, end) for one in who)}/{len(who)}",
                "closed_by": why,
            }
            out.extend((int(end) - 1, row) for row in self._rows(end, figures))
        slide = self.node.window.span.slide
        size = self.node.window.span.size
        if until > -math.inf:
            last = (until - size) // slide * slide + size  # the last end that has been passed
            self.closed = max(self.closed, last)
        still = self.open_ends(self.closed)[:1]
        if still and still[0] != self.oldest[0]:
            self.oldest = (still[0], now)
        return out

    def _rows(self, end: float, figures: Row) -> Iterable[Row]:
        """One row per key: its aggregates over the records of the window, and the figures."""
        start, keys = end - self.node.window.span.size, self.node.keys
        inside = [row for ts, row in self.records if start <= ts < end]
        for key in dict.fromkeys(tuple(row[name] for name in keys) for row in inside):
            mine = [row for row in inside if tuple(row[name] for name in keys) == key]
            row = dict(zip(keys, key, strict=True))
            row |= {"window_start": moment(start), "window_end": moment(end)}
            row |= {name: aggregate(agg, mine) for name, agg in self.node.aggs}
            inherited = row.pop("fidelity", 1.0)
            yield row | figures | {"fidelity": figures["fidelity"] * inherited}

    def passed(self) -> float:
        """The time before which no result comes any more."""
        slide: int = self.node.window.span.slide
        return self.closed + slide - 1


def reference_evicting(
    flow: Flow, steps: list[Step], started: float
) -> tuple[list[dict[str, list[Row]]], dict[str, dict[str, int]]]:
    """Per step what every windowed operator gave, and how many records were late for it, by whom.

    started: the wall clock when the run began; the input does not end.
    """
    windows = [_Window(node) for node in flow.nodes if isinstance(node, nodes.Windowed)]
    (source,) = (node for node in flow.nodes if isinstance(node, nodes.Source))
    spec: Any = source.spec
    if not spec.participant or not spec.participants or spec.lateness is None:
        raise ConfigError("reference_evicting(): needs declared participants and a lateness")
    lateness = spec.lateness_micros()
    people = {name: _Who(source.name, name, heard=started) for name in spec.participants}
    given: list[dict[str, list[Row]]] = []
    read = started
    for now, rows in steps:
        watermark = min(one.passed for one in people.values())
        asked = {}
        for one in windows:
            mark, who = _before(one, windows, watermark, people, source)
            asked[one.node.name] = one.ask(mark, who, now, read if rows else now)
        came: dict[str, list[tuple[int, Row]]] = {source.name: []}
        for row in rows:
            ts, me = (
                event_time(row[spec.time], spec.time_unit, spec.zone),
                people[row[spec.participant]],
            )
            assert ts is not None
            if ts < me.at - lateness:
                for one in windows:
                    if one.node.inputs[0] is source and windows_of(one.node.window, ts):
                        one.late[me.name] += 1
            else:
                came[source.name].append((ts, row))
            me.at, me.heard = max(me.at, ts), now
            me.passed = me.at - lateness
        watermark = min(one.passed for one in people.values())
        for one in windows:  # each after those whose results it gets
            for ts, row in came[one.node.inputs[0].name]:
                one.take(ts, row, row.get(spec.participant, ""))
            mark, who = _before(one, windows, watermark, people, source)
            came[one.node.name] = one.leave(mark, asked[one.node.name], who, now)
        read = now
        given.append({one.node.name: [row for _, row in came[one.node.name]] for one in windows})
    return given, {one.node.name: dict(one.late) for one in windows}


def _before(
    one: _Window,
    windows: list[_Window],
    watermark: float,
    people: dict[str, _Who],
    source: nodes.Source,
) -> tuple[float, list[_Who]]:
    """The watermark at the input of a step, and who brings its records."""
    if one.node.inputs[0] is source:
        return watermark, list(people.values())
    above = next(other for other in windows if other.node is one.node.inputs[0])
    at = above.passed()
    return at, [_Who(above.node.name, above.node.name, at, at)]

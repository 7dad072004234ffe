"""Records pushed through the graph, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.api.programs import Program
from millstream.api.windows import WindowSpec
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.graph.changing import changes_of
from millstream.operators.protocol import KeyedStep
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.expressions import Expression
from millstream.testing.reference.calendars import local_window
from millstream.testing.reference.records import Record, Row, event_time, filled, place
from millstream.testing.reference.steps import mapped_batch, paired, processed, rows_of, timed
from millstream.testing.reference.tables import TABLES
from millstream.testing.reference.updates import Discovered, Times, Updaters, check_update
from millstream.testing.reference.windows import KINDS, PLAIN, results, windows_of

Given = list[Row] | Mapping[str, list[Row]]  # the records of a source, or of each of its files


@dataclass
class Run:
    """Records pushed through the graph, step by step."""

    graph: tuple[nodes.Node, ...]
    moves: bool  # time moves with every batch; else all waits for the end
    targets: dict[nodes.Node, set[str]] = field(default_factory=dict)  # who publishes where
    arrived: dict[nodes.Node, list[Record]] = field(default_factory=dict)
    watermark: dict[nodes.Node, float] = field(default_factory=dict)  # at the start of the batch
    latest: dict[nodes.Node, int] = field(default_factory=dict)
    came: dict[nodes.Node, dict[Any, int]] = field(default_factory=dict)  # each participant to when
    pieces: dict[nodes.Node, int] = field(default_factory=dict)
    answered: dict[nodes.Node, int] = field(default_factory=dict)  # rows that were given
    sided: dict[tuple[nodes.Node, int], list[Record]] = field(default_factory=dict)  # by input

    def __post_init__(self) -> None:
        for node in self.graph:
            self.arrived[node] = []
            self.watermark[node] = -math.inf
        kinds = nodes.Source | nodes.Keyed | nodes.Published | nodes.Process
        self.origins: list[nodes.Node] = [n for n in self.graph if isinstance(n, kinds)]
        streams = {n.name: n for n in self.graph if isinstance(n, nodes.Published)}
        self.updaters = Updaters(self.origins, streams, self.targets, self.push, self._push_late)
        self.order = _in_order(self.graph, self._feeding)

    def batch(self, given: Mapping[str, Given]) -> None:
        """Take in some records of some sources, then move the watermarks."""
        sources = {n.name: n for n in self.graph if isinstance(n, nodes.Source)}
        for name in given:
            if name not in sources:
                raise ConfigError(f"there is no source {name!r}; this flow has: {list(sources)}")
        for name, source in sources.items():
            self.push(source, self._records(source, given.get(name, [])))
        if self.moves:
            self._move(self._watermarks(), ended=False)

    def show(self) -> None:
        """What every sink has after the batches so far, if nothing more came."""
        passed = self._watermarks()
        on_time = self._watermarks(late=False)
        for node in (node for together in self.order for node in together):
            if isinstance(node, nodes.Windowed):
                until = passed[node.inputs[0]]
                if node.emission.mode == "delta":  # it does not wait for what may be late
                    until = max(until, on_time[node.inputs[0]])
                elif node.emission.mode == "early":  # nor for anything else
                    until = math.inf
                self._close(node, until)
            elif type(node) in TABLES:
                self._tabulate(node, passed[node.inputs[0]])
            elif isinstance(node, KeyedStep):
                shown = node.at_once or changes_of(node) is not None
                self._answer(node, math.inf if shown else passed[node.inputs[0]])

    def finish(self) -> None:
        """The end of all input: every window leaves, those that feed others first."""
        self._move(dict.fromkeys(self.graph, math.inf), ended=True)

    def slates(self) -> dict[str, dict[Any, Any]]:
        """Per updater and key the slates that are there once all input was read."""
        return self.updaters.slates({node: self._ends(node) + 1 for node in self.graph})

    def _move(self, until: dict[nodes.Node, float], *, ended: bool) -> None:
        """Let event time come to the watermarks after a batch, at each step after its inputs."""
        for together in self.order:
            if any(isinstance(node, nodes.Update) for node in together):
                latest = self._ends(together[0]) if ended else math.inf
                times = Times(self.watermark[together[0]], until[together[0]], latest)
                self.updaters.run(together, times)
            for node in together:
                if isinstance(node, nodes.Windowed) and (ended or self._leaves_early(node)):
                    self._close(node, until[node.inputs[0]])
                elif type(node) in TABLES:
                    if ended:
                        self._tabulate(node, self._ends(node.inputs[0]))
                elif isinstance(node, KeyedStep) and (ended or not node.at_once):
                    self._answer(node, until[node.inputs[0]])
        self.watermark = until

    def _leaves_early(self, node: nodes.Windowed) -> bool:
        """Whether it matters to anything when results leave: to updaters it does."""
        return bool(self.targets) and node.window.kind in PLAIN

    def _answer(self, node: KeyedStep, until: float) -> None:
        """What a step of its own kind gives for all that came before a moment, and gave not yet."""
        if len(node.inputs) > 1:
            self._answer_over(node)
            return
        ready = sorted((one for one in self.arrived[node] if one.ts < until), key=place)
        number = self.origins.index(node)
        answers = node.answers_in_time([(one.ts, one.row) for one in ready])
        given = self.answered.setdefault(node, 0)
        self.answered[node] = len(answers)
        self.push(
            node,
            [replace(ready[at], row=row, source=number, due=None) for at, row in answers[given:]],
        )

    def _tabulate(self, node: nodes.Node, now: float) -> None:
        """The table that a step keeps up to date, of all that came."""
        ready, number = sorted(self.arrived[node], key=place), self.origins.index(node)
        none = Record(0, number, 0, {})  # of the one group of everything, if there is nothing
        self.push(
            node,
            [
                replace(ready[at] if ready else none, row=row, source=number, due=None)
                for at, row in TABLES[type(node)](node, ready, now)
            ],
        )

    def _answer_over(self, node: KeyedStep) -> None:
        """What a step with several inputs gives for all that came."""
        sides = [
            [(one.ts, one.row) for one in sorted(self.sided.get((node, at), []), key=place)]
            for at in range(len(node.inputs))
        ]
        number = self.origins.index(node)
        answers = enumerate(node.answers_over(sides))
        self.push(node, [Record(ts, number, at, row) for at, (ts, row) in answers])

    def _close(self, node: nodes.Windowed, until: float) -> None:
        number, ended = self.origins.index(node), self._ends(node.inputs[0])
        found = results(node, self.arrived[node], number, ended, hashed=bool(self.targets))
        before = self.watermark[node.inputs[0]] if self._leaves_early(node) else -math.inf
        self.push(node, [one.record for one in found if before < one.end <= until])

    # -- sources and watermarks -------------------------------------------------------------------

    def _records(self, node: nodes.Source, given: Given) -> list[Record]:
        """The records of a source, file by file, each with what its own participant tells of it."""
        spec, out = node.spec, []
        for name, rows in _files(node, given):
            piece = self.pieces.get(node, 0)
            self.pieces[node] = piece + bool(rows)
            for index, row in enumerate(rows):
                position = (piece << OFFSET_BITS) + index
                ts = _time(spec, row)
                if ts is not None:
                    who = name if spec.participant is None else row.get(spec.participant)
                    due = self._due(node, who, ts)
                    self.latest[node] = max(ts, self.latest.get(node, ts))
                    out.append(Record(ts, self.origins.index(node), position, row, due))
        return out

    def _due(self, node: nodes.Source, who: Any, ts: int) -> int:
        """When a record counts: at its time, unless it is late.

        It is late if its time is more than the lateness before the latest time that precedes it, by
        position, in its own participant.
        """
        came = self.came.setdefault(node, {})
        before = came.get(who)
        came[who] = ts if before is None else max(ts, before)
        lateness: int | None = node.spec.lateness_micros()
        return ts if lateness is None or before is None else max(ts, before - lateness)

    def _passed(self, node: nodes.Source, late: bool) -> float:
        """The time that every participant of a source has passed, by the lateness if `late`."""
        spec, came = node.spec, self.came.get(node, {})
        lateness: int | None = spec.lateness_micros()
        expected = set(spec.participants or ()) - set(came)
        unknown = spec.bounded and spec.participant is not None and not spec.participants
        if lateness is None or not came or expected or unknown:
            return -math.inf
        return min(came.values()) - (lateness if late else 0)

    def _feeding(self, node: nodes.Node) -> list[nodes.Node]:
        """The steps whose records a step gets."""
        if isinstance(node, nodes.Published):
            # Nothing is ever too much here: what diverts to it gives it nothing.
            return [one for one, streams in self.targets.items() if node.name in streams]
        return list(node.inputs)

    def _watermarks(self, *, late: bool = True) -> dict[nodes.Node, float]:
        """The time before which nothing more comes out of each step; a cycle has one in all."""
        out: dict[nodes.Node, float] = {}
        for together in self.order:
            feeding = [one for node in together for one in self._feeding(node)]
            lowest = min((out[one] for one in feeding if one not in together), default=math.inf)
            for node in together:
                out[node] = lowest
                if isinstance(node, nodes.Source):
                    out[node] = self._passed(node, late)
                elif isinstance(node, nodes.Windowed):
                    out[node] = self._next_result(node.window, lowest)
                elif isinstance(node, nodes.Process | nodes.At):
                    out[node] = lowest - node.behind
        return out

    def _next_result(self, window: WindowSpec, watermark: float) -> float:
        """The time of the earliest result that is still to come."""
        size, slide = window.span.size, window.span.slide
        if math.isinf(watermark) or not slide:
            return -math.inf
        if window.span.calendar is not None:
            return local_window(window.span.calendar, int(watermark))[1] - 1
        start = (int(watermark) - size) // slide * slide  # the last window that has closed
        return start + slide + size - 1

    def _furthest(self, node: nodes.Node, above: tuple[nodes.Node, ...] = ()) -> float:
        """What the watermark after a step comes to if nothing is out of order and none holds it."""
        if isinstance(node, nodes.Source) or self._retimes(node):
            return self.latest.get(node, -math.inf)
        feeding = [one for one in self._feeding(node) if one not in above]
        furthest = max((self._furthest(one, (*above, node)) for one in feeding), default=-math.inf)
        if isinstance(node, nodes.At):
            return furthest - node.behind
        if isinstance(node, nodes.Windowed):
            return self._next_result(node.window, furthest)
        return furthest

    def _ends(self, node: nodes.Node) -> float:
        """Where time ends at a step once all input was read, however that was cut.

        With the latest record of the sources above it, or with the windows in between it is in;
        where at() gives times, with the latest of those.
        """
        return max(self._furthest(node), self._latest(node))

    def _retimes(self, node: nodes.Node) -> bool:
        """Whether nothing but the times that a step gives says how far time comes behind it."""
        return isinstance(node, nodes.At) and _complete(node)

    def _latest(self, node: nodes.Node, above: tuple[nodes.Node, ...] = ()) -> float:
        """The latest time of all records of the sources above a step."""
        if isinstance(node, nodes.Source) or self._retimes(node):
            return self.latest.get(node, -math.inf)
        feeding = [one for one in self._feeding(node) if one not in above]
        latest = max((self._latest(one, (*above, node)) for one in feeding), default=-math.inf)
        if isinstance(node, nodes.At):
            return max(self.latest.get(node, -math.inf), latest - node.behind)
        if isinstance(node, nodes.Windowed) and node.window.span.whole:
            return -math.inf  # results of the whole input have no time
        return latest

    # -- steps ------------------------------------------------------------------------------------

    def push(
        self,
        node: nodes.Node,
        records: list[Record],
        among: Callable[[nodes.Node], bool] = lambda consumer: True,
    ) -> None:
        """Give records to every step after this one (or to some of them)."""
        for consumer in self.graph:
            takes = node in consumer.inputs and not isinstance(consumer, nodes.Late)
            if not takes or not records or not among(consumer):
                continue
            if isinstance(consumer, nodes.Update):
                for number, one in enumerate(consumer.inputs):
                    if one is node:
                        self.updaters.arrive(consumer, number, records)
            elif isinstance(consumer, KeyedStep) and len(consumer.inputs) > 1:
                for number, one in enumerate(consumer.inputs):
                    if one is node:
                        on_time = [one for one in records if not one.late]
                        self.sided.setdefault((consumer, number), []).extend(on_time)
                self._push_late(consumer, [one for one in records if one.late])
            else:
                twice = isinstance(consumer, nodes.Union)  # a union of a stream with itself
                for _ in range(consumer.inputs.count(node) if twice else 1):
                    self._step(consumer, records)

    def _step(self, node: nodes.Node, records: list[Record]) -> None:
        match node:
            case nodes.Sink():
                self.arrived[node] += records
            case nodes.Windowed():
                self._arrive(node, records)
            case KeyedStep() if type(node) in TABLES:
                self.arrived[node] += records  # late ones count, too
            case KeyedStep():
                self.arrived[node] += [one for one in records if not one.late]
                self._push_late(node, [one for one in records if one.late])
            case nodes.Union():
                self.push(node, records)
            case nodes.Process():
                given, published = processed(node, records, self.origins)
                self.push(node, given)
                for stream, events in published.items():
                    self._expect(node, stream)
                    origin = self.updaters.streams[stream]
                    number = self.origins.index(origin)
                    self.push(origin, [replace(one, source=number) for one in events])
            case nodes.At():
                given = timed(node, records, _complete(node))
                for one in given:
                    self.latest[node] = max(one.ts, self.latest.get(node, one.ts))
                self.push(node, given)
            case nodes.MapBatches():
                self.push(node, mapped_batch(node, records))
            case nodes.Pairs(job=Program()):
                names = {name for one in records for name in one.row}
                self.push(node, paired(node, records, names))
            case _:
                names = {name for one in records for name in one.row}
                rows = [(one, rows_of(node, one, names)) for one in records]
                flat = [(one, row) for one, several in rows for row in several]
                full = filled([row for _, row in flat])
                self.push(
                    node, [replace(one, row=row) for (one, _), row in zip(flat, full, strict=True)]
                )

    def _expect(self, node: nodes.Process, stream: str) -> None:
        if stream not in self.targets[node]:
            raise Discovered(node, stream)

    def _arrive(self, node: nodes.Windowed, records: list[Record]) -> None:
        if not node.window.span.whole and any(
            source.spec.time is None for source in sources_of(node)
        ):
            raise ConfigError(f"{node.name}: reference() needs a source with a time column")
        late: list[Record] = []
        for one in records:
            # A record in the gap between windows is too late for none of them.
            missed = one.late and not node.window.span.whole and windows_of(node.window, one.ts)
            (late if missed else self.arrived[node]).append(one)
        self._push_late(node, late)

    def _push_late(self, node: nodes.Node, late: list[Record]) -> None:
        for other in self.graph:
            if isinstance(other, nodes.Late) and other.of is node and late:
                self.push(other, late)


def _complete(node: nodes.At) -> bool:
    """Whether all is read before anything behind a step leaves."""
    return all(one.spec.lateness_micros() is None for one in sources_of(node))


def _time(spec: Any, row: Row) -> int | None:
    return event_time(row.get(spec.time), spec.time_unit, spec.zone) if spec.time else 0


def _files(node: nodes.Source, given: Given) -> list[tuple[str, list[Row]]]:
    """Files in the order in which they are read: by their first times, then by their names."""
    if not isinstance(given, Mapping):
        return [("", filled(given))]
    rows = filled([row for several in given.values() for row in several])
    files, begin = {}, 0
    for name, several in given.items():
        files[name] = rows[begin : begin + len(several)]
        begin += len(several)

    def turn(name: str) -> tuple[float, str]:
        times = [ts for row in files[name] if (ts := _time(node.spec, row)) is not None]
        timed = bool(times) and node.spec.lateness_micros() is not None
        return (times[0] if timed else math.inf), name

    return [(name, files[name]) for name in sorted(files, key=turn)]


def _in_order(
    graph: tuple[nodes.Node, ...], feeding: Callable[[nodes.Node], list[nodes.Node]]
) -> list[list[nodes.Node]]:
    """The steps, each after those that feed it, the steps of a cycle together."""
    before: dict[nodes.Node, set[nodes.Node]] = {}
    for node in graph:
        found: set[nodes.Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            more = feeding(one) + ([one.of] if isinstance(one, nodes.Late) else [])
            waiting += [other for other in more if other not in found]
            found.update(more)
        before[node] = found
    out: list[list[nodes.Node]] = []
    done: set[nodes.Node] = set()
    while len(done) < len(graph):
        node = next(n for n in graph if n not in done and before[n] - done <= _cycle(n, before))
        out.append([n for n in graph if n in _cycle(node, before)])
        done.update(out[-1])
    return out


def _cycle(node: nodes.Node, before: dict[nodes.Node, set[nodes.Node]]) -> set[nodes.Node]:
    """The steps of the cycle a step is in, or just itself."""
    return {node} | {one for one in before[node] if node in before[one]}


def check(node: nodes.Node) -> None:
    """Refuse what is not modelled."""
    if isinstance(node, KeyedStep):
        ways = ("answers", "answers_in_time", "answers_over")
        modelled = any(getattr(type(node), way) is not getattr(KeyedStep, way) for way in ways)
        if not modelled and type(node) not in TABLES:
            raise ConfigError(
                f"{node.name}: reference() does not know {node.kind}(), which gives changes"
            )
    if isinstance(node, nodes.Update):
        check_update(node)
        if any(source.spec.time is None for source in sources_of(node)):
            raise ConfigError(f"{node.name}: reference() needs a source with a time column")
    if isinstance(node, nodes.Windowed):
        kind = node.window.kind
        if kind not in KINDS:
            raise ConfigError(f"{node.name}: reference() does not know {kind} windows")
        if node.emission.mode == "snapshot":
            raise ConfigError(
                f"{node.name}: reference() does not know estimates; leave emit= out, and compare "
                "the rows that are exact"
            )
        if kind == "bytes" and node.job is not None:
            raise ConfigError(
                f"{node.name}: reference() does not know how many bytes a pair of a MapReduce job "
                "has; use agg() or reduce()"
            )
    expressions: tuple[Expression, ...] = ()
    if isinstance(node, nodes.Where):
        expressions = (node.condition,)
    elif isinstance(node, nodes.Select):
        expressions = node.items
    for expression in expressions:
        named = sorted(_marks(node.inputs[0]) & set(expression.columns))
        if named:
            raise ConfigError(f"{node.name}: reference() does not know the column {named[0]!r}")


def _marks(node: nodes.Node) -> set[str]:
    """The columns that mark results before they are final, of windows right before this step."""
    if isinstance(node, nodes.Windowed):
        return {"early": {"revision"}, "delta": {"op"}}.get(node.emission.mode, set())
    return {mark for one in node.inputs for mark in _marks(one)}


def sources_of(node: nodes.Node) -> list[nodes.Source]:
    if isinstance(node, nodes.Source):
        return [node]
    return [source for one in node.inputs for source in sources_of(one)]

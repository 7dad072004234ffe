"""What a task does: read or take over rows, push them through the steps, hand the rest on.

This module is plain Python over Arrow and files; the same code runs in Spark's workers and, for
tests and small batches, in one process. Records are pushed: a step gets a chunk and gives chunks to
the steps after it, until they reach an exchange or a sink.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from millstream.graph import nodes
from millstream.io.kafka.consuming import Stretch
from millstream.io.readers import Split
from millstream.io.records import reading
from millstream.operators.batch import Batch, Control, Heard, Seen, digest_of, hear, on_base
from millstream.operators.protocol import Inlet, Senders, Share
from millstream.operators.published import publish
from millstream.ops.chunks import Chunk
from millstream.ops.keys.ordering import in_order
from millstream.ops.records import DeadLetter
from millstream.ops.times.progress import END
from millstream.ops.updates.processing import Processor, process
from millstream.plan.stages import Plan, upstream
from millstream.run.outputs.mirroring import takes_records
from millstream.run.pressure.memory import give_back, own_resident
from millstream.run.tasks.asides import set_aside
from millstream.run.tasks.clocks import clocks_of
from millstream.run.tasks.entering import Entrance
from millstream.run.tasks.measuring import Meter
from millstream.run.tasks.onward import Blocks, Onward
from millstream.run.tasks.reading import Piece, begin_reading, read
from millstream.run.tasks.sinking import edge, sink_outputs
from millstream.run.tasks.splits import DRIVER, SENT, SORTING, AnySplit, Aside, Item, Readable
from millstream.run.tasks.steps import lacks, stateless, with_columns
from millstream.run.tasks.takeover import has_messages, take_over
from millstream.run.tasks.timing import assign_times, note_latest
from millstream.run.tasks.together import Together, may_gather
from millstream.state.pages import unpack
from millstream.state.traffic import moved_so_far


def levels_of(plan: Plan, batch: Batch) -> int:
    """The exchanges of a batch: those of the plan that can have anything to do."""
    return plan.depth if batch.levels is None else batch.levels


class Task:
    """One attempt at one partition of one level of one batch."""

    def __init__(self, plan: Plan, batch: Batch, level: int, part: int) -> None:
        self.plan = plan
        self.batch = batch
        self.attempt = uuid.uuid4().hex[:12]
        self.control = Control(level, part, self.attempt)
        self.inlets: dict[str, Inlet] = {}  # by operator
        self.entrance = Entrance(plan, batch, self.control)
        self.onward = Onward(batch, self.control, levels_of(plan, batch))
        self.sunk: dict[str, list[Chunk]] = {}
        self.events: list[tuple[nodes.Node, nodes.Node, list[Chunk]]] = []  # of changes
        self.together = Together()  # records of small files that wait for others
        self.meter = Meter()

    # -- the two kinds of task ------------------------------------------------------------------

    def ingest(self, splits: Iterable[AnySplit]) -> Iterator[Item]:
        """Level 0: read splits and push their records."""
        sources, splits = self.plan.sources(), list(splits)
        begin_reading([self.plan.formats.get(one.name) for one in sources], splits)
        for split in splits:
            source = sources[split.source]
            self.meter.worker = source.name
            reading.set(split if isinstance(split, Split) else None)
            begun, before = time.perf_counter(), self.control.rows_in
            if isinstance(split, Aside):
                set_aside(self, source, split)
                continue
            if has_messages(split):
                take_over(self, source, split)
                continue
            for piece in self.pieces(source, split):
                self.control.rows_in += piece.offered
                self.control.sizes[source.name] += piece.size
                self.push(source.name, self.entrance.take_in(source, split, piece, "aggregated"))
            if isinstance(split, Stretch) and split.lost:
                self.ledger(source.name)["lost"] += split.lost
            rows, seconds = self.control.read.get(source.name, (0, 0.0))
            rows += self.control.rows_in - before
            self.control.read[source.name] = (rows, seconds + time.perf_counter() - begun)
        reading.set(None)
        self.entrance.report()
        yield from self._finish()

    def pieces(self, source: nodes.Source, split: Readable) -> Iterator[Piece]:
        """What a split holds."""
        return read(self.plan.formats[source.name], split, self.batch.now, self.batch.times)

    def outputs(self) -> Iterator[Item]:
        """What becomes of the records that came to sinks here."""
        return sink_outputs(self)

    def keyed(self, items: Iterable[Item], heard: Heard | None = None) -> Iterator[Item]:
        """Level >= 1: take the rows of this level's operators, let these run, push results.

        heard: what the tasks before had to say, if it was gathered.
        """
        plan, level, came = self.plan, self.control.level, self._sort_out(items)
        before = moved_so_far()  # the level before may have worked while its items were taken
        self.batch = on_base(self.batch, plan.owners(level), self.control.part)
        heard = hear(came.seen) if heard is None else heard
        self._listen(heard, came.senders)
        clocks = clocks_of(plan, self.batch, heard, self.control.holds)
        for operator, by_tag in came.results.items():
            self.onward.part_results(operator, by_tag.get("results", []), heard)
            if "ordered" in by_tag:
                part, number = self.control.part, plan.numbers[operator]
                self.push(operator, in_order(by_tag["ordered"], part, number))
        for one in plan.operators.values():
            if plan.level_of(one) == level:
                with self.meter.at_work(one.name):
                    # The operator has them alone, so they are gone once it has made rows of them.
                    blocks = came.rows.pop(one.name, {})
                    one.run(Share(self, clocks, heard.counts, blocks))
                    del blocks
        self.control.moved = moved_so_far() - before
        yield from self._finish(heard)

    def _sort_out(self, items: Iterable[Item]) -> _Came:
        """What came for this level; the rest is passed on."""
        plan, level, came = self.plan, self.control.level, _Came()
        for item in items:
            part, tag, name, payload = item
            if tag in SENT:
                sender, payload = payload
                came.senders.add(sender)
                item = (part, tag, name, payload)
            if tag == "seen":
                came.seen.append(payload)
            elif tag == "stored" and name == str(level):
                segments, files = unpack(payload)
                self.batch = replace(self.batch, segments=segments, files=files)
            elif tag == "rows" and plan.level_of(plan.operators[name]) == level:
                table, block = payload
                came.rows.setdefault(name, {}).setdefault(table, []).append(block)
            elif tag in SORTING and plan.leaving(name) == level + (tag == "results"):
                came.results.setdefault(name, {}).setdefault(tag, []).append(payload)
            else:
                self.onward.pass_on(item)
        return came

    def give(self, step: str, chunk: Chunk) -> Iterator[Item]:
        """Records of a step that the driver made, pushed to the sinks behind it."""
        self.push(step, chunk)
        yield from (item for item in self._finish() if item[1] in ("control", "deliver"))

    def _listen(self, heard: Heard, senders: set[str]) -> None:
        """Take in what the tasks before had to say, and whether the rows here are theirs."""
        self.control.holds.update(heard.holds)
        self.control.upstream = heard.attempts
        expected = heard.senders.get(self.control.part, digest_of(()))
        if self.batch.gathers and expected != digest_of(senders):
            self.control.upstream = "others"

    # -- pushing records ------------------------------------------------------------------------

    def push(self, step: str, chunk: Chunk, to: Callable[[str], bool] | None = None) -> None:
        """Give records of a step to all steps after it, or to some of them."""
        if not len(chunk):
            return
        node = self.plan.node(step)
        if self.plan.levels.get(step) == self.control.level < self.plan.leaving(step):
            self.onward.to_be_sorted(step, chunk)
            return
        for consumer in self.plan.consumers(node):
            if to is None or to(consumer.name):
                self._step(consumer, chunk, node)

    def _step(self, node: nodes.Node, chunk: Chunk, before: nodes.Node) -> None:
        """Give a chunk of the step before to this one."""
        match node:
            case nodes.Sink() if not takes_records(node):
                pass  # but what an operator keeps
            case nodes.Sink():
                self.meter.sink(len(chunk), chunk.table.nbytes)
                self.sunk.setdefault(node.name, []).append(chunk)
            case nodes.Process():
                self._process(node, chunk)
            case nodes.At():
                self._assign_times(node, chunk)
            case nodes.Union():
                whole = with_columns(chunk, self.plan.missing(node, before))
                for _ in range(node.inputs.count(before)):  # of a stream with itself: twice
                    self.count(node.name, len(whole), 0)
                    self.push(node.name, whole)
            case nodes.Keyed(takes_events=True) if chunk.weight is not None:
                self._hold(node, before, chunk)
            case _ if (inlet := self.inlet(node.name)) is not None:
                self.meter.give(inlet, len(chunk))
                inlet.take(node, before, chunk)
            case _ if may_gather(node, chunk):
                if (enough := self.together.add(node, chunk)) is not None:
                    self._stateless(node, enough)
            case _:
                self._stateless(node, chunk)

    def _stateless(self, node: nodes.Node, chunk: Chunk) -> None:
        for side in chunk.sides():
            result, dead = stateless(node, side)
            self._account(node.name, side, dead)
            if lacks(node, side):
                self.ledger(node.name)["lacking"] += len(side)
            self.push(node.name, result)

    def _assign_times(self, node: nodes.At, chunk: Chunk) -> None:
        above = [one for one in upstream(self.plan, node) if isinstance(one, nodes.Source)]
        future = max((self.entrance.future(one) for one in above), default=END)
        # Where nothing leaves before all input has been read, nothing can be late.
        complete = all(self.batch.progress[one.name].lateness is None for one in above)
        for side in chunk.sides():
            result, dead = assign_times(node, side, self.batch.times, complete)
            self._account(node.name, side, dead)
            note_latest(self.control.reached, node, result, future)
            self.push(node.name, result)

    def _process(self, node: nodes.Process, chunk: Chunk) -> None:
        """Events to a function; what it gives goes on, what it publishes to its streams."""
        plan = self.plan
        step = Processor(
            node.name,
            plan.number(node),
            {plan.number(one): one.name for one in plan.origins()},
            plan.publishes.get(node.name, frozenset()),
            frozenset(one.name for one in plan.nodes if isinstance(one, nodes.Published)),
            self.batch.max_key,
        )
        for side in chunk.sides():
            made = process(node.fn, side, node.keys, node.null_keys, step, node.behind, node.schema)
            self._account(node.name, side, made.dead)
            self.push(node.name, made.chunk)
            if not side.takes_back:  # what was published stays so
                publish(self, made.published)

    def _hold(self, node: nodes.Node, before: nodes.Node, chunk: Chunk) -> None:
        """Changes for a step that takes events wait until all of the batch are there."""
        for to, by, chunks in self.events:
            if to is node and by is before:
                chunks.append(chunk)
                return
        self.events.append((node, before, [chunk]))

    def push_late(self, step: str, late: Chunk) -> None:
        """Give what came too late for a step to those who asked for it."""
        for node in self.plan.nodes:
            if isinstance(node, nodes.Late) and node.of.name == step and len(late):
                self.count(node.name, len(late), 0)
                self.push(node.name, late)

    # -- what operators ask for -----------------------------------------------------------------

    def inlet(self, step: str) -> Inlet | None:
        """The inlet of a step in this task; None if it is not keyed."""
        operator = self.plan.operator_of(step)
        if operator is None:
            return None
        if operator.name not in self.inlets:
            self.inlets[operator.name] = operator.inlet(self)
        return self.inlets[operator.name]

    def consumers(self, step: str) -> list[nodes.Node]:
        """The steps after a step."""
        return self.plan.consumers(self.plan.node(step))

    def number(self, step: str) -> int:
        """The number of a step in the identity of its records."""
        return self.plan.numbers[step]

    def senders(self, records: Chunk) -> Senders:
        """Whose some of the records are that are being read."""
        return self.entrance.senders(records)

    # -- accounts -------------------------------------------------------------------------------

    def ledger(self, name: str) -> Counter[str]:
        """The account of one step."""
        return self.control.account(name)

    def count(self, step: str, offered: int, dead: int) -> None:
        """Note what a step got, and how much of it it could not process."""
        counts = self.ledger(step)
        counts["offered"] += offered
        counts["dead"] += dead
        counts["aggregated"] += offered - dead

    def _account(self, step: str, side: Chunk, dead: list[DeadLetter]) -> None:
        """Note what a step did with one side of a change; what was dead is so only once."""
        if side.takes_back:
            self.count(step, len(side) - len(dead), 0)
            return
        self.control.dead.extend(dead)
        self.count(step, len(side), len(dead))

    # -- leaving --------------------------------------------------------------------------------

    def _finish(self, heard: Heard | None = None) -> Iterator[Item]:
        for step, chunk in self.together.rest():
            self._stateless(self.plan.node(step), chunk)
        for node, before, chunks in self.events:
            inlet = self.inlet(node.name)
            for chunk in edge(self, node, before, chunks):
                if inlet is not None and len(chunk):
                    inlet.take(node, before, chunk)
        yield from self.onward.sent(self.inlets, self.meter)
        yield from self.outputs()
        control = self.control
        control.resident = own_resident()
        control.worked, control.sent = self.meter.worked(self.inlets), self.meter.sent
        counted = (name for one in self.plan.operators.values() for name in one.counted)
        counts = {n: control.ledger[n]["aggregated"] for n in counted if n in control.ledger}
        yield from self.onward.told(heard, counts)
        yield (DRIVER, "control", "", control)
        if self.batch.trims:
            give_back()
        yield from self.onward.passed_on()


@dataclass
class _Came:
    """What a task of a later level got, by operator."""

    rows: Blocks = field(default_factory=dict)
    results: Blocks = field(default_factory=dict)  # that are put in order
    seen: list[Seen] = field(default_factory=list)
    senders: set[str] = field(default_factory=set)

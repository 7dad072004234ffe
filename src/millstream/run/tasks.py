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
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from millstream.durations import micros
from millstream.errors import RunError
from millstream.graph import nodes
from millstream.io.kafka.consuming import Stretch
from millstream.io.readers import Split
from millstream.io.records import reading
from millstream.operators.batch import (
    Batch,
    Control,
    Heard,
    Seen,
    digest_of,
    hear,
    on_base,
)
from millstream.operators.protocol import Inlet, Senders, Share
from millstream.operators.published import publish
from millstream.ops.chunks import Chunk, encode_block, numbers
from millstream.ops.lateness import Place, Watch, participants_of
from millstream.ops.ordering import Sample, as_block, bounds_of, in_order, ranges
from millstream.ops.processing import Processor, process
from millstream.ops.progress import END, Reached, merge_reached
from millstream.ops.records import DeadLetter, dead_row
from millstream.ops.shares import DIVERTED, KEPT
from millstream.plan.stages import Plan, upstream
from millstream.run.asides import set_aside
from millstream.run.clocks import clocks_of
from millstream.run.measuring import Meter
from millstream.run.memory import give_back, own_resident
from millstream.run.mirroring import mirrors_slates
from millstream.run.reading import Piece, begin_reading, read
from millstream.run.sinking import edge, sink_outputs
from millstream.run.splits import (
    DRIVER,
    SENT,
    SORTING,
    AnySplit,
    Aside,
    Item,
    RateSplit,
    Readable,
    SpoolSplit,
)
from millstream.run.steps import lacks, stateless, with_columns
from millstream.run.takeover import has_messages, take_over
from millstream.run.timing import assign_times, note_latest
from millstream.run.together import Together, may_gather
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
        self.samples: dict[str, Sample] = {}  # keys of results that are to be sorted
        self.watches: dict[str, Watch] = {}
        self.sunk: dict[str, list[Chunk]] = {}
        self.arrived: list[tuple[str, str, pa.Table]] = []  # rows of operators made elsewhere
        self.events: list[tuple[nodes.Node, nodes.Node, list[Chunk]]] = []  # of changes
        self.together = Together()  # records of small files that wait for others
        self.forwarded: list[Item] = []
        self.reached: dict[str, Reached] = {}  # how far sources were read, by all tasks
        self.above: Counter[str] = Counter()  # records that levels before gave to operators
        self.meter = Meter()
        self.targets: set[int] = set()  # partitions that get rows from here
        self.reading: tuple[nodes.Source, AnySplit, Chunk] | None = None  # what is pushed now

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
                self.push(source.name, self.take_in(source, split, piece, "aggregated"))
            if isinstance(split, Stretch) and split.lost:
                self.ledger(source.name)["lost"] += split.lost
            rows, seconds = self.control.read.get(source.name, (0, 0.0))
            rows += self.control.rows_in - before
            self.control.read[source.name] = (rows, seconds + time.perf_counter() - begun)
        reading.set(None)
        for name, watch in self.watches.items():
            self.control.reached[name] = watch.reached
            self.control.extents[name] = list(watch.extents.values())
            if watch.ahead:
                self.ledger(name)["future"] += watch.ahead
        yield from self._finish()

    def take_in(self, source: nodes.Source, split: AnySplit, piece: Piece, way: str) -> Chunk:
        """What was read, accounted for and marked where it is late; `way`: where it goes."""
        counts = self.ledger(source.name)
        counts["offered"] += piece.offered
        counts[way] += len(piece.chunk)
        counts["dead"] += sum(one.records for one in piece.dead)
        self.control.dead.extend(
            DeadLetter(source.name, self.plan.number(source), d.position, d.raw, d.error)
            for d in piece.dead
        )
        watch = self.watch(source)
        chunk = self._of_participants(source, watch, piece.chunk, way)
        due = watch.mark(chunk, *_place(split))
        watch.note_way(chunk.ts, DIVERTED if way == DIVERTED else KEPT)
        chunk = replace(chunk, due=due)
        self.reading = (source, split, chunk)
        return chunk

    def _of_participants(self, source: nodes.Source, watch: Watch, chunk: Chunk, way: str) -> Chunk:
        """Records without those of participants that are too many, which are dead letters."""
        chunk = replace(chunk, src=self.plan.number(source))
        beyond = watch.one_too_many(chunk)
        if beyond is None:
            return chunk
        lost, why = beyond
        letters = (dead_row(source.name, chunk, row, why) for row in np.flatnonzero(lost).tolist())
        self.control.dead.extend(letters)
        counts = self.ledger(source.name)
        counts[way] -= int(lost.sum())
        counts["dead"] += int(lost.sum())
        return chunk.take(~lost)

    def pieces(self, source: nodes.Source, split: Readable) -> Iterator[Piece]:
        """What a split holds."""
        return read(self.plan.formats[source.name], split, self.batch.now, self.batch.times)

    def outputs(self) -> Iterator[Item]:
        """What becomes of the records that came to sinks here."""
        return sink_outputs(self)

    def keyed(self, items: Iterable[Item], heard: Heard | None = None) -> Iterator[Item]:
        """Level >= 1: take the rows of this level's operators, close windows, push results.

        heard: what the tasks before had to say, if it was gathered.
        """
        level = self.control.level
        rows: dict[str, dict[str, list[bytes]]] = {}
        sorting: dict[str, dict[str, list[bytes]]] = {}
        seen: list[Seen] = []
        senders: set[str] = set()
        for item in items:
            part, tag, name, payload = item
            if tag in SENT:
                sender, payload = payload
                senders.add(sender)
                item = (part, tag, name, payload)
            if tag == "seen":
                seen.append(payload)
            elif tag == "stored" and name == str(level):
                segments, files = unpack(payload)
                self.batch = replace(self.batch, segments=segments, files=files)
            elif tag == "rows" and self.plan.level_of(self.plan.operators[name]) == level:
                table, block = payload
                rows.setdefault(name, {}).setdefault(table, []).append(block)
            elif tag in SORTING and self.plan.leaving(name) == level + (tag == "results"):
                sorting.setdefault(name, {}).setdefault(tag, []).append(payload)
            else:
                self.forwarded.append(item)
        before = moved_so_far()
        self.batch = on_base(self.batch, self.plan.owners(level), self.control.part)
        heard = hear(seen) if heard is None else heard
        self._listen(heard, senders)
        clocks = clocks_of(self.plan, self.batch, heard, self.control.holds)
        self._sorted(sorting, heard)
        for operator in self.plan.operators.values():
            if self.plan.level_of(operator) == level:
                with self.meter.at_work(operator.name):
                    operator.run(Share(self, clocks, self.above, rows.get(operator.name, {})))
        self.control.moved = moved_so_far() - before
        yield from self._finish()

    def give(self, step: str, chunk: Chunk) -> Iterator[Item]:
        """Records of a step that the driver made, pushed to the sinks behind it."""
        self.push(step, chunk)
        yield from (item for item in self._finish() if item[1] in ("control", "deliver"))

    def _listen(self, heard: Heard, senders: set[str]) -> None:
        """Take in what the tasks before had to say, and whether the rows here are theirs."""
        self.reached, self.above = heard.reached, heard.counts
        self.control.holds.update(heard.holds)
        self.control.upstream = heard.attempts
        expected = heard.senders.get(self.control.part, digest_of(()))
        if self.batch.gathers and expected != digest_of(senders):
            self.control.upstream = "others"

    # -- sorted results -------------------------------------------------------------------------

    def _to_be_sorted(self, operator: str, chunk: Chunk) -> None:
        """Results wait here for the next level, which knows the keys of all tasks."""
        if len(chunk):
            block, self.samples[operator] = as_block(chunk)
            self.forwarded.append((self.control.part, "results", operator, block))

    def _sorted(self, rows: dict[str, dict[str, list[bytes]]], heard: Heard) -> None:
        """Part results into ranges; or put the range of this task in order and send it on."""
        for operator, by_tag in rows.items():
            bounds = bounds_of(heard.samples.get(operator, []), self.batch.parallelism)
            for block in by_tag.get("results", []):
                for part, piece in ranges(block, bounds).items():
                    self.forwarded.append((part, "ordered", operator, piece))
            if "ordered" in by_tag:
                number = self.plan.numbers[operator]
                self.push(operator, in_order(by_tag["ordered"], self.control.part, number))

    # -- pushing records ------------------------------------------------------------------------

    def push(self, step: str, chunk: Chunk, to: Callable[[str], bool] | None = None) -> None:
        """Give records of a step to all steps after it, or to some of them."""
        if not len(chunk):
            return
        node = self.plan.node(step)
        if self.plan.levels.get(step) == self.control.level < self.plan.leaving(step):
            self._to_be_sorted(step, chunk)
            return
        for consumer in self.plan.consumers(node):
            if to is None or to(consumer.name):
                self._step(consumer, chunk, node)

    def _step(self, node: nodes.Node, chunk: Chunk, before: nodes.Node) -> None:
        """Give a chunk of the step before to this one."""
        match node:
            case nodes.Sink() if mirrors_slates(node):
                pass  # it takes the slates, not the records
            case nodes.Sink():
                self.meter.sink(len(chunk), chunk.table.nbytes)
                self.sunk.setdefault(node.name, []).append(chunk)
            case nodes.Process():
                self._process(node, chunk)
            case nodes.At():
                above = [one for one in upstream(self.plan, node) if isinstance(one, nodes.Source)]
                future = max((self._future(one) for one in above), default=END)
                # Where nothing leaves before all input has been read, nothing can be late.
                complete = all(self.batch.progress[one.name].lateness is None for one in above)
                for side in chunk.sides():
                    result, dead = assign_times(node, side, self.batch.times, complete)
                    self._account(node.name, side, dead)
                    note_latest(self.control.reached, node, result, future)
                    self.push(node.name, result)
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
        """Whose some of the records are that are being read: those of one participant, or by it."""
        if self.reading is None or records.src != self.reading[2].src:
            origins = {self.plan.number(one): one.name for one in self.plan.origins()}
            return Counter({(origins.get(records.src, ""), ""): len(records)})
        source, split, chunk = self.reading
        who: str | int = split.file if isinstance(split, Split | Stretch) else ""
        if source.spec.participant is None:
            return Counter({(source.name, who): len(records)})
        order = np.argsort(chunk.pos, kind="stable")
        rows = order[np.searchsorted(chunk.pos[order], records.pos)]
        names = participants_of(chunk.take(rows), source.spec.participant).to_pylist()
        return Counter((source.name, name) for name in names)

    # -- accounts -------------------------------------------------------------------------------

    def ledger(self, name: str) -> Counter[str]:
        """The account of one step."""
        return self.control.ledger.setdefault(name, Counter())

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

    def watch(self, source: nodes.Source) -> Watch:
        """Who looks after the times of a source; one too far ahead of the clock does not count."""
        if source.name not in self.watches:
            self.watches[source.name] = Watch(
                self.batch.progress[source.name],
                source.spec.participant,
                self._future(source),
                self.batch.max_participants,
            )
        return self.watches[source.name]

    def _future(self, source: nodes.Source) -> int:
        """Up to when times of a source are believed."""
        return self.batch.trusted + micros(source.spec.max_future_skew, "skew", zero=True)

    # -- leaving --------------------------------------------------------------------------------

    def _finish(self) -> Iterator[Item]:
        for step, chunk in self.together.rest():
            self._stateless(self.plan.node(step), chunk)
        for node, before, chunks in self.events:
            inlet = self.inlet(node.name)
            for chunk in edge(self, node, before, chunks):
                if inlet is not None and len(chunk):
                    inlet.take(node, before, chunk)
        sent = (item for item in self.forwarded if item[1] in SENT)
        last = self.control.level == levels_of(self.plan, self.batch)
        for part, tag, name, payload in chain(self._blocks(), sent):
            if last:
                raise RunError(
                    f"rows for {name!r} came out of level {self.control.level} of batch "
                    f"{self.batch.number}, after which it has no other: this is a defect, and "
                    "nothing of the batch was committed; please report it with the plan"
                )
            self.targets.add(part)
            yield (part, tag, name, (self.attempt, payload))
        yield from self.outputs()
        control = self.control
        control.resident = own_resident()
        control.worked, control.sent = self.meter.worked(self.inlets), self.meter.sent
        counts = {
            name: control.ledger[name]["aggregated"]
            for operator in self.plan.operators.values()
            for name in operator.counted
            if name in control.ledger
        }
        if control.level < levels_of(self.plan, self.batch):
            yield from self._tell(counts)
        yield (DRIVER, "control", "", control)
        if self.batch.trims:
            give_back()
        yield from (item for item in self.forwarded if item[1] not in SENT)

    def _tell(self, counts: dict[str, int]) -> Iterator[Item]:
        """Say what the tasks of the next level must know: to each, or for all where it is gathered.

        What all tasks of a level have heard alike only the first repeats.
        """
        control, parts = self.control, self.batch.parallelism
        first = control.level == 0 or control.part == 0
        seen = Seen(
            control.level,
            control.part,
            self.attempt,
            merge_reached((control.reached, self.reached if first else {})),
            counts,
            dict(self.above) if first else {},
            dict(control.holds),
            self.samples,
            tuple(sorted(self.targets)) if self.batch.gathers else (),
        )
        for part in [parts] if self.batch.gathers else range(parts):
            yield (part, "seen", "", seen)

    def _blocks(self) -> Iterator[Item]:
        """Rows per partition of the next level: the partition owns the shards congruent to it."""
        parts = self.batch.parallelism
        own = ((n, kind, table) for n, one in self.inlets.items() for kind, table in one.rows())
        for name, kind, table in chain(own, self.arrived):
            self.meter.send(name, len(table), table.nbytes)
            if parts == 1:
                yield (0, "rows", name, (kind, encode_block(table)))
                continue
            part = numbers(table, "shard") % parts
            for number in np.unique(part).tolist():
                block = encode_block(table.take(pa.array(np.flatnonzero(part == number))))
                yield (number, "rows", name, (kind, block))


def _place(split: AnySplit) -> tuple[Place, int | None, int | None]:
    """Where a piece stands among those of its source; of a file also which, and its time before."""
    match split:
        case Split() | Stretch():
            return (split.file, split.start), split.file, split.after
        case SpoolSplit():
            return (split.file, 0), None, None
        case RateSplit():
            return (0, split.start), None, None
        case Aside():
            return _place(split.piece)

"""What a task does: read or take over rows, push them through the steps, hand the rest on.

This module is plain Python over Arrow and files; the same code runs in Spark's workers and, for
tests and small batches, in one process. Records are pushed: a step gets a chunk and gives chunks to
the steps after it, until they reach an exchange or a sink.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.api.sinks import FileSink
from millstream.durations import micros
from millstream.graph import nodes
from millstream.io.readers import Split
from millstream.io.writers import stage_file
from millstream.ops.chunks import Chunk, concat, encode_block, flat, placed
from millstream.ops.emission import drop_replaced
from millstream.ops.events import keys_of, packed_values
from millstream.ops.jobs import Family
from millstream.ops.lateness import Place, Watch
from millstream.ops.ordering import Sample, as_block, bounds_of, in_order, ranges
from millstream.ops.preparing import merge_panes, null_keys, prepare
from millstream.ops.processing import Processor, process
from millstream.ops.progress import BEGIN, Reached, merge_reached
from millstream.ops.records import DeadLetter, as_json, dead_row
from millstream.plan.stages import Plan
from millstream.run import fitting
from millstream.run.batch import (
    AnySplit,
    Batch,
    Control,
    Item,
    RateSplit,
    Seen,
    SpoolSplit,
    held_back,
)
from millstream.run.emitting import Emitting
from millstream.run.keyed import run_keyed
from millstream.run.mirroring import mirrors_slates
from millstream.run.reading import read
from millstream.run.steps import stateless, unpacked, with_columns
from millstream.run.stores import BAGS
from millstream.run.work import Clocks, Work
from millstream.state.manifests import Output

DRIVER = 0  # what goes to the driver travels through the first partition
_MERGE_ROWS = 1_000_000  # partial rows a task holds before it merges them


class Task:
    """One attempt at one partition of one level of one batch."""

    def __init__(self, plan: Plan, batch: Batch, level: int, part: int) -> None:
        self.plan = plan
        self.batch = batch
        self.attempt = uuid.uuid4().hex[:12]
        self.control = Control(level, part, self.attempt)
        self.panes: dict[str, list[pa.Table]] = {}
        self.values: dict[str, list[pa.Table]] = {}
        self.events: dict[str, list[pa.Table]] = {}
        self.emitting = Emitting(self)
        self.samples: dict[str, Sample] = {}  # keys of results that are to be sorted
        self.watches: dict[str, Watch] = {}
        self.sunk: dict[str, list[Chunk]] = {}
        self.forwarded: list[Item] = []
        self.above: Counter[str] = Counter()  # records that levels before gave to operators

    # -- the two kinds of task ------------------------------------------------------------------

    def ingest(self, splits: Iterable[AnySplit]) -> Iterator[Item]:
        """Level 0: read splits and push their records."""
        sources = self.plan.sources()
        for split in splits:
            source = sources[split.source]
            watch = self._watch(source)
            begun, before = time.perf_counter(), self.control.rows_in
            for piece in read(
                self.plan.formats[source.name], split, self.batch.now, self.batch.times
            ):
                counts = self.ledger(source.name)
                counts["offered"] += piece.offered
                counts["aggregated"] += len(piece.chunk)
                counts["dead"] += len(piece.dead)
                self.control.dead.extend(
                    DeadLetter(source.name, self.plan.number(source), d.position, d.raw, d.error)
                    for d in piece.dead
                )
                self.control.rows_in += piece.offered
                due = watch.mark(piece.chunk, *_place(split))
                self.push(source, replace(piece.chunk, src=self.plan.number(source), due=due))
            rows, seconds = self.control.read.get(source.name, (0, 0.0))
            rows += self.control.rows_in - before
            self.control.read[source.name] = (rows, seconds + time.perf_counter() - begun)
        for name, watch in self.watches.items():
            self.control.reached[name] = watch.reached
            self.control.extents[name] = list(watch.extents.values())
            if watch.ahead:
                self.ledger(name)["future"] += watch.ahead
        yield from self._finish()

    def keyed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Level >= 1: take the rows of this level's operators, close windows, push results."""
        level = self.control.level
        rows: dict[str, dict[str, list[bytes]]] = {}
        seen: list[Seen] = []
        for item in items:
            _, tag, name, payload = item
            if tag == "seen":
                seen.append(payload)
            elif self._is_here(tag, name):
                rows.setdefault(name, {}).setdefault(tag, []).append(payload)
            else:
                self.forwarded.append(item)
        self.control.upstream = frozenset((s.level, s.part, s.attempt) for s in seen)
        self.control.reached = merge_reached(s.reached for s in seen)
        self.above = Counter(seen[0].above) if seen else Counter()
        for one in seen:
            self.above.update(one.counts)
            self.control.holds.update(one.holds)
        progress = {
            name: p.seen(self.control.reached.get(name, Reached()))
            for name, p in self.batch.progress.items()
        }
        held = held_back(self.batch.limits, self.control.holds)
        time_now = Clocks(
            self.plan.watermarks(
                {name: p.watermark() for name, p in progress.items()}, held, self.batch.watermarks
            ),
            self.plan.watermarks({name: p.on_time() for name, p in progress.items()}, held),
            max((p.top for p in progress.values()), default=BEGIN),
            self.plan.furthest({name: p.furthest() for name, p in progress.items()}),
        )
        self._sorted(rows, seen)
        for family in self.plan.families.values():
            if self.plan.family_level(family) == level:
                self._run_family(family, rows.get(family.name, {}), time_now)
        for group in self.plan.groups.values():
            if self.plan.group_level(group) == level:
                blocks = rows.get(group.name, {}).get("events", [])
                self.emitting.run(group, blocks, time_now)
        yield from self._finish()

    def _is_here(self, tag: str, name: str) -> bool:
        """Whether rows are for an operator of this level."""
        plan, level = self.plan, self.control.level
        if tag == "events":
            return plan.group_level(plan.groups[name]) == level
        if tag in ("results", "ordered"):
            return plan.leaving(name) == level + (tag == "results")
        return tag in BAGS and plan.family_level(plan.families[name]) == level

    def _run_family(self, family: Family, rows: dict[str, list[bytes]], time_now: Clocks) -> None:
        numbers = {job.name: self.plan.number(self.plan.node(job.name)) for job in family.jobs}
        work = Work(family, self.batch, self.control, numbers, time_now, self.above)
        results = run_keyed(work, rows)
        for operator, chunk in results.items():
            self.control.windows += len(chunk)
            if len(chunk):
                self.ledger(operator)["results"] += len(chunk)
            if self.plan.jobs[operator].ordered:
                self._to_be_sorted(operator, chunk)
            else:
                self.push(self.plan.node(operator), chunk)

    # -- sorted results -------------------------------------------------------------------------

    def _to_be_sorted(self, operator: str, chunk: Chunk) -> None:
        """Results wait here for the next level, which knows the keys of all tasks."""
        if len(chunk):
            block, self.samples[operator] = as_block(chunk)
            self.forwarded.append((self.control.part, "results", operator, block))

    def _sorted(self, rows: dict[str, dict[str, list[bytes]]], seen: list[Seen]) -> None:
        """Part results into ranges; or put the range of this task in order and send it on."""
        for operator, by_tag in rows.items():
            samples = [one.samples[operator] for one in seen if operator in one.samples]
            bounds = bounds_of(samples, self.batch.parallelism)
            for block in by_tag.get("results", []):
                for part, piece in ranges(block, bounds).items():
                    self.forwarded.append((part, "ordered", operator, piece))
            if "ordered" in by_tag:
                node = self.plan.node(operator)
                number = self.plan.number(node)
                self.push(node, in_order(by_tag["ordered"], self.control.part, number))

    # -- pushing records ------------------------------------------------------------------------

    def push(self, node: nodes.Node, chunk: Chunk) -> None:
        """Give a chunk to every step after this one."""
        if len(chunk):
            for consumer in self.plan.consumers(node):
                self.step(consumer, chunk, node)

    def step(self, node: nodes.Node, chunk: Chunk, before: nodes.Node) -> None:
        """Give a chunk of the step before to this one."""
        match node:
            case nodes.Sink() if mirrors_slates(node):
                pass  # it takes the slates, not the records
            case nodes.Sink():
                chunk = drop_replaced(chunk)
                self.sunk.setdefault(node.name, []).append(chunk)
                self.count(node, len(chunk), 0)
            case nodes.Windowed():
                self._exchange(node, chunk)
            case nodes.Update():
                for via, one in enumerate(node.inputs):
                    if one is before:
                        self._offer(node, via, drop_replaced(chunk))
            case nodes.Process():
                self._process(node, chunk)
            case nodes.Union():
                self.count(node, len(chunk), 0)
                self.push(node, with_columns(chunk, self.plan.missing(node, before)))
            case _:
                result, dead = stateless(node, chunk)
                self.control.dead.extend(dead)
                self.count(node, len(chunk), len(dead))
                self.push(node, result)

    def _exchange(self, node: nodes.Windowed, chunk: Chunk) -> None:
        """Reduce records to panes on this side, once for all operators that share them."""
        family = self.plan.family_of(node.name)
        if family.jobs[0].name != node.name:
            return  # the first of the family does it for all
        single = family.name in self.batch.single
        batch = self.batch
        prepared = prepare(family, chunk, batch.closed, batch.shards, single, batch.max_key)
        if prepared.panes is not None:
            self._hold(self.panes.setdefault(family.name, []), prepared.panes, family)
        if prepared.values is not None:
            self.values.setdefault(family.name, []).append(prepared.values)
        for operator, account in prepared.accounts.items():
            self.control.dead.extend(account.dead)
            counts = self.ledger(operator)
            counts["offered"] += len(chunk)
            counts["aggregated"] += account.accepted
            counts["late"] += len(account.late)
            counts["dead"] += len(account.dead)
            counts["dropped"] += account.dropped
            self.push_late(operator, account.late)

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
        made = process(node.fn, chunk, node.keys, node.null_keys, step, node.behind, node.schema)
        self.control.dead.extend(made.dead)
        self.count(node, len(chunk), len(made.dead))
        self.push(node, made.chunk)
        self.emitting.publish(made.published, inside=False)

    def _offer(self, node: nodes.Update, via: int, chunk: Chunk) -> None:
        """Records to an updater: keyless ones are set aside, and late ones if it wants that."""
        counts = self.ledger(node.name)
        counts["offered"] += len(chunk)
        job, keys = node.job, node.keys[via]
        late = np.zeros(len(chunk), np.bool_)
        if job.order == "event":
            late = chunk.late() | (chunk.ts < self.batch.closed[node.name])
            if job.late == "divert" and late.any():
                counts["diverted"] += int(late.sum())
                self.push_late(node.name, chunk.take(late))
                chunk, late = chunk.take(~late), late[~late]
        if not len(chunk):
            return
        known = keys_of(chunk, keys)
        bad = known.place(job.partition, self.batch.shards)
        bad.update(known.refused(self.batch.max_key))
        if node.null_keys[via] == "dead":
            bad.update(null_keys(keys, chunk))
        if bad:
            dead = [dead_row(node.name, chunk, index, why) for index, why in sorted(bad.items())]
            self.control.dead.extend(dead)
            counts["dead"] += len(dead)
            good = np.ones(len(chunk), np.bool_)
            good[list(bad)] = False
            chunk, known, late = chunk.take(good), known.take(good), late[good]
        counts["late"] += int(late.sum())
        counts["aggregated"] += len(chunk) - int(late.sum())
        if len(chunk):
            values = packed_values(chunk, keys)
            due = chunk.ts
            if late.any():  # what is late for good is applied with what this batch applies first
                due = np.maximum(chunk.ts if chunk.due is None else chunk.due, chunk.ts)
                due[late] = np.maximum(due[late], self.batch.closed[node.name])
            behind = due - chunk.ts if late.any() else None
            self.emitting.deliver(node, known, due, chunk.src, chunk.pos, values, behind)

    def push_late(self, operator: str, late: Chunk) -> None:
        """What is late goes to those who asked for it."""
        for node in self.plan.nodes:
            if isinstance(node, nodes.Late) and node.of.name == operator and len(late):
                self.count(node, len(late), 0)
                job = self.plan.jobs.get(operator)
                self.push(node, unpacked(late) if job is not None and job.packed else late)

    def _hold(self, held: list[pa.Table], table: pa.Table, family: Family) -> None:
        held.append(table)
        if family.name in self.batch.single:
            return
        if len(held) > 1 and sum(map(len, held)) > _MERGE_ROWS:
            held[:] = [merge_panes(family, concat(held))]

    # -- accounts -------------------------------------------------------------------------------

    def ledger(self, name: str) -> Counter[str]:
        """The account of one step."""
        return self.control.ledger.setdefault(name, Counter())

    def count(self, node: nodes.Node, offered: int, dead: int) -> None:
        """Note what a step got, and how much of it it could not process."""
        counts = self.ledger(node.name)
        counts["offered"] += offered
        counts["dead"] += dead
        counts["aggregated"] += offered - dead

    def _watch(self, source: nodes.Source) -> Watch:
        """Who looks after the times of a source; one too far ahead of the clock does not count."""
        if source.name not in self.watches:
            spec = source.spec
            future = self.batch.trusted + micros(spec.max_future_skew, "skew", zero=True)
            progress = self.batch.progress[source.name]
            self.watches[source.name] = Watch(
                progress, spec.participant, future, source.name, self.batch.max_participants
            )
        return self.watches[source.name]

    # -- leaving --------------------------------------------------------------------------------

    def _finish(self) -> Iterator[Item]:
        self.emitting.finish()
        yield from self._blocks(self.panes, "panes")
        yield from self._blocks(self.events, "events")
        yield from self._blocks(self.values, "values")
        yield from self._sink_outputs()
        control = self.control
        counts = {
            name: control.ledger[name]["aggregated"]
            for name in self.batch.firing
            if name in control.ledger
        }
        seen = Seen(
            control.level,
            control.part,
            self.attempt,
            control.reached,
            counts,
            dict(self.above),
            dict(control.holds),
            self.samples,
        )
        if control.level < self.plan.depth:
            for part in range(self.batch.parallelism):
                yield (part, "seen", "", seen)
        yield (DRIVER, "control", "", control)
        yield from self.forwarded

    def _blocks(self, held: dict[str, list[pa.Table]], kind: str) -> Iterator[Item]:
        """Rows per partition of the next level: the partition owns the shards congruent to it."""
        parts = self.batch.parallelism
        for name, tables in held.items():
            table = concat(tables)
            if kind == "panes" and len(tables) > 1 and name not in self.batch.single:
                table = merge_panes(self.plan.families[name], table)
            if parts == 1:
                yield (0, kind, name, encode_block(table))
                continue
            part = np.asarray(flat(table.column("shard"))) % parts
            for number in range(parts):
                rows = np.flatnonzero(part == number)
                if len(rows):
                    block = encode_block(table.take(pa.array(rows)))
                    yield (number, kind, name, block)

    def _sink_outputs(self) -> Iterator[Item]:
        for name, chunks in self.sunk.items():
            spec = self.plan.node(name).spec  # type: ignore[attr-defined]
            if isinstance(spec, FileSink):
                self._stage(name, spec, chunks)
                continue
            yield (DRIVER, "deliver", name, encode_block(concat([placed(c) for c in chunks])))

    def _stage(self, name: str, spec: FileSink, chunks: list[Chunk]) -> None:
        """Write the rows of a sink to a file of their own."""
        level, part = self.control.level, self.control.part
        suffix: str = spec.suffix  # type: ignore[attr-defined]
        table = concat([chunk.table for chunk in chunks])
        if suffix == "parquet":
            table = self._fit(name, table, chunks)
        if not len(table):
            return
        stem = f"{self.batch.number:08d}-{level}-{part:04d}"
        staged, check = stage_file(spec.directory, f"{stem}-{self.attempt}", suffix, table)
        output = Output(name, Path(staged).name, f"part-{stem}.{suffix}", len(table), *check)
        self.control.outputs.append(output)

    def _fit(self, name: str, table: pa.Table, chunks: list[Chunk]) -> pa.Table:
        """Columns as they were written before; rows that do not fit are dead letters."""
        known = fitting.unpacked(self.batch.written.get(name))
        fitted = fitting.fit(table, known, self.plan.node(name).inputs[0].name)
        self.control.written[name] = fitting.packed(fitted.schema)
        if fitted.refused:
            pos = np.concatenate([chunk.pos for chunk in chunks])
            src = np.repeat([chunk.src for chunk in chunks], [len(chunk) for chunk in chunks])
            for row, why in fitted.refused.items():
                raw = as_json(table.slice(row, 1).to_pylist()[0])
                letter = DeadLetter(name, int(src[row]), int(pos[row]), raw, why)
                self.control.dead.append(letter)
            counts = self.ledger(name)
            counts["dead"] += len(fitted.refused)
            counts["aggregated"] -= len(fitted.refused)
        return fitted.table


def _place(split: AnySplit) -> tuple[Place, int | None, int | None]:
    """Where a piece stands among those of its source; of a file also which, and its time before."""
    match split:
        case Split():
            return (split.file, split.start), split.file, split.after
        case SpoolSplit():
            return (split.file, 0), None, None
        case RateSplit():
            return (0, split.start), None, None

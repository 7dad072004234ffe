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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.mapreduce import pack_pairs
from millstream.api.sinks import FileSink
from millstream.errors import RunError
from millstream.graph import nodes
from millstream.graph.durations import micros
from millstream.io.writers import stage_file
from millstream.ops.chunks import Chunk, concat, encode_block, flat
from millstream.ops.codec import as_key, decode
from millstream.ops.emission import drop_replaced
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.jobs import Family, timestamp
from millstream.ops.preparing import merge_panes, prepare
from millstream.ops.progress import BEGIN, merge_latest
from millstream.ops.records import DeadLetter, apply, as_json, dead_row, describe, to_table
from millstream.plan.stages import Plan
from millstream.run.batch import AnySplit, Batch, Control, Item, Seen
from millstream.run.keyed import Clocks, Work, run_keyed
from millstream.run.reading import read
from millstream.run.stores import BAGS
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
        self.sunk: dict[str, list[Chunk]] = {}
        self.forwarded: list[Item] = []
        self.above: Counter[str] = Counter()  # records that levels before gave to operators

    # -- the two kinds of task ------------------------------------------------------------------

    def ingest(self, splits: Iterable[AnySplit]) -> Iterator[Item]:
        """Level 0: read splits and push their records."""
        started = time.perf_counter()
        sources = self.plan.sources()
        for split in splits:
            source = sources[split.source]
            for piece in read(self.plan.formats[source.name], split, self.batch.now):
                counts = self.ledger(source.name)
                counts["offered"] += piece.offered
                counts["aggregated"] += len(piece.chunk)
                counts["dead"] += len(piece.dead)
                self.control.dead.extend(
                    DeadLetter(source.name, self.plan.number(source), d.position, d.raw, d.error)
                    for d in piece.dead
                )
                self.control.rows_in += piece.offered
                self._note_progress(source, piece.chunk)
                chunk = piece.chunk
                number = self.plan.number(source)
                self.push(source, Chunk(chunk.table, chunk.ts, chunk.pos, number))
        yield from self._finish(started)

    def keyed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Level >= 1: take the rows of this level's operators, close windows, push results."""
        started = time.perf_counter()
        level = self.control.level
        rows: dict[str, dict[str, list[bytes]]] = {}
        seen: list[Seen] = []
        for item in items:
            _, tag, name, payload = item
            if tag == "seen":
                seen.append(payload)
            elif tag in BAGS and self.plan.family_level(self.plan.families[name]) == level:
                rows.setdefault(name, {}).setdefault(tag, []).append(payload)
            else:
                self.forwarded.append(item)
        self.control.upstream = frozenset((s.level, s.part, s.attempt) for s in seen)
        self.control.latest = merge_latest([s.latest for s in seen])
        self.above = Counter(seen[0].above) if seen else Counter()
        for one in seen:
            self.above.update(one.counts)
        progress = {
            name: p.seen(self.control.latest.get(name, {}))
            for name, p in self.batch.progress.items()
        }
        time_now = Clocks(
            self.plan.watermarks({name: p.watermark() for name, p in progress.items()}),
            self.plan.watermarks({name: p.on_time() for name, p in progress.items()}),
            max((at for p in progress.values() for at in p.latest.values()), default=BEGIN),
        )
        for family in self.plan.families.values():
            if self.plan.family_level(family) == level:
                self._run_family(family, rows.get(family.name, {}), time_now)
        yield from self._finish(started)

    def _run_family(self, family: Family, rows: dict[str, list[bytes]], time_now: Clocks) -> None:
        numbers = {job.name: self.plan.number(self.plan.node(job.name)) for job in family.jobs}
        work = Work(family, self.batch, self.control, numbers, time_now, self.above)
        results = run_keyed(work, rows)
        for operator, chunk in results.items():
            self.control.windows += len(chunk)
            self.push(self.plan.node(operator), chunk)

    # -- pushing records ------------------------------------------------------------------------

    def push(self, node: nodes.Node, chunk: Chunk) -> None:
        """Give a chunk to every step after this one."""
        if len(chunk):
            for consumer in self.plan.consumers(node):
                self._step(consumer, chunk)

    def _step(self, node: nodes.Node, chunk: Chunk) -> None:
        match node:
            case nodes.Sink():
                chunk = drop_replaced(chunk)
                self.sunk.setdefault(node.name, []).append(chunk)
                self._count(node, len(chunk), 0)
            case nodes.Windowed():
                self._exchange(node, chunk)
            case nodes.Union():
                self._count(node, len(chunk), 0)
                self.push(node, chunk)
            case _:
                result, dead = _stateless(node, chunk)
                self.control.dead.extend(dead)
                self._count(node, len(chunk), len(dead))
                self.push(node, result)

    def _exchange(self, node: nodes.Windowed, chunk: Chunk) -> None:
        """Reduce records to panes on this side, once for all operators that share them."""
        family = self.plan.family_of(node.name)
        if family.jobs[0].name != node.name:
            return  # the first of the family does it for all
        prepared = prepare(family, chunk, self.batch.closed, self.batch.shards)
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
            self._push_late(operator, account.late)

    def _push_late(self, operator: str, late: Chunk) -> None:
        """What is late goes to those who asked for it."""
        for node in self.plan.nodes:
            if isinstance(node, nodes.Late) and node.of.name == operator and len(late):
                self._count(node, len(late), 0)
                packed = self.plan.jobs[operator].packed
                self.push(node, _unpacked(late) if packed else late)

    def _hold(self, held: list[pa.Table], table: pa.Table, family: Family) -> None:
        held.append(table)
        if len(held) > 1 and sum(map(len, held)) > _MERGE_ROWS:
            held[:] = [merge_panes(family, concat(held))]

    # -- accounts -------------------------------------------------------------------------------

    def ledger(self, name: str) -> Counter[str]:
        """The account of one step."""
        return self.control.ledger.setdefault(name, Counter())

    def _count(self, node: nodes.Node, offered: int, dead: int) -> None:
        counts = self.ledger(node.name)
        counts["offered"] += offered
        counts["dead"] += dead
        counts["aggregated"] += offered - dead

    def _note_progress(self, source: nodes.Source, chunk: Chunk) -> None:
        """The latest time per participant; a time too far ahead of the clock does not count."""
        limit = self.batch.now + micros(source.spec.max_future_skew, "skew", zero=True)
        trusted = chunk.ts <= limit
        self.control.future += int((~trusted).sum())
        latest = self.control.latest.setdefault(source.name, {})
        if source.spec.participant is None:
            if trusted.any():
                _raise_to(latest, "", int(chunk.ts[trusted].max()))
            return
        who = pc.cast(chunk.column(source.spec.participant), pa.string()).fill_null("")
        names = who.dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False)[trusted]
        highest = np.full(len(names.dictionary), np.iinfo(np.int64).min)
        np.maximum.at(highest, codes, chunk.ts[trusted])
        for name, at in zip(names.dictionary.to_pylist(), highest.tolist(), strict=True):
            if at > np.iinfo(np.int64).min:
                _raise_to(latest, name, at)

    # -- leaving --------------------------------------------------------------------------------

    def _finish(self, started: float) -> Iterator[Item]:
        yield from self._blocks(self.panes, "panes")
        yield from self._blocks(self.values, "values")
        yield from self._sink_outputs()
        control = self.control
        counts = {
            name: control.ledger[name]["aggregated"]
            for name in self.batch.firing
            if name in control.ledger
        }
        seen = Seen(
            control.level, control.part, self.attempt, control.latest, counts, dict(self.above)
        )
        if control.level < self.plan.depth:
            for part in range(self.batch.parallelism):
                yield (part, "seen", "", seen)
        control.seconds = time.perf_counter() - started
        yield (DRIVER, "control", "", control)
        yield from self.forwarded

    def _blocks(self, held: dict[str, list[pa.Table]], kind: str) -> Iterator[Item]:
        """Rows per partition of the next level: the partition owns the shards congruent to it."""
        parts = self.batch.parallelism
        for name, tables in held.items():
            table = concat(tables)
            if kind == "panes" and len(tables) > 1:
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
        level, part = self.control.level, self.control.part
        for name, chunks in self.sunk.items():
            spec = self.plan.node(name).spec  # type: ignore[attr-defined]
            rows = sum(map(len, chunks))
            if isinstance(spec, FileSink):
                table = concat([chunk.table for chunk in chunks])
                stem = f"{self.batch.number:08d}-{level}-{part:04d}"
                path = Path(spec.path).absolute()
                suffix: str = spec.suffix  # type: ignore[attr-defined]
                staged, check = stage_file(path, f"{stem}-{self.attempt}", suffix, table)
                final = str(path / f"part-{stem}.{suffix}")
                self.control.outputs.append(Output(name, staged, final, rows, *check))
            else:
                placed = [
                    chunk.table.append_column("__ts", pa.array(chunk.ts))
                    .append_column("__src", pa.array(np.full(len(chunk), chunk.src, np.int64)))
                    .append_column("__pos", pa.array(chunk.pos))
                    for chunk in chunks
                ]
                yield (DRIVER, "deliver", name, encode_block(concat(placed)))


def _raise_to(latest: dict[str, int], who: str, at: int) -> None:
    latest[who] = max(at, latest.get(who, at))


def _stateless(node: nodes.Node, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    match node:
        case nodes.Where():
            return _where(node, chunk)
        case nodes.Select():
            return _select(node, chunk)
        case nodes.Map():
            return apply(chunk, node.fn, node.name, node.schema)
        case nodes.Pairs():
            return _pairs(node, chunk)
        case nodes.MapBatches():
            return _map_batches(node, chunk)
        case _:
            raise RunError(f"{node.name}: unknown step {node.kind}")


def _where(node: nodes.Where, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    try:
        mask = node.condition.evaluate(chunk.table)
    except ExpressionError:
        chunk, dead = _computable(node, (node.condition,), chunk)
        mask = node.condition.evaluate(chunk.table)
    else:
        dead = []
    return chunk.take(np.asarray(mask.fill_null(False)).astype(np.bool_)), dead


def _select(node: nodes.Select, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    computed = tuple(item for item in node.items if item.name != "*")
    dead: list[DeadLetter] = []
    try:
        columns = _projected(node, chunk.table)
    except ExpressionError:
        chunk, dead = _computable(node, computed, chunk)
        columns = _projected(node, chunk.table)
    return chunk.with_table(pa.table(columns)), dead


def _projected(node: nodes.Select, table: pa.Table) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for item in node.items:
        if item.name == "*":
            columns.update({name: table.column(name) for name in table.column_names})
        else:
            columns[item.name] = item.evaluate(table)
    return columns


def _computable(
    node: nodes.Node, items: tuple[Expression, ...], chunk: Chunk
) -> tuple[Chunk, list[DeadLetter]]:
    """Set aside the records on which an expression fails, found by halving."""
    bad: dict[int, str] = {}

    def search(start: int, stop: int) -> None:
        piece = chunk.table.slice(start, stop - start)
        try:
            for item in items:
                item.evaluate(piece)
        except ExpressionError as error:
            if stop - start == 1:
                bad[start] = str(error)
                return
            middle = (start + stop) // 2
            search(start, middle)
            search(middle, stop)

    search(0, len(chunk))
    dead = [dead_row(node.name, chunk, index, why) for index, why in bad.items()]
    keep = np.ones(len(chunk), np.bool_)
    keep[list(bad)] = False
    return chunk.take(keep), dead


def _pairs(node: nodes.Pairs, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """A job's `map`: what its key and value are follows from where the records come from."""
    names = set(chunk.table.column_names)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    out: list[dict[str, bytes]] = []
    origin: list[int] = []
    dead: list[DeadLetter] = []
    for index, row in enumerate(chunk.table.to_pylist()):
        ts = timestamp(int(chunk.ts[index]))
        if node.keys:
            keys = [row.get(name) for name in node.keys]
            if None in keys and node.null_keys == "dead":
                why = f"key column {node.keys[keys.index(None)]!r} is null"
                dead.append(dead_row(node.name, chunk, index, why))
                continue
            key, value = as_key(keys[0] if len(keys) == 1 else tuple(keys)), row
        elif names >= {"key", "value"} and names <= {"key", "value", "window_start", "window_end"}:
            key, value = as_key(row["key"]), row["value"]
        elif names == {"value"}:
            key, value = int(chunk.pos[index]), row["value"]
        else:
            key, value = None, row
        try:
            rows = pack_pairs(node.job.map(key, value, ts))
        except Exception as error:  # a user's function may raise anything
            dead.append(dead_row(node.name, chunk, index, describe(error)))
            continue
        out.extend(rows)
        origin.extend([index] * len(rows))
    table, _ = to_table(out, schema)
    at = np.array(origin, np.int64)
    return chunk.at(table, at), dead


def _unpacked(chunk: Chunk) -> Chunk:
    """Pairs of a MapReduce job as people read them: in JSON, as they may be of many types."""
    columns = {
        name: pa.array([as_json(decode(data)) for data in chunk.column(name).to_pylist()])
        for name in ("key", "value")
    }
    return chunk.with_table(pa.table(columns))


def _map_batches(node: nodes.MapBatches, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """Rows keep their time when the function keeps their number; a column `__row` tells otherwise.

    The function gets `__row`, the number of each row, and may keep, drop or repeat rows with it.
    """
    numbered = chunk.table.append_column("__row", pa.array(np.arange(len(chunk))))
    try:
        result: Any = node.fn(numbered)
    except Exception as error:
        why = describe(error)
        dead = [dead_row(node.name, chunk, index, why) for index in range(len(chunk))]
        return chunk.take(np.zeros(0, np.int64)), dead
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise RunError(
            f"{node.name}: map_batches must give an Arrow table, got {type(result).__name__}"
        )
    if "__row" in result.column_names:
        rows = np.asarray(flat(result.column("__row"))).astype(np.int64)
        result = result.drop_columns(["__row"])
    elif len(result) == len(chunk):
        rows = np.arange(len(chunk))
    else:
        raise RunError(
            f"{node.name}: map_batches got {len(chunk)} rows and gave {len(result)}; keep the "
            "column '__row' so that each row keeps its time, or keep the number of rows"
        )
    if len(rows) and (rows.min() < 0 or rows.max() >= len(chunk)):
        raise RunError(f"{node.name}: map_batches gave '__row' numbers it did not get")
    return chunk.at(result, rows), []

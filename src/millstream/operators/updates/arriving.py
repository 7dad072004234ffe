"""Events on their way to updaters, in one task: into the exchange, or around a cycle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.graph.nodes import Node, Update
from millstream.operators.protocol import Host
from millstream.operators.published import event_chunk
from millstream.operators.updates.relieving import note_ways, turn_away
from millstream.operators.updates.work import Arrival, Order
from millstream.ops.chunks import Chunk, Int64, all_but, concat
from millstream.ops.codec import decode_row
from millstream.ops.records import DeadLetter, as_json, without
from millstream.ops.updates.cells import Cell, Publication, blank_cell
from millstream.ops.updates.events import Keys, event_rows, keys_of, keys_of_values, packed_values
from millstream.ops.updates.job import UpdateGroup
from millstream.ops.updates.machine import Machine
from millstream.ops.windows.preparing import null_keys


class Events:
    """The inlet of a group of updaters."""

    def __init__(
        self, group: UpdateGroup, cycle: frozenset[str], host: Host, names: dict[int, str]
    ) -> None:
        self.group, self.cycle, self.host, self.names = group, cycle, host, names
        self.order: Order = host.batch.orders[group.name]
        self.tables: list[pa.Table] = []
        self.partial: _Partial | None = None
        self.arrivals: list[Arrival] | None = None  # while a cycle is simulated: what comes round

    @contextmanager
    def turning(self) -> Iterator[list[Arrival]]:
        """While this lasts, what is for the group comes round its cycle at once."""
        found: list[Arrival] = []
        self.arrivals = found
        try:
            yield found
        finally:
            self.arrivals = None

    # -- records --------------------------------------------------------------------------------

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Records to an updater, by the key it has for each stream they come from."""
        assert isinstance(step, Update)
        away = self._turns_away(step)
        for keys, nulls, one in zip(step.keys, step.null_keys, step.inputs, strict=True):
            if one is before and away:
                turn_away(self.host, step, keys, chunk)
            elif one is before:
                self._offer(step, keys, nulls, chunk)

    def _turns_away(self, step: Update) -> bool:
        """Whether what enters is too much; what comes round a cycle never is."""
        relief = self.order.relief.get(step.name)
        sheds = step.job.overload.sheds and self.arrivals is None
        return sheds and relief is not None and relief.closed

    def _offer(self, node: Update, keys: tuple[str, ...], nulls: str, chunk: Chunk) -> None:
        """Keyless records are set aside, and late ones if the updater wants that."""
        counts, job, closed = self.host.ledger(node.name), node.job, self.order.closed[node.name]
        counts["offered"] += len(chunk)
        late = chunk.late() | (chunk.ts < closed)
        if job.order == "event" and job.late == "divert" and late.any():
            counts["diverted"] += int(late.sum())
            self.host.push_late(node.name, chunk.take(late))
            chunk, late = chunk.take(~late), late[~late]
        if not len(chunk):
            return
        known, batch = keys_of(chunk, keys), self.host.batch
        bad = known.place(job.partition, batch.shards)
        bad.update(known.refused(batch.max_key))
        if nulls == "dead":
            bad.update(null_keys(keys, chunk))
        if bad:
            good = all_but(len(chunk), bad)
            known, late = known.take(good), late[good]
            chunk, dead = without(node.name, chunk, bad)
            self.host.control.dead.extend(dead)
            counts["dead"] += len(dead)
        told = int(late.sum()) if job.order == "event" else 0  # by arrival nothing comes too late
        counts["late"] += told
        counts["aggregated"] += len(chunk) - told
        if len(chunk):
            values, due, behind = packed_values(chunk, keys), chunk.ts, None
            if late.any():  # it counts when its participant has come so far, or from now on
                due = np.maximum(chunk.ts if chunk.due is None else chunk.due, chunk.ts)
                due[late] = np.maximum(due[late], closed)
                behind = due - chunk.ts
            self._note_kept(node, due)
            self._deliver(node, known, due, chunk.src, chunk.pos, values, behind)

    # -- published events -----------------------------------------------------------------------

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Events to an updater by their key, as they are; False if it takes them by another."""
        assert isinstance(step, Update)
        inputs = list(zip(step.keys, step.null_keys, step.inputs, strict=True))
        if any(keys != ("key",) for keys, _, one in inputs if one is stream):
            return False
        number = self.host.number(stream.name)
        if self._turns_away(step):
            return False  # as records, which `take` turns away
        for _, nulls, one in inputs:
            if one is not stream:
                continue
            mine = self._on_time(stream, events, step)
            if nulls == "dead":
                mine = self._with_key(number, mine, step)
            if mine:
                keys = keys_of_values([one.key for one in mine])
                ts = np.array([one.us for one in mine], np.int64)
                pos = np.array([one.pos for one in mine], np.int64)
                values = pa.array([one.value for one in mine], pa.binary())
                self._place(keys, step)
                self._note_kept(step, ts)
                self._deliver(step, keys, ts, number, pos, values)
        return True

    def _on_time(self, stream: Node, events: list[Publication], node: Update) -> list[Publication]:
        """The events an updater applies; all are counted, and late ones set aside if it wants."""
        counts, closed = self.host.ledger(node.name), self.order.closed[node.name]
        late = [one for one in events if node.job.order == "event" and one.us < closed]
        counts["offered"] += len(events)
        counts["aggregated"] += len(events) - len(late)
        counts["late" if node.job.late == "apply" else "diverted"] += len(late)
        if not late or node.job.late == "apply":
            return events
        self.host.push_late(node.name, event_chunk(self.host, stream.name, late))
        return [one for one in events if one.us >= closed]

    def _with_key(self, number: int, events: list[Publication], node: Update) -> list[Publication]:
        """Events without a key are dead letters."""
        for one in events:
            if one.key is None:
                counts, closed = self.host.ledger(node.name), self.order.closed[node.name]
                late = node.job.order == "event" and one.us < closed
                counts["late" if late else "aggregated"] -= 1
                counts["dead"] += 1
                raw = as_json({"key": None, "value": decode_row(one.value)})
                why = "key column 'key' is null"
                self.host.control.dead.append(DeadLetter(node.name, number, one.pos, raw, why))
        return [one for one in events if one.key is not None]

    def _place(self, keys: Keys, node: Update) -> None:
        """Let the updater's partition say where published events belong."""
        bad = keys.place(node.job.partition, self.host.batch.shards)
        for why in bad.values():  # there is no record to set aside: its cause was applied already
            raise RunError(f"{node.name}: {why}; this batch was not committed")

    def _note_kept(self, node: Update, times: Int64) -> None:
        """Events that enter an updater which may turn others away."""
        if node.job.overload.sheds and self.arrivals is None:
            note_ways(self.host.control, node.name, times, kept=1)

    # -- where events go ------------------------------------------------------------------------

    def _deliver(
        self,
        node: Update,
        keys: Keys,
        ts: Int64,
        src: int,
        pos: Int64,
        values: pa.Array,
        behind: Int64 | None = None,
    ) -> None:
        """Events for an updater: into the exchange, around the cycle, or into partial slates.

        `ts` is when they are applied; `behind`: by how much the time of late ones is before that.
        """
        group, to = self.group, self.group.number(node.name)
        if self.arrivals is not None:
            columns = (keys.hashes.tolist(), keys.checks.tolist(), keys.packed.to_pylist())
            for us, at, key_hash, check, packed, value in zip(
                ts.tolist(), pos.tolist(), *columns, values.to_pylist(), strict=True
            ):
                self.arrivals.append(Arrival(to, us, src, at, key_hash, check, packed, value))
        elif group.jobs[0].merge is not None:
            if self.partial is None:
                self.partial = _Partial(group, self.host, self.names)
            self.partial.fold(keys, ts if behind is None else ts - behind, src, pos, values)
        else:
            shards = None if group.cyclic else self.host.batch.shards
            rows = event_rows(keys, ts, src, pos, values, to, shards, behind=behind)
            self.tables.append(rows)

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Events, or slates that were built of them here."""
        if self.partial is not None:
            self.tables.extend(self.partial.rows())
        if self.tables:
            yield "events", concat(self.tables)


class _Partial:
    """Partial slates of an update whose order does not matter, built where records are read."""

    def __init__(self, group: UpdateGroup, host: Host, names: dict[int, str]) -> None:
        self.job, self.host = group.jobs[0], host
        self.cells: dict[tuple[int, int], Cell] = {}
        now = host.batch.now
        self.machine = Machine(
            self.job, closed=-(2**61), limit=2**62, now=now, latest=None, names=names
        )

    def fold(self, keys: Keys, ts: Int64, src: int, pos: Int64, values: pa.Array) -> None:
        """Apply events to the slates of their keys."""
        columns = (keys.hashes.tolist(), keys.checks.tolist(), keys.packed.to_pylist())
        cells, call = self.cells, self.machine.call
        for key_hash, check, packed, us, at, value in zip(
            *columns, ts.tolist(), pos.tolist(), values.to_pylist(), strict=True
        ):
            cell = cells.get((key_hash, check))
            if cell is None:
                cell = cells[key_hash, check] = blank_cell(packed, key_hash, check)
            cell.events += 1
            call(cell, us, src, at, value)

    def rows(self) -> Iterator[pa.Table]:
        """Slates as rows for the exchange; what failed is accounted for."""
        name, shards = self.job.name, self.host.batch.shards
        counts = self.host.ledger(name)
        for failure in self.machine.out.failures:
            letter = DeadLetter(name, failure.src, failure.pos, failure.raw, failure.error)
            self.host.control.dead.append(letter)
            counts["aggregated"] -= 1
            counts["dead"] += 1
        made = [cell for cell in self.cells.values() if cell.data is not None]
        if made:
            keys = Keys(
                np.array([cell.hash for cell in made], np.uint64),
                np.array([cell.check for cell in made], np.uint64),
                pa.array([cell.packed for cell in made], pa.binary()),
            )
            keys.place(self.job.partition, shards)
            yield event_rows(
                keys,
                [cell.ts for cell in made],
                0,
                [0] * len(made),
                pa.array([cell.data for cell in made], pa.binary()),
                0,
                shards,
                [min(cell.events, 2**31 - 1) for cell in made],
            )

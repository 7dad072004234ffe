"""What an updater applied since its last flush, and applying it again where slates were lost.

A batch that does not flush leaves changed slates in memory and logs what it applied: events, timers
and alarms that were due, with what the functions are told of time. Slates that are lost with the
memory they were in are made again from the flushed ones and the log, by the same calls in the same
order. What those calls give and publish left with their own batches, and is not given again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from millstream.operators.batch import Batch, Control
from millstream.operators.stores import Store
from millstream.ops.chunks import concat
from millstream.ops.updates.machine import Machine
from millstream.state.unflushed import LOG

_KEY = b"millstream"


class Moment(msgspec.Struct, frozen=True):
    """What the functions of an updater are told of time in a batch."""

    closed: int
    limit: int
    now: int
    latest: int | None

    @classmethod
    def of(cls, machine: Machine) -> Moment:
        """That of a machine at work."""
        return cls(machine.closed, machine.limit, machine.now, machine.latest)


_moment = msgspec.json.Decoder(Moment)


@dataclass
class Applied:
    """What an updater applied in one batch: events, timers and alarms."""

    moment: Moment
    rows: dict[str, list[pa.Table]] = field(default_factory=dict)

    def add(self, *parts: pa.Table | None) -> None:
        """Events, timers and alarms that are due."""
        for kind, rows in zip(LOG, parts, strict=True):
            if rows is not None and len(rows):
                self.rows.setdefault(kind, []).append(rows)

    def of(self, kind: str) -> pa.Table | None:
        """All rows of a kind."""
        found = self.rows.get(kind)
        return concat(found) if found else None

    def parts(self) -> tuple[pa.Table | None, ...]:
        """Events, timers and alarms."""
        return tuple(map(self.of, LOG))


class _Kind(Store):
    """Rows of one kind, a segment a batch."""

    by = "time"

    def append(self, rows: pa.Table | None, moment: Moment) -> None:
        if rows is not None and len(rows):
            said = {_KEY: msgspec.json.encode(moment)}
            cold = self.batch.compression != "none"  # read after a crash only
            self._report(self.stored, self._write(rows.replace_schema_metadata(said), cold=cold))

    def forget(self) -> None:
        if self.stored:
            self._report({}, {})

    def entries(self, shards: Collection[str]) -> Iterator[tuple[int, Moment, pa.Table]]:
        wanted = [one for shard in shards for one in self.stored.get(shard, [])]
        for file in sorted({one.file for one in wanted}):
            (rows,) = self._read(one for one in wanted if one.file == file)
            number = int(file.rpartition("/")[2].partition("-")[0])
            yield number, _moment.decode(rows.schema.metadata[_KEY]), rows


class Log:
    """What was applied since the last flush, in the shards of a task."""

    def __init__(self, updater: str, batch: Batch, control: Control) -> None:
        self._kinds = {kind: _Kind(updater, kind, batch, control) for kind in LOG}

    def append(self, applied: Applied) -> None:
        """This batch's work."""
        for kind, store in self._kinds.items():
            store.append(applied.of(kind), applied.moment)

    def forget(self) -> None:
        """All of it is flushed."""
        for store in self._kinds.values():
            store.forget()

    def since_flush(self, shards: Collection[str]) -> list[Applied]:
        """What was applied in some shards, batch by batch."""
        found: dict[int, Applied] = {}
        for kind, store in self._kinds.items():
            for number, moment, rows in store.entries(shards):
                found.setdefault(number, Applied(moment)).rows.setdefault(kind, []).append(rows)
        return [found[number] for number in sorted(found)]

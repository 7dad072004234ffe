"""Maps that see events: a function per record that may publish and may choose times.

It keeps nothing between records and runs where they are. What it publishes is later than its cause;
what it gives may have a time of its own, as far back as its author declared (`behind`): by so much
the watermark after the step is held back, so that nothing it gives is late because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError, RunError
from millstream.ops.chunks import Chunk
from millstream.ops.codec import as_key, check_plain, encode, python_values
from millstream.ops.keys.names import derived_position, pack_published
from millstream.ops.records import DeadLetter, Row, dead_row, describe, given_table, several
from millstream.ops.updates.cells import Publication
from millstream.ops.updates.contexts import Event, UnforeseenStream, refuse_stream
from millstream.ops.zones import EPOCH, timestamp


@dataclass(frozen=True)
class Processor:
    """A step that processes events: what it has to know of the flow and the batch."""

    name: str
    number: int  # among the origins of records
    names: dict[int, str]  # origins by number
    streams: frozenset[str]  # those it publishes to
    declared: frozenset[str]
    longest: int = 1024  # bytes of a key


class ProcessContext:
    """What a function may ask for beside returning records."""

    __slots__ = ("_behind", "_due", "_given", "_published", "_step", "_us")

    def __init__(self, step: Processor, behind: int) -> None:
        self._step, self._behind = step, behind
        self._us = self._due = 0
        self._clear()

    def _clear(self) -> None:
        self._given: list[tuple[Row, int]] = []
        self._published: list[tuple[str, int, Any, bytes, bytes]] = []

    @property
    def ts(self) -> datetime:
        """The time of the event at hand."""
        return timestamp(self._us)

    def emit(self, record: dict[str, Any], *, ts: datetime | None = None) -> None:
        """Give a record, at the time of the event or at one of its own."""
        if not isinstance(record, Mapping):
            raise TypeError(f"ctx.emit(): expected a dict, got {type(record).__name__}")
        us = self._us if ts is None else _micros("ctx.emit", ts)
        if us < self._us - self._behind:
            early = timedelta(microseconds=self._us - us)
            raise ValueError(
                f"ctx.emit(ts={ts}) lies {early} before the event, more than behind="
                f"{timedelta(microseconds=self._behind)}; declare more with process(..., behind=)"
            )
        self._given.append((dict(record), us))

    def publish(self, stream: str, key: Any, value: Any, *, ts: datetime | None = None) -> None:
        """Send an event to a stream declared with `flow.stream(name)`, later than this one."""
        step = self._step
        if stream not in step.streams:
            refuse_stream(repr(step.name), "process", stream, step.declared)
        us = self._us + 1 if ts is None else _micros("ctx.publish", ts)
        if us <= self._us:
            raise ValueError(f"ctx.publish(ts={ts}): it must be later than the event, {self.ts}")
        us = max(us, self._due + 1)  # what a late event publishes is not late once more
        packed = pack_published(key, step.longest)
        check_plain(value)
        self._published.append((stream, us, as_key(key), packed, encode(value)))


def _micros(where: str, ts: Any) -> int:
    if not isinstance(ts, datetime) or ts.tzinfo is None:
        raise ConfigError(f"{where}(ts={ts!r}): expected a datetime with a time zone")
    return (ts.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


@dataclass
class Processed:
    """What the events of a chunk gave."""

    chunk: Chunk
    published: list[Publication]
    dead: list[DeadLetter]


@dataclass
class _Gathered:
    """The same while it is gathered, each with the index of its cause."""

    rows: list[Row] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    published: list[tuple[int, Publication]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


def process(
    fn: Callable[..., Any],
    chunk: Chunk,
    keys: tuple[str, ...] | None,
    nulls: str,
    step: Processor,
    behind: int,
    schema: pa.Schema | None,
) -> Processed:
    """Call a function for every record; one that raises leaves a dead letter and nothing else."""
    made = _Gathered()
    ctx = ProcessContext(step, behind)
    stream = step.names.get(chunk.src, "")
    names = chunk.table.column_names
    columns = [python_values(chunk.table.column(name)) for name in names]
    for index, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        ctx._us = ctx._due = int(chunk.ts[index])
        if chunk.due is not None:
            ctx._due = int(chunk.due[index])
        try:
            key, value = key_and_value(row, keys, nulls)
            event = Event(stream, ctx._us, key, None)
            event._value = value
            results = several(fn(event, ctx))
        except UnforeseenStream:
            raise
        except ConfigError as error:  # a mistake in the program, not in the record
            raise RunError(f"{step.name!r}: {error}; this batch was not committed") from error
        except BaseException as error:  # a user's function may raise anything
            made.failed[index] = describe(error)
            ctx._clear()
            continue
        _take(made, ctx, index, results, chunk, step)
    table, kept = given_table(made.rows, schema, made.origin, made.failed)
    origin, ts = (np.array(one, np.int64)[kept] for one in (made.origin, made.ts))
    out = chunk.at(table, origin)
    due = None if out.due is None else np.maximum(ts, out.due - behind)
    return Processed(
        replace(out, ts=ts, due=due),
        [one for index, one in made.published if index not in made.failed],
        [dead_row(step.name, chunk, index, why) for index, why in sorted(made.failed.items())],
    )


def _take(
    made: _Gathered,
    ctx: ProcessContext,
    index: int,
    results: list[Row],
    chunk: Chunk,
    step: Processor,
) -> None:
    """Note what a call gave: what it emitted first, then what it returned."""
    for row, us in [*ctx._given, *((row, ctx._us) for row in results)]:
        made.rows.append(row)
        made.origin.append(index)
        made.ts.append(us)
    if ctx._published:
        at = derived_position(int(chunk.pos[index]), chunk.src, 0, False, step.number)
        for stream, us, key, packed, value in ctx._published:
            made.published.append((index, Publication(stream, us, at, key, packed, value)))
    if ctx._given or ctx._published:
        ctx._clear()


def key_and_value(row: Row, keys: tuple[str, ...] | None, nulls: str) -> tuple[Any, Any]:
    """What an event has: its key columns and the record, or the key and value of a pair."""
    if keys:
        found = [row.get(name) for name in keys]
        if None in found and nulls == "dead":
            raise ValueError(f"key column {keys[found.index(None)]!r} is null")
        pair = keys == ("key",) and row.keys() == {"key", "value"}
        return as_key(found[0] if len(found) == 1 else tuple(found)), row["value"] if pair else row
    if row.keys() == {"key", "value"}:
        return as_key(row["key"]), row["value"]
    return None, row

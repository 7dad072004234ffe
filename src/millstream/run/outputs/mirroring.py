"""Mirroring committed batches to Redis: the slates of updaters, and rows of other streams.

What an updater changed in a batch is read from the segments its manifest names, so nothing is
staged for it, and a mirror that misses something is made whole from the state that is there.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.sinks import Redis
from millstream.api.tables import TableSink
from millstream.durations import micros
from millstream.errors import MillstreamError, RunError
from millstream.graph import nodes as graph
from millstream.io.mirrors import Away, Entry, Lost, Mirror
from millstream.ops.chunks import flat, numbers
from millstream.ops.emitting.edges import last_of_each
from millstream.ops.keys.names import key_text
from millstream.ops.updates.job import NEVER, UpdateJob
from millstream.ops.zones import timestamp
from millstream.plan.stages import Plan, marks_changes
from millstream.run.outputs.tables.taking import Tabled
from millstream.run.outputs.tables.writing import Gave
from millstream.state.manifests import Manifest
from millstream.state.segments import Segment, read_segments
from millstream.state.storage import Storage
from millstream.state.tables import KeyedTable
from millstream.state.unflushed import both, in_memory

_ROWS = 4096  # decoded at a time
_TRIES = 5
_COLUMNS = ("key", "plain", "gone", "expires", "ts", "batch", "slate")
_encoder = msgspec.json.Encoder(enc_hook=str)


def as_text(key: str, plain: bool) -> str:
    """A key's text as part of a Redis key. "42" as a string and 42 as a number stay apart.

    A string is taken as it is, unless it can be read as JSON; everything else is JSON.
    """
    return _encoder.encode(key).decode() if plain and _reads_as_json(key) else key


def _reads_as_json(text: str) -> bool:
    if not text or not (text[0] in '-0123456789"[{tfnNI ' or text[0].isspace()):
        return False
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


class RowMirror:
    """The newest row per key of a stream."""

    def __init__(self, name: str, spec: Redis, mirror: Mirror, *, deltas: bool) -> None:
        self.name, self.spec, self.mirror = name, spec, mirror
        self.deltas = deltas  # rows have a column `op`, and "-" takes one back
        self._ends = ""
        if spec.ttl is not None:
            self._ends = f"+{max(1, micros(spec.ttl, 'Redis(ttl=)') // 1000)}"
        self._starting = True

    def deliver(self, table: pa.Table, batch: int) -> None:
        """Upsert the rows of a batch."""
        with _committed(self.name, batch):
            for _ in range(_TRIES):
                owner, reached = self.mirror.where()
                if not self._starting:
                    _check_taken(self.mirror, owner, reached > batch)
                    if owner is None:
                        warnings.warn(
                            f"sink {self.name!r}: Redis at {self.mirror.address.shown} has lost "
                            "its data; only rows from now on are in the mirror",
                            RuntimeWarning,
                            stacklevel=2,
                        )
                try:
                    self.mirror.begin(whole=False)
                    self._starting = False
                    self.mirror.write(self._entries(table, batch))
                    self.mirror.finish(batch)
                    return
                except Lost:
                    continue
            raise _unstable(self.mirror)

    def _entries(self, table: pa.Table, batch: int) -> Iterator[Entry]:
        columns = self.spec.columns
        for column in columns:
            if column not in table.column_names:
                raise RunError(f"there is no column {column!r} in {table.column_names}")
        keys = [flat(table.column(column)).to_pylist() for column in columns]
        values = keys[0] if len(columns) == 1 else list(zip(*keys, strict=True))
        last = last_of_each(table, (as_text(*key_text(value)) for value in values), self.deltas)
        places = np.fromiter(last.values(), np.int64, len(last))
        texts = list(last)
        for start in range(0, len(places), _ROWS):
            part = places[start : start + _ROWS]
            rows = table.take(pa.array(part)).to_pylist()
            for text, at, row in zip(
                texts[start : start + _ROWS], part.tolist(), rows, strict=True
            ):
                value = None
                if not (self.deltas and row.get("op") == "-"):
                    value = _encoder.encode({"batch": batch, "key": values[at], "row": row})
                yield Entry(self.mirror.key(text), value, self._ends)


class _Slate(msgspec.Struct):
    """What the value of a mirrored slate has."""

    batch: int
    key: msgspec.Raw
    slate: msgspec.Raw
    ts: str


_slate = msgspec.json.Decoder(_Slate)


class SlateMirror:
    """All slates of one updater."""

    def __init__(
        self, name: str, job: UpdateJob, updater: str, mirror: Mirror, root: Storage
    ) -> None:
        self.name, self.job, self.updater, self.mirror = name, job, updater, mirror
        self.root = root
        self._starting = True

    def publish(self, manifest: Manifest, before: Manifest | None) -> None:
        """Bring the mirror to a committed batch; `before` is the one before it, if it is there."""
        with _committed(self.name, manifest.batch):
            for _ in range(_TRIES):
                owner, reached = self.mirror.where()
                ours = owner == self.mirror.owner
                if ours and reached == manifest.batch:
                    return
                if not self._starting:
                    _check_taken(self.mirror, owner, reached > manifest.batch)
                whole = not ours or reached != manifest.batch - 1 or manifest.batch == 0
                try:
                    self.mirror.begin(whole=whole)
                    self._starting = False
                    if whole:
                        self._renew(manifest)
                    else:
                        self._follow(manifest, before)
                    self.mirror.finish(manifest.batch)
                    return
                except Lost:
                    continue
            raise _unstable(self.mirror)

    def _follow(self, manifest: Manifest, before: Manifest | None) -> None:
        if before is not None and self.job.ttl is not None and self.job.clock == "event":
            self.mirror.write(self._expired(before, manifest))
        self.mirror.write(self._entries(self._changed(manifest), manifest))

    def _renew(self, manifest: Manifest) -> None:
        """Write everything, then remove what is there beside it."""
        written = array("Q")

        def noting(entries: Iterable[Entry]) -> Iterator[Entry]:
            for entry in entries:
                if entry.value is not None:
                    written.append(_hash(entry.key))
                yield entry

        self.mirror.write(noting(self._entries(self._table(manifest).scan(), manifest)))
        known = np.sort(np.array(written, np.uint64))
        for keys in self.mirror.pages():
            found = np.fromiter(map(_hash, keys), np.uint64, len(keys))
            at = np.minimum(np.searchsorted(known, found), max(0, len(known) - 1))
            stray = known[at] != found if len(known) else np.ones(len(keys), np.bool_)
            others = [keys[i] for i in np.flatnonzero(stray).tolist()]
            values = self.mirror.values(others)
            self.mirror.write(
                Entry(key, None)
                for key, value in zip(others, values, strict=True)
                if self._wrote(key, value)
            )

    def _wrote(self, key: bytes, value: bytes | None) -> bool:
        """Whether a key is a slate of this mirror: its value says of which key, as its name does.

        Others may have keys that begin alike, and mirrors of theirs.
        """
        try:
            said = _slate.decode(value or b"")
            raw = bytes(said.key).decode()
            text = msgspec.json.decode(raw) if raw.startswith('"') else raw
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        # A text, or what JSON says as one: a date, NaN.
        return key in (self.mirror.key(as_text(text, text != raw)), self.mirror.key(raw))

    def _table(self, manifest: Manifest) -> KeyedTable:
        return KeyedTable(self.root, self._stored(manifest), manifest.files)

    def _stored(self, manifest: Manifest) -> dict[str, list[Segment]]:
        """What is flushed and what is in memory; if that is lost, the next batch writes it anew."""
        tables = manifest.segments.get(self.updater, {})
        if in_memory(self.root, tables, manifest.files):
            return both(tables, "slates")
        return tables.get("slates", {})

    def _changed(self, manifest: Manifest) -> Iterator[pa.Table]:
        """What a batch wrote: its own files also have older rows that were merged into them."""
        for segments in self._stored(manifest).values():
            for one in segments:
                if one.file.rpartition("/")[2].startswith(f"{manifest.batch:08d}-"):
                    (rows,) = read_segments(self.root, [one], manifest.files, "expires")
                    yield rows.filter(pc.equal(rows.column("batch"), manifest.batch))

    def _expired(self, before: Manifest, manifest: Manifest) -> Iterator[Entry]:
        """Slates whose time has passed with this batch."""
        since, until = before.closed.get(self.updater), manifest.closed.get(self.updater)
        if until is None or since == until:
            return
        since = -NEVER if since is None else since
        now, old = self._table(manifest), self._table(before)
        for shard, segments in old.stored.items():
            for one in segments:
                if one.low > until or one.high <= since:
                    continue
                (rows,) = read_segments(self.root, [one], before.files, "expires")
                expires = numbers(rows, "expires")
                rows = rows.filter(pa.array((expires > since) & (expires <= until)))
                if not len(rows):
                    continue
                hashes = numbers(rows, "hash")
                checks = numbers(rows, "check")
                place, found = now.find(np.full(len(rows), int(shard)), hashes, checks)
                alive = np.zeros(len(rows), np.bool_)
                if found is not None:
                    ends = numbers(found, "expires")
                    alive = (place >= 0) & (ends[np.maximum(place, 0)] > until)
                for row in rows.filter(pa.array(~alive)).select(["key", "plain"]).to_pylist():
                    yield Entry(self.mirror.key(as_text(row["key"], row["plain"])), None)

    def _entries(self, tables: Iterable[pa.Table], manifest: Manifest) -> Iterator[Entry]:
        closed = manifest.closed.get(self.updater)
        for table in tables:
            for start in range(0, len(table), _ROWS):
                part = table.slice(start, _ROWS)
                columns = [flat(part.column(name)).to_pylist() for name in _COLUMNS]
                for row in zip(*columns, strict=True):
                    yield self._entry(row, closed)

    def _entry(self, row: tuple[Any, ...], closed: int | None) -> Entry:
        text, plain, gone, expires, ts, batch, slate = row
        key, ends = self.mirror.key(as_text(text, plain)), ""
        if gone:
            return Entry(key, None)
        if expires < NEVER:
            if self.job.clock == "wall":
                left = expires - int(time.time() * 1e6)
                ends = f"@{-(-expires // 1000)}"
            else:
                left = expires - (ts if closed is None else closed)
                ends = f"+{-(-left // 1000)}"
            if left <= 0:
                return Entry(key, None)
        value = {
            "batch": batch,
            "key": text if plain else msgspec.Raw(text.encode()),
            "slate": self._decoded(slate),
            "ts": timestamp(ts),
        }
        try:
            return Entry(key, _encoder.encode(value), ends)
        except (TypeError, ValueError, RecursionError):  # what JSON cannot say is said by `str`
            return Entry(key, _encoder.encode({**value, "slate": str(value["slate"])}), ends)

    def _decoded(self, slate: bytes) -> Any:
        try:
            return self.job.codec.decode(slate)
        except Exception as error:  # a user's codec may raise anything
            raise RunError(
                f"the codec of {self.updater!r} cannot read a slate: "
                f"{type(error).__name__}: {error}"
            ) from error


class Mirrors:
    """All sinks of a flow that are written in the driver: Redis, and tables of other systems."""

    def __init__(
        self, plan: Plan, owner: str, root: Storage, waiting: Callable[[str | None], None]
    ) -> None:
        self.rows: dict[str, RowMirror] = {}
        self.tables: dict[str, Tabled] = {}
        self.slates: list[SlateMirror] = []
        for sink in plan.sinks():
            if isinstance(sink.spec, TableSink):
                deltas = marks_changes(sink.inputs[0])
                self.tables[sink.name] = Tabled(
                    sink.name, sink.spec, f"{plan.flow}:{owner}:{sink.name}", deltas=deltas
                )
            if not isinstance(sink.spec, Redis):
                continue
            (source,) = sink.inputs
            spec = sink.spec
            prefix = f"millstream:{plan.flow}:" if spec.prefix is None else spec.prefix
            patience = micros(spec.wait, "Redis(wait=)") / 1e6
            mirror = Mirror(spec.address, f"{prefix}{source.name}", owner, patience, waiting)
            if not takes_records(sink):
                job = source.job  # type: ignore[attr-defined]
                self.slates.append(SlateMirror(sink.name, job, source.name, mirror, root))
            else:
                deltas = marks_changes(source)
                self.rows[sink.name] = RowMirror(sink.name, spec, mirror, deltas=deltas)

    def publish(self, manifest: Manifest, before: Manifest | None) -> None:
        """Bring all mirrors of slates to a committed batch."""
        for mirror in self.slates:
            mirror.publish(manifest, before)

    @property
    def takers(self) -> dict[str, RowMirror | Tabled]:
        """Sinks that take rows in the driver, by name."""
        return {**self.rows, **self.tables}

    def check(self, newest: int, gave: Gave) -> None:
        """See whether all of them answer, and have no batch that the checkpoint does not have."""
        for table in self.tables.values():
            table.check(newest, gave)
        for one in self._all():
            try:
                one.mirror.check_outer()
                one.mirror.where()
            except Away as error:
                raise RunError(f"sink {one.name!r}: {error}; start it, and run again") from None

    def close(self) -> None:
        """Let go of the connections."""
        for table in self.tables.values():
            table.close()
        for one in self._all():
            one.mirror.close()

    def _all(self) -> list[RowMirror | SlateMirror]:
        return [*self.rows.values(), *self.slates]


def takes_records(sink: graph.Sink) -> bool:
    """Whether a sink takes the records of the step before it; else it takes its slates."""
    return not (isinstance(sink.spec, Redis) and isinstance(sink.inputs[0], graph.Update))


@contextmanager
def _committed(sink: str, batch: int) -> Iterator[None]:
    """Say of every error that the batch is safe."""
    try:
        yield
    except MillstreamError as error:
        again = ": start it, and run the flow again" if isinstance(error, Away) else ""
        raise RunError(
            f"sink {sink!r}: {error}; batch {batch} is committed and will be mirrored at the next "
            f"start{again}"
        ) from None


def _check_taken(mirror: Mirror, owner: str | None, ahead: bool) -> None:
    if owner is not None and (owner != mirror.owner or ahead):
        raise RunError(
            f"the mirror {mirror.head!r} in Redis at {mirror.address.shown} now belongs to another "
            f"run ({owner}); give each flow a prefix= of its own"
        )


def _unstable(mirror: Mirror) -> RunError:
    return RunError(
        f"Redis at {mirror.address.shown} lost what was written to it {_TRIES} times in a row; "
        "see whether it is restarted again and again, or evicts keys"
    )


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")

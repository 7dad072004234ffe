"""Receivers: threads of the driver that take in what cannot be asked for twice.

What arrives is written to sealed files and fsynced before the engine hears of it; so a crash loses
at most what had not been read from the socket, pipe or generator yet.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.sources import Generator, Socket, Stdin
from millstream.errors import CheckpointError, RunError
from millstream.io.formats import parse_schema
from millstream.io.records import MAX_LINE
from millstream.ops.records import as_json, to_table
from millstream.state.segments import verify_named, write_durably

_SEAL_ROWS = 20_000
_SEAL_BYTES = 4 * 1024 * 1024
_AHEAD = 64 * 1024 * 1024  # bytes sealed but not yet taken, before the receiver waits

_COUNT = "sealed"


@dataclass(frozen=True)
class Sealed:
    """One sealed file of a spool: `<number>-<arrival>-<rows>-<checksum>.<kind>`."""

    number: int
    path: Path
    arrival: int
    rows: int
    size: int


class Receiver(threading.Thread):
    """Receives records on a thread of its own and seals them into files."""

    suffix = "lines"

    def __init__(self, name: str, spec: Any, directory: Path) -> None:
        super().__init__(name=f"millstream-{name}", daemon=True)
        self.source, self.spec, self.directory = name, spec, directory
        self.error: BaseException | None = None
        self.finished = False
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        self._unsealed: tuple[bytes | pa.Buffer, int] | None = None
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def make(cls, name: str, spec: Any, directory: Path) -> Receiver:
        """The receiver for a source."""
        if isinstance(spec, Generator):
            return GeneratorReceiver(name, spec, directory)
        if isinstance(spec, Socket):
            return SocketReceiver(name, spec, directory)
        assert isinstance(spec, Stdin)
        return StdinReceiver(name, spec, directory)

    def resume(self, taken: int, rows: int) -> None:
        """Go on after what was committed: drop those files, number on after the rest."""
        self.forget(taken)
        for half in self.directory.glob(".*.tmp"):
            half.unlink(missing_ok=True)
        rest = self.sealed(taken)
        self._number = taken + len(rest)
        if [piece.number for piece in rest] != list(range(taken, max(self._number, self._count()))):
            raise CheckpointError(
                f"spool {self.directory} is damaged: it should hold pieces {taken} to "
                f"{max(self._number, self._count()) - 1} and holds "
                f"{[piece.number for piece in rest]}; what they held was received but not yet "
                "processed. To go on without it remove the directory"
            )
        for piece in rest:
            verify_named(piece.path)
        self.already = rows + sum(piece.rows for piece in rest)

    def sealed(self, start: int) -> list[Sealed]:
        """All sealed files from a number on."""
        pieces = []
        for path in sorted(self.directory.glob(f"*.{self.suffix}")):
            number, arrival, rows, _ = path.stem.split("-")
            if int(number) >= start:
                size = path.stat().st_size
                pieces.append(Sealed(int(number), path, int(arrival), int(rows), size))
        return pieces

    def forget(self, before: int) -> None:
        """Delete what has been committed."""
        for path in self.directory.glob(f"*.{self.suffix}"):
            if int(path.stem.split("-")[0]) < before:
                path.unlink(missing_ok=True)

    def _count(self) -> int:
        """The number after the last piece ever sealed, so that a missing last one is noticed."""
        try:
            return int((self.directory / _COUNT).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def stop(self) -> None:
        """Stop receiving; what was received and not sealed is sealed."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        """Receive until the end; a failure is reported by the next poll."""
        try:
            self.receive()
            self._seal_patiently()
        except RunError as error:
            self.error = error
        except Exception as error:  # whatever a generator or the network raises
            self.error = RunError(f"source {self.source!r} failed: {type(error).__name__}: {error}")
        self.finished = True

    def receive(self) -> None:
        """Read the input until it ends."""
        raise NotImplementedError

    def take_buffer(self) -> tuple[bytes | pa.Buffer, int] | None:
        """What has been received since the last seal, and how many records it is."""
        raise NotImplementedError

    def seal(self) -> None:
        """Write what has been received as one more file."""
        with self._lock:
            if self._unsealed is None:  # else an earlier attempt found the disk full
                self._unsealed = self.take_buffer()
            if self._unsealed is None:
                return
            data, rows = self._unsealed
            arrival = int(time.time() * 1e6)
            name = f"{self._number:010d}-{arrival}-{rows}-{zlib.crc32(data):08x}.{self.suffix}"
            write_durably(self.directory / name, data)
            self._number += 1
            self._unsealed = None
            temporary = self.directory / f".{_COUNT}.tmp"
            temporary.write_text(str(self._number))
            os.replace(temporary, self.directory / _COUNT)

    def _seal_patiently(self) -> None:
        """Seal; while the disk is full receive nothing more and lose nothing."""
        while True:
            try:
                return self.seal()
            except OSError as error:
                if error.errno != errno.ENOSPC or self._stopping.wait(0.2):
                    raise

    def pause_if_ahead(self) -> None:
        """Wait while the engine is far behind: the source is throttled, nothing is dropped."""
        while not self._stopping.is_set():
            if sum(map(_size, self.directory.glob(f"*.{self.suffix}"))) < _AHEAD:
                return
            self._stopping.wait(0.05)


class LineReceiver(Receiver):
    """Bytes cut into lines; an unfinished line waits for its end."""

    def __init__(self, name: str, spec: Any, directory: Path) -> None:
        super().__init__(name, spec, directory)
        self._pieces: list[bytes] = []
        self._size = 0
        self._over = False
        self._cut = False  # the last line was cut off: its rest is no record

    def feed(self, data: bytes) -> None:
        """Take in some bytes."""
        with self._lock:
            if self._cut:
                _, newline, data = data.partition(b"\n")
                self._cut = not newline
            self._pieces.append(data)
            self._size += len(data)
            full = self._size >= _SEAL_BYTES
        if full:
            self._seal_patiently()
            self.pause_if_ahead()

    def end(self) -> None:
        """The input is over: a last line without a newline counts."""
        with self._lock:
            self._over = True

    def break_line(self) -> None:
        """Close an unfinished line: what comes next does not belong to it."""
        with self._lock:
            self._cut = False
            if self._pieces and self._pieces[-1] and not self._pieces[-1].endswith(b"\n"):
                self._pieces.append(b"\n")

    def take_buffer(self) -> tuple[bytes, int] | None:
        data = b"".join(self._pieces)
        cut = len(data) if self._over else data.rfind(b"\n") + 1
        if not cut and len(data) > MAX_LINE + _SEAL_BYTES:
            cut = len(data)  # endless: what is cut off is too long for a record anyway
            self._cut = True
        if not cut:
            self._pieces = [data]
            return None
        self._pieces, self._size = [data[cut:]], 0
        rows = data.count(b"\n", 0, cut) + (not data[:cut].endswith(b"\n"))
        return data[:cut], rows


class SocketReceiver(LineReceiver):
    """Lines from a TCP server."""

    def receive(self) -> None:
        spec: Socket = self.spec
        while not self._stopping.is_set():
            try:
                self._connection(spec)
            except OSError as error:
                if not spec.reconnect:
                    raise RunError(
                        f"source {self.source!r}: {spec.host}:{spec.port} cannot be reached "
                        f"({error.strerror or error}); is the server running?"
                    ) from error
            if not spec.reconnect:
                break
            self.break_line()
            self._stopping.wait(0.5)
        if not self._stopping.is_set():  # a stopped source goes on later: its line is not over
            self.end()

    def _connection(self, spec: Socket) -> None:
        with socket.create_connection((spec.host, spec.port), timeout=10) as connection:
            connection.settimeout(0.2)
            while not self._stopping.is_set():
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    return
                self.feed(data)


class StdinReceiver(LineReceiver):
    """Lines from standard input."""

    def receive(self) -> None:
        handle = sys.stdin.fileno()
        while not self._stopping.is_set():
            ready, _, _ = select.select([handle], [], [], 0.2)
            if not ready:
                continue
            data = os.read(handle, 1 << 16)
            if not data:
                self.end()
                return
            self.feed(data)


class GeneratorReceiver(Receiver):
    """Records of a Python generator, as Arrow files."""

    suffix = "arrow"

    def __init__(self, name: str, spec: Any, directory: Path) -> None:
        super().__init__(name, spec, directory)
        self._rows: list[Any] = []
        self._tables: list[pa.Table] = []
        self._schema = None if spec.schema is None else parse_schema(spec.schema)

    def receive(self) -> None:
        skip = self.already if self.spec.replayable else 0
        for item in self._items():
            table = _as_table(item)
            size = 1 if table is None else len(table)
            if skip >= size:
                skip -= size
                continue
            if table is not None:
                self._put_table(table.slice(skip))
            else:
                self._put_row(item)
            skip = 0
            if self._stopping.is_set():  # not before: what was drawn cannot be put back
                return

    def _items(self) -> Iterable[Any]:
        yield from self.spec.fn()

    def _put_row(self, row: Any) -> None:
        with self._lock:
            self._rows.append(row)
            full = len(self._rows) >= _SEAL_ROWS
        if full:
            self._seal_patiently()
            self.pause_if_ahead()

    def _put_table(self, table: pa.Table) -> None:
        with self._lock:
            self._fold_rows()
            self._tables.append(table)
        self._seal_patiently()
        self.pause_if_ahead()

    def _fold_rows(self) -> None:
        """Rows as a table; what fits no column is kept as text, to become a dead letter."""
        rows, self._rows = self._rows, []
        wrong = {
            i: f"a generator must yield dicts or Arrow tables, got {type(row).__name__}"
            for i, row in enumerate(rows)
            if not isinstance(row, dict)
        }
        while rows:
            good = [i for i in range(len(rows)) if i not in wrong]
            table, bad = to_table([rows[i] for i in good], self._schema)
            wrong.update({good[i]: why for i, why in bad.items()})
            if not bad:
                if good:
                    self._tables.append(table)
                break
        if wrong:
            raws = [as_json(rows[i]) for i in wrong]
            self._tables.append(pa.table({"__raw": raws, "__error": list(wrong.values())}))

    def take_buffer(self) -> tuple[pa.Buffer, int] | None:
        self._fold_rows()
        if not self._tables:
            return None
        table = pa.concat_tables(self._tables, promote_options="permissive")
        self._tables = []
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue(), len(table)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the engine has taken it meanwhile
        return 0


def _as_table(item: Any) -> pa.Table | None:
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    return item if isinstance(item, pa.Table) else None

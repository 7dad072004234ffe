"""Receivers of lines: a TCP server and standard input."""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import Any

from millstream.api.sources import Socket
from millstream.errors import RunError
from millstream.io.records import MAX_LINE
from millstream.run.sources.received.spool import Receiver
from millstream.state.storage import Storage

_READ = 1 << 16
_LOOK = 0.2  # seconds between looks whether to stop


class LineReceiver(Receiver):
    """Bytes cut into lines; an unfinished line waits for its end.

    Of a line longer than the limit so much is kept that it is refused; the rest is not a record.
    """

    def __init__(self, name: str, spec: Any, spool: Storage) -> None:
        super().__init__(name, spec, spool)
        self._data = bytearray()
        self._whole = 0  # bytes of complete lines
        self._skipping = False  # the rest of a line that is too long

    def feed(self, data: bytes) -> None:
        """Take in some bytes."""
        with self._lock:
            if self._skipping:
                end = data.find(b"\n") + 1
                if not end:
                    return
                data, self._skipping = data[end:], False
            self._append(data)
            if self._whole >= self.enough:
                self._arrived()

    def _append(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if end:
            self._whole = len(self._data) + end
        self._data += data
        if len(self._data) - self._whole > MAX_LINE + 1:  # even without a carriage return
            del self._data[self._whole + MAX_LINE + 2 :]
            self._data += b"\n"
            self._whole, self._skipping = len(self._data), True

    def break_line(self) -> None:
        """Close an unfinished line: what comes next does not belong to it."""
        with self._lock:
            self._skipping = False
            if len(self._data) > self._whole:
                self._data += b"\n"
                self._whole = len(self._data)

    def amount(self) -> int:
        return self._whole

    def cut(self) -> bytes | None:
        if not self._whole:
            return None
        content = bytes(memoryview(self._data)[: self._whole])
        del self._data[: self._whole]
        self._whole = 0
        return content

    def encode(self, content: bytes) -> tuple[bytes, int]:
        return content, content.count(b"\n")


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
            if not self._stopping.is_set():
                self.break_line()
            self._stopping.wait(0.5)
        if not self._stopping.is_set():  # a stopped source goes on later: its line is not over
            self.break_line()

    def _connection(self, spec: Socket) -> None:
        with socket.create_connection((spec.host, spec.port), timeout=10) as connection:
            connection.settimeout(_LOOK)
            while not self._stopping.is_set():
                try:
                    data = connection.recv(min(_READ, self.worth))
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
            ready, _, _ = select.select([handle], [], [], _LOOK)
            if not ready:
                continue
            data = os.read(handle, _READ)
            if not data:
                self.break_line()
                return
            self.feed(data)

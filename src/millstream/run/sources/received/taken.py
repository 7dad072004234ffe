"""Which requests have been taken: their idempotency keys, kept durably beside the spool.

A key becomes known with the piece its records are in, by the same rename; when that piece has been
committed and is deleted, its keys go into a log first. The log has two files; when the newer one is
full the older one is deleted. So at least the last 50,000 keys are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from millstream.errors import CheckpointError
from millstream.state.storage import Storage

_LOG = re.compile(r"keys\.([0-9]{1,18})", re.ASCII)
MOST = 50_000  # keys in one file of the log


class Taken(NamedTuple):
    """A request that was taken: its key, what it was, and how many records it had."""

    key: str
    digest: str
    records: int


class AnotherBody(Exception):
    """A key was used for something else before."""


class TakenKeys:
    """The keys of requests that were taken."""

    def __init__(self, spool: Storage) -> None:
        self.spool = spool
        self._older: dict[str, Taken] = {}
        self._newer: dict[str, Taken] = {}
        self._number, self._logged = 0, 0
        self._size = 0  # bytes of the log that is written

    def load(self) -> None:
        """Read the log."""
        logs = (_LOG.fullmatch(name) for name in self.spool.names())
        numbers = sorted(int(match[1]) for match in logs if match)
        for number in numbers:
            self._older, self._newer = self._newer, {}
            self._number = number
            found = self._read(_name(number))
            self._newer.update((one.key, one) for one in found)
            self._logged = len(found)

    def get(self, key: str) -> Taken | None:
        """What is known of a key."""
        return self._newer.get(key) or self._older.get(key)

    def add(self, taken: Iterable[Taken]) -> None:
        """Know these keys; their piece makes them durable."""
        self._newer.update((one.key, one) for one in taken)

    def log(self, taken: list[Taken]) -> None:
        """Make keys durable whose piece is about to be deleted."""
        if not taken:
            return
        if self._logged >= MOST:
            self.spool.delete(_name(self._number - 1))
            self._number, self._logged, self._size = self._number + 1, 0, 0
            self._older, self._newer = self._newer, {}
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in taken)
        self.spool.append(_name(self._number), self._size, lines)
        self._size += len(lines)
        self._logged += len(taken)
        self.add(taken)  # as long as this file is kept

    def _read(self, name: str) -> list[Taken]:
        # What a crash left after the last line is written over; its piece is still there.
        whole, end, _ = self.spool.read(name).rpartition(b"\n")
        self._size = len(whole) + len(end)
        try:
            return [Taken(*msgspec.json.decode(line)) for line in whole.split(b"\n") if line]
        except (msgspec.DecodeError, TypeError) as error:
            raise CheckpointError(
                f"{self.spool.where(name)} is damaged ({error}); remove it to go on, and a request "
                "whose Idempotency-Key is in it will be taken once more if it is sent again"
            ) from None


def _name(number: int) -> str:
    return f"keys.{number}"

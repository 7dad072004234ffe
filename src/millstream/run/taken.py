"""Which requests have been taken: their idempotency keys, kept durably beside the spool.

A key becomes known with the piece its records are in, by the same rename; when that piece has been
committed and is deleted, its keys go into a log first. The log has two files; when the newer one is
full the older one is deleted. So at least the last 50,000 keys are known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from millstream.errors import CheckpointError
from millstream.state.segments import sync_directory

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

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._older: dict[str, Taken] = {}
        self._newer: dict[str, Taken] = {}
        self._number, self._logged = 0, 0

    def load(self) -> None:
        """Read the log."""
        numbers = sorted(int(path.suffix[1:]) for path in self.directory.glob("keys.[0-9]*"))
        for number in numbers:
            self._older, self._newer = self._newer, {}
            self._number = number
            found = self._read(self._path(number))
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
            self._path(self._number - 1).unlink(missing_ok=True)
            self._number, self._logged = self._number + 1, 0
            self._older, self._newer = self._newer, {}
        with open(self._path(self._number), "ab") as out:
            out.write(b"".join(msgspec.json.encode(one) + b"\n" for one in taken))
            out.flush()
            os.fsync(out.fileno())
        if not self._logged:
            sync_directory(self.directory)
        self._logged += len(taken)
        self.add(taken)  # as long as this file is kept

    def _path(self, number: int) -> Path:
        return self.directory / f"keys.{number}"

    def _read(self, path: Path) -> list[Taken]:
        whole, _, half = path.read_bytes().rpartition(b"\n")
        if half:  # a crash while it was written; its piece is still there
            with open(path, "r+b") as cut:
                cut.truncate(len(whole) + 1 if whole else 0)
        try:
            return [Taken(*msgspec.json.decode(line)) for line in whole.split(b"\n") if line]
        except (msgspec.DecodeError, TypeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); remove it to go on, and a request whose "
                "Idempotency-Key is in it will be taken once more if it is sent again"
            ) from None

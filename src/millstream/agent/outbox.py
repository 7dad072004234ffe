"""What an agent has made and the collector has not committed: numbered messages on its disk.

The newest message is kept in any case, because it says where the source goes on. The directory has
a life of its own, a number that is drawn once: messages of another life are not these. With several
trees a message has a part for each, in one file: it is made at once or not at all.
"""

from __future__ import annotations

import os
import secrets
import zlib
from itertools import islice
from pathlib import Path
from socket import gethostname

import msgspec

from millstream.errors import CheckpointError, ConfigError, RunError
from millstream.run.messages.message import FULL, Message, only_counted, pack, unpack
from millstream.state.manifests import SourceState
from millstream.state.storage import Held, Storage, open_storage

_LIFE = "life.json"
_SUFFIX = ".message"


class TooLarge(Exception):
    """A message that nobody would take; it was not kept."""


class Outbox:
    """The messages of one agent, in order."""

    def __init__(self, directory: Path, largest: int = FULL) -> None:
        self.largest = largest  # bytes of a message
        self.root = open_storage(directory)
        self.root.create()
        try:
            self.hold = self.root.hold(
                "lock", f"an agent that runs, pid {os.getpid()} on {gethostname()}"
            )
        except Held as error:
            raise ConfigError(
                f"{self.root.where()} belongs to {error}: give this agent a name and a directory "
                "of its own"
            ) from None
        if not self.root.exists(_LIFE):
            self.root.put(_LIFE, msgspec.json.encode(secrets.randbits(60)))
        self.life: int = msgspec.json.decode(self.root.read(_LIFE), type=int)
        self.store: Storage = self.root.within("messages")
        self.store.create()
        for folder in ("sources", "spool"):
            self.root.within(folder).create()
        self.sizes: dict[int, tuple[str, int]] = {}  # number -> name, bytes
        for name in self.store.names():
            number, _, rest = name.partition("-")
            if name.endswith(_SUFFIX) and number.isdigit():
                self.sizes[int(number)] = (name, self.store.size(name))
                self._check(name, rest)
        self.dropped = 0  # records, to make room
        self._bare: set[int] = set()  # messages without rows that could be dropped

    def _check(self, name: str, rest: str) -> None:
        if f"{zlib.crc32(self.store.read(name)):08x}{_SUFFIX}" != rest:
            raise CheckpointError(f"message {self.store.where(name)} is damaged; {_AGAIN}")

    @property
    def last(self) -> int:
        """The number of the newest message; -1: there was none."""
        return max(self.sizes, default=-1)

    @property
    def first(self) -> int:
        """The number of the oldest message that is here, or of the next to come."""
        return min(self.sizes, default=0)

    def size(self, committed: int) -> int:
        """Bytes of messages that the collector has not committed."""
        return sum(size for number, (_, size) in self.sizes.items() if number > committed)

    def state(self, source: str) -> SourceState:
        """Where the source goes on."""
        if not self.sizes:
            return SourceState()
        return self.read(self.last)[0].after.get(source, SourceState())

    def read(self, number: int, tree: int = 0) -> Message:
        """A message, or what of it goes to a tree."""
        return next(islice(unpack(self.store.read(self.sizes[number][0])), tree, None))

    def put(self, parts: list[Message]) -> None:
        """One more message, with what goes to each tree, durable when this returns.

        TooLarge if it is; nothing is kept then.
        """
        self._write(self.last + 1, parts)

    def _write(self, number: int, parts: list[Message]) -> None:
        numbered = (
            (msgspec.structs.replace(head, number=number, life=self.life), blocks)
            for head, blocks in parts
        )
        packed = [pack(head, blocks) for head, blocks in numbered]
        if (size := max(map(len, packed))) > self.largest:
            raise TooLarge(f"{size >> 20} MiB")
        data = b"".join(packed)
        name = f"{number:010d}-{zlib.crc32(data):08x}{_SUFFIX}"
        self.store.put(name, data)
        before = self.sizes.get(number)
        self.sizes[number] = (name, len(data))
        if before is not None and before[0] != name:
            self.store.delete(before[0])

    def forget(self, committed: int) -> None:
        """What a manifest of the collector covers is needed no more, but for the newest."""
        for number in [n for n in self.sizes if n <= committed and n != self.last]:
            self.store.delete(self.sizes.pop(number)[0])

    def check(self, name: str, durable: int) -> None:
        """Refuse to go on where the collector has more than was made here, or less than is gone."""
        if durable > self.last:
            raise RunError(
                f"the collector has message {durable} of {name!r}, and {self.root.where()} ends "
                f"with {self.last}: it is an older copy; start the agent under a new name and with "
                "a new directory"
            )
        if durable < self.first - 1:
            raise RunError(
                f"the collector has the messages of {name!r} up to {durable}, and those up to "
                f"{self.first - 1} were committed and are gone here: it lost its checkpoint, has "
                "an older copy, or is another one. To read everything again start the agent under "
                "a new name, or with a new directory if the collector knows none of this name"
            )

    def make_room(self, committed: int, durable: int, most: int) -> None:
        """Give up rows of the oldest messages the collector does not have; they are counted."""
        size, last = self.size(committed), self.last
        for number in sorted(self.sizes):
            if size <= most:
                return
            if durable < number < last and number not in self._bare:
                name, before = self.sizes[number]
                heads = [head for head, _ in unpack(self.store.read(name))]
                if any(head.blocks for head in heads):
                    self._write(number, [(only_counted(head), []) for head in heads])
                    self.dropped += sum(head.rows for head in heads)
                    size -= before - self.sizes[number][1]
                self._bare.add(number)

    def close(self) -> None:
        """Let go of the directory."""
        self.hold.release()


_AGAIN = (
    "what it held was read and not yet sent. To go on without it, start the agent under a new name "
    "with a new directory"
)

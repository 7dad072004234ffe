"""What the engine asks of a source: what is new, how far it has been read, when it ends.

A tracker never reads records; it lists files or spool pieces and cuts what is new into splits.
Offsets become durable with the manifest of the batch that took them, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from millstream.ops.times.progress import Horizon
from millstream.run.sources.spreading import rows_of
from millstream.run.tasks.splits import AnySplit
from millstream.state.manifests import SourceState

T = TypeVar("T")


class Probe(Protocol):
    """Look into files in tasks: a function of several paths, and what it gives for each."""

    def __call__(self, look: Callable[[Iterable[str]], list[T]], paths: list[str]) -> list[T]: ...


def directly(look: Callable[[Iterable[str]], list[T]], paths: list[str]) -> list[T]:
    """Look into files here."""
    return look(paths)


class Tracker(Protocol):
    """What the engine asks of a source, in this order in every batch.

    A source says the rest as here if nobody works for it between batches, and its pieces, which
    know their rows, are neither files nor participants.
    """

    ended: bool

    def poll(self, probe: Probe) -> None:
        """Look for what is new; `probe` looks into files, in tasks."""

    def pending(self) -> int:
        """Bytes that are known and not yet taken."""

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces for a batch of at most so many rows and bytes, in the order of positions."""

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """Pieces of at most so many bytes which the batch takes and will not process."""
        return []

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """What is still to come once the pieces taken so far are read.

        `now` is the wall clock, `since` when it was that the run began to listen.
        """

    def weigh(self, split: AnySplit) -> float:
        """About how many rows a piece has."""
        return rows_of(split)

    def together(self, split: AnySplit) -> int:
        """Pieces with the same number are read by one task where the order of a source matters."""
        return 0

    def learn(self, rows: int, size: int = 0) -> None:
        """How many rows the pieces of the last batch had, and how many bytes if tasks know it."""
        return

    def reached(self, files: dict[int, int], now: int) -> None:
        """The latest times seen in files that go on; called before `save`."""
        return

    def name_of(self, file: int) -> str:
        """What people know a file by."""
        return f"piece {file}"

    def place(self, position: int) -> dict[str, Any]:
        """Where the record at a position stands, for people."""
        return {"offset": position}

    def save(self, state: SourceState) -> None:
        """Put into a manifest what is needed to go on from here."""

    def committed(self) -> None:
        """The pieces taken are committed: what they came from can be forgotten."""
        return

    def silent(self) -> float:
        """For how many seconds a user's function has not given the record it was asked for."""
        return 0.0

    def ask_to_stop(self, patience: float) -> None:
        """Have what receives come to an end within so many seconds; does not wait."""
        return

    def close(self) -> None:
        """Let go of everything; raises if something that was received is lost."""
        return

"""What receivers took in as a source: sealed pieces of the spool, in the order they came."""

from __future__ import annotations

import time

from millstream.errors import RunError
from millstream.ops.progress import BEGIN, Horizon
from millstream.run.batch import AnySplit, SpoolSplit
from millstream.run.spool import Receiver
from millstream.run.spreading import rows_of
from millstream.state.manifests import SourceState


class SpoolTracker:
    """Sealed pieces that a receiver (socket, stdin, generator) left in the spool."""

    def __init__(self, number: int, receiver: Receiver, state: SourceState) -> None:
        self.number, self.receiver = number, receiver
        self.ended = self._finished = False
        self._polled = BEGIN
        self.next: int = state.extra.get("next", 0)
        self.rows: int = state.extra.get("rows", 0)
        receiver.resume(self.next, self.rows)
        self.waiting = receiver.sealed(self.next)
        receiver.start()

    def poll(self) -> None:
        """Seal what has been received."""
        # Asked before looking: a receiver may seal its last piece and finish right after the look.
        self._finished = self.receiver.finished
        self._polled = int(time.time() * 1e6)  # what is sealed from now on arrives later
        self.receiver.seal()
        known = self.waiting[-1].number if self.waiting else self.next - 1
        self.waiting.extend(self.receiver.sealed(known + 1))
        if self.receiver.error is not None and not self.waiting:
            raise RunError(str(self.receiver.error))
        self.ended = self._finished and not self.waiting

    def pending(self) -> int:
        return sum(piece.size for piece in self.waiting)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces in the order they were received; at least one."""
        splits: list[AnySplit] = []
        taken = 0
        while self.waiting and (not splits or taken + self.waiting[0].rows <= rows):
            piece = self.waiting.pop(0)
            taken += piece.rows
            splits.append(
                SpoolSplit(self.number, piece.number, str(piece.path), piece.arrival, piece.rows)
            )
            self.next = piece.number + 1
            self.rows += piece.rows
        self.ended = self._finished and not self.waiting and self.receiver.error is None
        return splits

    def horizon(self, now: int) -> Horizon:
        """By arrival, all that was received before the first waiting piece has been taken."""
        if self.receiver.spec.time is not None:
            return Horizon()
        return Horizon(clock=self.waiting[0].arrival if self.waiting else self._polled)

    def reached(self, files: dict[int, int], now: int) -> None:
        """Pieces are not participants."""

    def weigh(self, split: AnySplit) -> float:
        """The rows of a piece."""
        return rows_of(split)

    def together(self, split: AnySplit) -> int:
        return 0

    def learn(self, rows: int) -> None:
        """Pieces know their rows."""

    def name_of(self, file: int) -> str:
        return f"piece {file}"

    def save(self, state: SourceState) -> None:
        state.extra = {"next": self.next, "rows": self.rows}

    def committed(self) -> None:
        """Forget what has been committed."""
        self.receiver.forget(self.next)

    def close(self) -> None:
        self.receiver.stop()

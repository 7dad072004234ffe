"""What receivers took in as a source: sealed pieces of the spool, in the order they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from millstream.api.sources import Generator, HostStats, Http, Socket, SourceSpec, Stdin
from millstream.errors import RunError
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.times.progress import BEGIN, Horizon
from millstream.run.sources.received.generating import GeneratorReceiver
from millstream.run.sources.received.lines import SocketReceiver, StdinReceiver
from millstream.run.sources.received.spool import SEAL_BYTES, Receiver, Sealed
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.splits import AnySplit, SpoolSplit
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage


def make_receiver(name: str, spec: SourceSpec, spool: Storage) -> Receiver:
    """The receiver for a source."""
    match spec:
        case Generator() | HostStats():
            return GeneratorReceiver(name, spec, spool)
        case Socket():
            return SocketReceiver(name, spec, spool)
        case Http():
            # A web server, for who wants one.
            from millstream.run.sources.received.posts import PostReceiver

            return PostReceiver(name, spec, spool)
        case _:
            assert isinstance(spec, Stdin)
            return StdinReceiver(name, spec, spool)


class SpoolTracker(Tracker):
    """Sealed pieces that a receiver (socket, stdin, HTTP, generator) left in the spool."""

    def __init__(self, number: int, receiver: Receiver, state: SourceState) -> None:
        self.number, self.receiver = number, receiver
        self.ended = self._finished = False
        self.next: int = state.extra.get("next", 0)
        self.rows: int = state.extra.get("rows", 0)
        # Positions go on from piece to piece: however many there are, they do not run out.
        self.position: int = state.extra.get("position", self.next << OFFSET_BITS)
        self._clear: int = state.extra.get("arrival", BEGIN)  # nothing arrives before it any more
        self.waiting = deque(receiver.resume(self.next, self.rows, self._clear))
        self._taken: list[Sealed] = []
        receiver.start()

    def poll(self, probe: object = None) -> None:
        """Take up what has been sealed; what came just now is sealed at once."""
        # Asked before looking: a receiver may seal its last piece and finish right after the look.
        self._finished = self.receiver.finished
        self.receiver.seal()
        fresh, self._clear = self.receiver.received()
        self.waiting.extend(fresh)
        if self.receiver.error is not None and not self.waiting:
            raise RunError(str(self.receiver.error))
        self.ended = self._finished and not self.waiting

    def pending(self) -> int:
        return sum(piece.size for piece in self.waiting)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces in the order they were received; at least one."""
        several: list[Sealed] = []
        while self.waiting and (
            not several or (self.waiting[0].rows <= rows and self.waiting[0].size <= size)
        ):
            several.append(self.waiting.popleft())
            rows, size = rows - several[-1].rows, size - several[-1].size
        return self.deal(several)

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """Pieces in the order they were received, whole ones."""
        several: list[Sealed] = []
        while self.waiting and self.waiting[0].size <= size:
            several.append(self.waiting.popleft())
            size -= several[-1].size
        return self.deal(several)

    def deal(self, several: list[Sealed]) -> list[AnySplit]:
        """Pieces that a batch takes, small ones together."""
        pieces: list[SpoolSplit] = []
        for piece in several:
            self._taken.append(piece)
            pieces.append(
                SpoolSplit(
                    self.number,
                    piece.number,
                    self.receiver.spool.where(),
                    piece.name,
                    piece.arrival,
                    piece.rows,
                    self.position,
                )
            )
            self.rows += piece.rows
            self.next = piece.number + 1
            self.position += max(piece.size, piece.rows)
        self.ended = self._finished and not self.waiting and self.receiver.error is None
        return list(_together(pieces, [piece.size for piece in several]))

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """By arrival, all that was received before the first waiting piece has been taken."""
        reached = self._reached()
        return Horizon(
            clock=None if self.receiver.spec.time else reached,
            taken=reached,
            since=self.receiver.since,
        )

    def _reached(self) -> int:
        return self.waiting[0].arrival if self.waiting else self._clear

    def save(self, state: SourceState) -> None:
        state.extra = {
            "next": self.next,
            "rows": self.rows,
            "position": self.position,
            "arrival": self._reached(),
        }

    def committed(self) -> None:
        """Forget what has been committed."""
        taken, self._taken = self._taken, []
        self.receiver.forget(taken)

    def silent(self) -> float:
        return self.receiver.silent()

    def ask_to_stop(self, patience: float) -> None:
        self.receiver.ask_to_stop(patience)

    def close(self) -> None:
        self.receiver.stop()


def _together(pieces: list[SpoolSplit], sizes: list[int]) -> Iterator[SpoolSplit]:
    """Pieces with the small ones that follow them, up to a size that is worth a chunk."""
    begin, size = 0, 0
    for end in range(1, len(pieces) + 1):
        size += sizes[end - 1]
        if end == len(pieces) or size + sizes[end] > SEAL_BYTES:
            several = pieces[begin:end]
            rows = sum(piece.rows for piece in several)
            yield replace(several[0], rows=rows, more=tuple(several[1:]))
            begin, size = end, 0

"""Receivers: threads of the driver that take in what cannot be asked for twice.

What arrives is sealed into files (written, fsynced, named) within 100 ms or 1 MiB, whatever the
engine does meanwhile; only sealed files are read. So a crash loses at most what came in the last
100 ms, and what had not been read from the socket, pipe or generator yet.

One thread receives and another seals, so that a generator that takes long for its next record, or a
quiet socket, does not keep what came before from being sealed.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from millstream.errors import CheckpointError, RunError
from millstream.ops.records import describe
from millstream.run.sources.arrival import ArrivalClock
from millstream.state.segments import verify_named
from millstream.state.storage import NO_ROOM, Storage

SEAL_SECONDS = 0.1
SEAL_BYTES = 1024 * 1024
_SMALLEST = 4096
GATHER_BYTES = 4 * SEAL_BYTES  # taken in while the disk is busy with what came before
_AHEAD = 4  # times what a policy that sheds allows, before senders wait all the same
_LEAST_AHEAD = 16 << 20  # and at least so many bytes: what waits in TCP instead cannot be shed

_COUNT = "sealed"
_PAUSE = 0.2  # seconds between looks at a full disk
PATIENCE = 5.0  # seconds for what receives to come to an end


@dataclass(frozen=True)
class Sealed:
    """One sealed file of a spool: `<number>-<arrival>-<rows>-<checksum>.<kind>`."""

    number: int
    name: str
    arrival: int
    rows: int
    size: int


@dataclass
class Cut:
    """What was received and is about to be sealed; its time of arrival is settled."""

    content: Any
    arrival: int


class Receiver(threading.Thread):
    """Receives records on a thread of its own and seals them into files."""

    suffix = "lines"
    worth = SEAL_BYTES  # bytes that are sealed without waiting for more
    sent_again = False  # whether what is not sealed comes once more after the next start

    def __init__(self, name: str, spec: Any, spool: Storage) -> None:
        super().__init__(name=f"millstream-{name}", daemon=True)
        self.source, self.spec, self.spool = name, spec, spool
        self.error: BaseException | None = None
        self.finished = False
        self.already = 0  # records sealed before this start
        self.clock = ArrivalClock()
        self._stopping = threading.Event()
        self._patience: float | None = None  # when it is no longer waited for, once it shall stop
        self._over = False  # nothing more is received: the sealing thread can end
        self._closed = False  # the spool belongs to somebody else
        self._number = 0
        self._fresh: list[Sealed] = []
        self._held = 0  # bytes in the spool
        self.since = 0  # by the clock: it took in all that came, ever since
        self._stalled = False  # the disk took nothing the last time
        # Bytes sealed but not yet committed, before the receiver waits.
        self.most_held: int = spec.overload.when
        self._most_gathered = GATHER_BYTES
        if spec.overload.sheds:  # by pieces, each whole or not at all: so there must be several
            self.worth = min(self.worth, max(_SMALLEST, spec.overload.when // 16))
            self._most_gathered = min(GATHER_BYTES, max(_SMALLEST, spec.overload.when // 2))
            self.most_held = max(_AHEAD * self.most_held, _LEAST_AHEAD)
        self.enough = self._least()  # bytes at which there is something to be done
        self._cut: Cut | None = None
        self._sealing = threading.Lock()  # held by who seals; the other one only for moments
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)  # something to seal, or the end
        self._freed = threading.Condition(self._lock)  # room to go on
        self._sealer = threading.Thread(
            target=self._keep_sealing, name=f"millstream-{name}-seal", daemon=True
        )
        spool.create()

    # -- what a kind of receiver says --------------------------------------------------------------

    def receive(self) -> None:
        """Read the input until it ends."""
        raise NotImplementedError

    def amount(self) -> int:
        """About how many bytes could be sealed; called with the lock held."""
        raise NotImplementedError

    def cut(self) -> Any:
        """Take what has been received since the last time, None if that is nothing; quick."""
        raise NotImplementedError

    def encode(self, content: Any) -> tuple[bytes | pa.Buffer, int]:
        """What was cut as bytes of a file, and how many records it has."""
        raise NotImplementedError

    def kept(self, content: Any) -> None:
        """What was cut is durable now."""

    def forgetting(self, names: list[str]) -> None:
        """These files are about to be deleted."""

    def silent(self) -> float:
        """For how many seconds a user's function has not given the record it was asked for."""
        return 0.0

    # -- what the engine asks ----------------------------------------------------------------------

    def resume(self, taken: int, rows: int, arrival: int) -> list[Sealed]:
        """Go on after what was committed: drop those files, number on after the rest."""
        for name in self.spool.names():
            if name.startswith(".") and name.endswith(".tmp"):
                self.spool.delete(name)
        there = self._listed()
        self.forget([piece for piece in there if piece.number < taken])
        rest = [piece for piece in there if piece.number >= taken]
        self._number = taken + len(rest)
        end = max(self._number, self._count())
        numbers = [piece.number for piece in rest]
        if len(numbers) != end - taken or numbers != list(range(taken, end)):
            raise CheckpointError(
                f"spool {self.spool.where()} is damaged: it should hold pieces {taken} to "
                f"{end - 1} and holds {numbers}; what they held was received but not yet "
                "processed. To go on without it remove the directory"
            )
        for piece in rest:
            verify_named(self.spool, piece.name)
        self.already = rows + sum(piece.rows for piece in rest)
        self._held = sum(piece.size for piece in rest)
        self.clock.raise_to(max([arrival, *(piece.arrival for piece in rest)]))
        return rest

    def start(self) -> None:
        """Begin to receive."""
        super().start()
        self._sealer.start()

    def received(self) -> tuple[list[Sealed], int]:
        """What has been sealed since the last time; all that is not there yet arrives later.

        The time is that of the piece being written, or now: what comes after has a later one.
        """
        with self._lock:
            fresh, self._fresh = self._fresh, []
            return fresh, self.clock.now() if self._cut is None else self._cut.arrival

    def forget(self, pieces: list[Sealed]) -> None:
        """Delete what has been committed."""
        if pieces:
            self.forgetting([piece.name for piece in pieces])
        for piece in pieces:
            self.spool.delete(piece.name)
        with self._lock:
            if self._held + self.amount() >= self.most_held:  # senders were held back
                self.since = self.clock.now()
            self._held = max(0, self._held - sum(piece.size for piece in pieces))
            self._freed.notify_all()

    def ask_to_stop(self, patience: float = PATIENCE) -> None:
        """Have it stop, without waiting: `stop` waits so many seconds from now on."""
        if self._patience is None:
            self._patience = time.monotonic() + patience
        self._stopping.set()
        with self._lock:
            self._freed.notify_all()

    def stop(self) -> None:
        """Stop receiving; what was received and not sealed is sealed.

        If it cannot be, and nobody sends it again, that is raised: it is lost.
        """
        self.ask_to_stop()
        assert self._patience is not None
        if self.is_alive():
            self.join(max(0.0, self._patience - time.monotonic()))
        problem: Exception | None = None
        try:
            self.seal()  # a generator may not have come back, or the disk may have room by now
        except Exception as error:
            problem = error
        with self._sealing:
            self._closed = True
        self._end_sealing()
        if problem is not None and not self.sent_again:
            raise RunError(self._lost(problem)) from problem

    def _lost(self, problem: Exception) -> str:
        """What to say of records that were received and could not be kept."""
        with self._lock:
            rest = [self._cut.content] if self._cut is not None else []
            more = self.cut()
            rest += [] if more is None else [more]
        try:
            number = sum(self.encode(content)[1] for content in rest)
            lost = (
                "1 record that was received is"
                if number == 1
                else f"{number:,} records that were received are"
            )
        except Exception:  # perhaps that is the problem
            lost = "records that were received are"
        return (
            f"source {self.source!r}: {lost} lost: they cannot be written to {self.spool.where()} "
            f"({type(problem).__name__}: {problem}); have them sent again once that is corrected"
        )

    # -- receiving ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Receive until the end; a failure is reported by the next poll."""
        try:
            self.receive()
        except RunError as error:
            self.error = error
        except BaseException as error:  # whatever a generator or the network raises
            self.error = RunError(f"source {self.source!r} failed: {describe(error)}")
        try:
            self._seal_patiently()
        except Exception as error:
            self._failed_to_seal(error)
        self._end_sealing()
        self.finished = True

    def _failed_to_seal(self, error: Exception) -> None:
        self.error = self.error or RunError(
            f"source {self.source!r}: what was received cannot be written to {self.spool.where()} "
            f"({type(error).__name__}: {error})"
        )

    def _arrived(self) -> None:
        """Enough came to be sealed; waits if it is too much. Called with the lock held."""
        self.enough = self._most_gathered
        self._came.notify()
        while self.amount() >= self._most_gathered or self._held + self.amount() >= self.most_held:
            if self._stopping.is_set():
                return
            self._freed.wait(1.0)
        self.enough = self._least()

    def _least(self) -> int:
        """Bytes that may come before somebody looks how much there is; not more than may wait."""
        return min(self.worth, max(1, self.most_held - self._held))

    # -- sealing -----------------------------------------------------------------------------------

    def _keep_sealing(self) -> None:
        """Seal what came, at the latest so long after it came."""
        while True:
            with self._lock:
                self._came.wait_for(
                    lambda: self._over or self.amount() >= self.worth, timeout=SEAL_SECONDS
                )
                if self._over:
                    return
            try:
                self._seal_patiently()
            except Exception as error:
                self._failed_to_seal(error)
                self._stopping.set()
                return

    def _end_sealing(self) -> None:
        with self._lock:
            self._over = True
            self._came.notify_all()
        if self._sealer.is_alive() and threading.current_thread() is not self._sealer:
            self._sealer.join(5)

    def seal(self) -> None:
        """Write what has been received as one more file."""
        with self._sealing:
            if self._closed:
                return
            with self._lock:
                if self._cut is None:  # else an earlier attempt found the disk full
                    content, self.enough = self.cut(), self._least()
                    self._cut = None if content is None else Cut(content, self.clock.now())
                    self._freed.notify_all()
            if self._cut is None:
                return
            data, rows = self.encode(self._cut.content)
            stem = f"{self._number:010d}-{self._cut.arrival}-{rows}-{zlib.crc32(data):08x}"
            piece = f"{stem}.{self.suffix}"
            try:
                self.spool.put(piece, data)
            except OSError:
                self._stalled = True
                raise
            self._number += 1
            with self._lock:
                self.since = self.clock.now() if self._stalled else self.since
                self._stalled = False
                self._fresh.append(
                    Sealed(self._number - 1, piece, self._cut.arrival, rows, len(data))
                )
                self._held += len(data)
                self.enough = min(self.enough, self._least())
                content, self._cut = self._cut.content, None
            self.kept(content)
            self.spool.put(_COUNT, str(self._number).encode(), durable=False)

    def _seal_patiently(self) -> None:
        """Seal; while the disk is full receive nothing more and lose nothing."""
        while True:
            try:
                return self.seal()
            except OSError as error:
                if error.errno not in NO_ROOM or self._stopping.wait(_PAUSE):
                    raise

    def _count(self) -> int:
        """The number after the last piece ever sealed, so that a missing last one is noticed."""
        try:
            return int(self.spool.read(_COUNT))
        except (FileNotFoundError, ValueError):
            return 0

    def _listed(self) -> list[Sealed]:
        """All sealed files in the directory."""
        pieces = []
        for name in self.spool.names():
            if not fnmatchcase(name, f"*-*-*-*.{self.suffix}"):
                continue
            number, arrival, rows, _ = name.removesuffix(f".{self.suffix}").split("-")
            size = self.spool.size(name)
            pieces.append(Sealed(int(number), name, int(arrival), int(rows), size))
        return pieces

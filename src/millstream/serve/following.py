"""Following a checkpoint from one committed batch to the next, without its lock.

A follower only moves forward: what was read once is never followed by something older. It looks at
the directory of manifests, so it works beside a running driver and after it has ended, in the same
process or in another.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from millstream.errors import CheckpointError
from millstream.serve.shelves import Shelves
from millstream.serve.slates import Decoder, Snapshot
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest, list_manifests, read_manifest
from millstream.state.segments import Missing

_ATTEMPTS = 20
_REMEMBERED = 8  # snapshots kept for those who want to know what changed since

T = TypeVar("T")


class Follower:
    """The newest committed state of a checkpoint."""

    def __init__(
        self,
        path: str | Path,
        decoders: Mapping[str, Decoder] | None = None,
        *,
        eager: bool = False,
        new: bool = False,
    ) -> None:
        """`eager`: open all segments before a snapshot is used; `new`: it may have no batch yet."""
        self.place = Checkpoint(path, create=False)
        self.problem: str | None = None  # why the newest batch is not shown
        self._decoders = decoders
        self._eager = eager
        self._shelves = Shelves(self.place.state)
        self._program: tuple[Any, dict[str, Any]] = (None, {})
        self._lock = threading.Lock()
        self._bad = -1
        if not new and not self.place.store.exists("flow.json"):
            raise CheckpointError(
                f"{self.place.path} is not a checkpoint (it has no flow.json); give the directory "
                "a flow was run with, or wait if it was only just started"
            )
        self.current = Snapshot(Manifest(-1), self._read_program(), self._shelves, decoders)
        self._recent: OrderedDict[int, Snapshot] = OrderedDict()
        self.advance()
        if self.problem is not None:
            raise CheckpointError(self.problem)

    def advance(self) -> bool:
        """Go to the newest batch; whether that is another one than before."""
        with self._lock:
            program = self._read_program()
            if program is not self.current.program:
                now = Snapshot(self.current.manifest, program, self._shelves, self._decoders)
                self.current = now
            for _ in range(_ATTEMPTS):
                newest = max(list_manifests(self.place.manifests), default=-1)
                if newest <= max(self.current.batch, self._bad):
                    return False
                try:
                    found = self._load(newest)
                except (Missing, FileNotFoundError):
                    continue  # collected meanwhile: there is a newer one
                except CheckpointError as error:
                    self.problem, self._bad = str(error), newest
                    return False
                self.problem = None
                self._remember(found)
                self.current = found
                return True
            self.problem, self._bad = f"state files of batch {newest} are missing", newest
            return False

    def at(self, batch: int) -> Snapshot | None:
        """The state after an earlier batch, if that can still be told; -1: before the first."""
        if batch == self.current.batch:
            return self.current
        if batch == -1:
            return Snapshot(Manifest(-1), self._program[1], self._shelves, self._decoders)
        with self._lock:
            found = self._recent.get(batch)
        if found is not None or not 0 <= batch < self.current.batch:
            return found
        try:
            found = self._load(batch)
        except (CheckpointError, FileNotFoundError):
            return None
        return found

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Do something with the newest snapshot; again with a newer one if a file has vanished."""
        for _ in range(_ATTEMPTS):
            self.advance()
            try:
                return work(self.current)
            except Missing as error:
                gone = error
                time.sleep(0.01)
        raise CheckpointError(f"{gone}; run `millstream doctor {self.place.path}`")

    def _load(self, batch: int) -> Snapshot:
        manifest = read_manifest(self.place.manifests, batch)
        found = Snapshot(manifest, self._program[1], self._shelves, self._decoders)
        if found.behind() and max(list_manifests(self.place.manifests)) > batch:
            raise Missing(f"slates of batch {batch} were in memory")  # there is a newer one
        if self._eager:
            found.open_all()
        return found

    def _remember(self, snapshot: Snapshot) -> None:
        self._recent[snapshot.batch] = snapshot
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def _read_program(self) -> dict[str, Any]:
        """flow.json, read again only when it is another file."""
        stamp = self.place.store.stamp("flow.json")
        if stamp is not None and stamp != self._program[0]:
            self._program = (stamp, self.place.read_program() or {})
        return self._program[1]

"""A checkpoint: the directory a flow lives in, and who may use it.

It is created readable by its owner only, locked by one driver at a time, and never started afresh
in silence: a damaged newest manifest or a changed program is refused with what can be done. What
lies in it is data, never an order: no link in it is followed (`places.py`), and no path is taken
from it. `doctor.py` says what is wrong with one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millstream.errors import CheckpointError
from millstream.state.bases import Base, Change, Segments, Since, base_name, write_base
from millstream.state.locations import beside, located
from millstream.state.manifests import (
    Manifest,
    Overtaken,
    format_for,
    list_manifests,
    load_manifest,
    name_of,
    read_manifest,
)
from millstream.state.manifests import write_manifest as _write_manifest
from millstream.state.pages import pages_name, write_pages
from millstream.state.places import check_directory
from millstream.state.storage import NO_ROOM, Held, Hold, open_storage
from millstream.state.values import OF_FAMILY, OF_OPERATOR, WHOLE, Program

_MANY_FILES = 1_000  # from so many on, manifests say what has changed since a base
_PROBE = ".probe-"  # what is written to see whether anything can be
_BASE_EVERY = 64  # batches, after which there is a new base
_OWN = ", or give this one a checkpoint of its own with checkpoint= or --checkpoint"
SCRATCH = "spark"  # what Spark keeps on disk while it runs; removed without being looked at


@dataclass(frozen=True)
class Published:
    """The last batch whose outputs were all published, and the digest of its manifest."""

    batch: int
    digest: str  # empty in a marker of an older version


class Checkpoint:
    """The directory of one flow, owned by this process until `close`."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = located(path).absolute()
        self.store = open_storage(self.path)
        self.manifests = self.store.within("manifests")
        self.state = self.store.within("state")
        self.staged = self.store.within("staged")
        self.dead = self.store.within("dead")
        self.shed = self.store.within("shed")
        self.sources = self.store.within("sources")
        self.spool = self.store.within("spool")
        self.local = beside(self.path)  # what only this machine needs while a flow runs
        self._run = uuid.uuid4().hex[:12]
        self._epoch = 0
        self._hold: Hold | None = None
        self._tip: tuple[int, str] = (-1, "")  # the newest manifest, and its digest
        self._since: Since | None = None  # the base of the manifests committed here
        if create:
            self._create()
        elif not self.store.exists():
            raise CheckpointError(f"there is no checkpoint at {self.path}")

    def _create(self) -> None:
        try:
            self.store.create()
            self.store.check("checkpoint", given=True)
            parts = (
                self.manifests,
                self.state,
                self.staged,
                self.dead,
                self.shed,
                self.sources,
                self.spool,
            )
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    part.create()
                part.check("part of the checkpoint")
            probe = f"{_PROBE}{os.getpid()}"
            try:
                self.store.put(probe, b"x", durable=False)
            finally:
                self.store.delete(probe)
        except FileExistsError as error:
            raise CheckpointError(
                f"checkpoint {self.path} is a file, not a directory; choose another place "
                "with checkpoint= or --checkpoint"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            hint = (
                "free some space there"
                if error.errno in NO_ROOM
                else "make it writable or choose another place with checkpoint= or --checkpoint"
            )
            raise CheckpointError(
                f"checkpoint {self.path} cannot be written ({reason}); {hint}"
            ) from error

    # -- who owns it ----------------------------------------------------------------------------

    def lock(self, otherwise: str = _OWN) -> None:
        """Take the checkpoint for this process, or say who has it and what else can be done."""
        if self.store.shared:  # nothing of this machine is in it
            for folder in (self.local.parent, self.local):
                folder.mkdir(mode=0o700, exist_ok=True)
                check_directory(folder, "folder for what a run keeps on this machine")
        for name, problem in self.store.strangers(SCRATCH, ("lock", "flow.json", "published")):
            raise CheckpointError(
                f"{self.store.where(name)} {problem} (`millstream doctor {self.path}` names all)"
            )
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        says = f"pid {os.getpid()} on host {socket.gethostname()} since {since} UTC"
        try:
            self._hold = self.store.hold("lock", says)
        except Held as error:
            raise CheckpointError(
                f"checkpoint {self.path} is owned by {str(error) or 'another process'}; stop that "
                f"run first{otherwise}"
            ) from error

    def check_lock(self) -> None:
        """Refuse to go on if the lock is no longer the one this process took."""
        if self._hold is not None and not self._hold.valid():
            raise CheckpointError(
                f"{self.store.where('lock')} was removed or replaced while this run held it, so "
                "another run may own the checkpoint by now; nothing more is written: start again, "
                "and leave that file alone"
            )

    def take_over(self) -> Manifest | None:
        """Be the one that commits from here on; gives the last committed batch.

        Where a lock says so nothing more is to be done. Where none reaches, an epoch is taken and a
        manifest committed that says nothing new: whoever was about to commit a batch of that number
        finds it taken, and ends. If that one is faster its base counts, so no other is written.
        """
        epoch = self.store.begin()
        if epoch is None:
            return self.latest()
        self._epoch = epoch
        while True:
            latest = self.latest()
            if latest is not None and latest.epoch > epoch:
                raise CheckpointError(self._overtaken(latest))
            same = latest or Manifest(-1)
            empty = msgspec.structs.replace(same, batch=same.batch + 1, outputs=[])
            with contextlib.suppress(Overtaken):  # a batch was just committed: on from there
                self.commit(empty, whole=True)
                break
        if self._hold is not None:
            self._hold.begun()
        return empty

    def _overtaken(self, by: Manifest) -> str:
        """What to say to a run that is not the last one any more."""
        who = "another run"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            who = self.store.read("lock").decode()
        return (
            f"checkpoint {self.path} was taken over by {who} (epoch {by.epoch}, batch {by.batch}; "
            f"this run is epoch {self._epoch}); this run ends, and nothing it had not committed "
            "counts. Of two runs on one checkpoint in an object store the later one goes on"
        )

    def unpublished(self, latest: Manifest) -> list[Manifest]:
        """The committed batches up to this one whose outputs may not all be published."""
        published = self.published()
        if published is not None and published.batch == latest.batch:
            return []
        if not self.store.shared:
            return [latest]
        done = -1 if published is None else published.batch
        waiting = [batch for batch in list_manifests(self.manifests) if batch > done]
        return [read_manifest(self.manifests, batch) for batch in waiting]

    def close(self) -> None:
        """Give the checkpoint back."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    # -- the program it belongs to --------------------------------------------------------------

    def read_program(self) -> dict[str, Any] | None:
        """What flow.json says of the program, or None on a first start."""
        path = self.store.where("flow.json")
        if not self.store.exists("flow.json"):
            if any(self._says_something(batch) for batch in list_manifests(self.manifests)):
                raise CheckpointError(
                    f"{path} is missing although batches were committed; "
                    f"run `millstream doctor {self.path}`"
                )
            return None
        try:
            program = msgspec.json.decode(self.store.read("flow.json"), type=dict[str, Any])
            if program.pop("checksum", None) != checksum(program):
                raise msgspec.DecodeError("its checksum does not match")
            msgspec.convert(program, Program)  # types and ranges; what is kept is what was written
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); run `millstream doctor {self.path}`"
            ) from error
        return program

    def _says_something(self, batch: int) -> bool:
        """Whether a manifest is more than the first of a run that was killed as it began."""
        if not self.store.shared:
            return True
        manifest = read_manifest(self.manifests, batch)
        return bool(manifest.sources or manifest.ledger)

    def begun(self) -> bool:
        """Whether a batch was ever committed."""
        return any(self._says_something(batch) for batch in list_manifests(self.manifests)[-1:])

    def read_whole_program(self) -> dict[str, Any] | None:
        """The same for who goes on with it: nothing that is needed for that is missing."""
        program = self.read_program()
        if program is not None:
            missing = [name for name in WHOLE if name not in program]
            for part, needed in (("operators", OF_OPERATOR), ("families", OF_FAMILY)):
                for name, one in program.get(part, {}).items():
                    missing += [f"{part}.{name}.{field}" for field in needed if field not in one]
            if missing:
                raise CheckpointError(
                    f"{self.store.where('flow.json')} is damaged (it lacks {', '.join(missing)}); "
                    f"run `millstream doctor {self.path}`"
                )
        return program

    def write_program(self, program: dict[str, Any]) -> None:
        """Keep the program this checkpoint belongs to."""
        kept = msgspec.json.encode({**program, "checksum": checksum(program)})
        self.store.put("flow.json", msgspec.json.format(kept))

    # -- batches --------------------------------------------------------------------------------

    def latest(self) -> Manifest | None:
        """The last committed batch; a damaged or misplaced one is refused, never skipped."""
        manifests = list_manifests(self.manifests)
        newest = manifests[-1] if manifests else -1
        published = self.published()
        if published is not None and published.batch > newest:
            raise CheckpointError(
                f"manifest {self.manifests.where(name_of(published.batch))} is missing although "
                f"its batch was published; run `millstream doctor {self.path}` to see how to go "
                "back"
            )
        if not manifests:
            return None
        try:
            manifest, digest = load_manifest(self.manifests, newest)
            self.check_chain(manifest, digest)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; run `millstream doctor {self.path}` to see the last good batch"
            ) from error
        self._tip = (manifest.batch, digest)
        return manifest

    def check_chain(self, manifest: Manifest, digest: str) -> None:
        """A manifest is the one that was published, and follows the one before it."""
        path = self.manifests.where(name_of(manifest.batch))
        published = self.published()
        known = {published.batch: published.digest} if published is not None else {}
        if known.get(manifest.batch) not in (None, "", digest):
            raise CheckpointError(f"manifest {path} is not the one whose batch was published")
        with contextlib.suppress(OSError, CheckpointError):  # damaged: the marker may know it
            _, known[manifest.batch - 1] = load_manifest(self.manifests, manifest.batch - 1)
        before = known.get(manifest.batch - 1)
        if manifest.previous and before and before != manifest.previous:
            raise CheckpointError(
                f"manifest {path} does not follow the one of batch {manifest.batch - 1}"
            )

    def before(self, manifest: Manifest) -> Manifest | None:
        """The batch before this one, if it can still be read."""
        return self._committed(manifest.batch - 1)

    def _committed(self, batch: int) -> Manifest | None:
        try:
            return read_manifest(self.manifests, batch)
        except (OSError, CheckpointError):
            return None

    def gave(self, sink: str, batch: int) -> int | None:
        """The checksum of what a batch gave a sink in the driver, 0 of nothing; None: not known."""
        found = self._committed(batch)
        outputs = [] if found is None else found.outputs
        none = None if found is None else 0
        return next((one.checksum for one in outputs if one.sink == sink), none)

    def commit(
        self, manifest: Manifest, change: Change | None = None, *, whole: bool = False
    ) -> None:
        """Make a batch exist.

        change: what it did to what the manifest committed last says; None: that is not known.
        whole: it says all itself, however much that is.
        """
        self.check_lock()
        batch, digest = self._tip
        manifest.previous = digest if batch == manifest.batch - 1 else ""
        manifest.epoch, manifest.run = self._epoch, self._run if self._epoch else ""
        manifest.format = format_for(manifest.segments)
        written = _as_whole(manifest) if whole else self._on_base(manifest, change)
        try:
            self._tip = (manifest.batch, _write_manifest(self.manifests, written))
        except Overtaken as error:
            if not self.store.shared:
                raise
            newest = list_manifests(self.manifests)[-1]
            by = read_manifest(self.manifests, newest)
            raise Overtaken(self._overtaken(by)) from error

    def _on_base(self, manifest: Manifest, change: Change | None) -> Manifest:
        """A manifest as it is written: whole if it is small, else as a change to a base."""
        since = self._since
        if since is not None and since.tip != manifest.batch:  # else it is written again
            if change is None or since.tip != manifest.batch - 1:
                since = None
            else:
                since.add(change, manifest.batch)
        if since is not None and manifest.batch - since.batch < _BASE_EVERY:
            changed = since.change(manifest.segments, manifest.files)
            if _worth_a_change(changed, manifest):
                return _changed(manifest, since, changed)
        self._since = None
        if len(manifest.files) < _MANY_FILES:
            return _as_whole(manifest)
        base = Base(manifest.batch, manifest.segments, manifest.files)
        since = Since(manifest.batch, write_base(self.manifests, base))
        write_pages(self.manifests, base, since.digest)
        self._since = since  # not before both are there: a disk may be full in between
        return _changed(manifest, since, Change({}, {}, []))

    def stored_since(self, manifest: Manifest) -> tuple[tuple[int, str], Segments] | None:
        """The base (batch, digest) of the manifest committed last, and what has changed since.

        None: there is no base, and what is stored has to be said whole.
        """
        since = self._since
        if since is None or since.tip != manifest.batch:
            return None
        changed = since.change(manifest.segments, manifest.files).segments
        return (since.batch, since.digest), changed

    def published(self) -> Published | None:
        """The last batch whose outputs were all published; None if that is not known."""
        try:
            text, _, check = self.store.read("published").decode().rpartition(" ")
        except (OSError, UnicodeDecodeError, CheckpointError):
            return None
        number, _, digest = text.partition(" ")
        if check != checksum(text) or not re.fullmatch("[0-9]{1,18}", number):
            return None
        return Published(int(number), digest)

    def mark_published(self, batch: int) -> None:
        """Remember that a batch was published. Losing this only repeats an idempotent step."""
        newest, digest = self._tip
        text = f"{batch} {digest}" if newest == batch else str(batch)
        self.store.put("published", f"{text} {checksum(text)}".encode(), durable=False)

    def collect_garbage(self, current: Manifest, retain: int) -> None:
        """Delete manifests past the retention, and segments nothing refers to."""
        manifests = list_manifests(self.manifests)
        kept = manifests[-max(1, retain) :]
        reachable = set(current.files)
        bases = set() if self._since is None else {self._since.batch}
        for batch in kept:
            with contextlib.suppress(CheckpointError):  # nobody can go back to a damaged one
                one = read_manifest(self.manifests, batch)
                reachable.update(one.files)
                bases.add(one.base)
        for batch in manifests[: -len(kept)]:
            self.manifests.delete(name_of(batch))
        self._collect_bases(bases)
        for name in self.state.walk():
            if name.endswith(".arrow") and name not in reachable and self._ours(name, current):
                self.state.delete(name)

    def _ours(self, name: str, current: Manifest) -> bool:
        """Whether a file is surely not of a batch that another run has just begun."""
        number = name.rpartition("/")[2].partition("-")[0]
        return not self.store.shared or (number.isdigit() and int(number) <= current.batch)

    def waiting(self, retain: int) -> set[str]:
        """The staged files of sinks that wait, now or after a batch one may still go back to."""
        found: set[str] = set()
        for batch in list_manifests(self.manifests)[-max(1, retain) :]:
            with contextlib.suppress(CheckpointError):  # nobody can go back to a damaged one
                for files in read_manifest(self.manifests, batch).waiting.values():
                    found.update(one.staged for one in files)
        return found

    def _collect_bases(self, used: set[int]) -> None:
        names = {name(batch) for batch in used for name in (base_name, pages_name)}
        for name in self.manifests.names():
            if name.endswith((".base", ".pages")) and name not in names:
                self.manifests.delete(name)

    def discard_uncommitted(self, batch: int) -> None:
        """Remove what batches after this one, which were never committed, left behind.

        Names begin with the number of their batch. What older batches refer to stays, so that
        one can go back to them. Where another run may have begun such a batch nothing is removed:
        once the number is committed it is garbage as any other.
        """
        if self.store.shared:
            return
        for part in (self.state, self.dead, self.shed, self.manifests):
            for path in part.walk():
                name = path.rpartition("/")[2]
                number = name.removeprefix("rejected-").partition("-")[0].partition(".")[0]
                half = name.startswith(".") and name.endswith(".tmp")
                if half or (number.isdigit() and int(number) > batch):
                    part.delete(path)
        for name in self.store.names():
            if name.lstrip(".").startswith(_PROBE.lstrip(".")):  # killed before it was removed
                self.store.delete(name)

    def discard_delivered(self, batch: int) -> None:
        """Remove rows kept for sinks in this process once all of this batch were handed over."""
        for name in self.staged.names():
            if not self.store.shared or int(name.partition("-")[0]) <= batch:
                self.staged.delete(name)


def _worth_a_change(change: Change, manifest: Manifest) -> bool:
    """Whether a manifest that says what has changed is much smaller than a new base."""
    return 4 * (len(change.files) + len(change.gone)) <= len(manifest.files)


def _as_whole(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, base=-1, base_digest="", gone=[])


def _changed(manifest: Manifest, since: Since, change: Change) -> Manifest:
    """A manifest that says what has changed since its base."""
    return msgspec.structs.replace(
        manifest,
        base=since.batch,
        base_digest=since.digest,
        segments=change.segments,
        files=change.files,
        gone=change.gone,
    )


def checksum(value: Any) -> str:
    """The check of a small value that is kept as JSON or text."""
    return f"{zlib.crc32(msgspec.json.encode(value)):08x}"

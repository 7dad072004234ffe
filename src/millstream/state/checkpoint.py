"""A checkpoint: the directory a flow lives in, and who may use it.

It is created readable by its owner only, locked by one driver at a time, and never started afresh
in silence: a damaged newest manifest or a changed program is refused with what can be done.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import zlib
from pathlib import Path
from typing import IO, Any

import msgspec

from millstream.errors import CheckpointError
from millstream.state.manifests import (
    Manifest,
    check_registry,
    list_manifests,
    name_of,
    read_manifest,
)
from millstream.state.manifests import write_manifest as _write_manifest
from millstream.state.segments import safe_name, verify, verify_named, write_durably

_PARTS = ("manifests", "state", "staged", "dead", "sources", "spool")


class Checkpoint:
    """The directory of one flow, owned by this process until `close`."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path).absolute()
        self._lock: IO[str] | None = None
        if create:
            self._create()
        elif not self.path.is_dir():
            raise CheckpointError(f"there is no checkpoint at {self.path}")

    def __getattr__(self, name: str) -> Path:
        if name in _PARTS:
            return self.path / name
        raise AttributeError(name)

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in _PARTS:
                (self.path / part).mkdir(exist_ok=True, mode=0o700)
            probe = self.path / f".probe-{os.getpid()}"
            try:
                probe.write_text("x")
            finally:
                probe.unlink(missing_ok=True)
        except FileExistsError as error:
            raise CheckpointError(
                f"checkpoint {self.path} is a file, not a directory; choose another place "
                "with checkpoint= or --checkpoint"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            hint = (
                "free some space there"
                if error.errno == errno.ENOSPC
                else "make it writable or choose another place with checkpoint= or --checkpoint"
            )
            raise CheckpointError(
                f"checkpoint {self.path} cannot be written ({reason}); {hint}"
            ) from error

    # -- who owns it ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the checkpoint for this process, or say who has it."""
        handle = open(self.path / "lock", "a+")  # noqa: SIM115 - held until close()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip() or "another process"
            handle.close()
            raise CheckpointError(
                f"checkpoint {self.path} is owned by {owner}; stop that run first, or give "
                "this one a checkpoint of its own with checkpoint= or --checkpoint"
            ) from error
        handle.seek(0)
        handle.truncate()
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        handle.write(f"pid {os.getpid()} on host {socket.gethostname()} since {since} UTC")
        handle.flush()
        self._lock = handle

    def close(self) -> None:
        """Give the checkpoint back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- the program it belongs to --------------------------------------------------------------

    def read_program(self) -> dict[str, Any] | None:
        """What flow.json says of the program, or None on a first start."""
        path = self.path / "flow.json"
        if not path.exists():
            if list_manifests(self.manifests):
                raise CheckpointError(
                    f"{path} is missing although batches were committed; "
                    f"run `millstream doctor {self.path}`"
                )
            return None
        try:
            program = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            if program.pop("checksum", None) != _checksum(program):
                raise msgspec.DecodeError("its checksum does not match")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); run `millstream doctor {self.path}`"
            ) from error
        return program

    def write_program(self, program: dict[str, Any]) -> None:
        """Keep the program this checkpoint belongs to."""
        kept = msgspec.json.encode({**program, "checksum": _checksum(program)})
        write_durably(self.path / "flow.json", msgspec.json.format(kept))

    # -- batches --------------------------------------------------------------------------------

    def latest(self) -> Manifest | None:
        """The last committed batch; a damaged one is refused, never skipped."""
        manifests = list_manifests(self.manifests)
        newest = int(manifests[-1].stem) if manifests else -1
        published = self.published()
        if published is not None and published > newest:
            raise CheckpointError(
                f"manifest {self.manifests / name_of(published)} is missing although its batch "
                f"was published; run `millstream doctor {self.path}` to see how to go back"
            )
        if not manifests:
            return None
        try:
            return read_manifest(manifests[-1])
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; run `millstream doctor {self.path}` to see the last good batch"
            ) from error

    def before(self, manifest: Manifest) -> Manifest | None:
        """The batch before this one, if it can still be read."""
        try:
            return read_manifest(self.manifests / name_of(manifest.batch - 1))
        except (OSError, CheckpointError):
            return None

    def commit(self, manifest: Manifest) -> None:
        """Make a batch exist."""
        _write_manifest(self.manifests, manifest)

    def published(self) -> int | None:
        """The last batch whose outputs were all published; None if that is not known."""
        try:
            number, _, check = (self.path / "published").read_text().partition(" ")
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return int(number) if check == _checksum(number) else None

    def mark_published(self, batch: int) -> None:
        """Remember that a batch was published. Losing this only repeats an idempotent step."""
        temporary = self.path / ".published.tmp"
        temporary.write_text(f"{batch} {_checksum(str(batch))}")
        os.replace(temporary, self.path / "published")

    def collect_garbage(self, current: Manifest, retain: int) -> None:
        """Delete manifests past the retention, and segments nothing refers to."""
        manifests = list_manifests(self.manifests)
        kept = manifests[-max(1, retain) :]
        reachable = set(current.files)
        for path in kept[:-1]:
            with contextlib.suppress(CheckpointError):  # nobody can go back to a damaged one
                reachable.update(read_manifest(path).files)
        for path in manifests[: -len(kept)]:
            path.unlink(missing_ok=True)
        for path in self.state.rglob("*.arrow"):
            if str(path.relative_to(self.state)) not in reachable:
                path.unlink(missing_ok=True)

    def discard_uncommitted(self, batch: int) -> None:
        """Remove what batches after this one, which were never committed, left behind.

        Names begin with the number of their batch. What older batches refer to stays, so that
        one can go back to them.
        """
        for path in (*self.state.rglob("*"), *self.dead.iterdir(), *self.manifests.iterdir()):
            number = path.name.removeprefix("rejected-").partition("-")[0].partition(".")[0]
            half = path.name.startswith(".") and path.name.endswith(".tmp")
            if path.is_file() and (half or (number.isdigit() and int(number) > batch)):
                path.unlink(missing_ok=True)

    def discard_delivered(self) -> None:
        """Remove rows kept for sinks in this process once all of them have been handed over."""
        for path in self.staged.iterdir():
            path.unlink(missing_ok=True)


def _checksum(value: Any) -> str:
    return f"{zlib.crc32(msgspec.json.encode(value)):08x}"


def examine(path: str | Path) -> tuple[list[str], bool]:
    """What `doctor` says: one line a finding, and whether everything is sound."""
    checkpoint = Checkpoint(path, create=False)
    lines: list[str] = []
    bad: list[str] = []
    try:
        program = checkpoint.read_program()
        lines.append(f"flow.json      {'absent' if program is None else 'good'}")
    except CheckpointError as error:
        bad.append(f"flow.json      BAD: {error}")
    manifests = list_manifests(checkpoint.manifests)
    numbers = [int(manifest.stem) for manifest in manifests]
    published = checkpoint.published()
    if published is not None and published > max(numbers, default=-1):
        bad.append(f"{name_of(published)}  BAD: its batch was published, but it is missing")
    good: list[int] = []
    for number, manifest in zip(numbers, manifests, strict=True):
        problems = _examine_manifest(checkpoint, manifest, number == numbers[-1] != published)
        bad.extend(f"{manifest.name}  BAD: {problem}" for problem in problems)
        if not problems:
            good.append(number)
    for piece in sorted(checkpoint.spool.glob("*/*-*-*-*.*")):
        try:
            verify_named(piece)
        except CheckpointError as error:
            bad.append(f"spool          BAD: {error}")
    lines.extend(bad)
    if not manifests:
        lines.append("manifests      none: no batch was committed yet")
    elif not good:
        lines.append("manifests      no good batch is left; start with a new checkpoint")
    else:
        newest = read_manifest(checkpoint.manifests / name_of(good[-1]))
        lines.append(
            f"last good      batch {newest.batch}, {newest.dead} dead letters, "
            f"{len(newest.files)} segments"
        )
        if newest.batch < max(*numbers, published or 0):
            lines.append(
                f"to go back     remove the manifests after {name_of(newest.batch)} and the file "
                "'published'; file sinks keep what later batches published, so remove their part "
                "files too"
            )
    lines.append("result         " + ("DAMAGED" if bad else "sound"))
    return lines, not bad


def _examine_manifest(checkpoint: Checkpoint, path: Path, unpublished: bool) -> list[str]:
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [str(error)]
    problems = _examine_staged(manifest) if unpublished else []
    for file in manifest.files.values():
        try:
            verify(checkpoint.state / file.file, file.size, file.checksum)
        except CheckpointError as error:
            problems.append(str(error))
    for name, source in manifest.sources.items():
        try:
            check_registry(checkpoint.sources / f"{safe_name(name)}.jsonl", source)
        except CheckpointError as error:
            problems.append(str(error))
    return problems


def _examine_staged(manifest: Manifest) -> list[str]:
    """Outputs of a batch still to be published that are not what was written."""
    problems = []
    for output in manifest.outputs:
        path = Path(output.staged)
        if path.exists():
            data = path.read_bytes()
            if (len(data), zlib.crc32(data)) != (output.size, output.checksum):
                problems.append(f"staged file {path} is damaged")
        elif output.final is not None and not Path(output.final).exists():
            problems.append(f"staged file {path} is missing")
    return problems

"""Whose an output directory is: one checkpoint's, and of that one run's at a time.

The file `owner` in the hidden folder names the flow, its checkpoint and the run (a number that
grows with every start, and a token). A run takes the directory when it starts, holds a lock on it
while it lives, and looks at the file again before it publishes: if a later run took the directory,
from a copy of the checkpoint or another machine, the older one ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from dataclasses import dataclass

from millstream.errors import CheckpointError, ConfigError, RunError
from millstream.state.manifests import FOLDER, STAGING
from millstream.state.storage import Held, Hold, Storage

_MARKER = f"{STAGING}/owner"
_PART = re.compile(r"part-(\d{8,18})-\d+-\d+\.[a-z]+", re.ASCII)
_LINE = re.compile(r"run (\d{1,18}) ([0-9a-f]+)", re.ASCII)


@dataclass(frozen=True)
class Lease:
    """One start of one checkpoint: the number and the token are kept in it, too."""

    epoch: int = 0
    token: str = ""


@dataclass(frozen=True)
class Owner:
    """What the file says: the flow with its checkpoint, which start of it, and where."""

    who: str
    lease: Lease | None  # None: written by an older version
    where: str = ""

    def text(self) -> str:
        """The content of the file."""
        lease = self.lease or Lease()
        return f"{self.who}\nrun {lease.epoch} {lease.token}\n{self.where}\n"

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Read it; an older version wrote the first line only."""
        who, _, rest = text.strip().partition("\n")
        line, _, where = rest.partition("\n")
        found = _LINE.fullmatch(line)
        lease = Lease(int(found[1]), found[2]) if found else None
        return cls(" ".join(who.split()), lease, where[:200])


def read_owner(directory: Storage) -> Owner | None:
    """Whose a directory is, if it is anybody's."""
    try:
        return Owner.parse(directory.read(_MARKER).decode("utf-8", "replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_owner(directory: Storage, who: str | None, parts: dict[int, str] | None = None) -> None:
    """Refuse a directory with the results of another checkpoint; changes nothing.

    parts: what it holds, if that was looked for already.
    """
    other = read_owner(directory)
    parts = part_files(directory) if parts is None else parts
    # What its run committed and did not publish yet, because it was killed, is staged only.
    staged = any(name[0].isdigit() for name in directory.within(STAGING).names())
    if other is not None and other.who != who and (parts or staged):
        raise ConfigError(
            f"{directory.where()} holds results of another checkpoint (flow {other.who}); choose "
            "another directory, remove it, or go on with the checkpoint they belong to"
        )
    if other is None and who is None and parts:
        raise ConfigError(
            f"{directory.where()} holds {parts[max(parts)]}, which this flow did not write; choose "
            "another directory, or move such files away"
        )


def part_files(directory: Storage) -> dict[int, str]:
    """The batches of which a directory has results, each with the name of one file."""
    found = ((_PART.fullmatch(_in_folders(name)), name) for name in directory.walk())
    return {int(match[1]): name for match, name in found if match}


def _in_folders(name: str) -> str:
    """The name of a file in folders that are named by values; as it is if it lies elsewhere."""
    folder, _, file = name.rpartition("/")
    return file if FOLDER.fullmatch(folder) else name


class Claim:
    """An output directory in the hands of this run."""

    def __init__(self, directory: Storage, who: str, lease: Lease) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        where = f"pid {os.getpid()} on host {socket.gethostname()} since {since} UTC"
        self.directory = directory
        self.owner = Owner(who, lease, where)
        self._hold: Hold | None = None

    def take(self, before: Lease, newest: int) -> None:
        """Make the directory ours, or say whose it is.

        `before`: the lease of the run before this one; `newest`: the last batch it committed.
        """
        staging = self.directory.within(STAGING)
        try:
            self.directory.create(private=False)
            with contextlib.suppress(FileExistsError):
                staging.create()
            staging.check("output folder")
            self._lock(staging)
            self._check(before, newest)
            self._write()
        except OSError as error:
            self.release()
            raise ConfigError(
                f"output directory {self.directory.where()} cannot be written "
                f"({error.strerror}); make it writable or choose another"
            ) from error
        except BaseException:
            self.release()
            raise

    def _lock(self, staging: Storage) -> None:
        try:
            self._hold = staging.hold()
        except Held as error:
            other = read_owner(self.directory)
            who = f"flow {other.who}, {other.where}" if other else "another run"
            raise ConfigError(
                f"{self.directory.where()} is being written by {who}; stop it first or choose "
                "another directory"
            ) from error

    def _check(self, before: Lease, newest: int) -> None:
        other, parts = read_owner(self.directory), part_files(self.directory)
        check_owner(self.directory, self.owner.who if newest >= 0 or other else None, parts)
        if other is not None and other.who == self.owner.who and other.lease is not None:
            later = other.lease.epoch > before.epoch
            if later or (other.lease.epoch == before.epoch and other.lease != before):
                raise ConfigError(
                    f"{self.directory.where()} was taken by run {other.lease.epoch} of another "
                    f"copy of this checkpoint ({other.where}), and this would be run "
                    f"{before.epoch + 1}; go on with that copy. If this one is right, remove the "
                    f"part files after batch {newest} and {self.directory.where(_MARKER)}"
                )
        beyond = [batch for batch in parts if batch > newest]
        if beyond and (other is None or other.who == self.owner.who):
            raise ConfigError(
                f"{self.directory.where()} holds {parts[max(beyond)]}, but the checkpoint ends "
                f"with batch {newest}: it is older than its results. Go on with the newer "
                f"checkpoint, or remove the part files after batch {newest}"
            )

    def _write(self) -> None:
        """Name the owner: at once, and on an empty directory only if nobody else just did."""
        text = self.owner.text().encode()
        if self.directory.exists(_MARKER):
            self.directory.put(_MARKER, text)
            return
        try:
            self.directory.put_new(_MARKER, text)
        except FileExistsError as error:
            other = read_owner(self.directory)
            raise ConfigError(
                f"{self.directory.where()} was just taken by flow {other.who if other else '?'}; "
                "choose another directory"
            ) from error

    def check(self) -> None:
        """Refuse to publish into a directory that another run has taken meanwhile."""
        try:
            found = read_owner(self.directory)
        except CheckpointError as error:
            raise RunError(str(error)) from error
        if found != self.owner:
            who = f"flow {found.who}, {found.where}" if found else "nobody: its marker is gone"
            raise RunError(
                f"output directory {self.directory.where()} no longer belongs to this run but to "
                f"{who}; nothing more is published. Stop the other run, or give each a checkpoint "
                "and a directory of its own"
            )

    def release(self) -> None:
        """Let go of the lock; the directory stays the checkpoint's."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

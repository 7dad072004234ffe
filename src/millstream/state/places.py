"""Directories the engine writes into: whose they are, and files in them opened as what they are.

A checkpoint may come out of an archive or a shared disk, so its content is data. Nothing in it is
opened through a link, and a directory that somebody else owns or may write into is refused before
anything in it is believed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import CheckpointError

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not make us wait


def open_regular(path: str) -> int:
    """A handle on a regular file, for reading; a link, a directory or a device is refused."""
    try:
        handle = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise CheckpointError(f"{path} {why}; only regular files belong there") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CheckpointError(f"{path} is not a regular file; only those belong there")
    return handle


def create_new(path: str) -> int:
    """A handle on a file that did not exist before; what a crash left there is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o666)


def link_new(path: str, to: str) -> None:
    """Give a file another name, which must be free: FileExistsError if it is not."""
    try:
        os.link(path, to, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if os.path.lexists(to):  # a file system without links: nearly as good
            raise FileExistsError(errno.EEXIST, "exists", to) from error
        os.replace(path, to)


def check_directory(path: Path, what: str) -> None:
    """Refuse a directory that is a link, is another user's, or that everybody may write into."""
    problem = _directory_problem(path)
    if problem is not None:
        raise CheckpointError(f"{what} {path} {problem}")


def check_given(path: Path, what: str) -> None:
    """As `check_directory`, for a path a user gave: their own link to a directory is followed."""
    entry = os.lstat(path)
    if stat.S_ISLNK(entry.st_mode) and entry.st_uid not in (os.geteuid(), 0):
        raise CheckpointError(
            f"{what} {path} is a link of user {entry.st_uid}; give the directory itself"
        )
    check_directory(Path(os.path.realpath(path)), what)


def _directory_problem(path: Path) -> str | None:
    entry = os.lstat(path)
    if stat.S_ISLNK(entry.st_mode):
        return "is a link; it must be a directory of its own: remove it"
    if not stat.S_ISDIR(entry.st_mode):
        return "is not a directory; remove it"
    return _owner_problem(path, entry)


def _owner_problem(path: Path, entry: os.stat_result) -> str | None:
    if entry.st_uid != os.geteuid():
        return (
            f"belongs to user {entry.st_uid}, and this process runs as user {os.geteuid()}; run as "
            f"its owner, choose another place, or: chown -R {os.geteuid()} {path}"
        )
    if entry.st_mode & stat.S_IWOTH:
        return f"may be written by everybody; run: chmod -R o-w {path}"
    return None


def strangers(path: Path, skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """What does not belong into a tree, by its name in it: links, devices, what others own."""
    waiting = [path]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield str(directory.relative_to(path)), f"cannot be listed ({error.strerror})"
            continue
        for entry in entries:
            found = Path(entry.path)
            name = str(found.relative_to(path))
            if name in skip:
                continue
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # a temporary file of a run under way
            problem = None
            if stat.S_ISLNK(seen.st_mode):
                problem = "is a link; nothing in a checkpoint is followed: remove it"
            elif stat.S_ISDIR(seen.st_mode):
                waiting.append(found)
                if found.suffix:  # no folder of ours has one
                    problem = "is a directory where a file belongs; remove it"
            elif not stat.S_ISREG(seen.st_mode):
                problem = "is neither a file nor a directory; remove it"
            problem = problem or _owner_problem(found, seen)
            if problem is not None:
                yield name, problem

"""Objects that were fetched once, kept on this machine: bounded, and shared by its processes.

Only objects that never change under their name are kept. `MILLSTREAM_CACHE` says where,
`MILLSTREAM_CACHE_BYTES` how much; what was used longest ago goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.state.places import check_directory

_BYTES = 2**30
_LARGEST = 8  # an object that takes more than this part of the cache is not kept


def cached(url: str, fetch: Callable[[], bytes]) -> pa.Buffer:
    """The object of a URL, from the cache if it is there."""
    place, limit = _place(), _limit()
    path = place / hashlib.sha256(url.encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):  # not there, or just removed by another process
        found = _mapped(path)
        os.utime(path)
        return found
    data = fetch()
    if not data or len(data) * _LARGEST > limit:
        return pa.py_buffer(data)
    temporary = place / f".{os.getpid()}-{os.urandom(6).hex()}"
    try:
        with open(temporary, "xb", opener=_private) as out:
            out.write(data)
        os.replace(temporary, path)
        _make_room(place, limit)
    except OSError:  # the cache is a convenience: a full disk does not stop anybody
        temporary.unlink(missing_ok=True)
    return pa.py_buffer(data)


def _mapped(path: Path) -> pa.Buffer:
    with open(path, "rb") as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _place() -> Path:
    given = os.environ.get("MILLSTREAM_CACHE")
    place = Path(given or Path(tempfile.gettempdir()) / f"millstream-cache-{os.getuid()}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_directory(place, "cache")
    return place


def _limit() -> int:
    given = os.environ.get("MILLSTREAM_CACHE_BYTES", str(_BYTES))
    if not given.isdigit():
        raise ConfigError(f"MILLSTREAM_CACHE_BYTES={given!r}: expected a number of bytes")
    return int(given)


def _make_room(place: Path, limit: int) -> None:
    """Remove what was used longest ago until the rest fits."""
    found = []
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                seen = entry.stat(follow_symlinks=False)
                found.append((seen.st_mtime_ns, seen.st_size, entry.path))
    much = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if much <= limit:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        much -= size

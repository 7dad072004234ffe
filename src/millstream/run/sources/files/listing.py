"""The files a source's path stands for, as they are on disk now."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import NamedTuple

from millstream.api.sources import Files, Timing
from millstream.errors import ConfigError
from millstream.io.prints import in_directory
from millstream.plan.outputs import is_pattern, matches
from millstream.state.buckets import Listed
from millstream.state.locations import SCHEMES, is_url, located
from millstream.state.objects import list_objects, look_at

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".log": "text",
}
_ROTATED = re.compile(r"([.-]\d+)*(\.gz)?$")  # app.log.1, app.log-20261117.gz

Inode = tuple[int, int]  # device and inode


class Seen(NamedTuple):
    """One file, as a look at it shows it."""

    path: str
    inode: Inode
    size: int
    changed: int  # nanoseconds of its modification
    touched: float  # seconds of the last change of any kind, which nobody can set

    @property
    def stamp(self) -> tuple[int, int]:
        """What differs if it was written to."""
        return self.size, self.changed


def as_files(spec: Timing, path: str, follow: bool) -> Files:
    """Parquet files at a path, with the times of the source that they stand for."""
    timing = {name: getattr(spec, name) for name in Timing.__dataclass_fields__}
    return Files(path, "parquet", follow=follow, **timing)


def by_age(path: str) -> tuple[str, bool, int, str]:
    """The order of the files of one log, as it is rotated: app.log.2, app.log.1, app.log."""
    match = _ROTATED.search(path)
    rotated = match[0] if match else ""
    numbers = re.findall(r"\d+", rotated)
    counted = len(numbers) == 1 and len(numbers[0]) < 4  # else it is a date
    age = -int(numbers[0]) if counted else 0
    return path.removesuffix(rotated), not numbers, age, path


def list_files(spec: Files) -> list[str]:
    """The files of a source by name; a bounded source must have some."""
    where = str(spec.path)
    if is_url(spec.path):
        return [seen.path for seen in list_seen(spec)]
    if "://" in where:
        raise ConfigError(
            f"{where}: expected a path of a mounted file system, or a URL of one of "
            f"{', '.join(SCHEMES)}"
        )
    if is_pattern(where):
        found = [p for p in glob.glob(where, recursive=True) if os.path.isfile(p)]
        if not found and not spec.follow:
            raise ConfigError(f"no file matches {where}")
    elif os.path.isdir(where):
        found = [entry.path for entry in os.scandir(where) if entry.is_file()]
        if not any(map(visible, found)) and not spec.follow:
            raise ConfigError(
                f"directory {where} has no files; put some there, or wait for them with follow=True"
            )
    elif os.path.exists(where):
        found = [where]
    elif spec.follow and os.path.isdir(os.path.dirname(where) or "."):
        found = []
    else:
        raise ConfigError(f"path {where} does not exist; give an existing file, directory or glob")
    if not spec.links and found != [where]:  # a path that was given may be a link itself
        found = _unlinked(spec, found)
    return sorted(os.path.abspath(p) for p in _nameable(spec, found) if visible(p))


def _nameable(spec: Files, found: list[str]) -> list[str]:
    """Without files that cannot be told of, in a manifest or to anybody: names are texts there."""
    odd = [path for path in found if visible(path) and not _is_text(path)]
    if odd:
        named = f"the name of {os.fsencode(min(odd))!r} is not UTF-8 (one of {len(odd)})"
        if not spec.follow:
            raise ConfigError(f"{named}; rename such files, or remove them")
        warnings.warn(f"{named}; it is not read: rename it", RuntimeWarning, stacklevel=3)
    return [path for path in found if path not in odd] if odd else found


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unlinked(spec: Files, found: list[str]) -> list[str]:
    """Without what is reached through a link below the given directory."""
    base = str(spec.path)
    while is_pattern(base):
        base = os.path.dirname(base)
    base = os.path.abspath(base)
    linked: dict[str, bool] = {}

    def through_link(path: str) -> bool:
        if len(path) <= len(base):
            return False
        if path not in linked:
            linked[path] = os.path.islink(path) or through_link(os.path.dirname(path))
        return linked[path]

    through = {path for path in found if visible(path) and through_link(os.path.abspath(path))}
    if through:
        nearest = min(through, key=lambda path: (path.count(os.sep), path))
        named = f"{nearest} is a link (one of {len(through)} in {spec.path})"
        if not spec.follow:
            raise ConfigError(f"{named}; say links=True to read what they point to, or remove them")
        warnings.warn(
            f"{named}; it is not read: say links=True to read what they point to",
            RuntimeWarning,
            stacklevel=2,
        )
    return [path for path in found if path not in through]


def list_seen(spec: Files) -> list[Seen]:
    """The same, each as a look at it shows it."""
    if not is_url(spec.path):
        return [seen for seen in map(look, list_files(spec)) if seen is not None]
    where = str(located(spec.path))
    fixed = where
    while is_pattern(fixed):
        fixed = fixed.rpartition("/")[0]
    listed = [_object(url, one) for url, one in list_objects(fixed)]
    if fixed != where:
        pattern = where.removeprefix(fixed).strip("/").split("/")
        found = [one for one in listed if matches(_parts(one.path, fixed), pattern)]
    else:
        found = [one for one in listed if len(_parts(one.path, fixed)) == 1]
        if not found and (alone := look(where)) is not None:
            found = [alone]
    found = [one for one in found if visible(one.path)]
    if not found and not spec.follow:
        raise ConfigError(f"no object matches {where}; put some there, or wait with follow=True")
    return sorted(found)


def _parts(path: str, folder: str) -> list[str]:
    return path.removeprefix(folder).strip("/").split("/")


def _object(url: str, one: Listed) -> Seen:
    """An object is what it is called: it does not grow, and none is moved."""
    number = int.from_bytes(hashlib.sha256(url.encode()).digest()[:7], "big") + 1
    return Seen(url, (0, number), one.size, int(one.modified * 1e9), one.modified)


def look(path: str) -> Seen | None:
    """A file as it is now, None if it is not there."""
    if is_url(path):
        found = look_at(path)
        return None if found is None else _object(path, found)
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    inode = (stat.st_dev, stat.st_ino)
    return Seen(path, inode, stat.st_size, stat.st_mtime_ns, stat.st_ctime)


def look_around(path: str) -> list[Seen]:
    """All files in the directory of a path: where it is found again if it was renamed."""
    if is_url(path):
        return []
    there = (look(name) for name in in_directory(path, None) if visible(name) and _is_text(name))
    return [seen for seen in there if seen is not None]


def visible(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def kind_of(spec: Files, paths: list[str]) -> str:
    """The format by the names of the files; what rotation appends to a name says nothing."""
    names = paths or [str(spec.path)]
    kinds = {_SUFFIXES.get(Path(_ROTATED.sub("", p, count=1)).suffix.lower()) for p in names}
    if len(kinds) == 1 and None not in kinds:
        return str(kinds.pop())
    raise ConfigError(
        f"cannot tell the format of {spec.path} from its names; say format='csv', 'json', "
        "'parquet' or 'text'"
    )

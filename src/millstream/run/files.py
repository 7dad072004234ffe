"""Files as a source, in the driver: which there are, how far they were read, what to read next."""

from __future__ import annotations

import glob
import os
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from millstream.api.sources import Files
from millstream.errors import ConfigError, RunError
from millstream.io.formats import Format
from millstream.io.readers import Split, available_end, is_gzip, plan_splits
from millstream.ops.progress import BEGIN, Horizon
from millstream.run.batch import AnySplit
from millstream.run.spreading import rows_of
from millstream.state.manifests import SourceState, check_registry

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
_ROW_BYTES = 64.0  # assumed until rows have been seen
_LEAST_ROWS = 1_000  # a piece with fewer is not worth a task of its own


def list_files(spec: Files) -> list[str]:
    """The files of a source by name; a bounded source must have some."""
    where = str(spec.path)
    if "://" in where:
        raise ConfigError(f"{where}: only paths of a mounted file system can be read")
    if any(sign in where for sign in "*?["):
        found = [p for p in glob.glob(where, recursive=True) if os.path.isfile(p)]
        if not found and not spec.follow:
            raise ConfigError(f"no file matches {where}")
    elif os.path.isdir(where):
        found = [entry.path for entry in os.scandir(where) if entry.is_file()]
        if not any(map(_visible, found)) and not spec.follow:
            raise ConfigError(f"directory {where} has no files")
    elif os.path.exists(where):
        found = [where]
    elif spec.follow and os.path.isdir(os.path.dirname(where) or "."):
        found = []
    else:
        raise ConfigError(f"path {where} does not exist; give an existing file, directory or glob")
    if not spec.links and found != [where]:  # a path that was given may be a link itself
        found = _unlinked(spec, found)
    return sorted(os.path.abspath(p) for p in found if _visible(p))


def _unlinked(spec: Files, found: list[str]) -> list[str]:
    """Without what is reached through a link below the given directory."""
    base = str(spec.path)
    while any(sign in base for sign in "*?["):
        base = os.path.dirname(base)
    base = os.path.abspath(base)
    linked: dict[str, bool] = {}

    def through_link(path: str) -> bool:
        if len(path) <= len(base):
            return False
        if path not in linked:
            linked[path] = os.path.islink(path) or through_link(os.path.dirname(path))
        return linked[path]

    through = [path for path in found if _visible(path) and through_link(os.path.abspath(path))]
    if through:
        named = f"{through[0]} is a link (one of {len(through)} in {spec.path})"
        if not spec.follow:
            raise ConfigError(f"{named}; say links=True to read what they point to, or remove them")
        warnings.warn(
            f"{named}; it is not read: say links=True to read what they point to",
            RuntimeWarning,
            stacklevel=2,
        )
    return [path for path in found if path not in set(through)]


def _visible(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def kind_of(spec: Files, paths: list[str]) -> str:
    names = paths or [str(spec.path)]
    kinds = {_SUFFIXES.get(Path(p.removesuffix(".gz")).suffix.lower()) for p in names}
    if len(kinds) == 1 and None not in kinds:
        return str(kinds.pop())
    raise ConfigError(
        f"cannot tell the format of {spec.path} from its names; say format='csv', 'json', "
        "'parquet' or 'text'"
    )


class _File(msgspec.Struct):
    """One file of a source."""

    path: str
    offset: int = 0
    end: int = 0
    size: int = -1  # as last seen, so that unchanged files are not opened
    done: bool = False
    changed: float = 0.0
    latest: int | None = None  # the latest time read
    heard: float = 0.0  # the wall clock when something was read last


class FilesTracker:
    """Files by name and offset. The registry of names is append-only; the manifest bounds it."""

    _SETTLED = 600.0  # a followed file unchanged for so long is complete until it grows again

    def __init__(
        self, number: int, spec: Files, fmt: Format, registry: Path, state: SourceState
    ) -> None:
        self.number, self.spec, self.fmt = number, spec, fmt
        self.ended = False
        self.registry = registry
        self.files: list[_File] = []
        self.known: set[str] = set()
        self.open: dict[int, _File] = {}
        self.row_bytes = _ROW_BYTES
        self._taken = 0
        self._listed = False
        self._next_look = 0.0
        self._load(state)

    def _load(self, state: SourceState) -> None:
        data = check_registry(self.registry, state)
        for line in data.splitlines():
            entry = msgspec.json.decode(line)
            if isinstance(entry, str):
                self.files.append(_File(entry, done=True))
                self.known.add(entry)
            else:  # [number, offset]: where a settled file ended
                self.files[entry[0]].offset = entry[1]
        for number, offset in state.open.items():
            file = self.files[int(number)]
            file.offset, file.done = offset, False
            file.latest = state.reached.get(number)
            self.open[int(number)] = file
        self.size, self.checksum = state.registry, state.registry_sum
        self._append([])

    def _append(self, entries: list[Any]) -> None:
        """Add to the registry; what an attempt that failed left behind the end is dropped."""
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        with open(self.registry, "ab") as out:
            out.truncate(self.size)
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
        self.size += len(lines)
        self.checksum = zlib.crc32(lines, self.checksum)

    def poll(self) -> None:
        """Look for new and grown files."""
        began = time.monotonic()
        if (not self.spec.follow and self._listed) or began < self._next_look:
            return
        try:
            paths = list_files(self.spec)
        except ConfigError as error:
            if not self.known:
                raise
            raise RunError(str(error)) from None
        fresh = [path for path in paths if path not in self.known]
        if self.spec.follow:  # in the order they were written
            fresh.sort(key=lambda path: (_stat(path)[1], path))
        self._register(fresh)
        for number in self._watched():
            self._measure(number)
        self._listed = True
        if not self.spec.follow:
            self.ended = self.pending() == 0
        # Looking at very many files takes a while: spend at most a fifth of the time on it.
        self._next_look = began + 5 * (time.monotonic() - began)

    def _register(self, paths: list[str]) -> None:
        if paths:
            self._append(paths)
        for path in paths:
            self.open[len(self.files)] = _File(path)
            self.files.append(self.open[len(self.files)])
            self.known.add(path)

    def _watched(self) -> Iterator[int]:
        if self.spec.follow:
            yield from range(len(self.files))
        else:
            yield from list(self.open)

    def _measure(self, number: int) -> None:
        file = self.files[number]
        size, changed = _stat(file.path)
        if (size == file.size and size >= 0) or (size < 0 and file.done):
            return
        if size < 0 and self.spec.follow and file.offset >= file.end:
            file.done = True  # removed after all of it was read
            return
        if file.offset and is_gzip(self.fmt.kind, file.path) and size != file.offset:
            raise RunError(f"{file.path} has changed since it was read; give new data a new name")
        if size < file.offset and self.fmt.kind != "parquet" and not is_gzip("", file.path):
            raise RunError(
                f"{file.path} was read to byte {file.offset} and now has {max(size, 0)}: it was "
                "truncated or replaced; give new data a new name"
            )
        if file.done and file.size < 0 and self.fmt.kind != "parquet" and size == file.offset:
            file.size = size
            return
        complete = not self.spec.follow or is_gzip(self.fmt.kind, file.path)
        file.end = available_end(file.path, self.fmt.kind, complete)
        file.size, file.changed = size, changed
        if file.end < file.offset and self.fmt.kind == "parquet":
            raise RunError(
                f"{file.path} was read to row {file.offset} and now has {file.end}: it was "
                "replaced; give new data a new name"
            )
        if file.end > file.offset:
            file.done = False
            self.open[number] = file

    def pending(self) -> int:
        """Bytes (for parquet rows, times the bytes of a row) not yet taken."""
        scale = self.row_bytes if self.fmt.kind == "parquet" else 1
        return int(sum(max(0, f.end - f.offset) for f in self.open.values()) * scale)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Splits of at most so many rows and bytes, oldest files first."""
        parquet = self.fmt.kind == "parquet"
        budget = rows if parquet else int(min(size, rows * self.row_bytes))
        limit = self.spec.max_files_per_batch or len(self.open)
        there = sum(file.end - file.offset for file in self.open.values())
        least = int(_LEAST_ROWS * (1.0 if parquet else self.row_bytes))
        piece = max(1, least, min(budget, there) // parts)
        splits: list[AnySplit] = []
        self._taken = 0
        for number in sorted(self.open)[:]:
            file = self.open[number]
            if file.end <= file.offset:
                continue
            if budget <= 0 or limit <= 0:
                break
            limit -= 1
            end = min(file.end, file.offset + max(1, budget))
            cut = self._cut(number, file, end, piece)
            splits.extend(replace(one, after=file.latest) for one in cut)
            reached = cut[-1].end if cut and cut[-1].end >= 0 else file.end
            budget -= reached - file.offset
            self._taken += reached - file.offset
            file.offset = reached
            if reached < file.end:
                break  # a later file must not be begun before: its times would run ahead
        if not self.spec.follow:
            self.ended = self._listed and self.pending() == 0
        return splits

    def _cut(self, number: int, file: _File, end: int, piece: int) -> list[Split]:
        kind = self.fmt.kind
        if kind == "parquet":
            starts = range(file.offset, end, piece)
            return [
                Split(self.number, number, file.path, start, min(end, start + piece))
                for start in starts
            ]
        if end < file.end and not is_gzip(kind, file.path):
            # The budget ends inside a line: go on to its end.
            whole = plan_splits(
                kind, self.number, number, file.path, file.offset, file.end, end - file.offset
            )
            end = whole[0].end
        return list(plan_splits(kind, self.number, number, file.path, file.offset, end, piece))

    def horizon(self, now: int) -> Horizon:
        """Files that go on hold the watermark where they are; followed ones until they are idle."""
        if self.spec.time is None:
            return Horizon(clock=now)
        return Horizon(
            files={
                number: BEGIN if file.latest is None else file.latest
                for number, file in self.open.items()
                if (self.spec.follow or file.offset < file.end) and file.offset
            }
        )

    def reached(self, files: dict[int, int], now: int) -> None:
        for number, at in files.items():
            file = self.files[number]
            file.latest = at if file.latest is None else max(at, file.latest)
            file.heard = now / 1e6

    def weigh(self, split: AnySplit) -> float:
        """About how many rows a piece has."""
        if isinstance(split, Split) and split.end < 0:  # a compressed file is read whole
            return os.path.getsize(split.path) / self.row_bytes
        return rows_of(split) / (1.0 if self.fmt.kind == "parquet" else self.row_bytes)

    def together(self, split: AnySplit) -> int:
        return split.file if isinstance(split, Split) and self.spec.participant is None else 0

    def learn(self, rows: int) -> None:
        """How many bytes a row has, from what the last batch read."""
        if rows and self._taken and self.fmt.kind != "parquet":
            self.row_bytes = max(1.0, self._taken / rows)

    def name_of(self, file: int) -> str:
        """Its path."""
        return self.files[file].path

    def save(self, state: SourceState) -> None:
        """Offsets of open files; complete ones are only named in the registry."""
        old = time.time() - self._SETTLED
        settled = [
            number
            for number, file in self.open.items()
            if file.offset >= file.end and (not self.spec.follow or file.done or file.changed < old)
        ]
        if settled:
            self._append([[number, self.files[number].offset] for number in settled])
        for number in settled:
            self.open.pop(number).done = True
        state.registry, state.registry_sum = self.size, self.checksum
        state.files = len(self.files)
        state.open = {str(number): file.offset for number, file in self.open.items()}
        state.reached = {
            str(number): file.latest
            for number, file in self.open.items()
            if file.latest is not None
        }

    def committed(self) -> None:
        """Nothing to forget: files belong to the user."""

    def close(self) -> None:
        """Nothing is held open."""


def _stat(path: str) -> tuple[int, float]:
    try:
        found = os.stat(path)
        return found.st_size, found.st_mtime
    except FileNotFoundError:
        return -1, 0.0

"""A step of a program of lines as a MapReduce job, as Hadoop Streaming runs it.

On the map side the lines of a piece of input go through the step's mapper at once; what comes out
is sorted by key, combined, and parted by key into one *run* of sorted lines per reducer. A reducer
gets its runs as one sorted sequence of lines. Keys are compared as bytes.

What a program counts travels with its lines: a pair whose key is a text, the name of a counter, is
no run but an amount.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from millstream.api.programs import JobContext, Program
from millstream.io.records import reading
from millstream.ops.windows.jobs import Window

Counters = Counter[tuple[str, str]]  # amounts by group and name


@dataclass
class Work:
    """One run of a filter: whose it is, what its environment says, and what it counted."""

    name: str  # "step 1, mapper"
    environment: dict[str, str]
    counters: Counters = field(default_factory=Counter)


class Filter(Protocol):
    """Lines in, lines out (without line ends): a command, or a phase of a script."""

    def __call__(self, lines: Iterable[bytes], work: Work) -> Iterable[bytes]: ...


@dataclass(frozen=True)
class Keys:
    """Which part of a line is its key: the first fields, or all of it if there are no more."""

    separator: bytes = b"\t"
    fields: int = 1

    def of(self, line: bytes) -> bytes:
        """The key of a line."""
        if self.fields == 1:
            return line.partition(self.separator)[0]
        parts = line.split(self.separator, self.fields)
        return self.separator.join(parts[: self.fields])


@dataclass(frozen=True)
class Stage:
    """One step of a program: filters for each side, one after the other."""

    name: str
    mapper: tuple[Filter, ...] = ()
    combiner: tuple[Filter, ...] = ()
    reducer: tuple[Filter, ...] | None = ()  # None: what the mapper gives is the result
    reducers: int = 1
    keys: Keys = Keys()
    sort_values: bool = False
    jobconf: tuple[tuple[str, str], ...] = ()
    whole_files: bool = False  # its mapper gets the path of a file, not lines
    gathers: bool = False  # its mapper may get the lines of several files

    def job(self, encoding: str, marked: timedelta | None) -> Program:
        """As a job for `map_reduce`.

        encoding: how its lines, where they are texts, are bytes. marked: lines of its result begin
        with a window of so long.
        """
        from millstream.api.job import job

        mapping, reducing = MapSide(self, encoding), ReduceSide(self, marked)
        made = job(map=mapping, setup=mapping, close=mapping, reduce=reducing)
        assert isinstance(made, Program)
        made.name, made.gathers = self.name, self.gathers
        return made

    def mapped(self, lines: list[bytes], counters: Counters) -> list[bytes]:
        """What the mapper makes of the lines of a piece."""
        return self._filtered("mapper", self.mapper, lines, counters, _of_split())

    def combined(self, lines: list[bytes], counters: Counters) -> list[bytes]:
        """What the combiner makes of what the mapper gave, sorted."""
        return self._filtered("combiner", self.combiner, self.ordered(lines), counters, {})

    def reduced(self, part: int, lines: list[bytes], counters: Counters) -> list[bytes]:
        """What the reducer makes of the lines of a part, which are put in order."""
        place = {"mapreduce.task.partition": str(part)}
        return self._filtered("reducer", self.reducer or (), self.ordered(lines), counters, place)

    def answer(self, lines: list[bytes], counters: Counters) -> list[bytes]:
        """All of it at once, for few lines: what `flows.py` does of many, in one place."""
        given = self.mapped(lines, counters)
        if self.reducer is None:
            return given
        if self.combiner:
            given = self.combined(given, counters)
        parts = parted(given, self.keys, self.reducers)
        return [
            line
            for part, several in sorted(parts.items())
            for line in self.reduced(part, several, counters)
        ]

    def ordered(self, lines: list[bytes]) -> list[bytes]:
        """Lines as a reducer sees them: by key, and by all of the line where that was asked."""
        if self.sort_values:
            return sorted(lines, key=lambda line: line + b"\n")
        return sorted(lines, key=self.keys.of)

    def _filtered(
        self,
        side: str,
        filters: tuple[Filter, ...],
        lines: list[bytes],
        counters: Counters,
        place: dict[str, str],
    ) -> list[bytes]:
        environment = task_environment(side, {**dict(self.jobconf), **place})
        for one in filters:
            work = Work(f"{self.name}, {side}", environment)
            lines = list(one(lines, work))
            counters.update(work.counters)
        return lines


class MapSide:
    """The map side of a stage: gathers the lines of a piece, and runs the mapper at its end."""

    def __init__(self, stage: Stage, encoding: str) -> None:
        self.stage, self.encoding = stage, encoding
        self.lines: list[bytes] = []

    def setup(self) -> None:
        """A new piece."""
        self.lines = []

    def map(self, key: Any, line: Any) -> None:
        """A line of the input, or of the stage before; amounts are of the stage before."""
        if isinstance(key, str):
            return
        self.lines.append(line.encode(self.encoding) if isinstance(line, str) else line)

    def close(self) -> Iterator[tuple[Any, Any]]:
        """Runs of lines by reducer, and what was counted."""
        stage, counters = self.stage, Counters()
        lines = stage.mapped(self.lines, counters)
        if stage.combiner:
            lines = stage.combined(lines, counters)
        for part, run in sorted(parted(lines, stage.keys, stage.reducers).items()):
            yield part, b"\n".join(run)
        yield from told(stage.name, counters)


class ReduceSide:
    """The reduce side of a stage: a key is the number of a reducer, its values are runs."""

    def __init__(self, stage: Stage, marked: timedelta | None) -> None:
        self.stage, self.marked = stage, marked

    def reduce(self, part: Any, runs: Iterable[Any], context: JobContext) -> Iterator[Any]:
        """The lines of one reducer; those of the last stage may say their window."""
        if isinstance(part, str):
            yield part, str(sum(map(int, runs))).encode()
            return
        counters = Counters()
        lines = [line for run in runs for line in run.split(b"\n")]
        mark = b"" if self.marked is None else window_mark(context.window, self.marked)
        for line in self.stage.reduced(part, lines, counters):
            yield None, mark + line
        yield from told(self.stage.name, counters)


def window_mark(window: Window | None, size: timedelta) -> bytes:
    """What stands before a line: the bounds of the window that ends with the one at hand."""
    assert window is not None and window.end is not None
    bounds = (window.end - size, window.end)
    return "".join(f"{one.isoformat().replace('+00:00', 'Z')}\t" for one in bounds).encode()


def parted(lines: list[bytes], keys: Keys, parts: int) -> dict[int, list[bytes]]:
    """Lines by reducer, in their order."""
    if parts == 1 or not lines:
        return {0: lines} if lines else {}
    found: dict[int, list[bytes]] = {}
    known: dict[bytes, int] = {}
    for line in lines:
        key = keys.of(line)
        part = known.get(key)
        if part is None:
            part = known[key] = part_of(key, parts)
        found.setdefault(part, []).append(line)
    return found


def part_of(key: bytes, parts: int) -> int:
    """The reducer of a key: as Hadoop's HashPartitioner over Text decides it."""
    code = 1
    for byte in key:
        code = (31 * code + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % parts


def shard_of(key: Any) -> int:
    """Where a reducer's runs are kept; amounts lie together."""
    return key if isinstance(key, int) else 0


def told(step: str, counters: Counters) -> Iterator[tuple[str, bytes]]:
    """What was counted, as pairs; amounts are bytes as lines are, so that columns have one type."""
    for (group, name), amount in sorted(counters.items()):
        yield json.dumps([step, group, name]), str(amount).encode()


def task_environment(side: str, jobconf: dict[str, str]) -> dict[str, str]:
    """What Hadoop tells a task by its environment: names of properties with `_` for other signs."""
    attempt = uuid.uuid4().hex[:12]
    told = {
        "mapreduce.job.id": "job_millstream",
        "mapreduce.task.id": f"task_{attempt}",
        "mapreduce.task.attempt.id": f"attempt_{attempt}_0",
        "mapreduce.task.ismap": "false" if side == "reducer" else "true",
        "mapreduce.task.partition": "0",
        **jobconf,
    }
    told |= {_BEFORE[name]: value for name, value in told.items() if name in _BEFORE}
    return {_variable(name): value for name, value in told.items()}


# Properties by the names they had before Hadoop 2, which many programs still ask for.
_BEFORE = {
    "mapreduce.job.id": "mapred.job.id",
    "mapreduce.task.id": "mapred.tip.id",
    "mapreduce.task.attempt.id": "mapred.task.id",
    "mapreduce.task.ismap": "mapred.task.is.map",
    "mapreduce.task.partition": "mapred.task.partition",
    "mapreduce.map.input.file": "map.input.file",
    "mapreduce.map.input.start": "map.input.start",
    "mapreduce.map.input.length": "map.input.length",
    "mapreduce.job.reduces": "mapred.reduce.tasks",
}


def _variable(name: str) -> str:
    return "".join(sign if sign.isalnum() and sign.isascii() else "_" for sign in name)


def _of_split() -> dict[str, str]:
    """Which piece of which file is being read, if it is one."""
    split = reading.get()
    if split is None:
        return {}
    return {
        "mapreduce.map.input.file": f"file://{split.path}",
        "mapreduce.map.input.start": str(split.start),
        "mapreduce.map.input.length": str(max(0, split.end - split.start)),
    }

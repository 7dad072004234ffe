"""Where a flow writes: directories of its own, apart from each other, its inputs and its state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from millstream.api.sinks import FileSink
from millstream.api.sources import Files
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.plan.stages import Plan
from millstream.state.locations import located

_SIGNS = "*?["


def check_outputs(plan: Plan) -> None:
    """No directory is written by two sinks, and none is read by a source of the same flow."""
    taken: dict[Path | tuple[int, int], str] = {}
    for sink in _sinks(plan):
        other: str | None = None
        for place in _places(sink.spec.directory):  # also if one file system is mounted twice
            first = taken.setdefault(place, sink.name)
            other = first if first != sink.name else other
        if other is not None:
            raise ConfigError(
                f"sinks {other!r} and {sink.name!r} both write to {sink.spec.path}; "
                "give each a directory of its own"
            )
        for source in plan.sources():
            if isinstance(source.spec, Files) and _reads(source.spec, sink.spec):
                raise ConfigError(
                    f"sink {sink.name!r} writes to {sink.spec.path}, where source {source.name!r} "
                    f"({source.spec.path}) would read its results as input; give it a directory "
                    "of its own"
                )


def check_each_other(plans: Iterable[Plan]) -> None:
    """No two flows that run together write to one directory."""
    taken: dict[Path | tuple[int, int], tuple[str, str]] = {}
    for plan in plans:
        for sink in _sinks(plan):
            for place in _places(sink.spec.directory):
                flow, other = taken.setdefault(place, (plan.flow, sink.name))
                if flow != plan.flow:
                    raise ConfigError(
                        f"sink {other!r} of flow {flow!r} and sink {sink.name!r} of flow "
                        f"{plan.flow!r} both write to {sink.spec.path}; give each a directory of "
                        "its own"
                    )


def check_apart(plan: Plan, checkpoint: Path) -> None:
    """No sink writes into the checkpoint, where files that nobody knows are removed."""
    for sink in _sinks(plan):
        for place in (sink.spec.directory, *sink.spec.directory.parents):
            if place == checkpoint.resolve():
                raise ConfigError(
                    f"sink {sink.name!r} writes to {sink.spec.path}, which is in the checkpoint "
                    f"{checkpoint}; give it a directory elsewhere"
                )


def _sinks(plan: Plan) -> list[nodes.Sink]:
    return [sink for sink in plan.sinks() if isinstance(sink.spec, FileSink)]


def _places(path: Path) -> Iterator[Path | tuple[int, int]]:
    yield path
    if path.exists():
        seen = path.stat()
        yield seen.st_dev, seen.st_ino


def _reads(source: Files, sink: FileSink) -> bool:
    """Whether a source would take up the files of a sink."""
    pattern = str(source.path)
    if not is_pattern(pattern):
        return not set(_places(located(pattern).resolve())).isdisjoint(_places(sink.directory))
    fixed = os.path.dirname(pattern)
    while is_pattern(fixed):
        fixed = os.path.dirname(fixed)
    rest = os.path.relpath(pattern, fixed or ".").split("/")
    part = sink.directory / f"part-00000000-0-0000.{getattr(sink, 'suffix', '')}"
    base = located(fixed).resolve()
    return part.is_relative_to(base) and matches(list(part.relative_to(base).parts), rest)


def is_pattern(path: str) -> bool:
    """Whether a path stands for those it matches; one that is there is meant as it is written."""
    return any(sign in path for sign in _SIGNS) and not os.path.exists(path)


def matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether a path fits a glob, part by part; `**` stands for any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and matches(parts, pattern[1:]):
        return True
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])

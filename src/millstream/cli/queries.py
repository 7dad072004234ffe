"""`millstream flow`: queries are added to a flow and taken away, also while it runs.

A query is a file of SQL or Python in the folder `<flow>.queries` beside the file with the flow.
Whoever loads the file adds them: `run` at its next start, a running flow when it is told to load
its file again, an agent when it hears of another program. So there is one way for a program to
change while it runs (`reloading.py`), and what a flow consists of lies open beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.cli.loading import QUERIES, add_query, load_application, queries_beside
from millstream.cli.reloading import Withdrawn, ask_to_reload, unchanged
from millstream.errors import ConfigError
from millstream.graph import nodes as graph

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,60}")
_LATER = (
    "no run was asked: the next start of the flow takes this up, and an agent of this file as soon "
    "as its collector has the same program"
)


def add(
    file: Path,
    flow: str | None,
    query: Path,
    name: str | None,
    checkpoint: Path | None,
    *,
    dry_run: bool,
    later: bool,
) -> str:
    """Add a query to a flow; it is left out again if the run refuses it."""
    name = name or query.stem
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a query; use letters, digits, '_' and '-'")
    if query.suffix not in QUERIES:
        raise ConfigError(f"{query}: a query is a file of {' or '.join(QUERIES)}")
    try:
        found = load_application(file, flow)
        folder = queries_beside(file, found.flow)
        if any(one.name == name for one in found.queries):
            raise ConfigError(
                f"flow {found.flow.name!r} has a query {name!r} already; remove it first, or give "
                "this one another --name"
            )
        text = query.read_bytes() if query.is_file() else b""
        add_query(found.flow, name, query)
    except ConfigError as error:
        raise ConfigError(unchanged(error)) from error
    where = checkpoint or found.checkpoint or Path(".millstream") / found.flow.name
    place = folder / f"{name}{query.suffix}"
    with _alone(folder):
        _write(place, text)
        told = _asked(where, file, place.unlink, dry_run=dry_run, later=later)
    return told if dry_run else f"{told}\nquery {name} is in {place}"


def remove(
    file: Path, flow: str | None, name: str, checkpoint: Path | None, *, dry_run: bool, later: bool
) -> str:
    """Take a query away; it stays if the run refuses that."""
    found = load_application(file, flow)
    there = {one.name: one for one in found.queries}
    if name not in there:
        raise ConfigError(
            f"flow {found.flow.name!r} has no query {name!r}; it has: {', '.join(there) or 'none'}"
        )
    where = checkpoint or found.checkpoint or Path(".millstream") / found.flow.name
    place = there[name].file
    hidden = place.with_name(f".{place.name}")
    with _alone(place.parent):
        place.rename(hidden)
        try:
            told = _asked(where, file, lambda: hidden.rename(place), dry_run=dry_run, later=later)
        finally:
            hidden.unlink(missing_ok=True)
    return told


def _asked(
    where: Path, file: Path, undo: Callable[[], object], *, dry_run: bool, later: bool
) -> str:
    """Have the run load what is there now; what was done is undone if it does not take it."""
    if later and dry_run:
        undo()
        raise ConfigError("--dry-run asks the running flow, and --later asks none: give one")
    if later:
        return _LATER
    try:
        told = ask_to_reload(where, file, dry_run=dry_run)
    except (ConfigError, Withdrawn):  # else it may have been taken up, and stays
        undo()
        raise
    if dry_run:
        undo()
    return told


def listed(file: Path, flow: str | None) -> str:
    """The queries of a flow, each with what it keeps and where it gives its results."""
    found = load_application(file, flow)
    if not found.queries:
        return f"no queries were added to flow {found.flow.name!r}"
    kinds = graph.Keyed | graph.Sink
    steps = {
        one.name: ", ".join(node.name for node in one.nodes if isinstance(node, kinds))
        for one in found.queries
    }
    width = max(len(name) for name in steps)
    return "\n".join(f"{name:{width}}  {what}" for name, what in steps.items())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else adds or removes meanwhile: a refusal must be of this change.

    There is no folder without queries, whatever became of the change.
    """
    folder.mkdir(exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
        with contextlib.suppress(OSError):  # others are in it
            folder.rmdir()


def _write(place: Path, text: bytes) -> None:
    """The whole file at once: an agent may look at any time."""
    hidden = place.with_name(f".{place.name}")
    with open(hidden, "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    hidden.rename(place)

"""Checkpoints of runs that remember nothing: directories that are gone when the run has ended."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.api.sinks import Memory
from millstream.errors import ConfigError
from millstream.plan.stages import Plan
from millstream.settings import Settings


def make_fleeting(settings: Settings) -> Path:
    """A directory for the state of one run, where all its tasks can reach it."""
    if not settings.master.startswith("local"):
        raise ConfigError(
            f"a run without a checkpoint (checkpoint=None, collect()) with "
            f"master={settings.master!r}: its state lies in a directory of this machine, which "
            "the workers of a cluster do not see; run the flow with checkpoint= in a directory "
            "that all of them share"
        )
    return Path(tempfile.mkdtemp(prefix="millstream-"))


def remove_fleeting(path: Path) -> None:
    """Forget all of it."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def fleeting(settings: Settings) -> Iterator[Path]:
    """A directory for as long as something takes."""
    path = make_fleeting(settings)
    try:
        yield path
    finally:
        remove_fleeting(path)


def forget_rows(plan: Plan) -> None:
    """Let sinks in memory hold the rows of this run alone."""
    for sink in plan.sinks():
        if isinstance(sink.spec, Memory):
            sink.spec.tables.clear()

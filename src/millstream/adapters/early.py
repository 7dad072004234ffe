"""Early answers of programs of lines: what a program gives for what has been read so far.

There is no estimate of what any program would give; so a snapshot is HOP's: reducers are applied
to what mappers gave so far, and later steps to that. What mappers gave is committed with every
batch as runs of the first stage. They are read from there, beside the run, which is not disturbed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.adapters.lines import Counters, Stage
from millstream.ops.codec import decode, decode_key
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest
from millstream.state.segments import read_segments

Runs = Mapping[int, list[bytes]]


GONE = 3  # the exit code of who finds that the state of a batch is no longer kept


def stored_runs(checkpoint: Path, step: str, batch: int) -> Runs | None:
    """What mappers of a step gave up to a committed batch, by reducer and in order.

    None: its state is no longer kept (`retain`).
    """
    place = Checkpoint(checkpoint, create=False)
    manifest = place.latest()
    while manifest is not None and manifest.batch > batch:
        manifest = place.before(manifest)
    if manifest is None:
        return None
    rows: list[tuple[Any, ...]] = []
    for table in _tables(place, manifest, step):
        names = ("ts", "src", "pos", "value.key", "value.value")
        rows += zip(*(table.column(name).to_pylist() for name in names), strict=True)
    runs: dict[int, list[bytes]] = {}
    for *_, key, value in sorted(rows, key=lambda row: row[:3]):
        part = decode_key(key)
        if isinstance(part, int):  # others are amounts of counters
            runs.setdefault(part, []).append(decode(value))
    return runs


def _tables(place: Checkpoint, manifest: Manifest, step: str) -> list[pa.Table]:
    found: list[pa.Table] = []
    for family, tables in manifest.segments.items():
        if family.endswith(f" for {step}"):
            segments = [one for several in tables.get("values", {}).values() for one in several]
            found += read_segments(place.state, segments, manifest.files)
    return found


def answer_of(stages: Sequence[Stage], runs: Runs) -> list[bytes]:
    """What a program gives for runs of its first stage."""
    counters = Counters()
    lines: list[bytes] = []
    for part, several in sorted(runs.items()):
        given = [line for run in several for line in run.split(b"\n")]
        lines += stages[0].reduced(part, given, counters)
    for stage in stages[1:]:
        lines = stage.answer(lines, counters)
    return lines


def write_answer(stages: Sequence[Stage], checkpoint: Path, batch: int, path: Path) -> None:
    """What a program gives for all up to a batch, into a file that appears when it is whole."""
    runs = stored_runs(checkpoint, stages[0].name, batch)
    if runs is None:
        sys.exit(GONE)
    lines = answer_of(stages, runs)
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("wb") as file:
        file.writelines(line + b"\n" for line in lines)
    os.replace(unfinished, path)

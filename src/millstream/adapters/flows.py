"""A flow of stages: sources of lines, one MapReduce job a stage, files of lines.

A stage without reducer runs where its lines are. Over windows every stage is a job: the first over
the windows that were asked for; the following ones over windows as long as a slide, each of which
holds what one window of the stage before gave.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from millstream.adapters.lines import Counters, MapSide, Stage, shard_of, told
from millstream.api.flow import Flow
from millstream.api.sinks import Jsonl, Text
from millstream.api.sources import Files, Stdin
from millstream.api.stream import Stream
from millstream.api.windows import WindowSpec, sliding, tumbling
from millstream.errors import ConfigError
from millstream.ops.chunks import flat

BYTES = "latin-1"  # every byte is a character, so that lines stay what they are
COUNTERS = "_counters"  # a directory readers of results skip, as Hadoop's do
_AMOUNTS = "step string, group string, counter string, amount bigint"


@dataclass(frozen=True)
class Reading:
    """Where lines come from, and which part of one is its time."""

    inputs: Sequence[str]
    time: str | None = None  # a regular expression: its group, or all it matches
    time_format: str | None = None
    zone: str | None = None
    lateness: str | None = None
    follow: bool = False


def build_flow(
    name: str,
    stages: Sequence[Stage],
    reading: Reading,
    output: Path,
    window: WindowSpec | None = None,
    ordered: bool = False,
) -> Flow:
    """A flow that writes the lines of the last stage."""
    if window is None and reading.follow:
        raise ConfigError(
            "--follow: an input that goes on has no end to give results at; add --window, like "
            "--window 10m,1m"
        )
    flow = Flow(name)
    stream, encoding = _source(flow, reading, stages[0].whole_files)
    counted: list[Stream] = []
    size = None if window is None else timedelta(microseconds=window.span.size)
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        if window is not None and stage.reducer is None:
            stage = replace(stage, combiner=(), reducer=())  # nothing to combine for
        if stage.reducer is None:
            stream = stream.map_batches(MapOnly(stage, encoding)).named(stage.name)
        else:
            keyed = stream.key_by(partition=shard_of)
            job = stage.job(encoding, size if last else None)
            stream = keyed.map_reduce(job, window, sorted=ordered and last).named(stage.name)
        counted.append(stream.where("key IS NOT NULL"))
        if window is not None and number == 0:
            window = tumbling(timedelta(microseconds=window.span.slide))
    stream.where("key IS NULL").select("value").sink(Text(output), name="lines")
    amounts = counted[0].union(*counted[1:]) if len(counted) > 1 else counted[0]
    amounts.map(_amount, schema=_AMOUNTS).sink(Jsonl(output / COUNTERS), name="counters")
    return flow


def parse_window(text: str) -> WindowSpec:
    """`10m,1m` as windows of ten minutes every minute; `10m` as windows one after the other."""
    size, _, slide = text.partition(",")
    return sliding(size.strip(), slide.strip()) if slide else tumbling(size.strip())


def _source(flow: Flow, reading: Reading, whole_files: bool) -> tuple[Stream, str]:
    """All inputs as one stream, and how its lines are bytes."""
    timing: dict[str, Any] = {"lateness": reading.lateness}
    if reading.time is not None:
        timing |= {"time": "value", "time_pattern": reading.time}
        timing |= {"time_format": reading.time_format, "zone": reading.zone}
    inputs = list(reading.inputs) or ["-"]
    if "-" in inputs:
        if len(inputs) > 1 or whole_files or reading.time is not None:
            raise ConfigError(
                "-: standard input goes by itself, and with neither --time nor a mapper_raw; give "
                "files"
            )
        return flow.source(Stdin(format="text"), name="input"), "utf-8"
    streams = []
    for number, path in enumerate(inputs, 1):
        _check_input(path)
        name = "input" if len(inputs) == 1 else f"input{number}"
        if whole_files:
            if reading.follow or reading.time is not None:
                raise ConfigError("mapper_raw gets whole files: --follow and --time go with lines")
            spec = Files(path, reader=_path_of, schema="value string")
        else:
            spec = Files(path, "text", encoding=BYTES, follow=reading.follow, **timing)
        streams.append(flow.source(spec, name=name))
    first = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    return first, "utf-8" if whole_files else BYTES


def _check_input(path: str) -> None:
    if path.endswith((".bz2", ".bz", ".xz", ".zst")):
        raise ConfigError(f"{path}: of compressed files only .gz is read here; unpack it first")
    if not Path(path).exists() and not glob.glob(path):
        raise ConfigError(f"there is no input {path}")


def _path_of(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    """A file as one record: where it lies."""
    yield 0, {"value": file.name}


def _amount(row: dict[str, Any]) -> dict[str, Any]:
    step, group, counter = json.loads(row["key"])
    return {"step": step, "group": group, "counter": counter, "amount": int(row["value"])}


class MapOnly:
    """A stage that only maps, over the lines of a piece: lines, and amounts that were counted."""

    def __init__(self, stage: Stage, encoding: str) -> None:
        self.stage, self.encoding, self.gathers = stage, encoding, stage.gathers

    def __call__(self, table: pa.Table) -> pa.Table:
        """Rows as a job gives them: no key and a line, or a counter and its amount."""
        if not len(table):
            return _rows([], [], table)
        side = MapSide(self.stage, self.encoding)
        names = flat(table.column("key")).to_pylist() if "key" in table.column_names else None
        for at, line in enumerate(flat(table.column("value")).to_pylist()):
            side.map(None if names is None else names[at], line)
        counters = Counters()
        lines = self.stage.mapped(side.lines, counters)
        return _rows(lines, list(told(self.stage.name, counters)), table)


def _rows(lines: list[bytes], amounts: list[tuple[str, bytes]], table: pa.Table) -> pa.Table:
    """All of a piece have the time of its last line."""
    keys = [None] * len(lines) + [name for name, _ in amounts]
    values = [*lines, *(amount for _, amount in amounts)]
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.binary()),
            "__row": pa.array(np.full(len(values), len(table) - 1, np.int64)),
        }
    )

"""Where records leave a task, as readers see them: into a file, or on their way to the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.api.sinks import FileSink, Parquet
from millstream.api.sources import Kafka
from millstream.api.tables import Postgres
from millstream.graph import nodes
from millstream.io.folders import by_folder
from millstream.io.kafka.encoding import encode
from millstream.io.writers import stage_file
from millstream.operators.naming import names_of
from millstream.ops.chunks import Chunk, concat, encode_block, placed
from millstream.ops.edges import leaving
from millstream.ops.records import DeadLetter, as_json
from millstream.plan.stages import Plan, gives_changes, marks_changes
from millstream.run import fitting
from millstream.run.splits import DRIVER, Item
from millstream.run.tables.postgres import refused_rows
from millstream.run.topics import encoding_of
from millstream.state.manifests import Output
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from millstream.run.tasks import Task


def edge(plan: Plan, node: nodes.Node, before: nodes.Node, chunks: list[Chunk]) -> list[Chunk]:
    """What of the records that came here in this batch leaves, as readers see it."""
    early = (one for one in plan.windowed() if one.emission.mode == "early")
    numbers = frozenset(plan.number(one) for one in early)
    again = any(one.weight is not None for one in chunks) and not gives_changes(before)
    marked = marks_changes(before) or again
    if marked and names_of(before, plan.inputs_of) is None:
        chunks = [replace(one, moves=True) for one in chunks]
    return leaving(chunks, node.name, numbers, marked)


def sink_outputs(task: Task) -> Iterator[Item]:
    """Write the files of sinks; rows for sinks that live in the driver are sent there."""
    for name, chunks in task.sunk.items():
        node = task.plan.node(name)
        spec = node.spec  # type: ignore[attr-defined]
        chunks = [one for one in edge(task.plan, node, node.inputs[0], chunks) if len(one)]
        task.count(name, sum(map(len, chunks)), 0)
        if not chunks:
            continue
        if isinstance(spec, FileSink):
            _stage(task, name, spec, chunks)
            continue
        if isinstance(spec, Kafka):
            chunks = [_encode(task, node, chunk) for chunk in chunks]
        if isinstance(spec, Postgres):
            chunks = [_fit_for_postgres(task, name, spec, chunk) for chunk in chunks]
        yield (DRIVER, "deliver", name, encode_block(concat([placed(c) for c in chunks])))


def _stage(task: Task, name: str, spec: FileSink, chunks: list[Chunk]) -> None:
    """Write the rows of a sink to a file of their own."""
    level, part = task.control.level, task.control.part
    suffix: str = spec.suffix  # type: ignore[attr-defined]
    table = concat([chunk.table for chunk in chunks])
    if suffix == "parquet":
        table = _fit(task, name, table, chunks)
    if not len(table):
        return
    stem = f"{task.batch.number:08d}-{level}-{part:04d}"
    directory, final = open_storage(spec.directory), f"part-{stem}.{suffix}"
    columns = spec.folders if isinstance(spec, Parquet) else ()
    for number, (folder, rows) in enumerate(by_folder(table, columns)):
        attempt = f"{task.attempt}{number:04x}" if columns else task.attempt
        staged, check = stage_file(directory, f"{stem}-{attempt}", suffix, rows)
        task.control.outputs.append(Output(name, staged, final, len(rows), *check, folder))


def _fit(task: Task, name: str, table: pa.Table, chunks: list[Chunk]) -> pa.Table:
    """Columns as they were written before; rows that do not fit are dead letters."""
    known = fitting.unpacked(task.batch.written.get(name))
    fitted = fitting.fit(table, known, task.plan.node(name).inputs[0].name)
    task.control.written[name] = fitting.packed(fitted.schema)
    _refuse(task, name, fitted.refused, table, chunks)
    return fitted.table


def _encode(task: Task, node: nodes.Node, chunk: Chunk) -> Chunk:
    """Rows for a topic as records; rows that cannot be one are dead letters."""
    assert isinstance(node, nodes.Sink)
    found = encode(encoding_of(node), chunk.table)
    _refuse(task, node.name, found.refused, chunk.table, [chunk])
    return chunk.at(found.table, np.array(found.rows, np.int64))


def _fit_for_postgres(task: Task, name: str, spec: Postgres, chunk: Chunk) -> Chunk:
    """The rows that a table of PostgreSQL takes; the others are dead letters."""
    refused = refused_rows(spec.columns, chunk.table)
    _refuse(task, name, refused, chunk.table, [chunk])
    kept = [row for row in range(len(chunk)) if row not in refused]
    return chunk if not refused else chunk.take(np.array(kept, np.int64))


def _refuse(
    task: Task, name: str, refused: dict[int, str], table: pa.Table, chunks: list[Chunk]
) -> None:
    """Rows that a sink cannot take are dead letters."""
    if not refused:
        return
    pos = np.concatenate([chunk.pos for chunk in chunks])
    src = np.repeat([chunk.src for chunk in chunks], [len(chunk) for chunk in chunks])
    for row, why in refused.items():
        raw = as_json(table.slice(row, 1).to_pylist()[0])
        task.control.dead.append(DeadLetter(name, int(src[row]), int(pos[row]), raw, why))
    counts = task.ledger(name)
    counts["dead"] += len(refused)
    counts["aggregated"] -= len(refused)

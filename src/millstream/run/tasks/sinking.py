"""Where records leave a task, as readers see them: into a file, or on their way to the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.api.sinks import Call, Console, FileSink, Memory, Parquet
from millstream.api.sources import Kafka
from millstream.api.tables import Postgres, TableSink
from millstream.graph import nodes
from millstream.io.folders import by_folder, without_folder
from millstream.io.kafka.encoding import encode
from millstream.io.writers import (
    stage_file,
    with_breaks,
    with_same_names,
    without_key,
    without_line,
)
from millstream.operators.naming import made, names_of
from millstream.ops.chunks import Chunk, Int64, all_but, concat, encode_block, placed
from millstream.ops.emitting.edges import MARK, given, leaving
from millstream.ops.records import DeadLetter, as_json
from millstream.plan.stages import gives_changes, marks_changes
from millstream.run.outputs.tables.moments import beyond
from millstream.run.outputs.tables.postgres import refused_rows
from millstream.run.outputs.topics import encoding_of
from millstream.run.tasks import fitting
from millstream.run.tasks.splits import DRIVER, Item
from millstream.state.manifests import Output
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from millstream.run.tasks.task import Task


def edge(task: Task, node: nodes.Node, before: nodes.Node, chunks: list[Chunk]) -> list[Chunk]:
    """What of the records that came here in this batch leaves, as readers see it."""
    plan = task.plan
    early = (one for one in plan.windowed() if one.emission.mode == "early")
    numbers = frozenset(plan.number(one) for one in early)
    again = any(one.weight is not None for one in chunks) and not gives_changes(before)
    marked = marks_changes(before) or again
    if not marked:
        return leaving(chunks, numbers, marked)
    chunks = [_without_mark(task, node.name, one) for one in chunks]
    names = names_of(before, plan.inputs_of)
    if names is not None:
        return leaving(chunks, numbers, marked, names if made(before) else None)
    names = names_of(before, plan.inputs_of, pairs=True)
    if names is None:
        chunks = [replace(one, moves=True) for one in chunks]
    return leaving(chunks, numbers, marked, names, pairs=True)


def _without_mark(task: Task, name: str, chunk: Chunk) -> Chunk:
    """Rows that have no column of their own with the name of the mark; others are dead letters.

    It is known before the run unless a function gave it.
    """
    if MARK not in chunk.table.column_names:
        return chunk
    own = np.asarray(chunk.table.column(MARK).is_valid())
    lost = given(chunk.take(own))
    why = f"a column {MARK!r} of its own, by which changes are marked; give it another name"
    task.count(name, len(lost), 0)
    _refuse(task, name, dict.fromkeys(range(len(lost)), why), lost.table, [lost])
    kept = chunk.take(~own)
    return kept.with_table(kept.table.drop_columns([MARK]))


def sink_outputs(task: Task) -> Iterator[Item]:
    """Write the files of sinks; rows for sinks that live in the driver are sent there."""
    for name, chunks in task.sunk.items():
        node = task.plan.node(name)
        spec = node.spec  # type: ignore[attr-defined]
        chunks = [one for one in edge(task, node, node.inputs[0], chunks) if len(one)]
        task.count(name, sum(map(len, chunks)), 0)
        if not isinstance(spec, Call | Console | Memory):
            chunks = [one for one in (_with_own_names(task, name, c) for c in chunks) if len(one)]
        if not chunks:
            continue
        if isinstance(spec, FileSink):
            _stage(task, name, spec, chunks)
            continue
        if isinstance(spec, Kafka):
            chunks = [_encode(task, node, chunk) for chunk in chunks]
        if isinstance(spec, TableSink):
            chunks = _fit_for_table(task, node, spec, chunks)
        if chunks := [one for one in chunks if len(one)]:
            yield (DRIVER, "deliver", name, encode_block(concat([placed(c) for c in chunks])))


def _with_own_names(task: Task, name: str, chunk: Chunk) -> Chunk:
    """Rows in which JSON loses no name; others are dead letters."""
    refused = with_same_names(chunk.table)
    _refuse(task, name, refused, chunk.table, [chunk])
    return chunk.take(~np.isin(np.arange(len(chunk)), [*refused])) if refused else chunk


def _stage(task: Task, name: str, spec: FileSink, chunks: list[Chunk]) -> None:
    """Write the rows of a sink to a file of their own."""
    level, part = task.control.level, task.control.part
    suffix: str = spec.suffix  # type: ignore[attr-defined]
    table = concat([chunk.table for chunk in chunks])
    columns = spec.folders if isinstance(spec, Parquet) else ()
    for missing in [one for one in columns if one not in table.column_names]:
        table = table.append_column(missing, pa.nulls(len(table)))  # no record here has it
    refused = without_folder(table, columns)
    first = task.batch.written.get(name) is None
    # Of a function each batch has the columns that some of its rows have.
    known = task.plan.columns.get(task.plan.node(name).inputs[0].name) is not None
    if suffix == "parquet":
        table, _ = _fit(task, name, table, chunks, refused)
    elif suffix == "txt":
        refused = with_breaks(table) | without_line(table)
        _refuse(task, name, refused, table, chunks)
        table = _without(table, refused)
    if not len(table):
        return
    stem = f"{task.batch.number:08d}-{level}-{part:04d}"
    directory, final = open_storage(spec.directory), f"part-{stem}.{suffix}"
    for number, (folder, rows) in enumerate(by_folder(table, columns, first=first)):
        attempt = f"{task.attempt}{number:04x}" if columns else task.attempt
        staged, check = stage_file(directory, f"{stem}-{attempt}", suffix, rows, known=known)
        task.control.outputs.append(Output(name, staged, final, len(rows), *check, folder))


def _fit(
    task: Task,
    name: str,
    table: pa.Table,
    chunks: list[Chunk],
    refused: dict[int, str],
    *,
    widens: bool = True,
) -> tuple[pa.Table, Int64]:
    """Columns as they were written before, and which rows are left.

    Rows that do not fit are dead letters, as are those that are refused already.
    """
    known = fitting.unpacked(task.batch.written.get(name))
    kept = np.setdiff1d(np.arange(len(table)), [*refused]) if refused else np.arange(len(table))
    before, places = task.plan.node(name).inputs[0], None
    if _gives_records(before):
        marks = [(chunk.ts, np.full(len(chunk), chunk.src), chunk.pos) for chunk in chunks]
        ts, src, pos = (np.concatenate(several)[kept] for several in zip(*marks, strict=True))
        places = (ts, src, pos)
    fitted = fitting.fit(_without(table, refused), known, before.name, places, widens=widens)
    task.control.written[name] = fitting.packed(fitted.schema)
    refused = refused | {int(kept[row]): why for row, why in fitted.refused.items()}
    _refuse(task, name, refused, table, chunks)
    return fitted.table, np.setdiff1d(np.arange(len(table)), [*refused])


def _gives_records(node: nodes.Node) -> bool:
    """Whether what comes here was given record by record, and is no result of many of them."""
    while isinstance(node, nodes.Where | nodes.Select | nodes.At | nodes.Union):
        node = node.inputs[0]
    return isinstance(node, nodes.Map | nodes.Process | nodes.Source | nodes.Update)


def _without(table: pa.Table, refused: dict[int, str]) -> pa.Table:
    """The rows that are not refused."""
    return table.filter(pa.array(all_but(len(table), refused))) if refused else table


def _encode(task: Task, node: nodes.Node, chunk: Chunk) -> Chunk:
    """Rows for a topic as records; rows that cannot be one are dead letters."""
    assert isinstance(node, nodes.Sink)
    found = encode(encoding_of(task.plan, node), chunk.table)
    _refuse(task, node.name, found.refused, chunk.table, [chunk])
    return chunk.at(found.table, np.array(found.rows, np.int64))


def _fit_for_table(
    task: Task, node: nodes.Node, spec: TableSink, chunks: list[Chunk]
) -> list[Chunk]:
    """The rows that a table takes; the others are dead letters.

    Tasks see to that, because a batch that is committed can leave out none of its rows.
    """
    table = concat([chunk.table for chunk in chunks])
    given = task.plan.columns.get(node.inputs[0].name) is None
    refused = without_key(spec.columns, table) if given else {}
    refused |= beyond(table)
    if isinstance(spec, Postgres):
        refused |= refused_rows(spec.columns, table)
    fitted, kept = _fit(task, node.name, table, chunks, refused, widens=False)
    taken = []
    for chunk in chunks:
        mine, kept = kept[kept < len(chunk)], kept[kept >= len(chunk)] - len(chunk)
        taken.append(chunk.at(fitted.slice(0, len(mine)), mine))
        fitted = fitted.slice(len(mine))
    return taken


def _shown(row: pa.Table) -> str:
    """A row for people to read; a moment that Python has no value for as the number it is."""
    try:
        return as_json(row.to_pylist()[0])
    except (ValueError, OverflowError):
        texts = {name: row.column(name).combine_chunks().to_string() for name in row.column_names}
        return as_json({name: " ".join(text.split())[2:-2] for name, text in texts.items()})


def _refuse(
    task: Task, name: str, refused: dict[int, str], table: pa.Table, chunks: list[Chunk]
) -> None:
    """Rows that a sink cannot take are dead letters."""
    if not refused:
        return
    pos = np.concatenate([chunk.pos for chunk in chunks])
    src = np.repeat([chunk.src for chunk in chunks], [len(chunk) for chunk in chunks])
    for row, why in refused.items():
        raw = _shown(table.slice(row, 1))
        task.control.dead.append(DeadLetter(name, int(src[row]), int(pos[row]), raw, why))
    counts = task.ledger(name)
    counts["dead"] += len(refused)
    counts["aggregated"] -= len(refused)

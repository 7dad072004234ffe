"""Stateless steps inside a task: a chunk in, a chunk out, and the records that could not go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError, ProgramError, RunError
from millstream.graph import nodes
from millstream.ops.chunks import Chunk, Int64, concat, flat
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.mixed import column_of, exact_columns, exactly, is_mixed, kind_of
from millstream.ops.records import DeadLetter, apply, dead_row, describe
from millstream.run.pairing import pairs_of


def stateless(node: nodes.Node, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """What a step makes of a chunk, and its dead letters."""
    match node:
        case nodes.Where() | nodes.Select():
            return _by_type(node, chunk)
        case nodes.Map():
            return apply(chunk, node.fn, node.name, node.schema)
        case nodes.Pairs():
            return pairs_of(node, chunk)
        case nodes.MapBatches():
            return _map_batches(node, chunk)
        case _:
            raise RunError(f"{node.name}: unknown step {node.kind}")


def with_columns(chunk: Chunk, missing: dict[str, pa.DataType]) -> Chunk:
    """The same records with null in columns that only others have."""
    table = chunk.table
    for name, kind in missing.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(chunk), kind))
    return chunk.with_table(table)


def _by_type(node: nodes.Where | nodes.Select, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """SQL over columns of one type each; records with mixed values are grouped by their types.

    A type on which an expression makes no sense costs the records that have it.
    """
    mixed = [field.name for field in chunk.table.schema if is_mixed(field.type)]
    if not mixed:
        return _evaluated(node, chunk)
    kinds = zip(
        *([_kind(v) for v in chunk.column(name).to_pylist()] for name in mixed), strict=True
    )
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(index)
    parts: list[tuple[Chunk, Int64]] = []
    dead: list[DeadLetter] = []
    for rows in groups.values():
        some = chunk.at(chunk.table.take(pa.array(rows)), np.array(rows))
        numbered = replace(some, window=np.array(rows))  # to find the order again
        try:
            found, failed = _evaluated(node, numbered.with_table(_narrowed(some.table, mixed)))
        except (ConfigError, pa.ArrowException) as error:
            dead.extend(dead_row(node.name, some, at, str(error)) for at in range(len(some)))
            continue
        assert found.window is not None
        parts.append((found, found.window))
        dead.extend(failed)
    if not parts:
        return chunk.take(np.zeros(0, np.int64)), dead
    origin = np.concatenate([at for _, at in parts])
    table = concat([found.table for found, _ in parts])
    order = np.argsort(origin, kind="stable")
    return chunk.at(table.take(pa.array(order)), origin[order]), dead


def _kind(value: Any) -> str:
    return "" if value is None else kind_of(value)


def _narrowed(table: pa.Table, names: list[str]) -> pa.Table:
    """Mixed columns as plain ones, where their values are of one type now."""
    for name in names:
        at = table.schema.get_field_index(name)
        column = column_of(table.column(at).to_pylist(), {})
        assert column is not None  # what has been packed can be packed
        table = table.set_column(at, table.schema.field(at).with_type(column.type), column)
    return table


def _evaluated(node: nodes.Where | nodes.Select, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    return _where(node, chunk) if isinstance(node, nodes.Where) else _select(node, chunk)


def _where(node: nodes.Where, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    try:
        mask = node.condition.evaluate(chunk.table)
    except ExpressionError:
        chunk, dead = computable(node, (node.condition,), chunk)
        mask = node.condition.evaluate(chunk.table)
    else:
        dead = []
    return chunk.take(np.asarray(mask.fill_null(False)).astype(np.bool_)), dead


def _select(node: nodes.Select, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    computed = tuple(item for item in node.items if item.name != "*")
    dead: list[DeadLetter] = []
    try:
        columns = _projected(node, chunk.table)
    except ExpressionError:
        chunk, dead = computable(node, computed, chunk)
        columns = _projected(node, chunk.table)
    # What is computed of exact values is exact, too: else its type would follow from the batch.
    exact = list(columns) if exact_columns(chunk.table) else []
    return chunk.with_table(exactly(columns, exact)), dead


def _projected(node: nodes.Select, table: pa.Table) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for item in node.items:
        if item.name == "*":
            columns.update({name: table.column(name) for name in table.column_names})
        else:
            columns[item.name] = item.evaluate(table)
    return columns


def computable(
    node: nodes.Node, items: tuple[Expression, ...], chunk: Chunk
) -> tuple[Chunk, list[DeadLetter]]:
    """Set aside the records on which an expression fails, found by halving."""
    bad: dict[int, str] = {}

    def search(start: int, stop: int) -> None:
        piece = chunk.table.slice(start, stop - start)
        try:
            for item in items:
                item.evaluate(piece)
        except ExpressionError as error:
            if stop - start == 1:
                bad[start] = str(error)
                return
            middle = (start + stop) // 2
            search(start, middle)
            search(middle, stop)

    search(0, len(chunk))
    dead = [dead_row(node.name, chunk, index, why) for index, why in bad.items()]
    keep = np.ones(len(chunk), np.bool_)
    keep[list(bad)] = False
    return chunk.take(keep), dead


def _map_batches(node: nodes.MapBatches, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """Rows keep their time when the function keeps their number; a column `__row` tells otherwise.

    The function gets `__row`, the number of each row, and may keep, drop or repeat rows with it.
    """
    numbered = chunk.table.append_column("__row", pa.array(np.arange(len(chunk))))
    try:
        result: Any = node.fn(numbered)
    except ProgramError:
        raise
    except BaseException as error:  # a user's function may raise anything
        why = describe(error)
        dead = [dead_row(node.name, chunk, index, why) for index in range(len(chunk))]
        return chunk.take(np.zeros(0, np.int64)), dead
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise RunError(
            f"{node.name}: map_batches must give an Arrow table, got {type(result).__name__}"
        )
    if "__row" in result.column_names:
        rows = np.asarray(flat(result.column("__row"))).astype(np.int64)
        result = result.drop_columns(["__row"])
    elif len(result) == len(chunk):
        rows = np.arange(len(chunk))
    else:
        raise RunError(
            f"{node.name}: map_batches got {len(chunk)} rows and gave {len(result)}; keep the "
            "column '__row' so that each row keeps its time, or keep the number of rows"
        )
    if len(rows) and (rows.min() < 0 or rows.max() >= len(chunk)):
        raise RunError(f"{node.name}: map_batches gave '__row' numbers it did not get")
    return chunk.at(result, rows), []

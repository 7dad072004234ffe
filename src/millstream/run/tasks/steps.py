"""Stateless steps inside a task: a chunk in, a chunk out, and the records that could not go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError, ProgramError, RunError
from millstream.graph import nodes
from millstream.ops.chunks import Chunk, Int64, concat, flat, numbers
from millstream.ops.codec import python_values
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.mixed import column_of, exact_columns, exactly, is_mixed, kind_of
from millstream.ops.records import DeadLetter, apply, dead_row, describe, without
from millstream.run.tasks.given import plain_rows, unreadable_rows
from millstream.run.tasks.pairing import pairs_of

_ALL = Expression("*", "*", frozenset(), None)
_VALUE = "value()"  # no name that anybody gives a column
_OF_ONE_TYPE = {"bool", "int", "large int", "float", "str", "bytes", "time", "local time", "date"}


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
    """SQL over columns of one type each, where the types of a chunk do not go with it as they are.

    Where types are known before the run, they go with the program. Here columns come from a
    function: records are grouped by the types of their values, and a type on which an expression
    makes no sense costs the records that have it, whatever the others are.
    """
    used = columns_used(_items(node), chunk)
    missing = [name for name in used if name not in chunk.table.column_names]
    if missing:
        whole, dead = _by_type(node, with_columns(chunk, dict.fromkeys(missing, pa.null())))
        if isinstance(node, nodes.Where):  # what is kept stays as it was
            whole = whole.with_table(whole.table.drop_columns(missing))
        return whole, dead
    if not any(is_mixed(chunk.table.schema.field(name).type) for name in used):
        try:
            return _evaluated(node, chunk)
        except (ConfigError, pa.ArrowException):
            pass
    parts: list[tuple[Chunk, Int64]] = []
    dead = []
    for rows in _by_kinds(chunk, used):
        some = chunk.at(chunk.table.take(pa.array(rows)), np.array(rows))
        numbered = replace(some, window=np.array(rows))  # to find the order again
        try:
            found, failed = _evaluated(node, numbered.with_table(_narrowed(some.table, used)))
        except (ConfigError, pa.ArrowException) as error:
            dead.extend(dead_row(node.name, some, at, str(error)) for at in range(len(some)))
            continue
        at = found.window
        assert at is not None
        if isinstance(node, nodes.Where):  # what is kept stays as it was
            found = found.with_table(chunk.table.take(pa.array(at)))
        parts.append((found, at))
        dead.extend(failed)
    if not parts:
        return chunk.take(np.zeros(0, np.int64)), dead
    origin = np.concatenate([at for _, at in parts])
    table = concat([found.table for found, _ in parts])
    order = np.argsort(origin, kind="stable")
    return chunk.at(table.take(pa.array(order)), origin[order]), dead


def computed(
    node: nodes.Node, item: Expression, chunk: Chunk
) -> tuple[Chunk, pa.Array, list[DeadLetter]]:
    """The value of an expression for every record, and the records for which it has none."""
    beside = replace(item, name=_VALUE)
    select = nodes.Select(name=node.name, inputs=node.inputs, items=(_ALL, beside))
    found, dead = _by_type(select, chunk)
    own = found.with_table(found.table.drop_columns([_VALUE]))
    return own, flat(found.table.column(_VALUE)), dead


def lacks(node: nodes.Node, chunk: Chunk) -> bool:
    """Whether a step names a column that no record here has."""
    if not isinstance(node, nodes.Where | nodes.Select):
        return False
    used = columns_used(_items(node), chunk)
    return any(name not in chunk.table.column_names for name in used)


def _items(node: nodes.Where | nodes.Select) -> tuple[Expression, ...]:
    return (node.condition,) if isinstance(node, nodes.Where) else node.items


def columns_used(items: Iterable[Expression], chunk: Chunk) -> list[str]:
    """The columns that expressions name, by the names that they have here.

    A record that a function made without one has null there. So have all of a chunk in which
    nobody has it, though the plan would refuse the name if it knew the columns.
    """
    there = chunk.table.column_names
    found = {name for item in items for name in item.columns}
    for name in found.difference(there):
        alike = [one for one in there if one.lower() == name.lower()]
        if alike:
            found.remove(name)
            found.update(alike)
    return sorted(found)


def _by_kinds(chunk: Chunk, names: list[str]) -> Iterable[list[int]]:
    """The rows of a chunk whose values in these columns are of the same types."""
    groups: dict[tuple[str, ...], list[int]] = {}
    columns = [map(_kind, python_values(chunk.column(name))) for name in names]
    for index, kind in enumerate(zip(*columns, strict=True)):
        groups.setdefault(kind, []).append(index)
    return groups.values()


def _kind(value: Any) -> str:
    if value is None:
        return ""
    kind = kind_of(value)
    if kind in _OF_ONE_TYPE:
        return kind
    return str(getattr(column_of([value], {}), "type", kind))  # lists and decimals have several


def _narrowed(table: pa.Table, names: list[str]) -> pa.Table:
    """Columns of values that are of one type now as columns of that type."""
    for name in names:
        at = table.schema.get_field_index(name)
        column = column_of(python_values(table.column(at)), {})
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
    return without(node.name, chunk, bad)


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
    bad = unreadable_rows(node.name, result)
    if "__row" in result.column_names:
        rows = numbers(result, "__row").astype(np.int64)
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
    lost = {int(rows[row]): why for row, why in bad.items()}
    good = ~np.isin(rows, list(lost))
    dead = [dead_row(node.name, chunk, row, why) for row, why in sorted(lost.items())]
    return chunk.at(plain_rows(node.name, result, good), rows[good]), dead

"""Find the columns of every stream, and refuse names that are not there.

Columns are known from the sources up to the first Python function without a schema; after that,
what a record lacks is found when it comes by.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.api.aggregates import Builtin
from millstream.api.computed import computed_name
from millstream.api.sinks import Parquet, Redis, Text
from millstream.api.sources import Delta
from millstream.api.sources.kafka import Kafka
from millstream.api.tables import Iceberg, Postgres
from millstream.errors import ConfigError, MillstreamError
from millstream.graph import nodes
from millstream.graph.changing import marks_changes
from millstream.operators.protocol import Columns, KeyedStep, Types
from millstream.ops.emitting.edges import MARK
from millstream.ops.expressions import Expression, ExpressionError, find_name
from millstream.ops.mixed import differ, wider
from millstream.ops.sql.nodes import Column
from millstream.ops.sql.types import TIMESTAMP, logical_type
from millstream.ops.times.fidelity import COLUMNS as FIDELITY
from millstream.ops.windows.preparing import TEXTS
from millstream.plan.answers import answer_types, typed_aggregates
from millstream.plan.snapshots import snapshot_columns
from millstream.plan.stages import Plan


def resolve_columns(plan: Plan) -> Plan:
    """Columns (and types, where they are known) at the output of every node."""
    columns: dict[str, Columns] = {}
    types: dict[str, Types] = {}
    exact: dict[str, dict[str, Any]] = {}
    for name in (name for names in plan.order for name in names):
        node = plan.node(name)
        have = _input_columns(node, columns)
        known = types.get(node.inputs[0].name, {}) if len(node.inputs) == 1 else {}
        if isinstance(node, nodes.Union):
            known = _united(node, types)
        if (aggs := typed_aggregates(node, known)) is not None:
            exact[name] = {"aggs": aggs}
            node = replace(node, **exact[name])
        _check(node, have, known, columns)
        if isinstance(node, KeyedStep):
            so_far = replace(plan, columns=columns, types=types)
            columns[node.name], types[node.name] = node.resolve(so_far.inputs_of(node))
        elif isinstance(node, nodes.Published) and plan.diverting(node):
            known_of = {one.name: columns[one.name] for one in plan.feeding(node)}
            first, alike = next(iter(known_of)), len({*known_of.values()}) == 1
            columns[node.name] = known_of[first] if alike else None
            types[node.name] = types[first] if alike and len(known_of) == 1 else {}
        else:
            columns[node.name], types[node.name] = _output(plan, node, have, known)
    made: dict[nodes.Node, nodes.Node] = {}
    for node in plan.nodes if exact else ():
        made[node] = nodes.over(node, made, **exact.get(node.name, {}))
    return replace(plan, columns=columns, types=types, nodes=tuple(made.values()) or plan.nodes)


def _input_columns(node: nodes.Node, columns: dict[str, Columns]) -> Columns:
    merged: dict[str, None] = {}
    for one in node.inputs:
        names = columns.get(one.name)  # not there yet: around a cycle
        if names is None:
            return None
        merged.update(dict.fromkeys(names))
    return tuple(merged)


def _united(node: nodes.Union, types: dict[str, Types]) -> Types:
    """The types of all columns of a union; a column that is of two is refused."""
    found: dict[str, tuple[pa.DataType, str]] = {}
    for one in node.inputs:
        for column, kind in types.get(one.name, {}).items():
            other, name = found.setdefault(column, (kind, one.name))
            if differ({kind, other}):
                raise ConfigError(
                    f"{node.name}: column {column!r} is {other} in {name!r} and {kind} in "
                    f"{one.name!r}; make them one type first, for example with "
                    f".select('*', 'CAST({column} AS ...) AS {column}')"
                )
            if kind != other and not pa.types.is_null(kind):
                found[column] = (wider(kind, other), name)
    return {column: kind for column, (kind, _) in found.items()}


def _check(node: nodes.Node, have: Columns, types: Types, columns: dict[str, Columns]) -> None:
    if isinstance(node, nodes.Sink | nodes.Update):
        _check_mark(node, columns)
    if isinstance(node, nodes.Update):
        return _check_updater(node, types, columns)
    if isinstance(node, KeyedStep):
        return _check_keyed(node, types, columns)
    if have is None:
        return
    match node:
        case nodes.Where():
            _check_expression(node, node.condition, have, types)
        case nodes.At(expr=expression) if expression is not None:
            _check_expression(node, expression, have, types)
            _check_zone(node, expression, have, types)
        case nodes.Select():
            for item in node.items:
                if item.name != "*":
                    _check_expression(node, item, have, types)
        case nodes.Pairs() | nodes.Process() | nodes.Windowed():
            for key in node.keys:
                _check_name(node, "key", key, have)
        case nodes.Sink():
            _check_sink(node, have, types)
    if isinstance(node, nodes.Windowed):
        for name, agg in node.aggs:
            for column in agg.columns:
                _check_name(node, f"{name}={agg}", column, have)
            if isinstance(agg, Builtin) and agg.numbers is not None:
                _check_number(node, f"{name}={agg}", agg.numbers, types)


def _check_keyed(node: KeyedStep, types: Types, columns: dict[str, Columns]) -> None:
    for number, one in enumerate(node.inputs):
        mine = columns.get(one.name)
        for what, column, numbers in node.needs(number) if mine is not None else ():
            _check_name(node, what, column, mine or ())
            if numbers:
                _check_number(node, what, column, types)


def _check_sink(node: nodes.Sink, have: tuple[str, ...], types: Types) -> None:
    match node.spec:
        case Parquet() as spec:
            for column in spec.folders:
                _check_name(node, "partition_by", column, (*have, "op"))
            if have and not set(have) - set(spec.folders):
                raise ConfigError(
                    f"{node.name}: partition_by names all columns, and nothing would be left to "
                    "write"
                )
        case Text():
            _check_text(node, "ms.Text", have, types)
        case Redis() | Delta() | Iceberg() | Postgres() as spec:
            for key in spec.columns:
                _check_name(node, "key", key, have)
        case Kafka() as spec:
            for what, names in (("key", spec.keys), ("headers", spec.header_columns)):
                for name in names:
                    _check_name(node, what, name, (*have, "op"))
            if spec.format in ("text", "bytes"):
                _check_text(node, f"format={spec.format!r}", _values_of(node, spec, have), types)


def _check_mark(node: nodes.Sink | nodes.Update, columns: dict[str, Columns]) -> None:
    """Refuse changes of records that have the column by which changes are marked."""
    for one in node.inputs:
        if marks_changes(one) and MARK in (columns.get(one.name) or ()):
            raise ConfigError(
                f"{node.name}: records of {one.name!r} have a column {MARK!r} of their own, and "
                "changes are marked with one of that name; give it another name, for example in "
                ".select()"
            )


def _check_zone(node: nodes.At, expression: Any, have: tuple[str, ...], types: Types) -> None:
    """Refuse a zone for moments: it would be left out, and the times be off by hours."""
    if node.zone is None:
        return
    try:
        kind = expression.infer(lambda name: logical_type(types[find_name(name, have)]))
    except (KeyError, MillstreamError):  # not known before records come
        return
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        raise ConfigError(
            f"{node.name}: at(zone={node.zone!r}) is for texts, dates and times without an offset; "
            f"{expression.sql!r} is a timestamp, a moment of its own. If its clock is that of "
            f"the zone, write to_utc_timestamp(..., {node.zone!r}), else leave zone= out"
        )


def _values_of(node: nodes.Node, spec: Kafka, have: tuple[str, ...]) -> tuple[str, ...]:
    """What records of a topic have for a value: neither key nor header, if there is such."""
    marked = marks_changes(node.inputs[0]) and spec.changes is None
    left = [one for one in (*have, *(["op"] if marked else [])) if one not in spec.header_columns]
    return tuple(one for one in left if one not in spec.keys) or tuple(left)


def _check_text(node: nodes.Node, who: str, have: tuple[str, ...], types: Types) -> None:
    if len(have) != 1:
        raise ConfigError(
            f"{node.name}: {who} writes one column, and there are {len(have)} "
            f"({', '.join(have)}); choose one with select()"
        )
    kind = types.get(have[0], pa.string())
    if not any(is_line(kind) for is_line in (*TEXTS, pa.types.is_null)):
        raise ConfigError(
            f"{node.name}: {who} writes texts or bytes, and {have[0]!r} is {kind}; make a text "
            f"of it, like select('CAST({have[0]} AS STRING) AS line')"
        )


def _check_number(node: nodes.Node, what: str, column: str, types: Types) -> None:
    if _not_a_number(types.get(column)):
        raise ConfigError(
            f"{node.name}: {what} needs numbers, but {column!r} is {types[column]}; "
            f"cast it first with .select('*', 'CAST({column} AS DOUBLE) AS ...')"
        )


def _check_updater(node: nodes.Update, types: Types, columns: dict[str, Columns]) -> None:
    for one, keys in zip(node.inputs, node.keys, strict=True):
        have = columns.get(one.name)
        for key in keys if have is not None else ():
            _check_name(node, "key", key, have or ())
            if _holds_map(types.get(key)):
                raise ConfigError(
                    f"{node.name}: key {key!r} is {types[key]}, and a map has no order in which "
                    "two of them are the same key; take a column out of it first with .select(...)"
                )


def _holds_map(kind: pa.DataType | None) -> bool:
    if kind is None or not pa.types.is_nested(kind):
        return False
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_map(kind) or any(map(_holds_map, inside))


def _not_a_number(kind: pa.DataType | None) -> bool:
    return kind is not None and not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def _check_expression(
    node: nodes.Node, expression: Expression, have: Sequence[str], types: Types
) -> None:
    """Refuse names that are not there, and types that an expression has no meaning for."""
    try:
        expression.check(have)
        expression.infer(lambda name: logical_type(types[find_name(name, have)]))
    except ConfigError as error:
        raise ConfigError(f"{node.name}: {error}") from None
    except (KeyError, ExpressionError):  # not known before records come
        return


def _check_name(node: nodes.Node, what: str, name: str, have: Sequence[str]) -> None:
    if name not in have:
        near = difflib.get_close_matches(name, have, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if computed_name(name) is not None:
            before = f'.with_column("c", "{name}") before, and "c" here'
            way = before if isinstance(node, KeyedStep) else f'"({name})"'
            hint = f"to compute it, write {way}; "
        raise ConfigError(
            f"{node.name}: {what}: there is no column {name!r}; {hint}columns: {', '.join(have)}"
        )


def _output(plan: Plan, node: nodes.Node, have: Columns, types: Types) -> tuple[Columns, Types]:
    match node:
        case nodes.Source():
            schema = plan.formats[node.name].schema
            if not len(schema):  # a generator that does not say what it yields
                return None, {}
            return tuple(schema.names), {field.name: field.type for field in schema}
        case nodes.Select():
            return _selected(node, have, types)
        case nodes.Map(schema=pa.Schema() as schema) | nodes.Process(schema=pa.Schema() as schema):
            return tuple(schema.names), {field.name: field.type for field in schema}
        case nodes.Map() | nodes.MapBatches() | nodes.Process() | nodes.Update():
            return None, {}
        case nodes.Published() | nodes.Pairs():
            return ("key", "value"), {}
        case nodes.Windowed():
            bounds = () if node.window.span.whole else ("window_start", "window_end")
            marks = ("revision", "final") if node.emission.mode == "early" else ()
            marks = (*marks, *(FIDELITY if node.fidelity else ()))
            if node.job is not None:
                return ("key", "value", *bounds, *marks), {}
            if node.reducer is not None:
                return None, {}
            if node.emission.mode == "snapshot":
                return snapshot_columns(node), {}
            names = (*node.keys, *bounds, *(name for name, _ in node.aggs), *marks)
            return tuple(dict.fromkeys(names)), {
                **{key: types[key] for key in node.keys if key in types},
                **dict.fromkeys(bounds, TIMESTAMP),
                **answer_types(node.aggs, types),
            }
        case _:
            return have, types


def _selected(node: nodes.Select, have: Columns, types: Types) -> tuple[Columns, Types]:
    names: dict[str, None] = {}
    for item in node.items:
        if item.name == "*":
            if have is None:
                return None, {}
            names.update(dict.fromkeys(have))
        else:
            names[item.name] = None
    kept = {n: types[n] for n in names if n in types and _passes_through(node, n)}
    return tuple(names), {**kept, **_computed(node, have, types)}


def _computed(node: nodes.Select, have: Columns, types: Types) -> Types:
    """The types of what expressions compute, where those of all they look at are known."""

    def type_of(name: str) -> pa.DataType:
        return logical_type(types[find_name(name, have or ())])

    found = {}
    for item in node.items:
        if item.node is not None and not _passes_through(node, item.name):
            # What cannot be computed is told where it is computed.
            with suppress(MillstreamError, KeyError):
                found[item.name] = item.infer(type_of)
    return found


def _passes_through(node: nodes.Select, name: str) -> bool:
    """Whether a column comes out as it went in."""
    computed = [item for item in node.items if item.name == name]
    return all(isinstance(item.node, Column) and item.node.name == name for item in computed)

"""SQL expressions in Spark's dialect, for `where` and `select`.

On the driver, `parse_condition` and `parse_projection` parse the SQL with sqlglot and lower it to a
tree of small frozen nodes. The tree travels, pickled, to the Python workers, where a stage's fused
stateless chain evaluates it over Arrow batches; workers never load the parser, and nothing is ever
turned into code.

The meaning is Spark's in ANSI mode: NULL is unknown, a value that cannot be computed is an error.
Branches are only evaluated for the rows that reach them, as in Spark: `CASE`, `IF`, `COALESCE` and
the right side of `AND` and `OR` may rely on what was tested before.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.ops.functions import (
    CAST_TARGETS,
    FUNCTIONS,
    TIMESTAMP,
    TRUNC_UNITS,
    DataType,
    Datum,
    ExpressionError,
    TypeMismatch,
    apply_scalar,
    apply_vector,
    as_array,
    bounds,
    cast_datum,
    cast_value,
    common_type,
    compile_regex,
    like_parts,
    logical_type,
    require_castable,
    type_name,
)

if TYPE_CHECKING:
    from sqlglot import expressions as exp

__all__ = ["Expression", "ExpressionError", "parse_condition", "parse_projection"]

ELSEWHERE = "use .map(fn) for anything else"


# --- what a tree is evaluated on ---------------------------------------------------------------


def find_name(wanted: str, names: Sequence[str], what: str = "column") -> str:
    """The name that `wanted` means: the exact one, else the only one that differs by case."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise ConfigError(f"{what} {wanted!r} is ambiguous: {', '.join(map(repr, alike))}")
    raise ConfigError(
        f"unknown {what} {wanted!r}; there are {', '.join(map(repr, names)) or 'none'}"
        + _suggestion(wanted, names)
    )


def _suggestion(wanted: str, names: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wanted.lower(), by_lower, n=3)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""


class Frame:
    """A batch: its columns as plain arrays of Spark's types, converted once."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._columns: dict[str, Datum] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def stored(self, name: str) -> Datum:
        chunks = self.table.column(find_name(name, self.table.column_names))
        return chunks.chunk(0) if chunks.num_chunks == 1 else _combined(chunks)

    def column(self, name: str) -> Datum:
        if name not in self._columns:
            self._columns[name] = _logical(self.stored(name))
        return self._columns[name]

    def filter(self, mask: Datum) -> Frame:
        return Frame(self.table.filter(as_array(mask, len(self))))


def _combined(chunks: Any) -> Datum:
    combined = chunks.combine_chunks()
    return pa.concat_arrays(combined.chunks) if hasattr(combined, "chunks") else combined


def _logical(stored: Datum) -> Datum:
    wanted = logical_type(stored.type)
    if stored.type == wanted:
        return stored
    try:
        # Nanoseconds are cut to Spark's microseconds; everything else must fit.
        return stored.cast(wanted, safe=wanted != TIMESTAMP)
    except pa.ArrowInvalid as error:
        raise ExpressionError(str(error)) from None


class Row:
    """One row of plain Python values, typed by a schema or by the values themselves."""

    def __init__(self, values: Mapping[str, object], schema: pa.Schema | None) -> None:
        self.values = values
        self.schema = schema

    def type_of(self, name: str) -> DataType:
        if self.schema is not None:
            return schema_types(self.schema)(name)
        return _type_of_value(self.values[find_name(name, list(self.values))])

    def value(self, name: str) -> Any:
        value = self.values[find_name(name, list(self.values))]
        return _row_value(value, self.type_of(name))


TypeOf = Callable[[str], DataType]


def schema_types(schema: pa.Schema) -> TypeOf:
    return lambda name: logical_type(schema.field(find_name(name, schema.names)).type)


def _type_of_value(value: object) -> DataType:
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.int64()
    if isinstance(value, datetime):
        return TIMESTAMP
    return logical_type(pa.scalar(value).type)


def _row_value(value: Any, of: DataType) -> Any:
    if value is None:
        return None
    if of == TIMESTAMP:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if pa.types.is_floating(of):
        return float(value)
    return dict(value) if pa.types.is_map(of) else value


# --- the tree ----------------------------------------------------------------------------------


class Node(Protocol):
    """A node of an expression: its type, its values over a batch, its value for one row."""

    def infer(self, type_of: TypeOf) -> DataType: ...
    def vector(self, frame: Frame) -> Datum: ...
    def row(self, row: Row) -> Any: ...


@dataclass(frozen=True)
class Column:
    name: str

    def infer(self, type_of: TypeOf) -> DataType:
        return type_of(self.name)

    def vector(self, frame: Frame) -> Datum:
        return frame.column(self.name)

    def row(self, row: Row) -> Any:
        return row.value(self.name)


@dataclass(frozen=True)
class Field:
    """`of.name`, a field of a struct."""

    of: Node
    name: str

    def infer(self, type_of: TypeOf) -> DataType:
        struct = self.of.infer(type_of)
        return logical_type(struct.field(_field_name(struct, self.name)).type)

    def vector(self, frame: Frame) -> Datum:
        struct = self.of.vector(frame)
        return _logical(pc.struct_field(struct, _field_name(struct.type, self.name)))

    def row(self, row: Row) -> Any:
        struct = self.of.infer(row.type_of)
        value = self.of.row(row)
        if value is None:
            return None
        return _row_value(value[_field_name(struct, self.name)], self.infer(row.type_of))


def _field_name(struct: DataType, wanted: str) -> str:
    if not pa.types.is_struct(struct):
        raise TypeMismatch(f".{wanted} needs a struct, not {type_name(struct)}")
    return find_name(wanted, [field.name for field in struct], "field")


@dataclass(frozen=True)
class Literal:
    value: Any
    type: DataType

    def infer(self, type_of: TypeOf) -> DataType:
        return self.type

    def vector(self, frame: Frame) -> Datum:
        # Without rows there is nothing to compute, so a constant that fails must not fail.
        if not len(frame):
            return pa.array([], self.type)
        return pa.scalar(self.value, self.type)

    def row(self, row: Row) -> Any:
        return self.value


@dataclass(frozen=True)
class Call:
    """A function of `functions.FUNCTIONS`; `params` are its arguments that must be constants."""

    function: str
    args: tuple[Node, ...]
    params: tuple[object, ...] = ()

    def infer(self, type_of: TypeOf) -> DataType:
        types = tuple(arg.infer(type_of) for arg in self.args)
        return FUNCTIONS[self.function].coerce(types)[1]

    def vector(self, frame: Frame) -> Datum:
        args = [arg.vector(frame) for arg in self.args]
        return apply_vector(FUNCTIONS[self.function], args, self.params)

    def row(self, row: Row) -> Any:
        types = tuple(arg.infer(row.type_of) for arg in self.args)
        values = [arg.row(row) for arg in self.args]
        return apply_scalar(FUNCTIONS[self.function], types, values, self.params)


@dataclass(frozen=True)
class Cast:
    of: Node
    to: DataType
    lenient: bool = False

    def infer(self, type_of: TypeOf) -> DataType:
        require_castable(self.of.infer(type_of), self.to)
        return self.to

    def vector(self, frame: Frame) -> Datum:
        return cast_datum(self.of.vector(frame), self.to, self.lenient)

    def row(self, row: Row) -> Any:
        value, source = self.of.row(row), self.of.infer(row.type_of)
        try:
            return cast_value(value, source, self.to)
        except ExpressionError:
            if self.lenient:
                return None
            raise


@dataclass(frozen=True)
class Logic:
    """`AND`, or `OR`: the right side matters unless the left is FALSE, or TRUE."""

    left: Node
    right: Node
    disjunction: bool = False

    def infer(self, type_of: TypeOf) -> DataType:
        for side in (self.left, self.right):
            FUNCTIONS["not"].coerce((side.infer(type_of),))
        return pa.bool_()

    def vector(self, frame: Frame) -> Datum:
        left = _truth(self.left.vector(frame))
        undecided = pc.invert(left) if self.disjunction else left
        right = _truth(evaluate_where(self.right, frame, pc.fill_null(undecided, True)))
        return (pc.or_kleene if self.disjunction else pc.and_kleene)(left, right)

    def row(self, row: Row) -> Any:
        left = _row_truth(self.left, row)
        if left is self.disjunction:
            return left
        right = _row_truth(self.right, row)
        return right if left is not None or right is self.disjunction else None


def _truth(of: Datum) -> Datum:
    (wanted,), _ = FUNCTIONS["not"].coerce((of.type,))
    return cast_datum(of, wanted)


def _row_truth(of: Node, row: Row) -> bool | None:
    source = of.infer(row.type_of)
    (wanted,), _ = FUNCTIONS["not"].coerce((source,))
    truth: bool | None = cast_value(of.row(row), source, wanted)
    return truth


@dataclass(frozen=True)
class Case:
    branches: tuple[tuple[Node, Node], ...]
    default: Node

    def infer(self, type_of: TypeOf) -> DataType:
        for condition, _ in self.branches:
            FUNCTIONS["not"].coerce((condition.infer(type_of),))
        values = [value for _, value in self.branches]
        return common_type(value.infer(type_of) for value in (*values, self.default))

    def vector(self, frame: Frame) -> Datum:
        pending: Datum = pa.scalar(True)
        hits, values = [], []
        for condition, value in self.branches:
            holds = _truth(evaluate_where(condition, frame, pending))
            hits.append(pc.and_(pending, pc.fill_null(holds, False)))
            values.append(evaluate_where(value, frame, hits[-1]))
            pending = pc.and_(pending, pc.invert(hits[-1]))
        values.append(evaluate_where(self.default, frame, pending))
        return _choose(hits, values)

    def row(self, row: Row) -> Any:
        for condition, value in self.branches:
            if _row_truth(condition, row):
                return self._row_value(value, row)
        return self._row_value(self.default, row)

    def _row_value(self, value: Node, row: Row) -> Any:
        return cast_value(value.row(row), value.infer(row.type_of), self.infer(row.type_of))


@dataclass(frozen=True)
class Coalesce:
    args: tuple[Node, ...]

    def infer(self, type_of: TypeOf) -> DataType:
        return common_type(arg.infer(type_of) for arg in self.args)

    def vector(self, frame: Frame) -> Datum:
        pending: Datum = pa.scalar(True)
        hits, values = [], []
        for arg in self.args:
            values.append(evaluate_where(arg, frame, pending))
            hits.append(pc.and_(pending, pc.is_valid(values[-1])))
            pending = pc.and_(pending, pc.invert(hits[-1]))
        return _choose(hits[:-1], values)

    def row(self, row: Row) -> Any:
        for arg in self.args:
            value = arg.row(row)
            if value is not None:
                return cast_value(value, arg.infer(row.type_of), self.infer(row.type_of))
        return None


def _choose(hits: Sequence[Datum], values: Sequence[Datum]) -> Datum:
    """For every row the value of its first hit, else the last value."""
    wanted = common_type(value.type for value in values)
    if any(value.type != wanted for value in values):
        # A value that no row takes must not fail to convert.
        taken = [*hits, pc.invert(reduce(pc.or_, hits, pa.scalar(False)))]
        values = [_cast_taken(v, hit, wanted) for v, hit in zip(values, taken, strict=True)]
    chosen = values[-1]
    for hit, value in zip(reversed(hits), reversed(values[:-1]), strict=True):
        chosen = pc.if_else(hit, value, chosen)
    return chosen


def _cast_taken(value: Datum, hit: Datum, wanted: DataType) -> Datum:
    if value.type != wanted:
        value = pc.if_else(hit, value, pa.scalar(None, value.type))
    return cast_datum(value, wanted)


def evaluate_where(node: Node, frame: Frame, mask: Datum) -> Datum:
    """`node` where `mask` is true; elsewhere anything.

    Evaluating all rows is cheapest and mostly works; only when some row fails are the rows taken
    out that must not be evaluated.
    """
    try:
        return node.vector(frame)
    except ExpressionError:
        mask = as_array(mask, len(frame))
        if pc.all(mask, min_count=0).as_py():
            raise
    values = as_array(node.vector(frame.filter(mask)), pc.sum(mask).as_py())
    ranks = pc.subtract(pc.cumulative_sum(mask.cast(pa.int64())), 1)
    return values.take(pc.if_else(mask, ranks, pa.scalar(None, pa.int64())))


# --- the public object -------------------------------------------------------------------------


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `name` is "*" for all columns, which has no value of its own."""

    sql: str
    name: str
    columns: frozenset[str]
    node: Node | None
    condition: bool = False

    def check(self, schema: pa.Schema | Sequence[str]) -> None:
        """Raise a ConfigError for unknown columns and, given a schema, for types that clash."""
        names = schema.names if isinstance(schema, pa.Schema) else list(schema)
        try:
            for column in sorted(self.columns):
                find_name(column, names)
        except ConfigError as error:
            raise ConfigError(f"in {self.sql!r}: {error}") from None
        if isinstance(schema, pa.Schema) and self.node is not None:
            self.type(schema)

    def type(self, schema: pa.Schema) -> DataType:
        """The type of the values that `evaluate` gives for tables of `schema`."""
        node = self._require_node()
        if isinstance(node, Column) and not self.condition:
            return schema.field(find_name(node.name, schema.names)).type
        return self._reported(lambda: self._checked(node.infer(schema_types(schema))))

    def evaluate(self, table: pa.Table) -> pa.Array:
        """The value for every row; a condition keeps a row where this is TRUE, not NULL."""
        frame = Frame(table)
        node = self._require_node()
        return self._reported(lambda: self._evaluate(node, frame))

    def evaluate_row(self, row: Mapping[str, object], schema: pa.Schema | None = None) -> object:
        """The value for one row, computed a second, slow way: the oracle for `evaluate`.

        Without a `schema` an int is a bigint, a float a double, and None of no type.
        """
        view = Row(row, schema)
        node = self._require_node()
        return self._reported(lambda: self._evaluate_row(node, view))

    def _evaluate(self, node: Node, frame: Frame) -> Datum:
        if isinstance(node, Column) and not self.condition:
            return frame.stored(node.name)  # as it is, with its storage type
        out = as_array(node.vector(frame), len(frame))
        if self._checked(out.type) != out.type:
            return cast_datum(out, pa.bool_())
        return out

    def _evaluate_row(self, node: Node, row: Row) -> object:
        self._checked(node.infer(row.type_of))
        return node.row(row)

    def _checked(self, of: DataType) -> DataType:
        if not self.condition:
            return of
        if of not in (pa.bool_(), pa.null()):
            raise TypeMismatch(f"a condition must be true or false, not {type_name(of)}")
        return pa.bool_()

    def _require_node(self) -> Node:
        if self.node is None:
            raise ConfigError("* stands for all columns: it has no value of its own")
        return self.node

    def _reported(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except ExpressionError as error:
            raise ExpressionError(f"in {self.sql!r}: {error}") from None
        except (TypeMismatch, ConfigError) as error:
            raise ConfigError(f"in {self.sql!r}: {error}") from None


# --- parsing -----------------------------------------------------------------------------------


def parse_condition(sql: str) -> Expression:
    """The condition of a `where`."""
    node = _parse(sql, 0, sql)
    if node.key in ("alias", "star"):
        raise ConfigError(f"cannot use {sql!r} as a condition: it must be true or false")
    return replace(_lowered(node, sql), condition=True)


def parse_projection(sql: str) -> list[Expression]:
    """The items of a select list; usually there is one."""
    return [_projection(sql[start:end], start, sql) for start, end in _items(sql)]


def _projection(text: str, offset: int, whole: str) -> Expression:
    node = _parse(text, offset, whole)
    text = text.strip()
    if node.key == "star" and not any(node.args.values()):
        return Expression(text, "*", frozenset(), None)
    if node.key != "alias":
        return _lowered(node, text)
    expression = _lowered(node.this, text)
    return replace(expression, name=node.alias)


def _items(sql: str) -> list[tuple[int, int]]:
    """Where the items of a select list start and end: between the commas outside brackets."""
    depth, starts, ends = 0, [0], []
    for token in _tokens(sql):
        if token.token_type.name in ("L_PAREN", "L_BRACKET", "L_BRACE"):
            depth += 1
        elif token.token_type.name in ("R_PAREN", "R_BRACKET", "R_BRACE"):
            depth -= 1
        elif token.token_type.name == "COMMA" and depth == 0:
            ends.append(token.start)
            starts.append(token.end + 1)
    return list(zip(starts, [*ends, len(sql)], strict=True))


def _tokens(sql: str) -> list[Any]:
    from sqlglot import tokenize
    from sqlglot.errors import TokenError

    try:
        return tokenize(sql, read="spark")
    except TokenError as error:
        raise ConfigError(f"cannot parse {sql!r}: {error}, is a quote not closed?") from None


def _parse(text: str, offset: int, whole: str) -> exp.Expr:
    from sqlglot import expressions as exp
    from sqlglot import parse_one
    from sqlglot.errors import ParseError

    if not text.strip():
        raise ConfigError(f"cannot parse {whole!r}: empty expression at position {offset + 1}")
    _tokens(text)
    try:
        # Not as a statement: `comment` and `set` are names of columns too.
        return parse_one(text, read="spark", into=exp.Expr)
    except ParseError as error:
        found = error.errors[0]
        line_start = sum(len(line) for line in text.splitlines(True)[: (found["line"] or 1) - 1])
        position = offset + line_start + (found["col"] or 1)
        wrong = _plain(str(found["description"]))
        raise ConfigError(
            f"cannot parse {whole!r}: {wrong} near {found['highlight']!r} at position {position}"
        ) from None


def _plain(description: str) -> str:
    """sqlglot's message without its class names."""
    if description.startswith("Required keyword"):
        return "something is missing"
    return description.replace("Invalid expression / Unexpected token", "unexpected text")


# --- lowering ----------------------------------------------------------------------------------
# Tables are keyed by sqlglot's name of a node, so that workers need not import sqlglot.

# The function each node stands for, and the node's arguments in the function's order.
_CALLS: dict[str, tuple[str, ...]] = {
    "add": ("+", "this", "expression"),
    "sub": ("-", "this", "expression"),
    "mul": ("*", "this", "expression"),
    "div": ("/", "this", "expression"),
    "mod": ("%", "this", "expression"),
    "intdiv": ("div", "this", "expression"),
    "negative": ("negative", "this"),
    "eq": ("=", "this", "expression"),
    "neq": ("<>", "this", "expression"),
    "gt": (">", "this", "expression"),
    "gte": (">=", "this", "expression"),
    "lt": ("<", "this", "expression"),
    "lte": ("<=", "this", "expression"),
    "nullsafeeq": ("<=>", "this", "expression"),
    "not": ("not", "this"),
    "isnan": ("isnan", "this"),
    "greatest": ("greatest", "this", "expressions"),
    "least": ("least", "this", "expressions"),
    "abs": ("abs", "this"),
    "floor": ("floor", "this"),
    "ceil": ("ceil", "this"),
    "sqrt": ("sqrt", "this"),
    "exp": ("exp", "this"),
    "ln": ("ln", "this"),
    "pow": ("power", "this", "expression"),
    "sign": ("sign", "this"),
    "upper": ("upper", "this"),
    "lower": ("lower", "this"),
    "length": ("length", "this"),
    "substring": ("substring", "this", "start", "length"),
    "concat": ("concat", "expressions"),
    "dpipe": ("concat", "this", "expression"),
    "replace": ("replace", "this", "expression", "replacement"),
    "startswith": ("startswith", "this", "expression"),
    "endswith": ("endswith", "this", "expression"),
    "contains": ("contains", "this", "expression"),
    "strposition": ("instr", "this", "substr"),
    "splitpart": ("split_part", "this", "delimiter", "part_index"),
    "regexplike": ("rlike", "this", "expression"),
    "regexpextract": ("regexp_extract", "this", "expression", "group"),
    "regexpreplace": ("regexp_replace", "this", "expression", "replacement"),
    "year": ("year", "this"),
    "quarter": ("quarter", "this"),
    "month": ("month", "this"),
    "day": ("day", "this"),
    "dayofmonth": ("day", "this"),
    "dayofyear": ("dayofyear", "this"),
    "hour": ("hour", "this"),
    "minute": ("minute", "this"),
    "second": ("second", "this"),
    "unixseconds": ("unix_seconds", "this"),
    "unixmillis": ("unix_millis", "this"),
    "unixmicros": ("unix_micros", "this"),
    "arraysize": ("size", "this"),
}
# Functions that sqlglot does not know, with the number of their arguments.
_ANONYMOUS = {"isnull": 1, "isnotnull": 1, "btrim": 1} | dict.fromkeys(
    ("timestamp_seconds", "timestamp_millis", "timestamp_micros"), 1
)
_TYPES = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "DATE": pa.date32(),
}
_TYPE_FUNCTIONS = {"bigint": "BIGINT", "tinyint": "TINYINT", "smallint": "SMALLINT"}
# What users can write, for suggestions.
_SUPPORTED = sorted(
    {name for name in FUNCTIONS if name.isidentifier()} - {"in", "not", "element", "negative"}
    | {*_ANONYMOUS, *_TYPE_FUNCTIONS, "coalesce", "nullif", "ifnull", "nvl", "nvl2", "if", "cast"}
    | {"try_cast", "ceiling", "pow", "substr", "char_length", "regexp_like", "dayofmonth", "mod"}
    | {"to_date", "to_timestamp", "locate", "position", "extract", "signum"}
)
# Arguments by which sqlglot notes the dialect's habits; they say nothing the user wrote.
_HABITS = {"safe", "typed", "ignore_nulls", "coalesce", "null_if_pos_overflow", "_type", "negate"}
_NULL = Literal(None, pa.null())


def _lowered(node: exp.Expr, sql: str) -> Expression:
    try:
        lowered = _lower(node)
    except _Unsupported as error:
        raise ConfigError(f"cannot use {sql.strip()!r}: {_named(error, sql)}") from None
    except (ExpressionError, TypeMismatch, ConfigError) as error:
        raise ConfigError(f"cannot use {sql.strip()!r}: {error}") from None
    columns = frozenset(column.parts[0].name for column in _columns_of(node))
    plain = node.key in ("column", "dot")
    return Expression(sql, node.name if plain else sql.strip(), columns, lowered)


def _columns_of(node: exp.Expr) -> Iterable[Any]:
    return (each for each in node.walk() if each.key == "column")


def _lower(node: exp.Expr) -> Node:
    special = _SPECIAL.get(node.key)
    if special is not None:
        lowered = special(node)
    elif node.key in _CALLS:
        function, *keys = _CALLS[node.key]
        _only(node, *keys)
        lowered = _call(function, *_arguments(node, keys))
    else:
        raise _unsupported(node)
    return Call("not", (lowered,)) if node.args.get("negate") else lowered


def _arguments(node: exp.Expr, keys: Sequence[str]) -> Iterable[Node]:
    for key in keys:
        found = node.args.get(key)
        for each in found if isinstance(found, list) else [found]:
            if each is not None:
                yield _lower(each.this if each.key == "tsordstodate" and key == "this" else each)


def _call(function: str, *args: Node, params: tuple[object, ...] = ()) -> Call:
    """A call whose constant patterns are known to be good."""
    pattern = args[1] if len(args) > 1 else None
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        if function in ("rlike", "regexp_extract", "regexp_replace"):
            compile_regex(pattern.value)
        elif function == "like":
            like_parts(pattern.value, str(params[0]))
    return Call(function, args, params)


def _only(node: exp.Expr, *keys: str) -> None:
    """Refuse arguments that would be silently ignored."""
    extra = [key for key, value in node.args.items() if value and key not in {*keys, *_HABITS}]
    if extra:
        raise ConfigError(f"{node.key} with {', '.join(extra)} is not supported; {ELSEWHERE}")


class _Unsupported(ConfigError):
    """A function that is not supported, before it is known what the user called it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unsupported function {names[0]!r}")
        self.names = names


def _unsupported(node: exp.Expr) -> ConfigError:
    if node.key == "anonymous":
        return _Unsupported([node.name.lower()])
    if hasattr(node, "sql_names"):
        return _Unsupported([name.lower() for name in node.sql_names()])
    return ConfigError(f"unsupported syntax {node.key!r}; {ELSEWHERE}")


def _named(unsupported: _Unsupported, sql: str) -> str:
    """sqlglot keeps one name for functions that have several; look for the one in the text."""
    called = [name.lower() for name in re.findall(r"(\w+)\s*\(", sql)]
    known = [name for name in called if name in unsupported.names]
    strange = [name for name in called if name not in _SUPPORTED]
    name = [*known, *strange, *unsupported.names][0]
    return f"unsupported function {name!r}{_suggestion(name, _SUPPORTED)}; {ELSEWHERE}"


def _anonymous(node: exp.Expr) -> Node:
    name, given = node.name.lower(), node.args.get("expressions") or []
    if name in _TYPE_FUNCTIONS and len(given) == 1:
        return Cast(_lower(given[0]), _TYPES[_TYPE_FUNCTIONS[name]])
    if name not in _ANONYMOUS:
        raise _unsupported(node)
    if len(given) != _ANONYMOUS[name]:
        raise ConfigError(f"{name} takes {_ANONYMOUS[name]} argument, not {len(given)}")
    args = tuple(map(_lower, given))
    if name == "isnotnull":
        return Call("not", (Call("isnull", args),))
    return Call("trim", (*args, Literal(" ", pa.string()))) if name == "btrim" else Call(name, args)


def _column(node: exp.Expr) -> Node:
    if node.this.key == "star":
        raise ConfigError("* stands alone in a select list")
    first, *fields = (part.name for part in node.parts)  # type: ignore[attr-defined]
    lowered: Node = Column(first)
    for name in fields:
        lowered = Field(lowered, name)
    return lowered


def _dot(node: exp.Expr) -> Node:
    if node.expression.key != "identifier":
        raise _unsupported(node.expression)
    return Field(_lower(node.this), node.expression.name)


def _literal(node: exp.Expr) -> Node:
    return Literal(node.name, pa.string()) if node.is_string else _number(node.name)


def _number(text: str) -> Literal:
    if text.lstrip("-").isdigit():
        for of in (pa.int32(), pa.int64()):
            if bounds(of)[0] <= int(text) <= bounds(of)[1]:
                return Literal(int(text), of)
        raise ConfigError(f"{text} does not fit in a bigint")
    return Literal(float(text), pa.float64())


def _neg(node: exp.Expr) -> Node:
    if node.this.key == "literal" and not node.this.is_string:
        return _number("-" + node.this.name)  # -9223372036854775808 has no positive counterpart
    return Call("negative", (_lower(node.this),))


def _constant_int(node: exp.Expr | None, what: str) -> int:
    lowered = None if node is None else _lower(node)
    if not isinstance(lowered, Literal) or not isinstance(lowered.value, int):
        raise ConfigError(f"{what} must be a whole number")
    return lowered.value


def _in(node: exp.Expr) -> Node:
    _only(node, "this", "expressions")
    members = node.args.get("expressions") or []
    if not members:
        raise ConfigError("IN needs a list of values")
    return Call("in", tuple(map(_lower, [node.this, *members])))


def _between(node: exp.Expr) -> Node:
    _only(node, "this", "low", "high")
    of = _lower(node.this)
    low, high = _lower(node.args["low"]), _lower(node.args["high"])
    return Logic(Call(">=", (of, low)), Call("<=", (of, high)))


def _is(node: exp.Expr) -> Node:
    of = _lower(node.this)
    if node.expression.key == "null":
        return Call("isnull", (of,))
    if node.expression.key != "boolean":
        raise _unsupported(node)
    return Call("<=>", (of, _lower(node.expression)))


def _like(node: exp.Expr, escape: str = "\\") -> Node:
    sides = [_lower(node.this), _lower(node.expression)]
    if node.key == "ilike":
        sides = [Call("lower", (side,)) for side in sides]
        if isinstance(pattern := _lower(node.expression), Literal):
            sides[1] = Literal(str(pattern.value).lower(), pa.string())
    return _call("like", *sides, params=(escape,))


def _escape(node: exp.Expr) -> Node:
    if node.this.key not in ("like", "ilike") or len(node.expression.name) != 1:
        raise ConfigError("ESCAPE takes one character, after a LIKE pattern")
    lowered = _like(node.this, node.expression.name)
    return Call("not", (lowered,)) if node.this.args.get("negate") else lowered


def _case(node: exp.Expr) -> Node:
    _only(node, "this", "ifs", "default")
    subject = None if node.this is None or not node.args.get("this") else _lower(node.this)
    branches = []
    for each in node.args["ifs"]:
        condition = _lower(each.this)
        if subject is not None:
            condition = Call("=", (subject, condition))
        branches.append((condition, _lower(each.args["true"])))
    default = node.args.get("default")
    return Case(tuple(branches), _NULL if default is None else _lower(default))


def _if(node: exp.Expr) -> Node:
    if node.args.get("false") is None:
        raise ConfigError("IF needs a condition and two values")
    branch = (_lower(node.this), _lower(node.args["true"]))
    return Case((branch,), _lower(node.args["false"]))


def _nvl2(node: exp.Expr) -> Node:
    if node.args.get("false") is None:
        raise ConfigError("NVL2 needs three values")
    present = Call("not", (Call("isnull", (_lower(node.this),)),))
    return Case(((present, _lower(node.args["true"])),), _lower(node.args["false"]))


def _nullif(node: exp.Expr) -> Node:
    of = _lower(node.this)
    return Case(((Call("=", (of, _lower(node.expression))), _NULL),), of)


def _coalesce(node: exp.Expr) -> Node:
    return Coalesce(tuple(_arguments(node, ("this", "expressions"))))


def _cast(node: exp.Expr) -> Node:
    _only(node, "this", "to")
    wanted = node.args["to"]
    to = None if wanted.args.get("nested") else _TYPES.get(wanted.this.name)
    if to not in CAST_TARGETS:
        known = ", ".join(sorted({type_name(of) for of in CAST_TARGETS}))
        raise ConfigError(f"cannot cast to {wanted.sql('spark')}; the types are {known}")
    # CAST is read as TryCast because it gave NULL in older Sparks; `safe` marks a real TRY_CAST.
    of, lenient = _lower(node.this), node.key == "trycast" and bool(node.args.get("safe"))
    if node.key == "cast" and isinstance(of, Literal):  # TIMESTAMP '2026-01-01'
        return Literal(cast_value(of.value, of.type, to), to)
    return Cast(of, to, lenient)


def _log(node: exp.Expr) -> Node:
    base, number = _lower(node.this), _lower(node.expression)
    named = {10: "log10", 2: "log2"}.get(base.value) if isinstance(base, Literal) else None
    return Call(named, (number,)) if named else Call("log", (base, number))


def _round(node: exp.Expr) -> Node:
    _only(node, "this", "decimals")
    digits = node.args.get("decimals")
    places = 0 if digits is None else _constant_int(digits, "the second argument of ROUND")
    return Call("round", (_lower(node.this),), (places,))


def _trim(node: exp.Expr) -> Node:
    _only(node, "this", "expression", "position")
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    blanks = node.args.get("expression")
    characters = Literal(" ", pa.string()) if blanks is None else _lower(blanks)
    return Call(side, (_lower(node.this), characters))


def _element(node: exp.Expr) -> Node:
    _only(node, "this", "expressions")
    (index,) = node.args["expressions"]
    of = _lower(node.this)
    return Call("element", (of, _lower(index)))


def _date_trunc(node: exp.Expr) -> Node:
    _only(node, "this", "unit")
    unit = str(node.args["unit"].name).upper()
    if unit not in TRUNC_UNITS:
        known = ", ".join(sorted(set(TRUNC_UNITS.values())))
        raise ConfigError(f"DATE_TRUNC cannot cut to {unit!r}; the units are {known}")
    return Call("date_trunc", (_lower(node.this),), (TRUNC_UNITS[unit],))


def _extract(node: exp.Expr) -> Node:
    part = str(node.this.name).lower()
    if part not in ("year", "quarter", "month", "day", "hour", "minute"):
        raise ConfigError(f"EXTRACT({part.upper()} ...) is not supported; {ELSEWHERE}")
    return Call(part, (_lower(node.expression),))


def _unix_timestamp(node: exp.Expr) -> Node:
    # sqlglot spells out the default format; any other was written by the user.
    pattern = node.args.get("format")
    if pattern is not None and pattern.name != "%Y-%mstrict-%dstrict %Hstrict:%Mstrict:%Sstrict":
        raise ConfigError(f"unix_timestamp with a format is not supported; {ELSEWHERE}")
    return Call("unix_timestamp", (_lower(node.this),))


def _to_date(node: exp.Expr) -> Node:
    _only(node, "this")
    return Cast(_lower(node.this), pa.date32())


_SPECIAL: dict[str, Callable[[Any], Node]] = {
    "anonymous": _anonymous,
    "column": _column,
    "dot": _dot,
    "literal": _literal,
    "rawstring": lambda node: Literal(node.name, pa.string()),
    "boolean": lambda node: Literal(bool(node.this), pa.bool_()),
    "null": lambda node: _NULL,
    "paren": lambda node: _lower(node.this),
    "neg": _neg,
    "and": lambda node: Logic(_lower(node.this), _lower(node.expression)),
    "or": lambda node: Logic(_lower(node.this), _lower(node.expression), disjunction=True),
    "in": _in,
    "between": _between,
    "is": _is,
    "nullsafeneq": lambda node: Call(
        "not", (Call("<=>", (_lower(node.this), _lower(node.expression))),)
    ),
    "like": _like,
    "ilike": _like,
    "escape": _escape,
    "case": _case,
    "if": _if,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "coalesce": _coalesce,
    "cast": _cast,
    "trycast": _cast,
    "log": _log,
    "round": _round,
    "trim": _trim,
    "bracket": _element,
    "timestamptrunc": _date_trunc,
    "extract": _extract,
    "strtounix": _unix_timestamp,
    "tsordstodate": _to_date,
}

"""What users can write: sqlglot's names of functions and types, and what they stand for here.

Tables are keyed by sqlglot's name of a node, so that workers need not import sqlglot.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.ops.sql.functions import FUNCTIONS
from millstream.ops.sql.types import TIMESTAMP

# The function each node stands for, and the node's arguments in the function's order.
CALLS: dict[str, tuple[str, ...]] = {
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
    "datediff": ("datediff", "this", "expression"),
}
# Functions that sqlglot does not know, with the number of their arguments.
ANONYMOUS = (
    {"isnull": 1, "isnotnull": 1, "btrim": 1, "make_date": 3}
    | dict.fromkeys(("timestamp_seconds", "timestamp_millis", "timestamp_micros"), 1)
    | dict.fromkeys(("dayofweek", "weekday", "weekofyear", "last_day"), 1)
    | dict.fromkeys(("date_add", "date_sub", "add_months"), 2)
)
# What is computed in a time that follows from the number of rows and the length of the text.
# fmt: off
BOUNDED = frozenset((
    "column", "identifier", "literal", "boolean", "null", "paren", "and", "or", "not", "in",
    "between", "is", "like", "case", "if", "coalesce", "cast", "trycast", "datatype",
    "datatypeparam", "add", "sub", "mul", "div", "mod", "intdiv", "neg", "negative", "eq", "neq",
    "gt", "gte", "lt", "lte", "nullsafeeq", "date", "timestamp", "dot", "bracket", "nullif",
    "escape",
    "upper", "lower", "length", "startswith", "endswith", "contains", "abs", "floor", "ceil",
    "sqrt", "sign", "isnan", "greatest", "least", "year", "quarter", "month", "day", "dayofmonth",
    "dayofyear", "hour", "minute", "second",
))
# fmt: on
TYPES = {
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
TYPE_FUNCTIONS = {"bigint": "BIGINT", "tinyint": "TINYINT", "smallint": "SMALLINT"}
# What users can write, for suggestions.
SUPPORTED = sorted(
    {name for name in FUNCTIONS if name.isidentifier()} - {"in", "not", "element", "negative"}
    | {*ANONYMOUS, *TYPE_FUNCTIONS, "coalesce", "nullif", "ifnull", "nvl", "nvl2", "if", "cast"}
    | {"try_cast", "ceiling", "pow", "substr", "char_length", "regexp_like", "dayofmonth", "mod"}
    | {"to_date", "to_timestamp", "locate", "position", "extract", "signum", "unix_timestamp"}
    | {"trunc", "dateadd", "date_part"}
)
# Arguments by which sqlglot notes the dialect's habits; they say nothing the user wrote.
HABITS = {"safe", "typed", "ignore_nulls", "coalesce", "null_if_pos_overflow", "_type", "negate"}

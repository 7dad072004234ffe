"""Python functions that SQL can call: `flow.function(name, fn)`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import date, datetime
from types import NoneType, UnionType
from typing import Any

import pyarrow as pa
from sqlglot import expressions as exp
from sqlglot.dialects.spark import Spark

from millstream.errors import ConfigError
from millstream.io.schemas import TIMESTAMP, parse_schema
from millstream.ops.sql.calling import UserFunction
from millstream.ops.sql.vocabulary import SUPPORTED
from millstream.sql.windows import FUNCTIONS as TABLE_FUNCTIONS

_ANNOTATED = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: TIMESTAMP,
    date: pa.date32(),
}


def register(
    functions: dict[str, UserFunction], name: str, fn: Callable[..., Any], returns: Any
) -> None:
    """Take a function up under a name, which SQL reads without regard to case."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"function({name!r}): expected a name of letters, digits and _")
    if name.lower() in SUPPORTED:
        raise ConfigError(f"function({name!r}): SQL has a function of this name already")
    if _is_taken(name):
        raise ConfigError(f"function({name!r}): this is a word of SQL; give it another name")
    if name.lower() in functions:
        raise ConfigError(f"function({name!r}): there is one of this name already")
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise ConfigError(f"function({name!r}): expected a plain function, got {fn!r}")
    functions[name.lower()] = UserFunction(name.lower(), fn, _type(name, fn, returns))


def _is_taken(name: str) -> bool:
    """Whether SQL reads a call of this name as something else: an aggregate, or with own words."""
    known = exp.FUNCTION_BY_NAME.get(name.upper())
    aggregate = known is not None and issubclass(known, exp.AggFunc)
    own = name.upper() in Spark.Parser.FUNCTION_PARSERS
    return aggregate or own or name.lower() in ("mean", "std", *TABLE_FUNCTIONS)


def _type(name: str, fn: Callable[..., Any], returns: Any) -> pa.DataType:
    if isinstance(returns, pa.DataType):
        return returns
    if isinstance(returns, str):
        return parse_schema({name: returns}).field(0).type
    if returns is None:
        try:
            returns = typing.get_type_hints(fn).get("return")
        except (TypeError, NameError):
            returns = None
    if typing.get_origin(returns) in (typing.Union, UnionType):
        some = [one for one in typing.get_args(returns) if one is not NoneType]
        returns = some[0] if len(some) == 1 else None
    if returns in _ANNOTATED:
        return _ANNOTATED[returns]
    raise ConfigError(
        f'function({name!r}): say what it gives, with an annotation (-> float) or returns="double"'
    )

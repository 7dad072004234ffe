"""What steps are given: texts of SQL, functions, columns and schemas, checked as they come."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.io.formats import parse_schema
from millstream.ops.expressions import Expression, parse_projection


def parse_expression(step: str, expr: Any) -> Expression:
    """One SQL expression over the columns of a record."""
    items = parse_projection(sql_text(step, expr))
    if len(items) != 1 or items[0].name == "*":
        raise ConfigError(f"{step}(): expected one expression, got {expr!r}")
    return items[0]


def sql_text(step: str, expr: Any) -> str:
    """A SQL expression; it is refused if it is none."""
    if callable(expr):
        raise ConfigError(
            f"{step}(): expected a SQL expression as a string, got a function; write "
            f'{step}("price > 0"), or use .map(fn), which leaves a record out by giving None'
        )
    if not isinstance(expr, str):
        several = f"; write {step}({', '.join(map(repr, expr))})" if _is_list(expr) else ""
        raise ConfigError(f"{step}(): expected a SQL expression as a string, got {expr!r}{several}")
    return expr


def check_path(what: str, given: Any) -> None:
    """Refuse what is no path; nothing is one."""
    if given is not None and not isinstance(given, str | Path):
        raise ConfigError(f"{what}: expected a path, got {type(given).__name__} {given!r}")


def function(step: str, fn: Any) -> Any:
    """A function; what is none is refused."""
    if not callable(fn):
        sql = '; for SQL use .select("*", "price * 2 AS twice")' if isinstance(fn, str) else ""
        raise ConfigError(f"{step}(): expected a function, got {type(fn).__name__} {fn!r}{sql}")
    if inspect.iscoroutinefunction(fn):
        raise ConfigError(f"{step}(): {fn.__qualname__} is async; give a plain function")
    return fn


def record_function(step: str, fn: Any) -> Any:
    """A function that is called with a record and nothing else."""
    check_call(f"{step}()", function(step, fn), "record")
    return fn


def schema_of(schema: Any) -> pa.Schema | None:
    """A schema as users write it, if there is one."""
    return None if schema is None else parse_schema(schema)


def check_call(where: str, fn: Any, *arguments: str) -> None:
    """A function that cannot be called this way would make a dead letter of every event."""
    if fn is None:
        return
    called = getattr(fn, "__qualname__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise ConfigError(f"{where}: {called} is async; give a plain function")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{where}: {called}{signature} cannot be called with ({', '.join(arguments)}): {error}"
        ) from error


def check_columns(step: str, columns: tuple[Any, ...]) -> None:
    """Refuse what is no name of a column, and names that are there twice."""
    for column in columns:
        if not isinstance(column, str) or not column:
            raise no_column(step, column)
    if len(set(columns)) != len(columns):
        raise ConfigError(f"{step}(): a column is named twice in {columns}")


def no_column(step: str, given: Any) -> ConfigError:
    """The error for what is no name of a column."""
    if callable(given):
        return ConfigError(
            f"{step}(): expected names of columns, got a function; compute a column before, with "
            f'.with_column("k", "lower(name)") or .map(fn), and write {step}("k")'
        )
    several = f"; write {step}({', '.join(map(repr, given))})" if _is_list(given) else ""
    return ConfigError(f"{step}(): expected names of columns, got {given!r}{several}")


def named_columns(step: str, given: Any, option: str = "key") -> tuple[str, ...]:
    """Columns as an option names them: one, or several."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    columns = tuple(given) if several else (given,)
    if any(not isinstance(one, str) or not one for one in columns):
        raise ConfigError(f"{step}({option}={given!r}): expected names of columns")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"{step}({option}={given!r}): a column is named twice")
    return columns


def _is_list(column: Any) -> bool:
    return isinstance(column, list | tuple) and all(isinstance(one, str) for one in column)

"""The text of a `where` or `select` to `Expression`s; errors name the place in the user's text.

Only the driver calls this, and only these functions import sqlglot, when they are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.ops.sql.dialect import dialect
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.frames import suggestion
from millstream.ops.sql.lowering import ELSEWHERE, UnsupportedFunction, lower
from millstream.ops.sql.types import ExpressionError, TypeMismatch
from millstream.ops.sql.vocabulary import BOUNDED, SUPPORTED

if TYPE_CHECKING:
    from sqlglot import expressions as exp


def parse_condition(sql: str) -> Expression:
    """The condition of a `where`."""
    node = _parse(sql, 0, sql)
    if node.key in ("alias", "star"):
        raise ConfigError(f"cannot use {sql!r} as a condition: it must be true or false")
    return replace(_lowered(node, sql), condition=True)


def parse_bounded(sql: str) -> Expression:
    """A condition of somebody who is not trusted: only what takes a time that is known.

    Regular expressions may take any time and texts that grow any memory, so they are refused.
    """
    try:
        node = _parse(sql, 0, sql)
        for one in node.walk():
            if one.key not in BOUNDED:
                raise ConfigError(
                    f"{one.key.upper()} cannot be used here: only comparisons, AND, OR, NOT, IN, "
                    "BETWEEN, LIKE, IS NULL, arithmetic, CASE, CAST and functions of one value"
                )
            if one.key == "like" and one.expression.key != "literal":
                raise ConfigError("LIKE takes a pattern in quotes here")
        return parse_condition(sql)
    except RecursionError:
        raise ConfigError("this is nested too deeply") from None


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
        return tokenize(sql, read=dialect())
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
        return parse_one(text, read=dialect(), into=exp.Expr)
    except ParseError as error:
        nowhere = {"line": 1, "col": 1, "highlight": text, "description": error}
        found: dict[str, Any] = error.errors[0] if error.errors else nowhere
        line_start = sum(len(line) for line in text.splitlines(True)[: (found["line"] or 1) - 1])
        position = offset + line_start + (found["col"] or 1)
        wrong = _plain(str(found["description"]))
        raise ConfigError(
            f"cannot parse {whole!r}: {wrong} near {found['highlight']!r} at position {position}"
            + _hint(text, found["highlight"])
        ) from None
    except RecursionError:
        raise ConfigError("this is nested too deeply") from None
    except Exception as error:  # whatever the parser raises is about this text
        raise ConfigError(f"cannot parse {whole!r}: {error}") from error


def _hint(text: str, near: str) -> str:
    """What is meant by what SQL does not know."""
    if "&&" in text or near == "!":
        return "; write AND, OR and NOT"
    if text.strip().isidentifier():
        return f"; a column of that name is written `{text.strip()}`, for it is a word of SQL"
    return ""


def _plain(description: str) -> str:
    """sqlglot's message without its class names."""
    if description.startswith("Required keyword"):
        return "something is missing"
    return description.replace("Invalid expression / Unexpected token", "unexpected text")


def _lowered(node: exp.Expr, sql: str) -> Expression:
    try:
        lowered = lower(node)
    except UnsupportedFunction as error:
        raise ConfigError(f"cannot use {sql.strip()!r}: {_named(error, sql)}") from None
    except (ExpressionError, TypeMismatch, ConfigError) as error:
        raise ConfigError(f"cannot use {sql.strip()!r}: {error}") from None
    columns = frozenset(column.parts[0].name for column in _columns_of(node))
    plain = node.key in ("column", "dot")
    return Expression(sql, node.name if plain else sql.strip(), columns, lowered)


def _columns_of(node: exp.Expr) -> Iterable[Any]:
    return (each for each in node.walk() if each.key == "column")


def _named(unsupported: UnsupportedFunction, sql: str) -> str:
    """sqlglot keeps one name for functions that have several; look for the one in the text."""
    called = [name.lower() for name in re.findall(r"(\w+)\s*\(", sql)]
    known = [name for name in called if name in unsupported.names]
    strange = [name for name in called if name not in SUPPORTED]
    name = [*known, *strange, *unsupported.names][0]
    return f"unsupported function {name!r}{suggestion(name, SUPPORTED)}; {ELSEWHERE}"

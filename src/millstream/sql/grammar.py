"""The language: Spark's, with M3's words. Tokens of a text, its statements, and trees of queries.

`CSELECT STREAMED` is SELECT: every query here is continuous. `TABLE(f(TABLE t, ...))` is `f(t,
...)`: both spellings of table functions are in use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import TokenType
from sqlglot import expressions as exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

from millstream.ops.sql.dialect import dialect
from millstream.sql.places import Place, Text

_DEEPEST = 60  # brackets within brackets; more is no query anybody wrote
_LONGEST = 20_000  # tokens of one statement
_BINARY = 200  # operators around and within one item, each of which makes its tree deeper
_CHAINED = 400  # queries and tables of one statement
_OPENING = ("L_PAREN", "L_BRACKET", "L_BRACE", "CASE")
_CLOSING = ("R_PAREN", "R_BRACKET", "R_BRACE", "END")
_CHAINING = ("UNION", "INTERSECT", "EXCEPT", "JOIN")  # what stands before is within what follows
_PARTING = ("COMMA", "SELECT", "FROM", "WHERE", "GROUP_BY", "HAVING", "WHEN", "THEN", "ELSE")
_FLAT = ("VAR", "NUMBER", "STRING", "IDENTIFIER", "ALIAS", "EQ", "NEQ", "LT", "LTE", "GT", "GTE")

_AFTER_LISTS = ("FROM", "R_PAREN", "WHERE", "GROUP_BY", "ORDER_BY", "HAVING", "LIMIT", "UNION")

Tokens = Sequence[Any]  # of sqlglot's tokens


def kind(token: Any) -> str:
    """What sqlglot calls a kind of token."""
    return str(token.token_type.name)


def place_of(tokens: Tokens) -> Place:
    """Where tokens stand."""
    return Place(tokens[0].start, tokens[-1].end + 1)


def statements_of(text: Text) -> list[Tokens]:
    """The tokens of every statement; those in between are semicolons."""
    found: list[list[Any]] = [[]]
    for token in _tokens(text):
        if kind(token) == "SEMICOLON":
            found.append([])
        else:
            found[-1].append(token)
    statements: list[Tokens] = [one for one in found if one]
    for one in statements:
        _check_shape(text, one)
    return statements


def texts_of(text: Text) -> list[str]:
    """Every statement as it was written, with the comments before it."""
    tokens = _tokens(text)
    ends = [one.start for one in tokens if kind(one) == "SEMICOLON"]
    found = []
    for start, end in pairwise((-1, *ends, len(text.sql))):
        if any(start < one.start < end for one in tokens):
            found.append(text.sql[start + 1 : end].strip("\n"))
    return found


def ends_with_semicolon(text: Text) -> bool:
    """Whether the last statement is ended."""
    tokens = _tokens(text)
    return bool(tokens) and kind(tokens[-1]) == "SEMICOLON"


_BASE: Any = dialect()


class _Continuous(_BASE):  # type: ignore[misc]
    """Spark's SQL, as sqlglot reads it, and its words for continuous queries."""

    class Tokenizer(_BASE.Tokenizer):  # type: ignore[misc]
        KEYWORDS: ClassVar[dict[str, Any]] = {
            **_BASE.Tokenizer.KEYWORDS,
            "CSELECT": TokenType.SELECT,
            "SESSION": TokenType.VAR,  # the table function
        }
        COMMANDS: ClassVar[set[Any]] = set()  # whose rest would be one token


_DIALECT = _Continuous()


def _tokens(text: Text) -> Tokens:
    try:
        tokens: Tokens = _DIALECT.tokenize(text.sql)
    except SqlglotError as error:
        raise text.error("a quote or a comment is not closed", _near(text, str(error))) from None
    return tokens


def _near(text: Text, message: str) -> Place | None:
    """The place that an error of the tokenizer names, as line:column."""
    named = re.search(r"(\d+):(\d+)", message)
    if named is None:
        return None
    line, column = int(named[1]), int(named[2])
    start = sum(len(one) + 1 for one in text.sql.split("\n")[: line - 1]) + max(column - 1, 0)
    return Place(start, start + 1)


def _check_shape(text: Text, tokens: Tokens) -> None:
    """Refuse what would be read for ever, or not at all."""
    around, item, chained = [0], 0, 0  # operators before each open bracket, and since the last one
    for token in tokens:
        what = kind(token)
        if what == "IDENTIFIER" and token.text == "*":
            raise text.error("a name cannot be *, which is all columns", place_of([token]))
        if what in _OPENING:
            around.append(item)
            item = 0
        elif what in _CLOSING:
            item = around.pop() if len(around) > 1 else 0
        elif what in _PARTING:
            item = 0
        elif what in _CHAINING:
            item, chained = 0, chained + 1
        elif what not in _FLAT:
            item += 1
        if len(around) > _DEEPEST + 1 or sum(around) + item > _BINARY:
            raise text.error(
                "this is nested too deeply; make views of its parts", place_of([token])
            )
        if chained > _CHAINED:
            raise text.error("these are too many; make views of its parts", place_of([token]))
    if len(tokens) > _LONGEST:
        raise text.error("this statement is too long; make views of its parts", place_of(tokens))


def parse_query(text: Text, tokens: Tokens, functions: Collection[str] = ()) -> exp.Expr:
    """The tree of a query; its identifiers know their places.

    `functions` are calls of the user's own, also where sqlglot knows a function of that name.
    """
    plain = _without_tables(_continuous(text, tokens))
    if not plain:
        raise text.error("a query is missing here", place_of(tokens) if tokens else None)
    for one, following in pairwise(plain):  # which sqlglot lets pass
        if kind(one) == "COMMA" and kind(following) in _AFTER_LISTS:
            raise text.error("something is missing after this comma", place_of([one]))
    parser = _DIALECT.parser(error_level=ErrorLevel.IMMEDIATE)
    if functions:
        known = {
            name: make for name, make in parser.FUNCTIONS.items() if name.lower() not in functions
        }
        parser.FUNCTIONS = known
    try:
        trees = parser.parse(plain, text.sql)
    except ParseError as error:
        raise _refusal(text, error, plain) from None
    except RecursionError:
        raise text.error("this is nested too deeply", place_of(plain)) from None
    except Exception as error:  # whatever the parser raises is about this text
        raise text.error(f"this cannot be read ({error})", place_of(plain)) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise text.error("this is not a query; it begins with SELECT or WITH", place_of(plain))
    return trees[0]


def _continuous(text: Text, tokens: Tokens) -> list[Any]:
    """Without STREAMED, which stands after SELECT and says what is so anyway."""
    kept: list[Any] = []
    for token in tokens:
        if not (kept and kind(kept[-1]) == "SELECT" and token.text.upper() == "STREAMED"):
            kept.append(token)
        elif kept[-1].text.upper() != "CSELECT":
            raise text.error("STREAMED goes with CSELECT", place_of([token]))
    return kept


def _without_tables(tokens: list[Any]) -> list[Any]:
    """Without the word TABLE, and the brackets it has around a table function."""
    kept: list[Any] = []
    closing: list[int] = []  # depths at which a bracket belongs to TABLE
    depth, skip = 0, False
    for at, token in enumerate(tokens):
        following = kind(tokens[at + 1]) if at + 1 < len(tokens) else ""
        if skip:
            skip, depth = False, depth + 1
            closing.append(depth)
            continue
        if kind(token) == "TABLE" and following in ("L_PAREN", "VAR", "IDENTIFIER"):
            skip = following == "L_PAREN"
            continue
        if kind(token) == "L_PAREN":
            depth += 1
        elif kind(token) == "R_PAREN":
            depth -= 1
            if closing and closing[-1] == depth + 1:
                closing.pop()
                continue
        kept.append(token)
    return kept


def _refusal(text: Text, error: Any, tokens: Tokens) -> Exception:
    found = error.errors[0] if error.errors else {}
    told = str(found.get("description") or "")
    told = told.replace("Invalid expression / Unexpected token", "unexpected text")
    told = re.sub(r" but got <Token.*", "", told, flags=re.DOTALL)
    if told.startswith("Required keyword"):
        told = "something is missing"
    line, column = found.get("line"), found.get("col")
    word = str(found.get("highlight") or "")
    place = place_of(tokens[-1:])
    if line is not None and column is not None:
        above = sum(len(one) + 1 for one in text.sql.split("\n")[: line - 1])
        place = Place(max(above + column - len(word), 0), above + column)
    return text.error(f"cannot read this: {told.rstrip('.')}", place)

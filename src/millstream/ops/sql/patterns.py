"""`LIKE`, `RLIKE` and the functions on regular expressions.

Regular expressions are Java's, run by Python's `re`: it is closer to Java's than RE2 is.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, by_row, with_options
from millstream.ops.sql.coercion import all_of
from millstream.ops.sql.types import Datum, ExpressionError

_STRING, _BOOL = pa.string(), pa.bool_()


@lru_cache(maxsize=1024)
def like_parts(pattern: str, escape: str) -> tuple[str | None, ...]:
    """A LIKE pattern as literal characters, "%%" for any run and None for any one character."""
    parts: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None or literal not in ("%", "_", escape):
                raise ExpressionError(
                    f"LIKE pattern {pattern!r}: the escape {escape!r} must be followed by %, _ "
                    "or itself"
                )
            parts.append(literal)
        else:
            parts.append({"%": "%%", "_": None}.get(character, character))
    return tuple(parts)


def _like(of: Datum, pattern: str, escape: str) -> Datum:
    parts = like_parts(pattern, escape)
    literal = "".join(part for part in parts if part and part != "%%")
    runs = [at for at, part in enumerate(parts) if part == "%%"]
    if None not in parts:
        if not runs:
            return pc.equal(of, literal)
        if runs == [len(parts) - 1]:
            return pc.starts_with(of, literal)
        if runs == [0]:
            return pc.ends_with(of, literal)
        if runs == [0, len(parts) - 1]:
            return pc.match_substring(of, literal)
    return pc.match_substring_regex(of, rf"(?s)\A{''.join(map(_re2, parts))}\z")


def _re2(part: str | None) -> str:
    return "." if part is None else ".*" if part == "%%" else f"\\x{{{ord(part):x}}}"


def _row_like(text: str, pattern: str, escape: str) -> bool:
    """Every way to match is followed at once: `ends` are the lengths of text matched so far."""
    ends = {0}
    for part in like_parts(pattern, escape):
        if part == "%%":
            ends = set(range(min(ends), len(text) + 1)) if ends else ends
        else:
            ends = {e + 1 for e in ends if e < len(text) and part in (None, text[e])}
    return len(text) in ends


@lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> re.Pattern[str]:
    """A Java pattern for Python: classes are ASCII, and groups are named with a P."""
    try:
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except (re.error, RecursionError) as error:
        raise ExpressionError(f"bad regular expression {pattern!r}: {error}") from None


def _row_rlike(text: str, pattern: str) -> bool:
    return compile_regex(pattern).search(text) is not None


def _row_regexp_extract(text: str, pattern: str, group: int) -> str:
    regex = compile_regex(pattern)
    if not 0 <= group <= regex.groups:
        raise ExpressionError(f"regular expression {pattern!r} has no group {group}")
    match = regex.search(text)
    return (match[group] or "") if match else ""


_REPLACEMENT = re.compile(r"\\(.)|\$\{(\w+)\}|\$(\d)|([^\\$]+)", re.ASCII | re.DOTALL)


@lru_cache(maxsize=1024)
def compile_replacement(text: str) -> tuple[str | int, ...]:
    """A Java replacement as group numbers and literal text; groups by name are not supported."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        match = _REPLACEMENT.match(text, at)
        if match is None or match[2]:
            raise ExpressionError(f"bad replacement {text!r}: use $1 for a group, \\$ for a $")
        parts.append(int(match[3]) if match[3] else match[1] or match[4])
        at = match.end()
    return tuple(parts)


def _row_regexp_replace(text: str, pattern: str, replacement: str) -> str:
    regex, parts = compile_regex(pattern), compile_replacement(replacement)
    highest = max((part for part in parts if isinstance(part, int)), default=0)
    if highest > regex.groups:
        raise ExpressionError(f"regular expression {pattern!r} has no group {highest}")

    def expand(match: re.Match[str]) -> str:
        return "".join(p if isinstance(p, str) else match[p] or "" for p in parts)

    return regex.sub(expand, text)


FUNCTIONS: dict[str, Function] = {
    "like": Function(all_of(_STRING, _BOOL), with_options(_like, _row_like, _BOOL)),
    "rlike": by_row(_row_rlike, _STRING, _STRING, result=_BOOL),
    "regexp_extract": by_row(_row_regexp_extract, _STRING, _STRING, pa.int32(), result=_STRING),
    "regexp_replace": by_row(_row_regexp_replace, _STRING, _STRING, _STRING, result=_STRING),
}

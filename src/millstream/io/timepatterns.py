"""Times inside of longer texts, as in lines of a log: found by a regular expression, in columns."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.io.timestamps import Bools, Ints, cast_each, float_micros, floor_micros, ints_of

_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"
_WHOLE = r"^-?[0-9]+$"


@lru_cache(maxsize=64)
def time_pattern(text: str) -> str:
    """A pattern as users write it, checked, with a name for its group."""
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ConfigError(f"time_pattern= is {text!r}, no regular expression: {error}") from None
    if groups > 1:
        raise ConfigError(
            f"time_pattern= is {text!r} with {groups} groups; expected one, around the time (write "
            "others as (?:...))"
        )
    named = f"(?P<time>{text})" if groups == 0 else _named(text)
    try:
        pc.extract_regex(pa.array([""]), named)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"time_pattern= is {text!r}, which cannot be used: {error}; neither looking around nor "
            "references back are known"
        ) from None
    return named


def _named(text: str) -> str:
    """The pattern with a name for its only group."""
    inside, at = False, 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 1
        elif sign == "[" and not inside:
            inside = True
            at += text.startswith(("^]", "]"), at + 1) + text.startswith("^]", at + 1)
        elif sign == "]":
            inside = False
        elif sign == "(" and not inside:
            if not text.startswith("?", at + 1):
                return f"{text[:at]}(?P<time>{text[at + 1 :]}"
            if text.startswith("?P<", at + 1):
                return f"{text[:at]}(?P<time>{text[text.index('>', at) + 1 :]}"
        at += 1
    raise ConfigError(f"time_pattern= is {text!r}: its group was not found")


def times_in(texts: pa.Array, pattern: str) -> pa.Array:
    """What a pattern finds in each text; null where it finds nothing."""
    found = pc.struct_field(pc.extract_regex(texts, time_pattern(pattern)), "time")
    if found.type == pa.string():
        return found
    return found.cast(pa.string())


def numbered(texts: pa.Array, unit: str) -> tuple[Ints, Bools, Bools]:
    """Times that are numbers since the epoch: microseconds, which are none, and which are so."""
    are, whole = _matching(texts, _NUMBER), _matching(texts, _WHOLE)
    floats = pc.if_else(pa.array(are), texts, pa.scalar("0")).cast(pa.float64())
    micros, bad = float_micros(floats.to_numpy(zero_copy_only=False), unit)
    ints, huge = cast_each(pc.if_else(pa.array(whole), texts, pa.scalar("0")), pa.int64())
    exact, far = floor_micros(ints_of(ints), unit)  # as in a column of whole numbers
    return np.where(whole, exact, micros), np.where(whole, far | huge, bad) & are, are


def _matching(texts: pa.Array, form: str) -> Bools:
    return np.asarray(pc.match_substring_regex(texts, form).fill_null(False)).astype(np.bool_)

"""Spark's SQL as sqlglot reads it, but for quotes in texts and functions it would translate.

sqlglot turns the patterns of `date_format` and its kin into those of strftime, and then nobody can
say any more what was written. Here these calls stay as they are, with their own names. It reads
'it''s' as two texts, as Spark did before its release 4; since then it is one with a quote in it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

AS_WRITTEN = frozenset(
    [
        "DATE_FORMAT",
        "TO_TIMESTAMP",
        "TO_DATE",
        "UNIX_TIMESTAMP",
        "TO_UNIX_TIMESTAMP",
        "FROM_UNIXTIME",
        "DATE_ADD",
        "DATE_SUB",
        "ADD_MONTHS",
        "LAST_DAY",
        "TRUNC",
        "DAYOFWEEK",
        "WEEKOFYEAR",
        "WEEKDAY",
        "MAKE_DATE",
        "FROM_UTC_TIMESTAMP",
        "TO_UTC_TIMESTAMP",
    ]
)


@cache
def dialect() -> Any:
    """The class of the dialect; sqlglot is imported here."""
    from sqlglot.dialects.spark import Spark

    base: Any = Spark

    class Millstream(base):  # type: ignore[misc]
        class Tokenizer(base.Tokenizer):  # type: ignore[misc]
            STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

        class Parser(base.Parser):  # type: ignore[misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {
                name: make for name, make in base.Parser.FUNCTIONS.items() if name not in AS_WRITTEN
            }

    return Millstream

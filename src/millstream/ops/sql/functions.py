"""The table of all SQL functions, by the name that the nodes of an expression know them by.

Python workers look functions up here, so nothing that this module imports may import the parser.
"""

from __future__ import annotations

from millstream.ops.sql import (
    arithmetic,
    calendar,
    comparison,
    nested,
    patterns,
    text,
    timeformats,
    times,
)
from millstream.ops.sql.applying import Function

FUNCTIONS: dict[str, Function] = {
    **comparison.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **text.FUNCTIONS,
    **patterns.FUNCTIONS,
    **times.FUNCTIONS,
    **calendar.FUNCTIONS,
    **timeformats.FUNCTIONS,
    **nested.FUNCTIONS,
}

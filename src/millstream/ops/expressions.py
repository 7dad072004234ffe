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

from millstream.ops.sql.expression import Expression
from millstream.ops.sql.frames import find_name
from millstream.ops.sql.parsing import parse_bounded, parse_condition, parse_projection
from millstream.ops.sql.types import ExpressionError

__all__ = [
    "Expression",
    "ExpressionError",
    "find_name",
    "parse_bounded",
    "parse_condition",
    "parse_projection",
]

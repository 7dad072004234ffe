"""What a query works on: streams whose columns have names, and where a name of the text leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.api.stream import Stream
from millstream.ops.sql.frames import suggestion
from millstream.sql.places import Text


@dataclass(frozen=True)
class Column:
    """A column of a relation: what the text calls it, and what the stream does."""

    name: str
    physical: str
    type: pa.DataType | None = None  # None: not known
    table: str = ""  # the name in FROM, "" if it has none
    hidden: bool = False  # not part of *: the second of two columns of USING
    merged: bool = False  # of USING: it is that of both sides, and its own is not known


@dataclass(frozen=True)
class Relation:
    """A stream as a table.

    open: its columns are not known, so that every name is taken to be one.
    time: the column that has the event time of its records.
    exact: its stream has these columns and no others.
    """

    stream: Stream
    columns: tuple[Column, ...]
    open: bool = False
    time: str | None = None
    exact: bool = True

    def named(self, table: str, names: Sequence[str] = ()) -> Relation:
        """The same under a name in FROM, and with other names of columns."""
        columns = tuple(
            replace(one, table=table, name=names[at] if at < len(names) else one.name, hidden=False)
            for at, one in enumerate(self.columns)
        )
        return replace(self, columns=columns)

    @property
    def told_time(self) -> str:
        """What is said to someone who took another column for the event time."""
        if self.time is not None:
            return f"it is {self.time}"
        return (
            "it is not known to be in a column; WATERMARK FOR or time= says it of a source, and "
            'behind a Python function .at("ts")'
        )

    @property
    def schema(self) -> pa.Schema | None:
        """Types by the stream's names; None if one is not known."""
        if self.open or any(one.type is None for one in self.columns):
            return None
        return pa.schema([pa.field(one.physical, one.type) for one in self.columns])


@dataclass(frozen=True)
class Scope:
    """The names a piece of a query can use."""

    text: Text
    relation: Relation
    tables: tuple[str, ...] = ()
    above: Scope | None = field(default=None, repr=False)  # of the query around this one

    def find(self, column: exp.Expr) -> tuple[Column, list[str]]:
        """The column that a reference means, and the fields of it that it goes on with."""
        found = self.local(column)
        if found is not None:
            return found
        if self.above is not None and self.above.local(column) is not None:
            raise self.text.error(
                f"{_spelled(column)} is a column of the query around this one; that is possible "
                "in EXISTS, IN and queries that give one value, as one side of an equality",
                column,
            )
        raise self.text.error(self._unknown(column), column)

    def local(self, column: exp.Expr) -> tuple[Column, list[str]] | None:
        """The same, None if this query has no such column."""
        parts = [part.name for part in column.parts]  # type: ignore[attr-defined]
        table = self._table(parts[0]) if len(parts) > 1 else None
        if table is not None:
            found = self._named(column, parts[1], table)
            if found is None:
                known = [one.name for one in self.relation.columns if one.table == table]
                raise self.text.error(
                    f"{table} has no column {parts[1]!r}"
                    f"{suggestion(parts[1], known) or '; it has ' + ', '.join(known)}",
                    column,
                )
            return found, parts[2:]
        found = self._named(column, parts[0], None)
        if found is None or (len(parts) > 1 and self._is_table_above(parts[0])):
            return None
        return found, parts[1:]

    def check_where(self, where: exp.Expr, given: list[str]) -> None:
        """Refuse names in WHERE that are only those of what the query computes afterwards."""
        named = {one.lower() for one in given}
        for one in where.walk(prune=lambda node: node.key in ("select", "subquery")):
            if one.key != "column" or one.name.lower() not in named or one.args.get("table"):
                continue
            above = self.above is not None and self.above.local(one) is not None
            if not above and self.local(one) is None:
                raise self.text.error(
                    f"{one.name!r} is computed by this query, and its WHERE comes before that; put "
                    f"the query in FROM: SELECT * FROM (SELECT ... AS {one.name} FROM ...) WHERE "
                    f"{one.name} ...",
                    one,
                )

    def has_table(self, column: exp.Expr) -> bool:
        """Whether a reference begins with a table of this query."""
        parts = [part.name for part in column.parts]  # type: ignore[attr-defined]
        return len(parts) > 1 and self._table(parts[0]) is not None

    def _is_table_above(self, name: str) -> bool:
        """Whether a query around this one has such a table: that goes before a column's field."""
        return self.above is not None and (
            self.above._table(name) is not None or self.above._is_table_above(name)
        )

    def _table(self, name: str) -> str | None:
        if name in self.tables:
            return name
        alike = [one for one in self.tables if one.lower() == name.lower()]
        return alike[0] if alike else None

    def _named(self, column: exp.Expr, name: str, table: str | None) -> Column | None:
        mine = [one for one in self.relation.columns if table is None or one.table == table]
        if table is None:
            mine = [one for one in mine if not one.hidden]
        found = [one for one in mine if one.name == name]
        found = found or [one for one in mine if one.name.lower() == name.lower()]
        if len(found) > 1:
            several = " or ".join(f"{one.table or '?'}.{one.name}" for one in found)
            raise self.text.error(f"{name!r} is ambiguous: it could be {several}", column)
        if found:
            return self.own(found[0], column)
        return Column(name, name, None, table or "") if self.relation.open else None

    def own(self, found: Column, at: exp.Expr) -> Column:
        """A column of a table, unless an outer join has left only one of both sides."""
        if not found.merged:
            return found
        raise self.text.error(
            f"{found.table} may be missing in this join, and USING ({found.name}) keeps one column "
            f"for both sides: write {found.name}, or join ON instead",
            at,
        )

    def _unknown(self, column: exp.Expr) -> str:
        name = _spelled(column)
        parts = [part.name for part in column.parts]  # type: ignore[attr-defined]
        known = [one.name for one in self.relation.columns if not one.hidden]
        if len(parts) > 1:
            tables = [*self.tables, *known]
            return f"there is no table {parts[0]!r} in FROM{suggestion(parts[0], tables)}"
        return (
            f"unknown column {name!r}"
            f"{suggestion(name, known) or '; there are ' + (', '.join(known) or 'none')}"
        )


def _spelled(column: exp.Expr) -> str:
    return ".".join(part.name for part in column.parts)  # type: ignore[attr-defined]

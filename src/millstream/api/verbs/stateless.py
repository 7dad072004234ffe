"""Steps that look at one record, or one table, at a time and remember nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.api.arguments import (
    check_call,
    function,
    parse_expression,
    record_function,
    schema_of,
    sql_text,
)
from millstream.api.elsewhere import as_aggregate
from millstream.api.frames import plainly
from millstream.api.verbs.point import Point
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.io.formats import UNITS, check_zone
from millstream.io.timeformats import time_format
from millstream.ops.expressions import parse_condition, parse_projection

if TYPE_CHECKING:
    from millstream.api.stream import Stream


@plainly
class Stateless(Point):
    """Steps without a memory."""

    def select(self, *exprs: str) -> Stream:
        """Columns by SQL expressions: `select("symbol", "price * qty AS notional")`."""
        if not exprs:
            raise ConfigError("select(): give at least one column or expression")
        try:
            items = tuple(
                item for text in exprs for item in parse_projection(sql_text("select", text))
            )
        except ConfigError as error:
            raise as_aggregate("select", error) from None
        names = [item.name for item in items]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"select(): column {twice[0]!r} comes twice; give one another name, like "
                f'"{twice[0]} AS other"'
            )
        return self._add(nodes.Select, "select", items=items)

    def where(self, expr: str) -> Stream:
        """The records for which a SQL condition is true."""
        return self._add(nodes.Where, "where", condition=parse_condition(sql_text("where", expr)))

    def map(self, fn: Callable[[dict[str, Any]], Any], *, schema: Any = None) -> Stream:
        """A function per record: dict -> dict, an iterable of dicts, or None.

        Types of columns are inferred from what it gives; `schema` fixes them.
        """
        return self._add(nodes.Map, "map", fn=record_function("map", fn), schema=schema_of(schema))

    def flat_map(
        self, fn: Callable[[dict[str, Any]], Iterable[dict[str, Any]] | None], *, schema: Any = None
    ) -> Stream:
        """A function per record that gives any number of records."""
        return self._add(
            nodes.Map, "flat_map", fn=record_function("flat_map", fn), schema=schema_of(schema)
        )

    def map_batches(self, fn: Callable[[pa.Table], pa.Table]) -> Stream:
        """A function per Arrow table, of as many rows as it gets."""
        return self._add(nodes.MapBatches, "map_batches", fn=function("map_batches", fn))

    def with_column(self, name: str, expr: str) -> Stream:
        """All columns and one more by a SQL expression; one of that name is replaced."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"with_column(): expected the name of a column, got {name!r}")
        item = parse_expression("with_column", expr)
        item = replace(item, name=name, sql=f"{item.sql} AS {name}")
        return self._add(nodes.Select, "with_column", items=(*parse_projection("*"), item))

    def at(
        self,
        when: str | Callable[[dict[str, Any]], Any],
        *,
        behind: Duration = "0s",
        unit: str = "s",
        zone: str | None = None,
        format: str | None = None,
    ) -> Stream:
        """The same records at another event time: of a SQL expression, or of a function per record.

        when: gives a time with an offset, or a number that counts `unit` since the epoch, or a
            text (ISO-8601, or written as `format`); times without an offset are in `zone`. A record
            without one is a dead letter.
        behind: how far before its old time (of the source, or of arrival) the new one may lie. The
            watermark is held back by it, and a record further back is late. Where the source has no
            `lateness`, all is read before anything leaves, and nothing is late.
        """
        if not isinstance(when, str):
            if not callable(when):
                raise ConfigError(
                    "at(): expected a SQL expression, as at(\"to_timestamp(day, 'yyyy-MM-dd')\"), "
                    f"or a function that gets a record, got {type(when).__name__} {when!r}"
                )
            check_call("at()", function("at", when), "record")
        if unit not in UNITS:
            raise ConfigError(f"at(unit={unit!r}): use one of {', '.join(UNITS)}")
        try:
            check_zone(zone)
            if format is not None and not time_format(format).zoned and zone is None:
                raise ConfigError(
                    f'times written as {format!r} do not say their zone: add zone="UTC", or the '
                    "zone they are in"
                )
        except ConfigError as error:
            raise ConfigError(f"at(): {error}") from None
        return self._add(
            nodes.At,
            "at",
            expr=parse_expression("at", when) if isinstance(when, str) else None,
            fn=None if isinstance(when, str) else when,
            behind=micros(behind, "at(behind=)", zero=True),
            unit=UNITS[unit],
            zone=zone,
            format=format,
        )

    def union(self, *others: Stream) -> Stream:
        """This stream and others as one."""
        if not others:
            raise ConfigError("union(): give at least one other stream, like a.union(b)")
        for other in others:
            self._check_stream("union", other)
        return self._add(nodes.Union, "union", *others)

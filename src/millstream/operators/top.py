"""`key_by(...).top(n, by=...)`: the first rows of every group in an order, as changes.

Of rows that are equal in the order the earlier comes first. Where rows may be taken back all of
them are kept (`topping.py`), else only the first ones (`foremost.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.graph.changing import gives_changes
from millstream.operators.foremost import Foremost
from millstream.operators.grouped.moves import VALUE
from millstream.operators.protocol import Columns, Inputs, KeyedStep, Names, Types
from millstream.operators.topping import PLACE, Topping, taken_rank
from millstream.state.bags import Order


@dataclass(frozen=True, eq=False, kw_only=True)
class Top(KeyedStep):
    """The first rows of every group, as a stream of changes."""

    gives_changes: ClassVar[bool] = True
    keys: tuple[str, ...]
    most: int
    order: tuple[Order, ...]
    rank: str | None = None  # a column with the number of a row in its group
    null_keys: str = "dead"

    def operator(self, number: int, changes: bool) -> Topping:
        """Keeps rows of groups in order."""
        by = (Order(f"{VALUE}{o.column}", o.descending, o.nulls_first) for o in self.order)
        order = (*by, *map(Order, PLACE))
        keep = self.null_keys == "keep"
        kind = Topping if changes else Foremost
        return kind(self.name, self.keys, keep, number, order, self.most, self.rank)

    def columns(self, have: Columns) -> Columns:
        """Those of the rows, and their number."""
        return have if have is None or self.rank is None else (*have, self.rank)

    def resolve(self, inputs: Inputs) -> tuple[Columns, Types]:
        """The same, with types."""
        if self.rank is not None and self.rank in (inputs[0].columns or ()):
            raise taken_rank(self.name, self.rank)
        names, types = super().resolve(inputs)
        return names, types if self.rank is None else {**types, self.rank: pa.int64()}

    def needs(self, number: int) -> Iterable[tuple[str, str, bool]]:
        """The key, and what rows are ordered by."""
        yield from super().needs(number)
        for one in self.order:
            yield "by", one.column, False

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """Those of the rows; if these are numbered, the group and the number."""
        if self.rank is None or before[0] is None:
            return before[0]
        return tuple(frozenset((name,)) for name in (*self.keys, self.rank))

    def words(self) -> str:
        """For the plan."""
        by = ", ".join(map(told, self.order))
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        return f"the first {self.most} rows{per} by {by}, as changes"

    def details(self, inputs: Inputs) -> list[str]:
        """For the plan."""
        if any(one.changes for one in inputs):
            return ["rows by group and in order, of which the first are read"]
        return ["the first rows by group, and no others: rows only come"]

    def remembered(self) -> dict[str, Any]:
        """What rows are kept by."""
        by = [told(one) for one in self.order]
        made = {"keys": list(self.keys), "most": self.most, "by": by, "rank": self.rank}
        return made if gives_changes(self.inputs[0]) else made | {"kept": "the first"}


_ORDER = re.compile(r"(.+?)(?:\s+(ASC|DESC))?(?:\s+NULLS\s+(FIRST|LAST))?", re.IGNORECASE)


def parse_order(text: Any) -> Order:
    """A column of an order: "price", "price ASC", "price DESC NULLS FIRST"."""
    found = _ORDER.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f'top(by={text!r}): expected a column like "price" or "price ASC"')
    column, way, nulls = found.groups()
    return Order(column, (way or "").upper() != "ASC", (nulls or "").upper() == "FIRST")


def told(order: Order) -> str:
    """A column of an order in words."""
    way = "DESC" if order.descending else "ASC"
    return f"{order.column} {way}{' NULLS FIRST' if order.nulls_first else ''}"

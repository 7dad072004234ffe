"""`key_by(...).agg(..., emit="delta")`: aggregates of groups, kept up to date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.graph.changing import changes_of
from millstream.operators.grouped.choosing import keeper_of
from millstream.operators.grouped.grouping import Grouping
from millstream.operators.protocol import Columns, Inputs, KeyedStep, Names, Types


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouped(KeyedStep):
    """A row per group that has any rows, as a stream of changes."""

    gives_changes: ClassVar[bool] = True
    keys: tuple[str, ...]
    aggs: tuple[tuple[str, Any], ...]
    null_keys: str = "dead"

    def mentions(self) -> tuple[str, ...]:
        """The key and the aggregates."""
        return (*self.keys, *(name for name, _ in self.aggs))

    def operator(self, number: int, changes: bool) -> Grouping:
        """Keeps a row per group."""
        measures = tuple(agg.measure(name) for name, agg in self.aggs)
        return Grouping(self.name, self.keys, self.null_keys == "keep", number, measures, changes)

    def columns(self, have: Columns) -> Columns:
        """The key and the aggregates."""
        return self.mentions()

    def resolve(self, inputs: Inputs) -> tuple[Columns, Types]:
        """The key and the aggregates; the types of these follow from the values."""
        types = inputs[0].types
        return self.columns(None), {name: types[name] for name in self.keys if name in types}

    def needs(self, number: int) -> Iterable[tuple[str, str, bool]]:
        """The key, and what aggregates look at."""
        yield from super().needs(number)
        for name, agg in self.aggs:
            numbers = getattr(agg, "numbers", None)
            for column in agg.columns:
                yield f"{name}={agg}", column, column == numbers

    def uses(self, wanted: set[str] | None) -> set[str] | None:
        """The key and the columns of aggregates; all if one takes whole records."""
        if any(not agg.columns and getattr(agg, "kind", "") != "count" for _, agg in self.aggs):
            return None
        return {*self.keys, *(column for _, agg in self.aggs for column in agg.columns)}

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """The key."""
        return tuple(frozenset((name,)) for name in self.keys)

    def words(self) -> str:
        """For the plan."""
        return f"aggregates by {', '.join(self.keys) or 'everything'}, as changes"

    def details(self, inputs: Inputs) -> list[str]:
        """For the plan: what is kept of every group."""
        changes = inputs[0].changes
        return [
            f"{name} = {agg}: {keeper_of(agg.measure(name), changes).words}"
            for name, agg in self.aggs
        ]

    def remembered(self) -> dict[str, Any]:
        """The key, and what is kept."""
        groups = {name: str(agg) for name, agg in self.aggs}
        over = changes_of(self) is not None
        return {"keys": list(self.keys), "groups": groups, "from the start": over}

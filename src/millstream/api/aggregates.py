"""Aggregates: what `.agg(name=...)` takes.

Each is a small description; the engine picks the cheapest way to compute it from what it can do.
A user's own is a subclass of `Aggregate`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.ops.holding import ObjectKernel
from millstream.ops.jobs import Measure
from millstream.ops.kernels import Count, Edge, Extremum, Kernel, Sum, Variance


@dataclass(frozen=True)
class Builtin:
    """A built-in aggregate of one column."""

    kind: str
    column: str | None
    kernel: Kernel | None

    def measure(self, name: str) -> Measure:
        """How a task computes it."""
        return Measure(name, str(self), self.column, kernel=self.kernel)

    @property
    def strategy(self) -> str:
        """How windows slide over it, for `explain`."""
        return "blocks" if self.kernel is not None else "kept values"

    def __str__(self) -> str:
        return f"{self.kind}({self.column or ''})"


class Aggregate:
    """A user's own aggregate: subclass it and give the methods.

    `add` gets the value of `column` (nulls are left out), or the whole record as a dict if there is
    no column. With `combine`, one state per pane is kept; without it, the values are kept and
    added again for every window. `uncombine` is the inverse of `combine` and may be left out.
    States must be made of numbers, strings, bytes, booleans, None, datetimes, lists and dicts.
    """

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    def zero(self) -> Any:
        """The state of nothing."""
        raise NotImplementedError

    def add(self, state: Any, value: Any) -> Any:
        """The state after one more value."""
        raise NotImplementedError

    def combine(self, left: Any, right: Any) -> Any:
        """The state of two disjoint sets of values, `left` being the earlier."""
        raise NotImplementedError

    def uncombine(self, total: Any, expired: Any) -> Any:
        """What is left of `total` without `expired`."""
        raise NotImplementedError

    def result(self, state: Any) -> Any:
        """The answer of a state."""
        return state

    def can(self, method: str) -> bool:
        """Whether a subclass gives this method."""
        return getattr(type(self), method) is not getattr(Aggregate, method)

    def measure(self, name: str) -> Measure:
        """How a task computes it."""
        if self.can("combine"):
            label = f"{name}={self}"
            inverse = self.uncombine if self.can("uncombine") else None
            kernel = ObjectKernel(label, self.zero, self.add, self.combine, self.result, inverse)
            return Measure(name, label, self.column, objects=kernel)
        return Measure(name, str(self), self.column, fold=self._fold)

    def _fold(self, values: list[Any]) -> Any:
        state = self.zero()
        for value in values:
            if value is not None:
                state = self.add(state, value)
        return self.result(state)

    @property
    def strategy(self) -> str:
        """How windows slide over it, for `explain`."""
        return "two stacks" if self.can("combine") else "kept values"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.column or ''})"


AnyAggregate = Builtin | Aggregate


def _column(kind: str, column: str) -> str:
    if not isinstance(column, str) or not column:
        raise ConfigError(f"{kind}() needs the name of a column, got {column!r}")
    return column


def count(column: str | None = None) -> Builtin:
    """The number of records, or of values that are not null."""
    return Builtin("count", None if column is None else _column("count", column), Count())


def sum(column: str) -> Builtin:
    """The total."""
    return Builtin("sum", _column("sum", column), Sum())


def mean(column: str) -> Builtin:
    """The average."""
    return Builtin("mean", _column("mean", column), Sum(mean=True))


def var(column: str) -> Builtin:
    """The sample variance; null for fewer than two values."""
    return Builtin("var", _column("var", column), Variance())


def std(column: str) -> Builtin:
    """The sample standard deviation; null for fewer than two values."""
    return Builtin("std", _column("std", column), Variance(root=True))


def min(column: str) -> Builtin:
    """The smallest value of any type with an order."""
    return Builtin("min", _column("min", column), Extremum(largest=False))


def max(column: str) -> Builtin:
    """The largest value of any type with an order."""
    return Builtin("max", _column("max", column), Extremum(largest=True))


def first(column: str) -> Builtin:
    """The value of the earliest record in (ts, source, offset) order, null or not."""
    return Builtin("first", _column("first", column), Edge(latest=False))


def last(column: str) -> Builtin:
    """The value of the latest record in (ts, source, offset) order, null or not."""
    return Builtin("last", _column("last", column), Edge(latest=True))


def collect(column: str) -> Builtin:
    """All values, nulls too, as a list in (ts, source, offset) order."""
    return Builtin("collect", _column("collect", column), None)


def checked(aggs: dict[str, Any], step: str, taken: builtins.set[str]) -> dict[str, AnyAggregate]:
    """The aggregates of one `.agg(...)`, or an error that says which is wrong."""
    if not aggs:
        raise ConfigError(f"{step}: agg() needs at least one name=aggregate, like n=ms.count()")
    for name, agg in aggs.items():
        if isinstance(agg, builtins.type) and issubclass(agg, Aggregate):
            raise ConfigError(f"{step}: {name}= is the class {agg.__name__}; give an instance")
        if not isinstance(agg, Builtin | Aggregate):
            raise ConfigError(
                f"{step}: {name}= must be an aggregate like ms.sum('price') or an instance of "
                f"a subclass of ms.Aggregate, got {agg!r}"
            )
        if name in taken:
            raise ConfigError(f"{step}: the name {name!r} is already a column of the result")
    return aggs


Fold = Callable[[list[Any]], Any]

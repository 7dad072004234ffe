"""Aggregates: what `.agg(name=...)` takes.

Each is a small description; the engine picks the cheapest way to compute it from what it can do.
A user's own is a subclass of `Aggregate`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.api.frames import plainly
from millstream.errors import ConfigError
from millstream.ops.aggregates import sketches, tallies
from millstream.ops.aggregates.holding import ObjectKernel
from millstream.ops.aggregates.kernels import Count, Edge, Extremum, Kernel, Sum, Variance
from millstream.ops.windows.jobs import Measure

_NUMERIC = ("sum", "mean", "var", "std", "quantile")


@dataclass(frozen=True)
class Builtin:
    """A built-in aggregate of one column."""

    kind: str
    column: str | None
    kernel: Kernel | None = None
    objects: ObjectKernel | None = None
    lists: Callable[[pa.Array], pa.Array] | None = None  # answers from kept values
    state: str = ""  # names its state, if others can share it
    by: str | None = None  # a second column
    options: tuple[tuple[str, Any], ...] = ()

    def measure(self, name: str) -> Measure:
        """How a task computes it."""
        return Measure(
            name,
            self.state or str(self),
            self.column,
            kernel=self.kernel,
            objects=self.objects,
            lists=self.lists,
            by=self.by,
            numbers=self.numbers,
        )

    @property
    def numbers(self) -> str | None:
        """The one of its columns that must be of numbers."""
        return self.column if self.kind in _NUMERIC else self.by

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it looks at."""
        return tuple(name for name in (self.column, self.by) if name is not None)

    @property
    def strategy(self) -> str:
        """How windows slide over it where running values do not apply, for `explain`."""
        if self.objects is not None:
            return "two stacks" if self.objects.windows is None else "running tallies"
        return "blocks" if self.kernel is not None else "kept values"

    def __str__(self) -> str:
        options = "".join(f", {name}={_shown(value)}" for name, value in self.options)
        return f"{self.kind}({self.column or ''}{options})"

    def __repr__(self) -> str:
        return f"ms.{self}"


def _shown(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


class Aggregate:
    """A user's own aggregate: subclass it and give the methods.

    `add` gets the value of `column` (nulls are left out), or the whole record as a dict if there is
    no column. With `combine`, one state per pane is kept; without it, the values are kept and
    added again for every window. `uncombine` is the inverse of `combine` and may be left out.
    States must be made of numbers, strings, bytes, booleans, None, dates, times, lists and dicts.
    """

    column: str | None = None  # also of a subclass with an `__init__` that does not call this one

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
    def columns(self) -> tuple[str, ...]:
        """The columns it looks at; none if it takes whole records."""
        return () if self.column is None else (self.column,)

    @property
    def strategy(self) -> str:
        """How windows slide over it where running values do not apply, for `explain`."""
        return "two stacks" if self.can("combine") else "kept values"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.column or ''})"


AnyAggregate = Builtin | Aggregate


def _column(kind: str, column: str) -> str:
    if not isinstance(column, str) or not column:
        raise ConfigError(f"{kind}() needs the name of a column, got {column!r}")
    return column


@plainly
def count(column: str | None = None) -> Builtin:
    """The number of records, or of values that are not null."""
    return Builtin("count", None if column is None else _column("count", column), Count())


@plainly
def sum(column: str) -> Builtin:
    """The total."""
    return Builtin("sum", _column("sum", column), Sum())


@plainly
def mean(column: str) -> Builtin:
    """The average."""
    return Builtin("mean", _column("mean", column), Sum(mean=True))


@plainly
def var(column: str) -> Builtin:
    """The sample variance; null for fewer than two values."""
    return Builtin("var", _column("var", column), Variance())


@plainly
def std(column: str) -> Builtin:
    """The sample standard deviation; null for fewer than two values."""
    return Builtin("std", _column("std", column), Variance(root=True))


@plainly
def min(column: str) -> Builtin:
    """The smallest value of any type with an order."""
    return Builtin("min", _column("min", column), Extremum(largest=False))


@plainly
def max(column: str) -> Builtin:
    """The largest value of any type with an order."""
    return Builtin("max", _column("max", column), Extremum(largest=True))


@plainly
def first(column: str) -> Builtin:
    """The value of the earliest record in (ts, source, offset) order, null or not."""
    return Builtin("first", _column("first", column), Edge(latest=False))


@plainly
def last(column: str) -> Builtin:
    """The value of the latest record in (ts, source, offset) order, null or not."""
    return Builtin("last", _column("last", column), Edge(latest=True))


@plainly
def collect(column: str) -> Builtin:
    """All values, nulls too, as a list in (ts, source, offset) order."""
    return Builtin("collect", _column("collect", column))


@plainly
def top_k(column: str, k: int = 10, by: str | None = None) -> Builtin:
    """The k most frequent values as a list of {value, count}, the most frequent first.

    With `by`, the k values with the largest totals of that column, as {value, total}. Of equal
    counts or totals the smaller value comes first. Exact: it does not depend on the order of
    records. Records where the column (or `by`) is null are left out; [] if none is left.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"top_k(k=): must be a whole number from 1, got {k!r}")
    column = _column("top_k", column)
    options: tuple[tuple[str, Any], ...] = (("k", k),)
    state = f"tally({column})"
    if by is not None:
        options = (*options, ("by", _column("top_k(by=)", by)))
        state = f"tally({column}, by={by})"
    kernel = tallies.top_k(f"top_k({column})", k, by is not None)
    return Builtin("top_k", column, objects=kernel, state=state, by=by, options=options)


@plainly
def distinct(column: str, approx: bool = False) -> Builtin:
    """The number of different values that are not null; 0 if there are none.

    Exact: the values of a window are kept, each once with its count. NaN is one value, 1 and 1.0
    are the same. With `approx=True` a HyperLogLog sketch of at most 4 KB takes their place: its
    standard error is 1.6 %, so that 99 of 100 answers are within 4.7 %; up to about 300 values it
    is nearly always exact. The estimate depends on the values only, not on their order.
    """
    column = _column("distinct", column)
    if _flag("distinct", approx):
        name = f"distinct({column}, approx=True)"
        return Builtin(
            "distinct",
            column,
            objects=sketches.approximate_distinct(name),
            state=f"hll({column})",
            options=(("approx", True),),
        )
    kernel = tallies.distinct(f"distinct({column})")
    return Builtin("distinct", column, objects=kernel, state=f"tally({column})")


@plainly
def quantile(column: str, q: float | Sequence[float], approx: bool = False) -> Builtin:
    """The value below which a share `q` of the values lies; for a list of shares, a list.

    Exact: linear interpolation between the two values nearest in rank, as `quantile_cont` in
    DuckDB and `numpy.quantile` have it; all values of a window are kept. NaN is the largest
    number. With `approx=True` a KLL sketch of about 5 KB takes their place: it gives one of the
    values, whose rank is off by at most 1.33 % of their number in 99 of 100 cases; NaN is left
    out; answers over more than 200 values differ from run to run within that error. Null if there
    was no value.
    """
    column = _column("quantile", column)
    several = isinstance(q, Sequence) and not isinstance(q, str)
    shares = tuple(_share(one) for one in q) if isinstance(q, Sequence) and several else _share(q)
    if shares == ():
        raise ConfigError("quantile(q=): the list is empty")
    options: tuple[tuple[str, Any], ...] = (("q", shares),)
    if not _flag("quantile", approx):
        return Builtin("quantile", column, lists=sketches.ExactQuantile(shares), options=options)
    options = (*options, ("approx", True))
    kernel = sketches.ApproximateQuantile(shares).kernel(f"quantile({column}, approx=True)")
    return Builtin("quantile", column, objects=kernel, state=f"kll({column})", options=options)


def _share(q: Any) -> float:
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise ConfigError(
            f"quantile(q=): must be a number from 0 to 1 or a list of them, got {q!r}"
        )
    return float(q)


def _flag(kind: str, approx: Any) -> bool:
    if not isinstance(approx, bool):
        raise ConfigError(f"{kind}(approx=): must be True or False, got {approx!r}")
    return approx


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
        missing = [
            one for one in ("zero", "add") if isinstance(agg, Aggregate) and not agg.can(one)
        ]
        if missing:
            raise ConfigError(
                f"{step}: {name}={builtins.type(agg).__name__} lacks {' and '.join(missing)}; an "
                "ms.Aggregate needs zero() and add(state, value), and should have combine(a, b)"
            )
    free(aggs, taken, step)
    return aggs


def free(names: Iterable[str], taken: builtins.set[str], step: str) -> None:
    """Refuse names that the columns of a result have anyway."""
    for name in names:
        if name in taken:
            raise ConfigError(f"{step}: the name {name!r} is already a column of the result")

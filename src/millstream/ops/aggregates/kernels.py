"""Built-in aggregates as vectorised kernels over partial states.

A kernel turns the values of many groups into partial states (`lift`), merges partial states of the
same group (`merge`), slides over panes (`slide`, through a `Grid`) and gives the answer (`result`).
A state is a few Arrow columns; all kernels ignore nulls in the way of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.aggregates.grid import Grid
from millstream.ops.chunks import Floats, Int64
from millstream.ops.mixed import in_order, is_mixed

State = dict[str, pa.Array]
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Rows:
    """The rows to be lifted: which group each belongs to, and its place in the order of time."""

    groups: Int64
    count: int  # number of groups
    ts: Int64
    src: int
    pos: Int64


class Kernel(Protocol):
    """What the engine asks of an aggregate that can be computed pane by pane."""

    @property
    def fields(self) -> tuple[str, ...]: ...
    def lift(self, values: pa.Array | None, rows: Rows) -> State: ...
    def merge(self, state: State, groups: Int64, count: int) -> State: ...
    def slide(self, state: State, grid: Grid) -> State: ...
    def result(self, state: State) -> pa.Array: ...


def as_numbers(values: pa.Array, what: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Values as NumPy numbers (nulls as zero), and which of them are there."""
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_null(kind) or pa.types.is_integer(kind):
        values = pc.cast(values, pa.int64())
    elif pa.types.is_floating(kind):
        values = pc.cast(values, pa.float64())
    else:
        raise RunError(
            f"{what} needs numbers, but the column is {kind}; cast it first, for example "
            "with .select('CAST(x AS DOUBLE) AS x')"
        )
    valid = np.asarray(pc.is_valid(values))
    return np.asarray(values.fill_null(0)), valid


def _sum_groups(values: np.ndarray[Any, Any], groups: Int64, count: int) -> np.ndarray[Any, Any]:
    if values.dtype == np.float64:
        return np.bincount(groups, weights=values, minlength=count)
    total = np.zeros(count, np.int64)
    np.add.at(total, groups, values)
    return total


def _upper(values: np.ndarray[Any, Any]) -> Int64 | None:
    """Whole numbers in units of 2^32, rounded; None if all are 0, as those of most columns."""
    if not len(values) or values.dtype == np.float64:
        return None
    low, high = int(values.min()), int(values.max())
    if low >= -(2**31) and high < 2**31:
        return None
    upper: Int64 = (values >> 32) + ((values >> 31) & 1)
    return upper


@runtime_checkable
class Running(Protocol):
    """What a kernel needs beside that for running values: panes can be added and taken away."""

    def plus(self, total: Columns, more: Columns) -> Columns: ...
    def minus(self, total: Columns, expired: Columns) -> Columns: ...
    def magnitude(self, state: Columns) -> Floats | None: ...


class _Additive:
    """States whose fields simply add up."""

    def merge(self, state: State, groups: Int64, count: int) -> State:
        return {
            name: pa.array(_sum_groups(np.asarray(column), groups, count))
            for name, column in state.items()
        }

    def slide(self, state: State, grid: Grid) -> State:
        return {
            name: pa.array(grid.scan(np.add, np.asarray(column), 0))
            for name, column in state.items()
        }

    def plus(self, total: Columns, more: Columns) -> Columns:
        return {name: total[name] + more[name] for name in total}

    def minus(self, total: Columns, expired: Columns) -> Columns:
        return {name: total[name] - expired[name] for name in total}

    def magnitude(self, state: Columns) -> Floats | None:
        """How large the floating-point part is, to judge rounding; None if all is exact."""
        values = state.get("sum")
        if values is None or values.dtype != np.float64:
            return None
        return np.abs(values)


@dataclass(frozen=True)
class Count(_Additive):
    """How many records, or how many values that are not null."""

    fields: tuple[str, ...] = ("n",)

    def lift(self, values: pa.Array | None, rows: Rows) -> State:
        groups = rows.groups
        if values is not None and values.null_count:
            groups = groups[np.asarray(pc.is_valid(values))]
        return {"n": pa.array(np.bincount(groups, minlength=rows.count))}

    def result(self, state: State) -> pa.Array:
        return state["n"]


@dataclass(frozen=True)
class Sum(_Additive):
    """The total, or with `mean` the average; null if there was no value.

    The sum of whole numbers may leave 64 bits and come back, in whatever order they are added. So
    `sum` is what it is modulo 2^64, and `upper` the sum of the values in units of 2^32, which says
    how often 2^64 is missing. Most columns have no value that large, and no column `upper`.
    """

    mean: bool = False
    fields: tuple[str, ...] = ("n", "sum", "upper")

    def lift(self, values: pa.Array | None, rows: Rows) -> State:
        assert values is not None
        what = "mean" if self.mean else "sum"
        numbers, valid = as_numbers(values, what)
        if self.mean:
            numbers = numbers.astype(np.float64)
        groups = rows.groups
        if not valid.all():
            numbers, groups = numbers[valid], groups[valid]
        lifted = {
            "n": pa.array(np.bincount(groups, minlength=rows.count)),
            "sum": pa.array(_sum_groups(numbers, groups, rows.count)),
        }
        upper = _upper(numbers)
        if upper is not None:
            lifted["upper"] = pa.array(_sum_groups(upper, groups, rows.count))
        return lifted

    def overflown(self, state: State) -> Int64:
        """The rows whose sum of whole numbers does not fit in 64 bits."""
        if "upper" not in state or not np.asarray(state["upper"]).any():
            return np.zeros(0, np.int64)
        about, total = np.asarray(state["upper"]) * 2.0**32, np.asarray(state["sum"])
        if total.dtype == np.float64:  # beside fractions: nobody knows any more how much is missing
            return np.flatnonzero(np.abs(about) > 2.0**62)
        return np.flatnonzero(np.rint((about - total) / 2.0**64))

    def result(self, state: State) -> pa.Array:
        n, total = np.asarray(state["n"]), np.asarray(state["sum"])
        if self.mean:
            with np.errstate(divide="ignore", invalid="ignore"):
                total = total / n
        missing = n == 0
        missing[self.overflown(state)] = True
        return pa.array(total, mask=missing)


def _chan(a: list[Floats], b: list[Floats]) -> list[Floats]:
    """Chan's combination of (count, mean, sum of squared deviations): numerically sound."""
    n = a[0] + b[0]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(n > 0, b[0] / n, 0.0)
        delta = np.where((a[0] > 0) & (b[0] > 0), b[1] - a[1], 0.0)
        mean = np.where(a[0] > 0, a[1] + delta * share, b[1])
        return [n, mean, a[2] + b[2] + delta * delta * a[0] * share]


@dataclass(frozen=True)
class Variance:
    """Sample variance or (with `root`) standard deviation, from mean and squared deviations."""

    root: bool = False
    ddof: int = 1
    fields: tuple[str, ...] = ("n", "mean", "m2")
    # Running values: a jump of the mean leaves rounding of its own size behind, so that squared
    # deviations are to be recomputed sooner than sums.
    trust: ClassVar[float] = 1e-2

    def lift(self, values: pa.Array | None, rows: Rows) -> State:
        assert values is not None
        numbers, valid = as_numbers(values, "std" if self.root else "var")
        numbers, groups = numbers.astype(np.float64)[valid], rows.groups[valid]
        n = np.bincount(groups, minlength=rows.count).astype(np.float64)
        total = np.bincount(groups, weights=numbers, minlength=rows.count)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mean = np.where(n > 0, total / n, 0.0)
            deviation = numbers - mean[groups]
            m2 = np.bincount(groups, weights=deviation * deviation, minlength=rows.count)
        return {"n": pa.array(n), "mean": pa.array(mean), "m2": pa.array(m2)}

    def merge(self, state: State, groups: Int64, count: int) -> State:
        n, mean, m2 = (np.asarray(state[name]) for name in self.fields)
        total_n = np.bincount(groups, weights=n, minlength=count)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            weighted = np.bincount(groups, weights=n * mean, minlength=count)
            total_mean = np.where(total_n > 0, weighted / total_n, 0.0)
            delta = np.where(n > 0, mean - total_mean[groups], 0.0)
            total_m2 = np.bincount(groups, weights=m2 + n * delta * delta, minlength=count)
        return {"n": pa.array(total_n), "mean": pa.array(total_mean), "m2": pa.array(total_m2)}

    def slide(self, state: State, grid: Grid) -> State:
        columns = [np.asarray(state[name]) for name in self.fields]
        return dict(zip(self.fields, map(pa.array, grid.scan_many(_chan, columns)), strict=True))

    def plus(self, total: Columns, more: Columns) -> Columns:
        order = self.fields
        merged = _chan([total[f] for f in order], [more[f] for f in order])
        return dict(zip(order, merged, strict=True))

    def minus(self, total: Columns, expired: Columns) -> Columns:
        n = total["n"] - expired["n"]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(
                n > 0, (total["n"] * total["mean"] - expired["n"] * expired["mean"]) / n, 0.0
            )
        delta = np.where((n > 0) & (expired["n"] > 0), expired["mean"] - mean, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where(total["n"] > 0, delta * delta * n * expired["n"] / total["n"], 0.0)
        m2 = np.where(n > 0, np.maximum(total["m2"] - expired["m2"] - shift, 0.0), 0.0)
        return {"n": n, "mean": mean, "m2": m2}

    def magnitude(self, state: Columns) -> Floats | None:
        """Squared deviations lose digits where the mean is large beside them."""
        scale: Floats = state["m2"]
        return scale

    def result(self, state: State) -> pa.Array:
        n, m2 = np.asarray(state["n"]), np.asarray(state["m2"])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.maximum(m2, 0.0) / (n - self.ddof)  # maximum keeps a NaN a NaN
        return pa.array(np.sqrt(value) if self.root else value, mask=n <= self.ddof)


@dataclass(frozen=True)
class Extremum:
    """The smallest or largest value of any type that has an order; NaN is the largest number."""

    largest: bool
    fields: tuple[str, ...] = ("value",)

    def lift(self, values: pa.Array | None, rows: Rows) -> State:
        assert values is not None
        return self.merge({"value": values}, rows.groups, rows.count)

    def merge(self, state: State, groups: Int64, count: int) -> State:
        values = state["value"]
        if _is_number(values.type):
            into: np.ndarray[Any, Any] = np.full(
                count, self._identity(values.type), _dtype(values.type)
            )
            valid = np.asarray(pc.is_valid(values))
            numbers = np.asarray(values.fill_null(0))[valid].astype(into.dtype, copy=False)
            with np.errstate(invalid="ignore"):  # NaN has its place in the order
                self._ufunc().at(into, groups[valid], numbers)
            seen = np.zeros(count, np.bool_)
            seen[groups[valid]] = True
            return {"value": pa.array(into, mask=~seen)}
        rank, by_rank = _rank(values)
        into = np.full(count, -1 if self.largest else len(values), np.int64)
        self._ufunc().at(into, groups[rank >= 0], rank[rank >= 0])
        return {"value": _take_rank(values, by_rank, into)}

    def slide(self, state: State, grid: Grid) -> State:
        values = state["value"]
        if _is_number(values.type):
            identity = self._identity(values.type)
            valid = np.asarray(pc.is_valid(values))
            numbers = np.where(valid, np.asarray(values.fill_null(0)), identity)
            found = grid.scan(self._ufunc(), numbers.astype(_dtype(values.type)), identity)
            if valid.all():
                return {"value": pa.array(found)}
            seen = grid.scan(np.maximum, valid.astype(np.int8), 0)
            return {"value": pa.array(found, mask=seen == 0)}
        rank, by_rank = _rank(values)
        none = -1 if self.largest else len(values)
        found = grid.scan(self._ufunc(), np.where(rank < 0, none, rank), none)
        return {"value": _take_rank(values, by_rank, found)}

    def result(self, state: State) -> pa.Array:
        return state["value"]

    def _ufunc(self) -> np.ufunc:
        return np.maximum if self.largest else np.fmin  # both treat NaN as the largest

    def _identity(self, kind: pa.DataType) -> Any:
        if pa.types.is_floating(kind):
            return -np.inf if self.largest else np.nan
        return np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max


@dataclass(frozen=True)
class Edge:
    """The value of the earliest or latest record in (ts, source, offset) order."""

    latest: bool
    fields: tuple[str, ...] = ("ts", "src", "pos", "value")

    def lift(self, values: pa.Array | None, rows: Rows) -> State:
        assert values is not None
        source = np.full(len(rows.ts), rows.src, np.int64)
        state = {
            "ts": pa.array(rows.ts),
            "src": pa.array(source),
            "pos": pa.array(rows.pos),
            "value": values,
        }
        return self.merge(state, rows.groups, rows.count)

    def merge(self, state: State, groups: Int64, count: int) -> State:
        rank, by_rank = self._rank(state)
        into = np.full(count, -1 if self.latest else len(groups), np.int64)
        self._ufunc().at(into, groups, rank)
        rows = pa.array(by_rank[into])
        return {name: state[name].take(rows) for name in self.fields}

    def slide(self, state: State, grid: Grid) -> State:
        rank, by_rank = self._rank(state)
        none = -1 if self.latest else len(rank)
        rows = pa.array(by_rank[grid.scan(self._ufunc(), rank, none)])
        return {name: state[name].take(rows) for name in self.fields}

    def result(self, state: State) -> pa.Array:
        return state["value"]

    def _rank(self, state: State) -> tuple[Int64, Int64]:
        # Stable: of several results of one record, which share its place, the later is the last.
        order = np.lexsort([np.asarray(state[name]) for name in ("pos", "src", "ts")])
        return _invert(order), order

    def _ufunc(self) -> np.ufunc:
        return np.maximum if self.latest else np.minimum


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _dtype(kind: pa.DataType) -> type:
    return np.float64 if pa.types.is_floating(kind) else np.int64


def _invert(order: Int64) -> Int64:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _rank(values: pa.Array) -> tuple[Int64, Int64]:
    """The rank of every value in its type's order (-1 for null), and the row at each rank."""
    if pa.types.is_null(values.type):
        return np.full(len(values), -1, np.int64), np.zeros(0, np.int64)
    if is_mixed(values.type) or pa.types.is_nested(values.type):
        known = values.to_pylist()
        order = np.array(
            sorted(range(len(known)), key=lambda row: (known[row] is None, in_order(known[row]))),
            np.int64,
        )
    else:
        order = pc.sort_indices(values).to_numpy().astype(np.int64)
    rank = _invert(order)
    rank[np.asarray(pc.is_null(values))] = -1
    return rank, order


def _take_rank(values: pa.Array, by_rank: Int64, ranks: Int64) -> pa.Array:
    missing = (ranks < 0) | (ranks >= len(values))
    if not len(by_rank):
        return pa.nulls(len(ranks), values.type)
    rows = by_rank[np.where(missing, 0, ranks)]
    return values.take(pa.array(rows, mask=missing))

"""Aggregates that need no more of a group than one partial in its row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.grouped.keeping import PLACE, States, Stock, finish, lift_rows
from millstream.operators.grouped.moves import Moves
from millstream.operators.stores import Bag, StoredRows
from millstream.ops.aggregates import exact
from millstream.ops.aggregates.kernels import Kernel, Sum, Variance, as_numbers
from millstream.ops.chunks import concat, flat
from millstream.ops.codec import decode, encode, pack
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.jobs import Measure


@dataclass(frozen=True)
class Counted:
    """The number of rows, or of values that are not null."""

    column: str | None
    words: str = "a number per group"
    bag: Stock | None = None

    @property
    def field(self) -> str:
        """Its column in the rows of groups."""
        return f"state.count({self.column or ''})"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Add weights."""
        weight = moves.weight.astype(np.float64)
        if self.column is not None:
            weight = weight * np.asarray(moves.column(self.column).is_valid())
        grown = np.bincount(moves.group, weights=weight, minlength=moves.count).astype(np.int64)
        return {self.field: pa.array(kept.numbers(self.field) + grown)}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """The number."""
        found.columns[measure.name] = states[self.field]


@dataclass(frozen=True)
class Totalled:
    """Sums of values, and of their squares if need be, without rounding."""

    column: str
    squares: bool
    bag: Stock | None = None

    @property
    def words(self) -> str:
        """For the plan."""
        what = "the exact totals of values and squares" if self.squares else "the exact total"
        return f"{what} per group"

    @property
    def field(self) -> str:
        """Its column in the rows of groups."""
        return f"state.{'squares' if self.squares else 'total'}({self.column})"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Add what comes, take away what goes."""
        numbers, there = as_numbers(moves.column(self.column), f"column {self.column!r}: sum")
        ways = (exact.summed, exact.squared) if self.squares else (exact.summed,)
        totals = [
            [exact.NOTHING] * len(ways) if data is None else decode(data)
            for data in kept.column(self.field).to_pylist()
        ]
        for sign in (1, -1):
            rows = there & (moves.weight == sign)
            if not rows.any():
                continue
            for nth, way in enumerate(ways):
                sums = way(numbers[rows], moves.group[rows], moves.count)
                for total, more in zip(totals, sums, strict=True):
                    if more[0]:
                        total[nth] = exact.moved(total[nth], more, sign)
        fractions = kept.flags(f"{self.field}.float")
        if numbers.dtype == np.float64:
            fractions[moves.group[there]] = True
        return {
            self.field: pa.array([pack(one) for one in totals], pa.binary()),
            f"{self.field}.float": pa.array(fractions),
        }

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """Round once."""
        totals = [decode(data) for data in states[self.field].to_pylist()]
        kernel = measure.kernel
        if isinstance(kernel, Variance):
            spread = [exact.variance(*both) if both[0][0] > 1 else None for both in totals]
            if kernel.root:
                spread = [None if one is None else math.sqrt(one) for one in spread]
            found.columns[measure.name] = pa.array(spread, pa.float64())
            return
        assert isinstance(kernel, Sum)
        whole = not bool(np.asarray(states[f"{self.field}.float"]).any())
        numbers = [exact.number(one, whole) if one[0] else None for (one,) in totals]
        if kernel.mean:
            pairs = zip(numbers, totals, strict=True)
            means = [None if one is None else _share(one, total[0][0]) for one, total in pairs]
            found.columns[measure.name] = pa.array(means, pa.float64())
            return
        if whole:
            for at, one in enumerate(numbers):
                if one is not None and not -(2**63) <= one < 2**63:
                    numbers[at] = None
                    found.failed[at] = (
                        f"{measure.name}=sum({self.column}) is {one}, which does not fit in 64 "
                        "bits; cast the column to DOUBLE or DECIMAL first"
                    )
        found.columns[measure.name] = pa.array(numbers, pa.int64() if whole else pa.float64())


def _share(total: int | float, count: int) -> float:
    return exact.divided(total, 0, count) if isinstance(total, int) else total / count


@dataclass(frozen=True)
class Merged:
    """Any partial to which others can be added, where rows are never taken away."""

    measure: Measure
    words: str = "a partial per group, to which rows are added"
    bag: Stock | None = None

    @property
    def prefix(self) -> str:
        """Before the names of its columns in the rows of groups."""
        return f"state.{self.measure.state}."

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Merge what is stored with what comes."""
        if self.measure.kernel is not None:
            return self._merged(self.measure.kernel, moves, kept)
        assert self.measure.objects is not None
        field, groups = f"{self.prefix}state", np.arange(moves.count)
        mine = lift_rows(self.measure, moves, moves.weight > 0)
        stored = kept.column(field).cast(pa.binary()).filter(pa.array(kept.there))
        both = np.concatenate((groups[kept.there], groups))
        states = pa.concat_arrays([stored, mine])
        return {field: self.measure.objects.merge(states, both, moves.count)}

    def _merged(self, kernel: Kernel, moves: Moves, kept: StoredRows) -> States:
        names = kernel.fields
        if not len(moves.group):  # one group of nothing
            return {f"{self.prefix}{name}": pa.nulls(moves.count) for name in names}
        assert self.measure.column is not None
        known = {name: pa.array(moves.marks(name)) for name in PLACE}
        known["value"] = moves.column(self.measure.column)
        stored = pa.table({name: kept.column(f"{self.prefix}{name}") for name in names})
        # A group of nothing has no partial: it is one without a place.
        there = kept.there & np.asarray(stored.column(names[0]).is_valid())
        parts = [stored.filter(pa.array(there)), pa.table({name: known[name] for name in names})]
        both = concat(parts)
        groups = np.concatenate((np.flatnonzero(there), moves.group))
        merged = kernel.merge({n: flat(both.column(n)) for n in names}, groups, moves.count)
        return {f"{self.prefix}{name}": merged[name] for name in names}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """What the partial comes to."""
        if measure.kernel is None:
            finish(measure, states[f"{self.prefix}state"], found)
            return
        state = {name: states[f"{self.prefix}{name}"] for name in measure.kernel.fields}
        found.columns[measure.name] = measure.kernel.result(state)


@dataclass(frozen=True)
class Inverted:
    """A partial from which rows are taken away by the inverse of what adds them."""

    measure: Measure
    words: str = "a partial per group, to which rows are added and from which they are taken away"
    bag: Stock | None = None

    @property
    def field(self) -> str:
        """Its column in the rows of groups."""
        return f"state.{self.measure.state}.state"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """First add, then take away."""
        objects = self.measure.objects
        assert objects is not None
        totals = [
            objects.zero() if data is None else decode(data)
            for data in kept.column(self.field).to_pylist()
        ]
        for sign, step in ((1, objects.plus), (-1, objects.minus)):
            rows = moves.weight == sign
            if rows.any():
                changes = objects.decoded(lift_rows(self.measure, moves, rows))
                for at in np.unique(moves.group[rows]).tolist():
                    totals[at] = step(totals[at], changes[at], int(moves.first[at]))
        return {self.field: pa.array([encode(one) for one in totals], pa.binary())}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """What the partial comes to."""
        finish(measure, states[self.field], found)

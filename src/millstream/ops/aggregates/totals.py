"""Sums and means of decimals: exact, in whole numbers of their last digit.

A state is how many values there were, and their total. It is a whole number of any length, so that
what was added can be taken away again, and what overflows in between is no error; the answer is.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.holding import ObjectKernel, never
from millstream.ops.chunks import Floats, Int64
from millstream.ops.codec import encode
from millstream.ops.sql.decimals import compute, fit, from_limbs, limbs
from millstream.ops.sql.types import MOST_DIGITS, ExpressionError

State = list[Any]  # [values, total]


@dataclass(frozen=True)
class DecimalTotal:
    """The sum of decimals, or with `mean` their average, with the digits that Spark gives it."""

    of: pa.DataType
    mean: bool = False

    @property
    def type(self) -> pa.DataType:
        """The type of answers."""
        more, behind = (4, 4) if self.mean else (10, 0)
        precision, scale = self.of.precision + more, self.of.scale + behind
        return pa.decimal128(min(precision, MOST_DIGITS), min(scale, MOST_DIGITS))

    def kernel(self, name: str) -> ObjectKernel:
        """What windows and groups compute it with."""
        return ObjectKernel(
            name, lambda: [0, 0], never, _plus, self._answer, _minus, bulk=self._lift,
            typed=self._answers, fails=self._fails, decimals=self,
        )  # fmt: skip

    def near(self, states: list[State]) -> tuple[Floats, Floats]:
        """How many values states are of, and their totals as near as a float is."""
        counts, totals = zip(*states, strict=True) if states else ((), ())
        return np.array(counts, np.float64), np.array(totals, np.float64) / 10.0**self.of.scale

    def _lift(self, inputs: list[pa.Array], groups: Int64, count: int) -> pa.Array:
        values = inputs[0].cast(self.of)
        there = np.asarray(values.is_valid())
        mine = groups[there]
        sums = [np.zeros(count, np.int64) for _ in range(4)]
        for total, column in zip(sums, limbs(values), strict=True):
            np.add.at(total, mine, column)
        counts = np.bincount(mine, minlength=count).tolist()
        states = zip(counts, from_limbs(sums), strict=True)
        return pa.array([encode([*one]) for one in states], pa.binary())

    def _answer(self, state: State) -> Decimal | None:
        count, total = state
        if not count:
            return None
        number = Decimal((int(total < 0), tuple(map(int, str(abs(total)))), -self.of.scale))
        return fit(compute("/", number, Decimal(count)) if self.mean else number, self.type)

    def _fails(self, state: State) -> str | None:
        """Why a state has no answer."""
        try:
            self._answer(state)
        except ExpressionError as error:
            return f"{'avg' if self.mean else 'sum'}: {error}"
        return None

    def _answers(self, states: list[State]) -> pa.Array:
        good = (None if self._fails(one) else self._answer(one) for one in states)
        return pa.array(good, self.type)


def _plus(left: State, right: State) -> State:
    return [left[0] + right[0], left[1] + right[1]]


def _minus(total: State, expired: State) -> State:
    return [total[0] - expired[0], total[1] - expired[1]]

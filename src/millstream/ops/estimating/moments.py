"""What estimators keep of the blocks read so far: sums of products over blocks, per group.

A block gives every group a few numbers: how many values, their total, the total of their squares.
All that an interval needs of them are the sums of their products with up to three factors, so that
what is kept grows with the groups and not with the blocks. A block without a group gives it zeros,
which add nothing; only the sizes of blocks count for all groups alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import factorial
from typing import Any

import numpy as np

from millstream.ops.chunks import Floats, Int64

Product = tuple[str, ...]  # the factors, in order

SIZE = "size"  # of a block: bytes or rows, known before it is read
COUNT, TOTAL, SQUARES = "count", "total", "squares"  # of the values of a group in a block
# Read, before any bound is given: what one block in ten has is then missed with a risk of 4 %.
LEAST_BLOCKS = 30
LARGE = 0.1  # of the input: a block that may have what one in ten has
_DEGREE = 3


def products(factors: tuple[str, ...]) -> list[Product]:
    """All products of up to three of these that are not of sizes alone."""
    return [
        product
        for degree in range(1, _DEGREE + 1)
        for product in combinations_with_replacement(sorted(factors), degree)
        if set(product) != {SIZE}
    ]


@dataclass
class Blocks:
    """The blocks of an input: how many there are, and what was read of them."""

    count: int  # of all
    size: float  # of all together
    read: int = 0
    sums: Floats = field(default_factory=lambda: np.zeros(_DEGREE + 1))  # of powers of their sizes
    largest_left: float = 0.0  # the size of the largest that was not read

    def add(self, sizes: Floats) -> None:
        """Blocks were read."""
        self.read += len(sizes)
        self.sums = self.sums + np.array([(sizes**power).sum() for power in range(_DEGREE + 1)])

    @property
    def share(self) -> float:
        """The share of the blocks that was read."""
        return self.read / self.count if self.count else 1.0

    @property
    def progress(self) -> float:
        """The share of the input that was read."""
        return float(self.sums[1] / self.size) if self.size else 1.0

    @property
    def left(self) -> float:
        """What was not read, as a share of all blocks or of their size, whichever is more.

        How far a block is from its due grows with its size. So where large blocks are left, more
        is unknown than their number says (Royall and Cumberland 1981).
        """
        return max(1 - self.share, 1 - self.progress) if self.read < self.count else 0.0

    @property
    def one_left_is_large(self) -> bool:
        """Whether one block not read has so much of the input that others cannot stand for it."""
        return self.largest_left >= LARGE * self.size > 0

    @property
    def few(self) -> bool:
        """Whether what was read says too little of the rest for any bounds."""
        return self.read < LEAST_BLOCKS or self.one_left_is_large

    @property
    def draws(self) -> float:
        """How many draws with replacement would say as much."""
        return self.read / self.left if self.left > 0 else float("inf")

    @property
    def alike(self) -> float:
        """How many blocks of one size say as much about how blocks differ (Satterthwaite 1946)."""
        return float(self.sums[1] ** 2 / self.sums[2]) if self.read else 0.0


class Moments:
    """Sums of products over blocks for every group; groups are numbered as they come."""

    def __init__(self, factors: tuple[str, ...]) -> None:
        self.factors = tuple(sorted(factors))
        # The factor whose extremes say how long the tail of blocks is.
        self._of = next(one for one in (SQUARES, TOTAL, COUNT) if one in factors)
        # What is due is in proportion to its size, or to its values where the size is left out.
        self._by = SIZE if SIZE in factors else COUNT
        self._due: Floats = np.zeros((2, 0))  # the totals of both
        self._beyond: Floats = np.zeros((2, 0))
        self.products = products(self.factors)
        self._at = {product: index for index, product in enumerate(self.products)}
        self._sums: Floats = np.zeros((len(self.products), 0))
        self._present: Int64 = np.zeros(0, np.int64)
        self._active: Int64 = np.zeros(0, np.int64)
        self._most: Floats = np.zeros((len(self.factors), 0))
        self._least: Floats = np.zeros((len(self.factors), 0))

    def add(self, groups: Int64, values: Mapping[str, Floats], count: int) -> None:
        """One row for every block and group in it; there are `count` groups so far."""
        self.grow(count)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # NaN says nothing
            self._add(groups, values, count)

    def _add(self, groups: Int64, values: Mapping[str, Floats], count: int) -> None:
        for index, product in enumerate(self.products):
            row = np.prod([values[factor] for factor in product], axis=0)
            self._sums[index] += np.bincount(groups, weights=row, minlength=count)
        self._present += np.bincount(groups, minlength=count)
        self._active += np.bincount(groups[values[self._of] != 0], minlength=count)
        for index, factor in enumerate(self.factors):
            np.maximum.at(self._most[index], groups, values[factor])
            np.minimum.at(self._least[index], groups, values[factor])
        beyond = self._beyond_due(groups, values, count)
        np.minimum.at(self._beyond[0], groups, beyond)
        np.maximum.at(self._beyond[1], groups, beyond)

    def _beyond_due(self, groups: Int64, values: Mapping[str, Floats], count: int) -> Floats:
        """How much more than its due every block gave, as far as that is known by now."""
        gave = values[self._of]
        if self._of == SQUARES:  # about the mean of the group
            middle = np.nan_to_num(self.total(TOTAL) / self.total(COUNT))[groups]
            gave = gave - 2 * middle * values[TOTAL] + middle**2 * values[COUNT]
        for index, one in enumerate((gave, values[self._by])):
            self._due[index] += np.bincount(groups, weights=one, minlength=count)
        ratio = np.nan_to_num(self._due[0] / self._due[1])
        found: Floats = gave - ratio[groups] * values[self._by]
        return found

    def grow(self, count: int) -> None:
        """There are so many groups by now."""
        more = count - len(self._present)
        if more > 0:
            self._sums = np.pad(self._sums, ((0, 0), (0, more)))
            self._present = np.pad(self._present, (0, more))
            self._active = np.pad(self._active, (0, more))
            self._most = np.pad(self._most, ((0, 0), (0, more)))
            self._least = np.pad(self._least, ((0, 0), (0, more)))
            self._due = np.pad(self._due, ((0, 0), (0, more)))
            self._beyond = np.pad(self._beyond, ((0, 0), (0, more)))

    @property
    def present(self) -> Int64:
        """In how many of the blocks read each group was."""
        return self._present

    @property
    def active(self) -> Int64:
        """In how many of them it had anything but zeros."""
        return self._active

    def total(self, factor: str) -> Floats:
        """What was read of a factor."""
        found: Floats = self._sums[self._at[(factor,)]]
        return found

    def largest(self, factor: str) -> Floats:
        """The most that a block gave."""
        found: Floats = self._most[self.factors.index(factor)]
        return found

    @property
    def extremes(self) -> tuple[Floats, Floats]:
        """The least and the most that a block gave beyond its due."""
        return self._beyond[0], self._beyond[1]

    def negative(self, factor: str) -> Any:
        """Whether some block gave less than nothing."""
        return self._least[self.factors.index(factor)] < 0

    def squares(self, weights: Mapping[str, Floats], blocks: Blocks) -> Floats:
        """The sum over blocks of the square of a weighted sum of factors."""
        return self._powers(weights, blocks, 2)

    def cubes(self, weights: Mapping[str, Floats], blocks: Blocks) -> Floats:
        """The same of its cube."""
        return self._powers(weights, blocks, 3)

    def _powers(self, weights: Mapping[str, Floats], blocks: Blocks, degree: int) -> Floats:
        total: Floats = np.zeros(len(self._present))
        for product in combinations_with_replacement(sorted(weights), degree):
            times = factorial(degree)
            for factor in set(product):
                times //= factorial(product.count(factor))
            weight = np.prod([weights[factor] for factor in product], axis=0)
            sizes_only = set(product) == {SIZE}
            sums = blocks.sums[degree] if sizes_only else self._sums[self._at[product]]
            total = total + times * weight * sums
        return total

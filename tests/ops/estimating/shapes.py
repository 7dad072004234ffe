"""Inputs as whole files with every sort of trouble, for the coverage of early answers.

Made without looking at the estimators, after these had been mended on `kinds.py`. An input is a
list of files; blocks are cut from each as the engine does it, so that small files are small blocks
and the last block of a file is shorter than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROWS = 16_000
BLOCKS = 240
SHUFFLED: set[str] = set()  # shapes whose rows lie in random order in blocks of about one size


@dataclass(frozen=True)
class Rows:
    """Rows of one file, or of all of them one after the other."""

    group: np.ndarray
    value: np.ndarray
    other: np.ndarray  # what values are compared with, in ratios
    item: np.ndarray  # what is counted once
    there: np.ndarray  # False where the value is missing

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True)
class Shape:
    """All rows in the order of files, and where blocks begin."""

    rows: Rows
    bounds: np.ndarray  # of blocks, with the end
    sizes: np.ndarray  # in bytes

    @property
    def block(self) -> np.ndarray:
        """The block of every row."""
        return np.repeat(np.arange(len(self.sizes)), np.diff(self.bounds))


def _rows(rng: np.random.Generator, group: np.ndarray, value: np.ndarray, **more: object) -> Rows:
    n = len(group)
    return Rows(
        np.asarray(group, np.int64),
        np.asarray(value, np.float64),
        np.asarray(more.get("other", rng.integers(1, 9, n)), np.float64),
        np.asarray(more.get("item", rng.zipf(1.4, n) % 3000), np.int64),
        np.asarray(more.get("there", np.ones(n, bool)), bool),
    )


def cut(files: list[Rows], blocks: int = BLOCKS) -> Shape:
    """Blocks of equal numbers of bytes, as lines allow; none reaches beyond its file."""
    lines = [16 + np.char.str_len(np.char.mod("%.6g", one.value)) for one in files]
    unit = -(-sum(int(one.sum()) for one in lines) // blocks)
    bounds, sizes, at = [0], [], 0
    for width in lines:
        ends, start, before = np.cumsum(width), 0, 0
        while start < len(width):
            end = max(int(np.searchsorted(ends, before + unit, side="right")), start + 1)
            sizes.append(float(ends[end - 1] - before))
            bounds.append(at + end)
            start, before = end, int(ends[end - 1])
        at += len(width)
    columns = (
        np.concatenate([getattr(one, name) for one in files]) for name in Rows.__dataclass_fields__
    )
    return Shape(Rows(*columns), np.array(bounds), np.array(sizes))


def _parts(rows: int, files: int) -> list[int]:
    return np.diff(np.linspace(0, rows, files + 1).astype(int)).tolist()


def incomes(rng: np.random.Generator) -> Shape:
    """Pareto's own tail: a variance, and no third moment."""
    return cut([_rows(rng, rng.integers(0, 6, n), rng.pareto(2.2, n)) for n in _parts(ROWS, 8)])


def claims(rng: np.random.Generator) -> Shape:
    """Insurance: a tail without a variance."""
    return cut(
        [_rows(rng, rng.integers(0, 4, n), 100 * rng.pareto(1.6, n)) for n in _parts(ROWS, 8)]
    )


def fires(rng: np.random.Generator) -> Shape:
    """A tail that has hardly a mean."""
    return cut([_rows(rng, rng.integers(0, 5, n), rng.pareto(1.3, n)) for n in _parts(ROWS, 5)])


def outages(rng: np.random.Generator) -> Shape:
    """One in twenty is not nothing, and these have no variance."""
    value = np.where(rng.random(ROWS) < 0.05, rng.pareto(1.7, ROWS), 0.0)
    return cut(_in_files(rng, rng.integers(0, 5, ROWS), value, 8))


def jumps(rng: np.random.Generator) -> Shape:
    """Moderate values, one in a hundred of which is many times as large."""
    value, jump = rng.gamma(2, 3, ROWS), rng.random(ROWS) < 0.01
    value[jump] *= rng.lognormal(2, 1, int(jump.sum()))
    return cut(_in_files(rng, rng.integers(0, 5, ROWS), value, 8))


def returns(rng: np.random.Generator) -> Shape:
    """Gains and losses without a variance, of which skew says nothing."""
    return cut(_in_files(rng, rng.integers(0, 5, ROWS), rng.standard_t(1.6, ROWS), 8))


def file_lengths(rng: np.random.Generator) -> Shape:
    """Logarithmic normal over six powers of ten."""
    files = [_rows(rng, rng.integers(0, 5, n), rng.lognormal(5, 2, n)) for n in _parts(ROWS, 5)]
    return cut(files)


def growth(rng: np.random.Generator) -> Shape:
    """One file a month, in which values grow a hundredfold over the years, and so do files."""
    files = []
    for month, n in enumerate((np.geomspace(1, 12, 60) * ROWS / 260).astype(int).tolist()):
        level = 100 ** (month / 59)
        files.append(_rows(rng, rng.integers(0, 5, n), rng.gamma(3, level, n)))
    return cut(files)


def one_file_each(rng: np.random.Generator) -> Shape:
    """Fifty shops, each in a file of its own; two brands are in all of them."""
    files = []
    for shop, n in enumerate(_parts(ROWS, 50)):
        group = np.where(rng.random(n) < 0.6, 2 + shop, rng.integers(0, 2, n))
        files.append(_rows(rng, group, rng.gamma(2, 5 + shop % 7, n)))
    return cut(files)


def rare_groups(rng: np.random.Generator) -> Shape:
    """A hundred errors of one to thirty lines among four common messages, strewn or in one go."""
    group = rng.choice(4, ROWS, p=[0.7, 0.2, 0.07, 0.03])
    for rare in range(100):
        many = int(np.ceil(30 ** rng.random()))
        at = int(rng.integers(0, ROWS - 100))
        places = rng.integers(0, ROWS, many) if rare % 2 else at + np.arange(many)
        group[places] = 4 + rare
    value = rng.exponential(4.0, ROWS)
    return cut(_in_files(rng, group, value, 6))


def all_sizes(rng: np.random.Generator) -> Shape:
    """Files of three lines to three thousand, and more is spent per line in large ones."""
    lengths = np.exp(rng.uniform(np.log(3), np.log(3000), 160)).astype(int)
    files = []
    for n in lengths.tolist():
        value = rng.gamma(2, 3.0 * n**0.3, n)
        files.append(_rows(rng, rng.choice(6, n, p=rng.dirichlet(np.ones(6))), value))
    return cut(files)


def small_files(rng: np.random.Generator) -> Shape:
    """Compressed files of 5 lines to 5000 that are one block each: nothing is cut."""
    lengths = np.exp(rng.uniform(np.log(5), np.log(5000), 70)).astype(int)
    files = [_rows(rng, rng.integers(0, 4, n), rng.gamma(2, 3, n)) for n in lengths.tolist()]
    return cut(files, blocks=1)


def hardly_any(rng: np.random.Generator) -> Shape:
    """Fines: one ride in a hundred and fifty has one, and some are high."""
    fine = np.where(rng.random(ROWS) < 1 / 150, 40 * (1 + rng.pareto(3.0, ROWS)), 0.0)
    return cut(_in_files(rng, rng.integers(0, 5, ROWS), fine, 10))


def constants(rng: np.random.Generator) -> Shape:
    """One value throughout, except in two groups; in one of them it seldom differs."""
    group = rng.integers(0, 5, ROWS)
    value = np.full(ROWS, 7.25)
    value[group == 1] = rng.normal(7.25, 1e-3, int((group == 1).sum()))
    value[(group == 2) & (rng.random(ROWS) < 0.02)] = 8.0
    return cut(_in_files(rng, group, value, 7, other=np.full(ROWS, 2.0)))


def debts(rng: np.random.Generator) -> Shape:
    """Nothing above zero, with a long tail downwards."""
    value = -rng.lognormal(2, 1.3, ROWS)
    return cut(_in_files(rng, rng.integers(0, 6, ROWS), value, 9))


def profits(rng: np.random.Generator) -> Shape:
    """Gains and losses with heavy tails on both sides, whose sums are nearly nothing."""
    value = rng.standard_t(2.5, ROWS) * np.where(rng.random(ROWS) < 0.5, 1, 3)
    return cut(_in_files(rng, rng.integers(0, 6, ROWS), value, 9))


def refunds(rng: np.random.Generator) -> Shape:
    """Sales, and refunds that come together on some days."""
    files = []
    for day, n in enumerate(_parts(ROWS, 45)):
        back = 0.5 if day % 9 == 4 else 0.02
        value = rng.gamma(2, 10, n) * np.where(rng.random(n) < back, -1.5, 1.0)
        files.append(_rows(rng, rng.integers(0, 5, n), value))
    return cut(files)


def stars(rng: np.random.Generator) -> Shape:
    """Whole numbers from one to five; every file has an audience of its own."""
    files = []
    for n in _parts(ROWS, 40):
        share = rng.dirichlet(np.array([1.0, 0.5, 1.0, 2.0, 3.0]))
        files.append(_rows(rng, rng.integers(0, 5, n), rng.choice(5, n, p=share) + 1))
    return cut(files)


def dice(rng: np.random.Generator) -> Shape:
    """Small whole numbers in random order, most of which are the same one."""
    value = np.where(rng.random(ROWS) < 0.55, 3, rng.integers(0, 12, ROWS))
    return cut(_in_files(rng, rng.integers(0, 6, ROWS), value, 5))


def late_groups(rng: np.random.Generator) -> Shape:
    """Products that come to market one after the other; the last ones in the last hours."""
    begins = 1 - np.geomspace(1, 0.004, 24)
    time = np.linspace(0, 1, ROWS, endpoint=False)
    many = np.searchsorted(begins, time, side="right")
    group = np.minimum((rng.random(ROWS) ** 0.7 * many).astype(int), many - 1)
    value = rng.gamma(2, 2, ROWS) * (1 + group / 6)
    files = [_rows(rng, group[s], value[s]) for s in np.array_split(np.arange(ROWS), 12)]
    return cut(files)


def one_giant(rng: np.random.Generator) -> Shape:
    """A file with four fifths of all rows, and 120 small ones with other prices."""
    lengths = [int(ROWS * 0.8), *rng.integers(5, 50, 120).tolist()]
    files = []
    for at, n in enumerate(lengths):
        group = rng.integers(0, 3, n) if at == 0 else rng.integers(2, 6, n)
        files.append(_rows(rng, group, rng.gamma(3, 2 if at == 0 else 9, n)))
    return cut(files)


def week(rng: np.random.Generator) -> Shape:
    """Days and nights: what is sold, and how much, goes by the hour; nights are quiet."""
    hours = 24 * 7 * 2
    files = []
    for hour in range(hours):
        busy = 1.1 + np.sin(hour / 24 * 2 * np.pi)
        n = int(rng.poisson(busy * ROWS / hours / 1.1))
        group = np.where(rng.random(n) < 0.3 * busy, rng.integers(0, 3, n), 3 + hour % 24 // 4)
        files.append(_rows(rng, group, rng.gamma(2, 4 * busy + 0.5, n)))
    return cut(files)


def missing(rng: np.random.Generator) -> Shape:
    """Sensors that give no value for hours; all rows count, not all have one."""
    there = np.repeat(rng.random(-(-ROWS // 80)) < 0.7, 80)[:ROWS] & (rng.random(ROWS) < 0.9)
    value = 20 + rng.normal(0, 3, ROWS).cumsum() / 30
    return cut(_in_files(rng, rng.integers(0, 6, ROWS), value, 6, there=there))


def visitors(rng: np.random.Generator) -> Shape:
    """Each visitor comes for a while, and then no more: different ones lie in different blocks."""
    item = (np.arange(ROWS) // 40) * 7 + rng.integers(0, 12, ROWS)
    return cut(_in_files(rng, rng.integers(0, 4, ROWS), rng.gamma(2, 2, ROWS), 8, item=item))


def _in_files(
    rng: np.random.Generator, group: np.ndarray, value: np.ndarray, files: int, **more: np.ndarray
) -> list[Rows]:
    """Rows in their order, in files of about one size."""
    return [
        _rows(rng, group[s], value[s], **{name: one[s] for name, one in more.items()})
        for s in np.array_split(np.arange(len(group)), files)
    ]


SHAPES: dict[str, Callable[[np.random.Generator], Shape]] = {
    one.__name__.replace("_", " "): one
    for one in (
        incomes,
        claims,
        fires,
        outages,
        jumps,
        returns,
        file_lengths,
        growth,
        one_file_each,
        rare_groups,
        all_sizes,
        small_files,
        hardly_any,
        constants,
        debts,
        profits,
        refunds,
        stars,
        dice,
        late_groups,
        one_giant,
        week,
        missing,
        visitors,
    )
}
# Rows in random order in blocks of about one size: a block is then as good as that many rows.
SHUFFLED |= {
    "incomes",
    "claims",
    "fires",
    "outages",
    "jumps",
    "returns",
    "file lengths",
    "hardly any",
    "constants",
    "debts",
    "profits",
    "dice",
}

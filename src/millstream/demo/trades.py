"""Invented trades of one day: a few busy symbols, a rush at open and close, wandering prices.

They are written in the order of their arrival, which is up to four seconds off the order of time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SYMBOLS = 300
DAY = datetime(2026, 1, 5, tzinfo=UTC)
OPEN, CLOSE = 9.5 * 3600, 16.0 * 3600  # seconds of the day
_FILES = 20
_DELAY = 4.0  # seconds; the flow allows five
_SKEW = 1.05  # the exponent of Zipf's law
_FIRST = ("ACME", "BOLT", "CORK", "DUNE", "ECHO", "FLUX", "GRIT", "HALO", "IRIS", "JADE")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def invent(directory: Path, number: int, seed: int) -> None:
    """Write the trades as Parquet files: ts, symbol, price, qty."""
    dice = np.random.default_rng(seed)
    names = symbol_names(dice)
    weights = 1.0 / np.arange(1, SYMBOLS + 1) ** _SKEW
    who = dice.choice(SYMBOLS, number, p=weights / weights.sum())
    at = np.sort(_times(dice, number))
    price = _prices(dice, who, at)
    qty = 10 * dice.geometric(0.08, number)
    order = np.argsort(at + dice.uniform(0, _DELAY, number), kind="stable")
    stamps = ((DAY.timestamp() + at) * 1e6).astype(np.int64)
    table = pa.table(
        {
            "ts": pa.array(stamps[order], pa.timestamp("us", "UTC")),
            "symbol": pa.array(names[who[order]]),
            "price": pa.array(price[order]),
            "qty": pa.array(qty[order]),
        }
    )
    directory.mkdir(parents=True)
    for file in range(_FILES):
        start, stop = number * file // _FILES, number * (file + 1) // _FILES
        pq.write_table(table.slice(start, stop - start), directory / f"trades-{file:02d}.parquet")


def symbol_names(dice: np.random.Generator) -> npt.NDArray[np.str_]:
    """Three or four letters each, all different, the busiest ones easy to remember."""
    names = dict.fromkeys(_FIRST)
    letters = np.array(list("ABCDEFGHIJKLMNOPRSTUVWXZ"))
    while len(names) < SYMBOLS:
        names["".join(dice.choice(letters, dice.integers(3, 5)))] = None
    return np.array(list(names))


def _times(dice: np.random.Generator, number: int) -> Floats:
    """Seconds of the day: a third of the trades crowd near the open and the close."""
    even = dice.uniform(0, 1, number)
    crowd = dice.beta(0.45, 0.55, number)
    share = np.where(dice.uniform(size=number) < 0.55, even, crowd)
    at: Floats = OPEN + (CLOSE - OPEN) * share
    return at


def _prices(dice: np.random.Generator, who: npt.NDArray[np.intp], at: Floats) -> Floats:
    """A random walk per symbol in its own temper, with a drift that turns at noon."""
    number = len(who)
    order = np.argsort(who, kind="stable")  # times are sorted, so they stay so within a symbol
    owner, times = who[order], at[order]
    first = np.r_[True, owner[1:] != owner[:-1]]
    gap = np.where(first, 0.0, np.diff(times, prepend=times[0]))
    temper = dice.uniform(0.00004, 0.00016, SYMBOLS)[owner]
    noon = (times - OPEN) / (CLOSE - OPEN) > dice.uniform(0.3, 0.7, SYMBOLS)[owner]
    drift = np.where(noon, 1, -1) * dice.normal(0, 8e-7, SYMBOLS)[owner]
    steps = drift * gap + temper * np.sqrt(gap) * dice.normal(size=number)
    walk = np.cumsum(np.where(first, 0.0, steps))
    base = walk[first][np.cumsum(first) - 1]
    spread = 0.0006 * dice.normal(size=number)  # trades jump between bid and ask
    opening = np.exp(dice.normal(4.0, 0.8, SYMBOLS))[owner]
    price = np.empty(number)
    price[order] = np.round(opening * np.exp(walk - base + spread), 4)
    return price

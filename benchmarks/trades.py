"""The trades all benchmarks share: seeded, skewed over the symbols, in order of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def make(
    directory: Path, count: int, seconds: int, files: int, seed: int = 0, symbols: int = 500
) -> Path:
    """Write trades as Parquet files, about evenly spread over some seconds of event time."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    ts = 1_700_000_000_000_000 + np.sort(rng.integers(0, seconds * 1000, count)) * 1000
    symbol = np.char.add("S", (rng.zipf(1.3, count) % symbols).astype(str))
    price = 100 + rng.standard_normal(count).cumsum() * 0.01
    for number, rows in enumerate(np.array_split(np.arange(count), files)):
        table = pa.table(
            {
                "ts": pa.array(ts[rows]).cast(pa.timestamp("us", "UTC")),
                "symbol": symbol[rows],
                "price": price[rows],
            }
        )
        pq.write_table(table, directory / f"trades-{number:04d}.parquet")
    return directory

"""Events for the benchmarks of updaters: seeded, spread over their keys, in order of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = 1_700_000_000_000_000


def make(
    directory: Path, count: int, keys: int, files: int, seed: int = 0, seconds: int = 10
) -> Path:
    """Write so many events a file, 10 s of event time each; all keys are equally likely."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(files):
        chosen = rng.integers(0, keys, count)
        write(directory / f"events-{number:05d}.parquet", number, chosen, rng, seconds)
    return directory


def write(
    path: Path, number: int, chosen: np.ndarray, rng: np.random.Generator, seconds: int = 10
) -> None:
    """One file: one event per chosen key, in order."""
    offsets = np.sort(rng.integers(0, seconds * 1_000_000, len(chosen)))
    table = pa.table(
        {
            "ts": pa.array(START + number * seconds * 1_000_000 + offsets).cast(
                pa.timestamp("us", "UTC")
            ),
            "user": np.char.add("user-", chosen.astype(str)),
            "amount": rng.integers(1, 100, len(chosen)),
        }
    )
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, temporary)
    temporary.rename(path)  # a flow that follows the directory never sees half a file

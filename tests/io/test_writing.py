"""Rows as JSON: moments are written for a column at once, as msgspec writes each."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from millstream.io.writers import json_rows


def test_moments_are_written_as_one_by_one() -> None:
    dice = random.Random(15)
    first, last = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
    seconds = [dice.randint(first, last) for _ in range(500)]
    micros = [one * 1_000_000 for one in seconds]
    micros += [one * 1_000_000 + dice.randrange(1_000_000) for one in seconds[:-1]]
    micros += [0, -1, 1, 1000, -1_000_000, first * 1_000_000, last * 1_000_000 + 999_999]
    for several in (micros, micros[:500], []):
        values = pa.array([*several, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"at": values, "n": range(len(values))})
        assert list(json_rows(table)) == [msgspec.json.encode(row) for row in table.to_pylist()]
    moment = pa.array([datetime(2026, 11, 17, 12, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert list(json_rows(pa.table({"at": moment}))) == [b'{"at":"2026-11-17T12:00:00Z"}']

"""Sessions are those of Spark's own batch `session_window`.

Spark joins records that are exactly a gap apart, here they begin a new session: the data has no
such records.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from tests.differential.comparing import assert_same

pytestmark = pytest.mark.spark
START = datetime(2024, 1, 1, tzinfo=UTC)
GAP = 4
LATENESS = 10
SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())]
)


def make_records(seed: int, count: int) -> list[dict[str, Any]]:
    """Each at its own odd place between seconds, so that no two are exactly a gap apart."""
    chance = random.Random(seed)
    places = chance.sample(range(1_000_000), count)
    rows, second = [], 0
    for place in places:
        second += chance.choice([0, 0, 1, 1, 2, 7])
        rows.append(
            {
                "ts": START + timedelta(seconds=second, microseconds=place),
                "k": chance.choice(["a", "b", "日本"]),
                "v": chance.choice([None, chance.randint(-9, 9), chance.randint(-9, 9)]),
                "x": chance.choice([None, chance.uniform(-100, 100)]),
            }
        )
    arrives = [row["ts"] + timedelta(seconds=chance.uniform(0, LATENESS - 1)) for row in rows]
    return [rows[index] for index in sorted(range(count), key=arrives.__getitem__)]


def by_spark(spark: Any, into: Path) -> list[dict[str, Any]]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    session = spark if hasattr(spark, "read") else SparkSession(spark)
    found = (
        session.read.parquet(str(into))
        .groupBy("k", F.session_window("ts", f"{GAP} seconds").alias("window"))
        .agg(
            F.count("*").alias("n"),
            F.sum("v").alias("total"),
            F.avg("x").alias("mean"),
            F.max("x").alias("high"),
            F.unix_micros("window.start").alias("start"),
            F.unix_micros("window.end").alias("end"),
        )
        .drop("window")
        .collect()
    )
    rows = [row.asDict() for row in found]
    for row in rows:
        row["window_start"] = _moment(row.pop("start"))
        row["window_end"] = _moment(row.pop("end"))
    return rows


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def check(seed: int, count: int, parallelism: int, tmp_path: Path, spark: Any) -> None:
    records, into = make_records(seed, count), tmp_path / "in"
    into.mkdir()
    size = count // 6 + 1
    for number in range(6):
        piece = records[number * size : (number + 1) * size]
        pq.write_table(pa.Table.from_pylist(piece, SCHEMA), into / f"{number}.parquet")
    flow = ms.Flow("sessions")
    source = ms.Files(
        into, format="parquet", time="ts", lateness=f"{LATENESS}s", max_files_per_batch=2
    )
    keyed = flow.source(source, name="in").key_by("k")
    keyed.window(ms.session(f"{GAP}s")).agg(
        n=ms.count(), total=ms.sum("v"), mean=ms.mean("x"), high=ms.max("x")
    ).sink(ms.Parquet(tmp_path / "out"), name="out")
    flow.run(tmp_path / "ck", master="local[2]", parallelism=parallelism, dead_letter_limit=1)
    parts = sorted((tmp_path / "out").glob("part-*.parquet"))
    found = [row for path in parts for row in pq.read_table(path).to_pylist()]
    wanted = by_spark(spark, into)
    assert sum(row["n"] for row in wanted) == len(records)
    assert 20 < len(wanted) < 0.9 * len(records)
    assert_same(found, wanted, scale=1e4)


# Long only, for Spark's SQL engine alone takes as long to load as most tests take in all;
# test_kinds_against_duckdb has sessions too.
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("seed", range(1, 6))
def test_sessions_are_those_of_spark(
    seed: int, parallelism: int, tmp_path: Path, spark: Any
) -> None:
    check(seed, 4_000, parallelism, tmp_path, spark)

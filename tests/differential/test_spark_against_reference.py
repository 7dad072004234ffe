"""The same flows through Spark, files and commits: the same answers at any parallelism."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import reference
from tests.differential.comparing import assert_same
from tests.differential.flows import Path as OrderOf
from tests.differential.flows import Sizes, Spread, Words, doubled, summary
from tests.variants import variants

pytestmark = pytest.mark.spark
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("k", pa.int64()),
        ("k2", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
    ]
)
LATENESS = 30


def aggregates(stream: ms.Stream, out: Path) -> None:
    """Sliding aggregates of every strategy, and a second window over them."""
    result = (
        stream.key_by("k", "k2", nulls="keep")
        .window(ms.sliding("20s", "6s"))
        .agg(
            n=ms.count(),
            total=ms.sum("v"),
            mean=ms.mean("x"),
            var=ms.var("x"),
            low=ms.min("s"),
            head=ms.first("v"),
            all=ms.collect("v"),
            spread=Spread("v"),
            order=OrderOf("v"),
        )
    )
    result.sink(ms.Parquet(out / "first"), name="first")
    second = result.key_by("k2").window(ms.tumbling("1m"))
    second.agg(n=ms.sum("n"), most=ms.max("n")).sink(ms.Parquet(out / "second"), name="second")


def functions(stream: ms.Stream, out: Path) -> None:
    """Python functions on both sides of a window, and a MapReduce job over a fork."""
    kept = stream.where("v IS NOT NULL AND v <> 7")
    reduced = kept.map(doubled).key_by("k").window(ms.hopping("3s", "7s")).reduce(summary)
    reduced.sink(ms.Parquet(out / "first"), name="first")
    words = kept.map_reduce(Words(), ms.tumbling("10s"))
    words.sink(ms.Parquet(out / "second"), name="second")


def over_changes(stream: ms.Stream, out: Path) -> None:
    kept = stream.where("v IS NOT NULL")
    visits = kept.key_by("k2").window(ms.session("2s"), emit="delta").agg(v=ms.max("v"))
    above = visits.key_by("k2").window(ms.sliding("20s", "5s"))
    above.agg(n=ms.count(), most=ms.max("v"), often=ms.top_k("v", 2), all=ms.collect("v")).sink(
        ms.Parquet(out / "first"), name="first"
    )
    pairs = kept.key_by("k").window(ms.count_window(3), emit="delta").agg(v=ms.sum("v"))
    sums = pairs.where("k > 0").key_by("k").window(ms.tumbling("10s")).map_reduce(Sizes("v"))
    sums.sink(ms.Parquet(out / "second"), name="second")


BUILDS = [aggregates, functions, over_changes]


def make_records(seed: int, count: int) -> list[dict[str, Any]]:
    """Records in the order of time, shuffled by less than the lateness."""
    chance = random.Random(seed)
    rows = [
        {
            "ts": START + timedelta(milliseconds=500 * chance.randint(0, count)),
            "k": chance.choice([None, 1, 2, 3, -4]),
            "k2": chance.choice([None, "a", "b", "日本"]),
            "v": chance.choice([None, *range(10)]),
            "x": chance.choice([None, chance.uniform(-1e3, 1e3), float("nan"), 1.5]),
            "s": chance.choice([None, "x", "yy", "ä"]),
        }
        for _ in range(count)
    ]
    moved = [row["ts"].timestamp() + chance.uniform(0, LATENESS) for row in rows]
    order = sorted(range(count), key=moved.__getitem__)
    return [rows[index] for index in order]


def run(
    build: Callable[[ms.Stream, Path], None],
    rows: list[dict[str, Any]],
    place: Path,
    parallelism: int,
) -> dict[str, list[dict[str, Any]]]:
    """The contents of the output files of a run with many small batches."""
    into = place / "in"
    into.mkdir(parents=True)
    size = len(rows) // 6 + 1
    for number in range(6):
        piece = pa.Table.from_pylist(rows[number * size : (number + 1) * size], SCHEMA)
        pq.write_table(piece, into / f"{number}.parquet")
    flow = make_flow(build, into, place / "out")
    flow.run(place / "ck", master="local[2]", parallelism=parallelism, dead_letter_limit=1)
    return {
        name: [
            row
            for path in sorted((place / "out" / name).glob("part-*.parquet"))
            for row in pq.read_table(path).to_pylist()
        ]
        for name in ("first", "second")
    }


def make_flow(build: Callable[[ms.Stream, Path], None], into: Path, out: Path) -> ms.Flow:
    flow = ms.Flow("spark")
    source = ms.Files(
        into, format="parquet", time="ts", lateness=f"{LATENESS}s", max_files_per_batch=2
    )
    build(flow.source(source, name="in"), out)
    return flow


def check(
    build: Callable[[ms.Stream, Path], None], seed: int, count: int, place: Path, *ways: int
) -> None:
    rows = make_records(seed, count)
    expected = reference(make_flow(build, place, place), {"in": rows})
    assert all(expected.values())
    for parallelism in ways:
        found = run(build, rows, place / str(parallelism), parallelism)
        for name, wanted in expected.items():
            assert_same(found[name], wanted, scale=1e6, what=f"{name}, parallelism {parallelism}")


@pytest.mark.parametrize("build", variants(BUILDS, 2), ids=lambda build: build.__name__)
def test_files_hold_what_the_reference_gives(build: Any, tmp_path: Path, spark: Any) -> None:
    check(build, 1, 400, tmp_path, 1, 3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_files_hold_what_the_reference_gives_at_length(
    build: Any, seed: int, tmp_path: Path, spark: Any
) -> None:
    check(build, seed, 4_000, tmp_path, 1, 2, 4)

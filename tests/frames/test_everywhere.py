"""One flow, one input: the same answer wherever it runs and wherever its records come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from tests.services import Connect, unavailable

pytestmark = pytest.mark.spark
ROWS = 3_000


def records() -> pa.Table:
    ids = list(range(ROWS))
    return pa.table(
        {
            "id": ids,
            "k": [f"k{i % 13}" for i in ids],
            "v": [i * 31 % 97 for i in ids],
            "ts": pa.array([(1_700_000_000 + i) * 1_000_000 for i in ids], pa.int64()).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def definition() -> tuple[Counter[Any], dict[str, int]]:
    """Windows and counts, by what they are."""
    windows: dict[tuple[str, int], list[int]] = {}
    counts: Counter[str] = Counter()
    for row in records().to_pylist():
        at = int(row["ts"].timestamp()) // 60 * 60
        windows.setdefault((row["k"], at), []).append(row["v"])
        counts[row["k"]] += 1
    return Counter((k, at, len(v), sum(v)) for (k, at), v in windows.items()), dict(counts)


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def make_flow(source: Any, out: Path) -> ms.Flow:
    flow = ms.Flow("everywhere")
    rows = flow.source(source, name="rows").where("v >= 0")
    windows = rows.key_by("k").window(ms.tumbling("1m")).agg(n=ms.count(), total=ms.sum("v"))
    windows.sink(ms.Parquet(out), name="windows")
    rows.key_by("k").update(count, name="counts")
    return flow


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        unavailable(f"Spark Connect cannot be tried ({error})")
    server = Connect(str(tmp_path_factory.mktemp("connect")))
    yield server
    server.stop()


def source_of(kind: str, place: Path, session: Any) -> Any:
    """The same records, from somewhere."""
    if kind == "parquet":
        (place / "in").mkdir()
        for at in range(3):
            pq.write_table(records().slice(at * 1000, 1000), place / "in" / f"{at}.parquet")
        return ms.Files(place / "in", format="parquet", time="ts")
    if kind == "delta":
        from deltalake import write_deltalake

        for at in range(3):
            write_deltalake(str(place / "in"), records().slice(at * 1000, 1000), mode="append")
        return ms.Delta(place / "in", time="ts")
    return ms.Frame(session().createDataFrame(records()).repartition(3), time="ts")


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("local", "parquet"),
        ("local", "delta"),
        ("local", "frame"),
        ("frames", "parquet"),
        ("connect", "parquet"),
        ("connect", "frame"),
        pytest.param("standalone", "parquet", marks=[pytest.mark.cluster, pytest.mark.long]),
    ],
)
def test_the_answer_is_the_same_everywhere(
    where: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"parallelism": 2, "shards": 4}
    remote = None
    if where in ("local", "frames"):
        context = request.getfixturevalue("spark")
        from pyspark.sql import SparkSession

        def session() -> Any:
            return SparkSession(context)

        options["runner"] = {"local": "rdd", "frames": "frames"}[where]
    elif where == "connect":
        url = request.getfixturevalue("connect").url
        from pyspark.sql.connect.session import SparkSession as Remote

        options["master"] = url
        remote = Remote.builder.remote(url).getOrCreate() if kind == "frame" else None

        def session() -> Any:
            return remote

    else:
        unavailable("a standalone cluster is started by tests/chaos/test_cluster.py only")
    try:
        source = source_of(kind, tmp_path, session)
        progress = make_flow(source, tmp_path / "out").run(tmp_path / "ck", **options)
    finally:
        if remote is not None:
            remote.stop()
    windows, counts = definition()
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    found = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    assert windows == Counter(
        (r["k"], int(r["window_start"].timestamp()), r["n"], r["total"]) for r in found
    )
    assert {key: slate["n"] for key, slate in ms.slates(tmp_path / "ck", "counts")} == counts
    assert progress.rows == ROWS and progress.dead == 0

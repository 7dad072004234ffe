"""One flow, one input: the same answer wherever it runs and wherever its records come from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import millstream as ms
from tests.chaos import test_cluster
from tests.frames.apps import everywhere
from tests.frames.apps.everywhere import ROWS, make_flow, records
from tests.services import Connect, free_port, unavailable

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from kafka import Unavailable  # type: ignore[import-not-found]
from yarn import Yarn  # type: ignore[import-not-found]

pytestmark = pytest.mark.spark


def definition() -> tuple[Counter[Any], dict[str, int]]:
    """Windows and counts, by what they are."""
    windows: dict[tuple[str, int], list[int]] = {}
    counts: Counter[str] = Counter()
    for row in records().to_pylist():
        at = int(row["ts"].timestamp()) // 60 * 60
        windows.setdefault((row["k"], at), []).append(row["v"])
        counts[row["k"]] += 1
    return Counter((k, at, len(v), sum(v)) for (k, at), v in windows.items()), dict(counts)


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
        pytest.param("local", "parquet", marks=pytest.mark.long),
        ("local", "delta"),
        pytest.param("local", "frame", marks=pytest.mark.long),
        ("frames", "parquet"),
        ("connect", "parquet"),
        pytest.param("connect", "frame", marks=pytest.mark.long),
        pytest.param("standalone", "parquet", marks=[pytest.mark.cluster, pytest.mark.long]),
        pytest.param("yarn", "parquet", marks=[pytest.mark.cluster, pytest.mark.long]),
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
        run_there = {"standalone": run_on_cluster, "yarn": run_on_yarn}[where]
        run_there(source_of(kind, tmp_path, None), tmp_path)
        check(tmp_path)
        return
    try:
        source = source_of(kind, tmp_path, session)
        progress = make_flow(source, tmp_path / "out").run(tmp_path / "ck", **options)
    finally:
        if remote is not None:
            remote.stop()
    check(tmp_path)
    assert progress.rows == ROWS and progress.dead == 0


def run_on_cluster(source: ms.Files, place: Path) -> None:
    """The flow as a process of its own, on a master and two workers."""
    port = free_port()
    with ExitStack() as stack:
        spark = place / "spark"
        master = test_cluster.master_arguments(port)
        stack.enter_context(test_cluster.daemon(spark, "master", *master))
        test_cluster.wait_for_text(spark / "master.log", "I have been elected leader")
        for name in ("one", "two"):
            worker = test_cluster.worker_arguments(port, spark / name)
            stack.enter_context(test_cluster.daemon(spark, name, *worker))
        run_app(source, place, f"spark://127.0.0.1:{port}")


def run_on_yarn(source: ms.Files, place: Path) -> None:
    """The flow as a process of its own, on a resource manager and a node."""
    try:
        cluster = Yarn(place / "yarn").start()
    except Unavailable as error:
        unavailable(f"no YARN: {error}")
    jars = f"spark.yarn.jars=local:{Path(pyspark.__file__).parent}/jars/*"
    try:
        run_app(source, place, "yarn", jars, HADOOP_CONF_DIR=str(cluster.conf))
    finally:
        cluster.stop()


def run_app(source: ms.Files, place: Path, *given: str, **env: str) -> None:
    where = [str(source.path), str(place / "out"), str(place / "ck")]
    ran = subprocess.run(
        [sys.executable, everywhere.__file__, *where, *given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def check(place: Path) -> None:
    """Results and slates are what the definition says."""
    windows, counts = definition()
    files = sorted((place / "out").glob("part-*.parquet"))
    found = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    assert windows == Counter(
        (r["k"], int(r["window_start"].timestamp()), r["n"], r["total"]) for r in found
    )
    assert {key: slate["n"] for key, slate in ms.slates(place / "ck", "counts")} == counts

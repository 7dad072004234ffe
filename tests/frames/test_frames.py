"""DataFrames in and out: the same rows as Spark has, whatever it is that gives them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    made = SparkSession(spark)
    made.conf.set("spark.sql.python.filterPushdown.enabled", "false")  # as by default
    made.conf.set("spark.sql.session.timeZone", "America/New_York")
    return made


def orders(session: Any, rows: int = 200) -> Any:
    return session.range(rows, numPartitions=3).selectExpr(
        "id", "concat('k', id % 7) AS k", "timestamp_seconds(1700000000 + id) AS ts"
    )


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def make_flow(source: Any, out: Path) -> ms.Flow:
    flow = ms.Flow("frames")
    rows = flow.source(source, name="rows")
    windows = rows.key_by("k").window(ms.tumbling("1m")).agg(n=ms.count(), first=ms.min("id"))
    windows.sink(ms.Parquet(out), name="windows")
    rows.key_by("k").update(count, name="counts")
    rows.where("id % 50 = 0").view("fifties")
    return flow


def expected(df: Any) -> Counter[Any]:
    """Spark's own window()."""
    from pyspark.sql import functions as f

    found = df.groupBy("k", f.window("ts", "1 minute")).agg(f.count("*"), f.min("id")).collect()
    return Counter((row[0], int(row[1].start.timestamp()), row[2], row[3]) for row in found)


def windows_of(df: Any) -> Counter[Any]:
    return Counter(
        (row.k, int(row.window_start.timestamp()), row.n, row.first) for row in df.collect()
    )


def test_a_frame_goes_in_and_what_is_there_comes_out(session: Any, tmp_path: Path) -> None:
    df, ck = orders(session), str(tmp_path / "ck")
    make_flow(ms.Frame(df, time="ts"), tmp_path / "out").run(ck)
    assert windows_of(read(session, ck, stream="windows")) == expected(df)

    looked = ms.Flow("look").source(ms.Frame(df, time="ts")).head(3, records=10)
    assert [row["id"] for row in looked] == [0, 1, 2] and looked.found == 10 and not looked.whole

    counts = read(session, ck, slates="counts")
    assert {row.key: row.n for row in counts.collect()} == {
        f"k{i}": len(range(i, 200, 7)) for i in range(7)
    }
    assert [row.n for row in counts.where("key = 'k3'").collect()] == [29]
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    counts = read(session, ck, slates="counts")
    assert [row.n for row in counts.where("key = 'k3'").collect()] == [29]
    assert counts.count() == 7  # Spark asks the same reader again
    assert [(row.key, row.n) for row in read(session, ck, slates="counts", key="k3").collect()] == [
        ("k3", 29)
    ]
    view = read(session, ck, stream="fifties", columns="id,k")
    assert sorted(row.id for row in view.collect()) == [0, 50, 100, 150]
    assert view.columns == ["id", "k"]


def test_a_stream_goes_in_once_and_batches_come_out(session: Any, tmp_path: Path) -> None:
    source, ck = tmp_path / "in", str(tmp_path / "ck")
    orders(session, 100).write.parquet(str(source))
    streamed = session.readStream.schema(orders(session).schema).parquet(str(source))
    flow = make_flow(
        ms.FrameStream(streamed, time="ts", lateness="10m", available_now=True), tmp_path / "out"
    )
    flow.run(ck)
    orders(session).where("id >= 100").write.mode("append").parquet(str(source))
    flow = make_flow(
        ms.FrameStream(streamed, time="ts", lateness="10m", available_now=True), tmp_path / "out"
    )
    flow.run(ck)
    counts = {row.key: row.n for row in read(session, ck, slates="counts").collect()}
    assert sum(counts.values()) == 200 and set(counts.values()) == {28, 29}

    out = session.readStream.format("millstream").option("checkpoint", ck)
    query = (
        out.option("stream", "windows")
        .load()
        .writeStream.format("memory")
        .queryName("out")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert windows_of(session.table("out")) == windows_of(read(session, ck, stream="windows"))


def read(session: Any, ck: str, **options: str) -> Any:
    return session.read.format("millstream").options(checkpoint=ck, **options).load()


def test_mistakes_are_told(session: Any, tmp_path: Path) -> None:
    df = orders(session)
    with pytest.raises(ConfigError, match="there is no such column; there are id, k, ts"):
        ms.Frame(df, time="when")
    with pytest.raises(ConfigError, match=r"expected a streaming DataFrame; write ms\.Frame"):
        ms.FrameStream(df)
    with pytest.raises(ConfigError, match="expected a DataFrame of Spark, got list"):
        ms.Frame([1, 2])
    with pytest.raises(Exception, match=r"say option\(\"checkpoint\""):
        session.read.format("millstream").load()


def test_a_stream_is_a_frame_in_a_notebook(session: Any, tmp_path: Path) -> None:
    flow = ms.Flow("head")
    rows = flow.source(ms.Frame(orders(session), time="ts"), name="rows")
    found = rows.where("id < 3").select("id", "k").to_frame(session).orderBy("id")
    assert [tuple(row) for row in found.collect()] == [(0, "k0"), (1, "k1"), (2, "k2")]

"""Looking at a flow: rows of a sample in this process, and runs that leave nothing behind."""

from __future__ import annotations

import gzip
import itertools
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.io.unpacking import Unpacked
from millstream.run import exploring
from millstream.testing import reference

ROWS = [
    {"ts": f"2026-03-01T00:{i // 60:02d}:{i % 60:02d}Z", "shop": "ABC"[i % 3], "price": i}
    for i in range(300)
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with two files; nothing else is there afterwards, nor among temporary files."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    (work / "in").mkdir(parents=True)
    temporary.mkdir()
    for number, part in enumerate((ROWS[:150], ROWS[150:])):
        lines = ["ts,shop,price", *(f"{r['ts']},{r['shop']},{r['price']}" for r in part)]
        (work / "in" / f"{number}.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield work
    assert [path.name for path in work.iterdir()] == ["in"]
    assert not [path for path in temporary.iterdir() if path.name.startswith("millstream-")]


def shops(flow: ms.Flow, **options: Any) -> ms.Stream:
    return flow.source(ms.Files("in/", time="ts", lateness="1s", **options), name="sales")


def totals(stream: ms.Stream) -> ms.Stream:
    return stream.key_by("shop").window(ms.tumbling("1m")).agg(n=ms.count(), most=ms.max("price"))


def as_text(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)


def expected(flow: ms.Flow, stream: ms.Stream, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with flow.attempt(keep=False):
        stream.sink(ms.Memory(), name="all")
        return reference(flow, {"sales": rows})["all"]


def test_the_rows_of_a_small_input_are_those_of_the_flow() -> None:
    flow = ms.Flow("look")
    windows = totals(shops(flow).where("price >= 10"))
    found = windows.head(1000)
    assert as_text(found.rows) == as_text(expected(flow, windows, ROWS))
    assert found.whole and found.records == {"sales": 300} and found.found == len(found) == 15
    table = windows.collect()
    assert isinstance(table, pa.Table)
    assert as_text(table.to_pylist()) == as_text(found.rows)


def test_of_files_that_are_not_cut_only_the_first_records_are_read() -> None:
    """Records over several lines, or what a reader makes of a file: it is read by one task."""
    given = []

    def each(file: Any) -> Iterator[tuple[int, Any]]:
        for position, line in enumerate(file):
            given.append(line)
            yield position, {"line": line.decode()}

    found = shops(ms.Flow("lines"), multiline=True).head(3, records=10)
    assert [row["price"] for row in found.rows] == [0, 1, 2]
    assert found.records == {"sales": 10} and not found.whole
    assert shops(ms.Flow("all"), multiline=True).head(3, records=1000).records == {"sales": 300}
    made = ms.Flow("made").source(ms.Files("in/", reader=each, schema="line string"), name="made")
    found = made.head(3, records=10)
    assert found.records == {"made": 10} and not found.whole
    assert len(given) == 10


def test_collecting_tells_of_records_that_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    flow = ms.Flow("look")
    table = shops(flow).map(lambda row: {"half": 1 / (row["price"] - ROWS[7]["price"])}).collect()
    assert 0 < len(table) < len(ROWS)
    (told,) = caplog.messages
    dead = len(ROWS) - len(table)
    assert f"{dead} dead letter" in told and "division by zero" in told


def test_a_sample_says_what_it_was_made_of() -> None:
    flow = ms.Flow("look")
    sales = shops(flow)
    found = sales.head(2, records=50)
    assert (
        found.rows == [{**ROWS[i], "ts": found.rows[i]["ts"]} for i in range(2)] and not found.whole
    )
    assert found.found < 300
    assert f"2 of {found.found} rows of 'sales', from the first {found.found} records" in repr(
        found
    )
    assert repr(found).splitlines()[0].split() == ["ts", "shop", "price"]
    assert found.to_pandas()["price"].tolist() == [0, 1]
    assert "<td>A</td>" in found._repr_html_()


def test_a_sample_says_which_records_were_late() -> None:
    rows = [{"ts": 1_767_605_400, "x": 1}, {"ts": 1_767_605_000, "x": 2}]
    source = ms.Generator(lambda: rows, schema="ts bigint, x int", time="ts", lateness="1m")
    stream = ms.Flow("late").source(source).key_by().window(ms.tumbling("1m")).agg(n=ms.count())
    sample = stream.head()
    assert sample.late == {"agg": 1}
    assert sample.note.endswith("; late records, which late() gives: 1 for 'agg'")


def test_columns_have_the_types_they_come_with(capsys: pytest.CaptureFixture[str]) -> None:
    flow = ms.Flow("look")
    sales = shops(flow)
    stamp = pa.timestamp("us", "UTC")
    assert sales.schema == pa.schema({"ts": stamp, "shop": pa.string(), "price": pa.int64()})
    assert sales.map(lambda row: {"half": row["price"] / 2}).schema == pa.schema(
        {"half": pa.float64()}
    )
    assert sales.where("price < 0").schema == sales.schema
    totals(sales).show(1)
    assert "1 of 15 rows of 'agg', from all 300 records of 'sales'" in capsys.readouterr().out


def test_a_preview_has_every_stream_that_goes_somewhere() -> None:
    flow = ms.Flow("look")
    sales = shops(flow)
    sales.where("price > 290").named("dear").sink(ms.Parquet("out/"))
    totals(sales).named("per shop").sink(ms.Call(lambda row: pytest.fail("was called")))
    found = flow.preview(3)
    assert list(found) == ["dear", "per shop"]
    assert [row["price"] for row in found["dear"]] == [291, 292, 293]
    assert repr(found).count("rows of") == 2 and "per shop" in found._repr_html_()


def test_what_fails_is_counted_and_shown() -> None:
    flow = ms.Flow("look")
    halves = shops(flow).map(lambda row: {"x": 1 // (row["price"] % 2)}).named("halves")
    found = halves.head()
    assert found.dead == 150 and found.found == 150
    assert "150 dead letters, for example: halves: ZeroDivisionError" in found.note


@pytest.mark.parametrize(
    "step",
    [
        lambda stream, fn: stream.map(fn),
        lambda stream, fn: stream.at(fn),
        lambda stream, fn: stream.map_batches(fn),
        lambda stream, fn: stream.process(lambda event, ctx: fn(event.value)),
        lambda stream, fn: stream.key_by("shop").update(lambda event, slate, ctx: fn(event.value)),
        lambda stream, fn: stream.key_by("shop").reduce(lambda key, rows, window: fn(rows[0])),
    ],
    ids=["map", "at", "map_batches", "process", "update", "reduce"],
)
def test_an_interrupt_is_no_error_of_a_function(step: Any) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    calls = []

    def long(given: Any) -> None:
        calls.append(given)
        signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            step(shops(ms.Flow("look")), long).head()
        assert len(calls) == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_sample_without_a_row_has_none() -> None:
    found = ms.Flow("look").source(ms.Generator(lambda: [{"ts": True}], time="ts")).head()
    assert len(found) == found.found == 0 and found.dead == 1
    assert found.note.startswith("0 of 0 rows of 'generator'")


def test_of_a_compressed_file_only_the_beginning_is_unpacked(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploring, "_UNPACKED", 1)
    path = place / "in" / "a.csv.gz"
    path.write_bytes(gzip.compress(b"x\n" + b"12345678\n" * 500_000))
    measured: list[int] = []
    inflate = Unpacked._inflate

    def counted(self: Unpacked, most: int) -> bytes:
        piece = inflate(self, most)
        measured.append(len(piece))
        return piece

    monkeypatch.setattr(Unpacked, "_inflate", counted)
    found = ms.Flow("look").source(ms.Files(path)).head(records=1000)
    assert 500 < found.found < 100_000 and not found.whole and not found.dead
    assert sum(measured) < 3_500_000  # of 4,500,000
    assert ms.Flow("look").source(ms.Files(path)).head(records=10**6).whole


def test_a_table_of_delta_is_looked_at_as_it_is_now(place: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for part in (ROWS[:200], ROWS[200:]):
        table = pa.Table.from_pylist(part)
        deltalake.write_deltalake(str(place / "in" / "table"), table, mode="append")
    for follow in (False, True):
        sales = ms.Flow("look").source(ms.Delta("in/table", time="ts", follow=follow))
        found = sales.head(1000)
        assert found.whole and as_text(found.rows) == as_text(ROWS)
    assert ms.Flow("x").source(ms.Delta("in/table")).head(2).schema.names == ["ts", "shop", "price"]


def test_followed_files_generators_and_rates_are_looked_at_as_they_are_now() -> None:
    flow = ms.Flow("look")
    assert totals(shops(flow, follow=True)).head(100).found == 15

    def slow() -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            yield {"ts": number, "x": number}
            time.sleep(0.2)

    some = flow.source(ms.Generator(slow, time="ts")).head(2)
    assert [row["x"] for row in some] == [0, 1] and not some.whole
    few = flow.source(ms.Generator(lambda: [{"x": 1}])).head()
    assert few.rows == [{"x": 1}] and few.whole
    assert flow.source(ms.Rate(10)).head(3).rows[2]["value"] == 2


def test_steps_that_publish_to_a_stream_are_part_of_it() -> None:
    flow = ms.Flow("look")

    def tell(event: Any, ctx: Any) -> None:
        ctx.publish("told", event.value["shop"], event.value["price"])

    shops(flow).process(tell)
    told = flow.stream("told")
    assert told.head(1000).found == 300


def test_what_was_late_can_be_looked_at(place: Path) -> None:
    (place / "in" / "0.csv").write_text(
        "ts,shop,price\n2026-03-01T00:05:00Z,A,1\n2026-03-01T00:00:00Z,A,2\n"
    )
    late = totals(shops(ms.Flow("look"))).late()
    assert [row["price"] for row in late.head()] == [2]


def test_what_cannot_be_looked_at_is_refused() -> None:
    flow = ms.Flow("look")
    with pytest.raises(ms.ConfigError, match=r"source 'socket' is ms\.Socket"):
        flow.source(ms.Socket("localhost", 9)).head()
    with pytest.raises(ms.ConfigError, match="never ends; look at its first rows with head"):
        shops(flow, follow=True).collect()
    with pytest.raises(ms.ConfigError, match="expected from 1 on, got 0"):
        shops(ms.Flow("x")).head(0)
    with pytest.raises(ms.ConfigError, match="workers of a cluster do not see"):
        totals(shops(ms.Flow("x"))).sink(ms.Memory()).flow.run(
            checkpoint=None, master="spark://somewhere:7077"
        )
    with pytest.raises(ms.ConfigError, match="workers of a cluster do not see"):
        shops(ms.Flow("x")).collect(master="spark://somewhere:7077")


@pytest.mark.spark
def test_a_run_without_a_checkpoint_begins_anew_each_time(spark: Any) -> None:
    flow = ms.Flow("again")
    memory = ms.Memory()
    totals(shops(flow)).sink(memory)
    first = flow.run(checkpoint=None)
    rows = memory.rows
    assert first.rows == 300 and len(rows) == 15
    again = flow.run(checkpoint=None)
    assert again.rows == 300 and as_text(memory.rows) == as_text(rows)
    assert memory.pandas()["n"].sum() == 300

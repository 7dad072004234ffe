"""Typical mistakes, and what people read: one golden file each.

No mistake is silent, none is a bare AttributeError or TypeError, and none shows more than one frame
of the package. `MILLSTREAM_GOLDEN=write` writes the files anew; read the difference.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import millstream as ms
from millstream.api import frames
from millstream.testing import run_in_process

HERE = Path(__file__).parent
Mistake = Callable[[], Any]


def flow() -> ms.Flow:
    return ms.Flow("trades")


def trades(made: ms.Flow | None = None, **options: Any) -> ms.Stream:
    source = ms.Files("trades.csv", **{"time": "ts", **options})
    return (made or flow()).source(source, name="trades")


def ran(stream: ms.Stream, sink: Any = None) -> Any:
    stream.sink(ms.Memory() if sink is None else sink)
    return run_in_process(stream.flow, "ck")


def by_symbol(**options: Any) -> ms.KeyedStream:
    return trades(**options).key_by("symbol")


def windowed(name: str = "agg") -> ms.Stream:
    return by_symbol().window(ms.tumbling("1m")).agg(n=ms.count()).named(name)


def two_flows() -> Any:
    return trades(ms.Flow("one")).union(trades(ms.Flow("two")))


def unlike_union() -> Any:
    made = flow()
    other = ms.Generator(tuple, schema="ts timestamp, price string")
    return ran(trades(made).union(made.source(other, name="other")))


def one_directory() -> Any:
    stream = trades()
    stream.sink(ms.Parquet("out/"))
    return ran(stream, ms.Jsonl("out/"))


def name_twice() -> Any:
    made = flow()
    return trades(made), trades(made)


def named_late() -> Any:
    stream = trades()
    stream.where("price > 0").sink(ms.Memory())
    return stream.named("other")


def diverted_elsewhere(stream: str = "overflow", declared: str | None = None) -> Any:
    made = flow()
    if declared is not None:
        made.stream(declared).sink(ms.Memory())
    return ran(trades(made, overload=ms.divert(stream)))


def _count(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def changed_program() -> Any:
    ran(by_symbol().window(ms.tumbling("1m")).agg(n=ms.count()))
    return ran(by_symbol().window(ms.tumbling("5m")).agg(n=ms.count()))


def sent(name: str, directory: str) -> ms.Flow:
    made = ms.Flow(name)
    trades(made).sink(ms.Jsonl(directory))
    return made


def one_checkpoint() -> Any:
    places = {"one": "ck", "two": "ck"}
    return ms.run_all(sent("one", "out/one"), sent("two", "out/two"), checkpoint=places)


def one_checkpoint_in_another() -> Any:
    places = {"one": "ck", "two": "ck/two"}
    return ms.run_all(sent("one", "out/one"), sent("two", "out/two"), checkpoint=places)


def one_output() -> Any:
    return ms.run_all(sent("one", "out"), sent("two", "out"), checkpoint=None)


def overwritten() -> Any:
    ran(trades())
    Path("trades.csv").write_text("ts,symbol,price\n2026-02-01T00:00:00Z,Z,9\n")
    return ran(trades())


def all_fail() -> Any:
    return ran(trades().map(lambda row: {"x": row["prise"]}))


def time_of_totals() -> Any:
    totals = by_symbol().agg(n=ms.count())
    return ran(totals.key_by("n").window(ms.tumbling("1m")).agg(k=ms.count()))


def over_rows() -> Any:
    return list(trades())


def assigned() -> Any:
    stream: Any = trades()
    stream["twice"] = "price * 2"


async def _later(row: dict[str, Any]) -> dict[str, Any]:
    return row


class Half(ms.Aggregate):
    def result(self, state: Any) -> Any:
        return state


class Returning(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Any:
        return (value["symbol"], 1)

    def reduce(self, key: Any, values: Any, window: Any) -> Any:
        yield key, sum(values)


def run_with(**options: Any) -> Any:
    return trades().sink(ms.Memory()).flow.run(checkpoint=None, **options)


def run_early(**options: Any) -> Any:
    return by_symbol().agg(n=ms.count()).sink(ms.Memory()).flow.snapshots(**options)


def silent_store() -> Any:
    def unheard(spec: Any) -> Any:
        raise OSError(errno.EIO, "the store did not answer: no route to host", str(spec.path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.run.sources.files.listing.list_seen", unheard)
        return flow().source(ms.Files("s3://bucket/trades.csv")).head()


MISTAKES: dict[str, Mistake] = {
    # as in pandas
    "a column by brackets": lambda: trades()["price"],
    "a column as an attribute": lambda: trades().price,
    "rows by a condition in brackets": lambda: trades()[lambda row: row["price"] > 3],
    "a column that is assigned": assigned,
    "a loop over a stream": over_rows,
    "the length of a stream": lambda: len(trades()),
    "sort_values of a stream": lambda: trades().sort_values("price"),
    "fillna of a stream": lambda: trades().fillna(0),
    "names that nobody has": lambda: trades().whre("price > 0"),
    "a column that is selected twice": lambda: trades().select("price", "price"),
    # as in Spark and Flink
    "a Spark column": lambda: ms.col("price") > 3,
    "a Flink window": lambda: ms.TumblingEventTimeWindows,
    "orderBy of a stream": lambda: trades().orderBy("price"),
    "execute of a flow": lambda: flow().execute("job"),
    "readStream of a flow": lambda: flow().readStream,
    "foreachBatch of a stream": lambda: trades().foreachBatch(print),
    "partitionBy of a sink": lambda: ms.Parquet("out/", partitionBy="day"),
    "where after key_by": lambda: by_symbol().where("price > 0"),
    "a sink after key_by": lambda: by_symbol().sink(ms.Memory()),
    "a sink after window": lambda: by_symbol().window(ms.tumbling("1m")).sink(ms.Memory()),
    "two windows": lambda: by_symbol().window(ms.tumbling("1m")).window(ms.tumbling("5m")),
    "a job with a window as a text": lambda: trades().map_reduce(Returning(), window="1m"),
    "a map that returns its pair": lambda: ran(trades().map_reduce(Returning())),
    "an aggregate without its methods": lambda: by_symbol().agg(x=Half("price")),
    "a function of two arguments": lambda: trades().map(lambda key, value: value),
    "a function that is async": lambda: trades().map(_later),
    "a union of nothing": lambda: trades().union(),
    "several paths": lambda: ms.Files(["a.csv", "b.csv"]),
    "a book of Excel": lambda: flow().source(ms.Files("book.xlsx", format="csv")).head(),
    "parquet read as csv": lambda: flow().source(ms.Files("in.parquet", format="csv")).head(),
    "milliseconds read as seconds": lambda: ran(flow().source(ms.Files("ms.csv", time="t"))),
    "a flow without a name": lambda: ms.Flow(),  # type: ignore[call-arg]
    "a checkpoint that is no path": lambda: trades().sink(ms.Memory()).flow.run(checkpoint=3),
    "a size in words": lambda: ms.Parquet("out/", target_size="large"),
    # names
    "a column that is not there": lambda: ran(trades().where("prise > 0")),
    "a column that is not there in select": lambda: ran(trades().select("symbol", "qty * 2 AS q")),
    "a key that is not there": lambda: ran(trades().key_by("Symbol").agg(n=ms.count())),
    "filter instead of where": lambda: trades().filter("price > 0"),
    "groupby instead of key_by": lambda: trades().groupby("symbol"),
    "withColumn instead of with_column": lambda: trades().withColumn("x", "price * 2"),
    "toPandas instead of collect": lambda: trades().toPandas(),
    "avg instead of mean": lambda: ms.avg("price"),
    "count_distinct instead of distinct": lambda: ms.count_distinct("symbol"),
    "read_csv instead of Files": lambda: ms.read_csv("trades.csv"),
    "a setting that is not there": lambda: trades().sink(ms.Memory()).flow.run(paralelism=2),
    "an option that is not there": lambda: ms.Files("trades.csv", latness="5s"),
    # calls
    "an aggregate without a column": lambda: ms.sum(),
    "an aggregate without a name": lambda: by_symbol().agg(ms.count()),
    "an aggregate as a text": lambda: by_symbol().agg(n="count"),
    "a window without a size": lambda: ms.tumbling(),
    "a window as a text": lambda: by_symbol().window("1m"),
    "a window without a key": lambda: trades().window(ms.tumbling("1m")),
    "an option of window misspelt": lambda: by_symbol().window(ms.tumbling("1m"), emits="delta"),
    "a join without on": lambda: trades().join(trades()),
    "a join of an unknown kind": lambda: (t := trades()).join(t, on="symbol", how="outer"),
    "columns as a list": lambda: trades().dedup(["symbol"], within="1h"),
    "a function where SQL is expected": lambda: trades().where(lambda row: row["price"] > 0),
    "SQL where a function is expected": lambda: trades().map("price * 2"),
    "an updater that takes too little": lambda: by_symbol().update(lambda event: None),
    "a path as a source": lambda: flow().source("trades.csv"),
    "a path as a sink": lambda: trades().sink("out/"),
    "a function as a sink": lambda: trades().sink(print),
    "a file as the directory of a sink": lambda: trades().sink(ms.Parquet("trades.csv")),
    "a name with a slash": lambda: ms.Flow("my/flow"),
    # values
    "a duration in words": lambda: ms.tumbling("one minute"),
    "a duration without a unit": lambda: ms.tumbling("60"),
    "a zone that is none": lambda: ms.tumbling("1d", zone="New York"),
    "a quantile of a percentage": lambda: ms.quantile("price", 95),
    "an expression with a hole": lambda: trades().where("price >"),
    "an aggregate in select": lambda: trades().select("count(*)"),
    "a SQL function that is not there": lambda: trades().select("soundex(symbol) AS s"),
    "a sum of texts": lambda: ran(by_symbol().agg(total=ms.sum("symbol"))),
    # files and time
    "a path that is not there": lambda: ran(flow().source(ms.Files("trade.csv"))),
    "a directory without files": lambda: ran(flow().source(ms.Files("empty/"))),
    "a time column that is not there": lambda: trades(time="time").head(),
    "times without a zone": lambda: flow().source(ms.Files("naive.csv", time="ts")).head(),
    "times in another form": lambda: flow().source(ms.Files("odd.csv", time="day")).head(),
    "a JSON array": lambda: flow().source(ms.Files("array.json")).head(),
    "a file that was overwritten": overwritten,
    # graphs
    "a flow without a sink": lambda: run_in_process(trades().flow, "ck"),
    "two sinks in one directory": one_directory,
    "results into the input": lambda: ran(flow().source(ms.Files("in/")), ms.Jsonl("in/")),
    "streams of two flows": two_flows,
    "a union of two types": unlike_union,
    "one name for two steps": name_twice,
    "a name given too late": named_late,
    "late records of a step without windows": lambda: trades().late(),
    "totals of input without an end": lambda: ran(by_symbol(follow=True).agg(n=ms.count())),
    "time windows over totals": time_of_totals,
    "a changed program": changed_program,
    "a function that fails on everything": all_fail,
    # more of what is called otherwise elsewhere
    "to_csv of a stream": lambda: trades().to_csv("out.csv"),
    "CSV of the package": lambda: ms.CSV("out/"),
    "sep of a file": lambda: ms.Files("trades.csv", sep=";"),
    "na_values of a file": lambda: ms.Files("trades.csv", na_values=["NA"]),
    "collect of a flow": lambda: flow().collect(),
    "start of a stream": lambda: trades().sink(ms.Memory()).start(),
    "concat of streams": lambda: ms.concat([trades(), trades()]),
    "run of the package": lambda: ms.run(flow()),
    "a sink as a source": lambda: flow().source(ms.Csv("trades.csv")),
    "a sink that is a class": lambda: trades().sink(ms.Memory),
    "a key by a function": lambda: trades().key_by(lambda row: row["symbol"]),
    "what is compared by a function": lambda: trades().dedup(lambda row: row["symbol"]),
    "a selection as a list": lambda: trades().select(["symbol", "price"]),
    "a reduce of two arguments": lambda: by_symbol().reduce(lambda a, b: a + b),
    "a month as M": lambda: ms.tumbling("1M"),
    "a day in words": lambda: by_symbol().window(ms.tumbling("1 day", zone="Asia/Tokyo")),
    "a zone as an object": lambda: ms.tumbling("1d", zone=ZoneInfo("Asia/Tokyo")),
    "a time that is a constant": lambda: trades().at(datetime(2026, 1, 1)),
    "a format that says no zone": lambda: trades().at("ts", format="%m/%d/%Y"),
    "a column called by a word of SQL": lambda: trades().at("when"),
    "and as in Python": lambda: trades().where("price > 0 && price < 5"),
    "an interval with a unit": lambda: run_with(interval="5s"),
    "rows of a batch as a text": lambda: run_with(batch_rows="1000"),
    "a share in percent": lambda: run_with(dead_letter_limit="1%"),
    "a switch as a text": lambda: run_with(incremental="yes"),
    "a share of snapshots alone": lambda: list(run_early(at=0.5)),
    "an error bound in percent": lambda: ms.rel_error(5),
    "slates of nowhere": lambda: ms.slates("nowhere", "updater"),
    "a store that does not answer": silent_store,
    # overload
    "an overload policy as a text": lambda: trades(overload="drop"),
    "records to keep that are neither new nor old": lambda: ms.drop(keep="foo"),
    "overload that is over at once": lambda: ms.drop(until=0),
    "overload without a unit": lambda: ms.drop(when="64"),
    "an updater that diverts what it has": lambda: by_symbol().update(
        _count, overload=ms.divert("overflow", keep="newest")
    ),
    "a merge that drops": lambda: by_symbol().update(
        _count, merge=lambda a, b: a, overload=ms.drop()
    ),
    "a diversion without a name": lambda: ms.divert(None),  # type: ignore[arg-type]
    "a diversion to a stream that nobody declared": diverted_elsewhere,
    "a diversion to a stream misspelt": lambda: diverted_elsewhere("overflow", "overflows"),
    "agents that divert": lambda: ms.Collector(
        "127.0.0.1:9410", ms.Files("in/", time="ts"), overload=ms.divert("overflow")
    ),
    # several flows
    "two flows of one name": lambda: ms.run_all(windowed().flow, windowed().flow),
    "two flows with one checkpoint": one_checkpoint,
    "a checkpoint inside that of another flow": one_checkpoint_in_another,
    "two flows that write to one directory": one_output,
    "no flow to run": lambda: ms.run_all(),
    "a list of flows": lambda: ms.run_all([flow()]),
    "a checkpoint for another flow": lambda: ms.run_all(flow(), checkpoint={"other": "ck"}),
    # looking
    "a look at a socket": lambda: flow().source(ms.Socket("localhost", 9)).show(),
    "all of input without an end": lambda: trades(follow=True).collect(),
    "no rows at all": lambda: trades().head(0),
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trades.csv").write_text(
        "ts,symbol,price\n2026-01-05T09:30:00Z,ACME,10\n2026-01-05T09:30:30Z,BOLT,12\n"
    )
    Path("naive.csv").write_text("ts,x\n2026-01-05 09:30:00,1\n")
    Path("odd.csv").write_text("day,x\n01/31/2026,1\n")
    Path("array.json").write_text('[{"x": 1}, {"x": 2}]')
    Path("book.xlsx").write_bytes(b"PK\x03\x04...\n")
    Path("in.parquet").write_bytes(b"PAR1...\n")
    Path("ms.csv").write_text("t,x\n1767605400000,1\n1767605401000,2\n")
    Path("empty").mkdir()
    Path("in").mkdir()
    Path("in/a.jsonl").write_text('{"x": 1}\n')


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_its_message(name: str, tmp_path: Path) -> None:
    with pytest.raises(ms.MillstreamError) as caught:
        MISTAKES[name]()
    error = caught.value
    told = f"{type(error).__name__}: {error}\n".replace(str(tmp_path), "<here>")
    golden = HERE / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("MILLSTREAM_GOLDEN") == "write":
        golden.write_text(told)
    assert told == golden.read_text()
    assert len(told) > 40, "too short to say what to do"
    shown = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in shown if frame.filename.startswith(frames._HERE)]
    assert len(ours) <= 1, ours


def test_every_golden_file_has_its_mistake() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == {n.replace(" ", "-") for n in MISTAKES}
    assert len(MISTAKES) >= 40


# What the package gives out, and nobody but it makes.
GIVEN = {"Window", "OpenWindow", "Participant", "ClosingPolicy", "Queue", "Request", "Overload"}
GIVEN |= {"Snapshot", "JobContext", "Event", "Context", "ProcessContext", "Settings", "Stream"}
GIVEN |= {"KeyedStream", "MapReduce", "Aggregate", "Policy"}


def test_an_option_that_nothing_has_is_told_wherever_it_is_given() -> None:
    bare = []
    for name in sorted(set(ms.__all__) - GIVEN):
        public = getattr(ms, name)
        if not callable(public) or (isinstance(public, type) and issubclass(public, Exception)):
            continue
        try:
            public(neverheard=1)
        except ms.MillstreamError:
            continue
        except TypeError as error:
            bare.append(f"{name}: {error}")
        else:
            bare.append(f"{name}: silent")
    assert not bare

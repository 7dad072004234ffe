"""Plans as text: what `explain()` prints for typical flows, kept in files beside this one.

After a wanted change run `MILLSTREAM_WRITE_PLANS=1 pytest tests/plans` and look at the diff.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms

HERE = Path(__file__).parent


class WordCount(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        for word in value.split():
            yield word, 1

    def combine(self, key: Any, values: list[Any]) -> Any:
        return sum(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


class Sliding(WordCount):
    """The same with an inverse."""

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        return total - expired


class Top(ms.MapReduce):
    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, max(values)


class Median(ms.Aggregate):
    def zero(self) -> list[float]:
        return []

    def add(self, state: list[float], value: float) -> list[float]:
        return [*state, value]


class Product(ms.Aggregate):
    def zero(self) -> float:
        return 1.0

    def add(self, state: float, value: float) -> float:
        return state * value

    def combine(self, left: float, right: float) -> float:
        return left * right


def cleaned(row: dict[str, Any]) -> dict[str, Any]:
    return row


def summary(key: Any, records: list[dict[str, Any]], window: ms.Window) -> int:
    return len(records)


def sliding_averages(flow: ms.Flow) -> None:
    trades = flow.source(ms.Files("in/", format="parquet", time="ts", lateness="5s"), name="trades")
    keyed = trades.where("price > 0").key_by("symbol").window(ms.sliding("10m", "1m"))
    keyed.agg(avg=ms.mean("price"), n=ms.count()).sink(ms.Parquet("out/"))


def stateless(flow: ms.Flow) -> None:
    lines = flow.source(ms.Socket("localhost", 9999))
    lines.map(cleaned).select("value", "LENGTH(value) AS n").sink(ms.Console())


def word_count(flow: ms.Flow) -> None:
    text = flow.source(ms.Files("books/*.txt", format="text"))
    text.map_reduce(WordCount()).sink(ms.Jsonl("counts/"))


def every_strategy(flow: ms.Flow) -> None:
    source = ms.Files("in/", format="json", time="at", lateness="1m", follow=True)
    stream = flow.source(source, name="events")
    keyed = stream.key_by("user", "kind", nulls="keep").window(ms.sliding("90s", "1m"))
    keyed.agg(
        total=ms.sum("x"), all=ms.collect("x"), median=Median("x"), product=Product("x")
    ).named("stats").sink(ms.Memory())


def chained_jobs(flow: ms.Flow) -> None:
    text = flow.source(ms.Stdin(lateness="2s"))
    counts = text.map_reduce(WordCount(), ms.tumbling("1s"))
    top = counts.map_reduce(Top(), ms.tumbling("1m"), sorted=True)
    top.sink(ms.Jsonl("top/"), name="top")
    counts.sink(ms.Parquet("counts/"))


def union_fork_and_late(flow: ms.Flow) -> None:
    left = flow.source(ms.Rate(10.0, limit=100), name="left")
    right = flow.source(ms.Rate(5.0, limit=100), name="right")
    both = left.union(right.map(cleaned).named("clean"))
    result = both.key_by().window(ms.hopping("10s", "1m")).reduce(summary)
    result.sink(ms.Memory())
    result.late().sink(ms.Jsonl("late/"), name="too late")


def shared_panes(flow: ms.Flow) -> None:
    ticks = flow.source(ms.Files("ticks/", time="ts", lateness="5s"), name="ticks")
    keyed = ticks.key_by("symbol")
    keyed.window(ms.sliding("5m", "1m")).agg(avg=ms.mean("price")).named("fast").sink(ms.Memory())
    slow = keyed.window(ms.sliding("10m", "1m")).agg(avg=ms.mean("price"), n=ms.count())
    slow.named("slow").sink(ms.Memory())
    wide = keyed.window(ms.sliding("1h", "5m")).agg(low=ms.min("price"), n=ms.count())
    wide.named("range").sink(ms.Memory())


def jobs_that_slide(flow: ms.Flow) -> None:
    text = flow.source(ms.Stdin(lateness="2s"))
    text.map_reduce(Sliding(), ms.sliding("1m", "1s")).sink(ms.Memory(), name="inverse")
    text.map_reduce(WordCount(), ms.sliding("1m", "1s")).sink(ms.Memory(), name="combine")
    text.map_reduce(WordCount(), ms.session("1m")).sink(ms.Memory(), name="session")
    early = text.key_by().window(ms.sliding("1m", "1s"), emit="early", every="5s")
    early.map_reduce(Sliding()).sink(ms.Memory(), name="early")


def other_windows(flow: ms.Flow) -> None:
    keyed = flow.source(ms.Files("in/", time="ts", lateness="5s"), name="clicks").key_by("user")
    for window in (ms.landmark("1m"), ms.session("30m"), ms.count_window(9, 3), ms.bytes_window(9)):
        aggs = {"n": ms.count(), "all": ms.collect("page")}
        keyed.window(window).agg(**aggs).named(window.kind).sink(ms.Memory())


def joins(flow: ms.Flow) -> None:
    cars = flow.source(ms.Files("cars/", time="ts", lateness="5s"), name="cars")
    roads = flow.source(ms.Files("roads/", time="ts", lateness="5s"), name="roads")
    fast = cars.changes(key="car").where("speed > 50").named("fast")
    on_road = fast.join(roads.changes(key="id"), on=[("car", "id")]).named("on road")
    on_road.join(cars, on=["car", "lane"], how="left").sink(ms.Memory(), name="known")
    fast.join(roads, on=[("car", "id")], how="anti").sink(ms.Memory(), name="elsewhere")
    cars.join(roads, on="lane", within="5m", how="full").sink(ms.Memory(), name="near")
    cars.join(roads, on="lane", between=("-5m", "10m")).sink(ms.Memory(), name="between")
    cars.join(roads, on="lane", how="asof", within="1h").sink(ms.Memory(), name="then")
    cars.select("car").intersect(roads.select("id AS car")).sink(ms.Memory(), name="both")
    cars.select("car").difference(roads.select("id AS car"), all=True).sink(ms.Memory(), name="one")


def groups(flow: ms.Flow) -> None:
    cars = flow.source(ms.Files("cars/", time="ts", lateness="5s"), name="cars")
    fast = cars.changes(key="car").where("speed > 50").named("fast")
    makes = fast.key_by("make").agg(
        n=ms.count(),
        mean=ms.mean("speed"),
        fastest=ms.max("speed"),
        latest=ms.last("car"),
        colours=ms.distinct("colour"),
        median=ms.quantile("speed", 0.5),
        product=Product("speed"),
    )
    makes.named("makes").where("n > 2").sink(ms.Memory(), name="having")
    fast.key_by("make").top(3, by=["speed", "car ASC"]).sink(ms.Memory(), name="best")
    recent = cars.last("5m").key_by()
    recent.agg(n=ms.count(), slowest=ms.min("speed")).sink(ms.Memory(), name="recent")
    kept = cars.key_by("make").agg(emit="delta", fastest=ms.max("speed"), all=ms.collect("car"))
    kept.sink(ms.Memory(), name="ever")


FLOWS: list[Callable[[ms.Flow], None]] = [
    sliding_averages,
    stateless,
    word_count,
    every_strategy,
    chained_jobs,
    union_fork_and_late,
    shared_panes,
    other_windows,
    jobs_that_slide,
    joins,
    groups,
]


@pytest.mark.parametrize("build", FLOWS, ids=lambda build: build.__name__)
def test_plan_reads_as_before(build: Callable[[ms.Flow], None]) -> None:
    flow = ms.Flow(build.__name__)
    build(flow)
    found = flow.explain() + "\n"
    golden = HERE / f"{build.__name__}.txt"
    if os.environ.get("MILLSTREAM_WRITE_PLANS"):
        golden.write_text(found, encoding="utf-8")
    expected = golden.read_text(encoding="utf-8")
    changes = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), golden.name, "explain() now", lineterm=""
    )
    assert found == expected, "the plan changed:\n" + "\n".join(changes)


def test_every_golden_plan_belongs_to_a_flow() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == {build.__name__ for build in FLOWS}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"emit": "delta"}, "emits changes"),
        ({"emit": "early", "every": "10s"}, "emits early results, every 10s"),
        (
            {"emit": "early", "every_rows": 1000, "every_event": "1m"},
            "emits early results, every 1,000 records or every 1m of event time",
        ),
    ],
)
def test_when_results_leave(options: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    flow = ms.Flow("emission")
    source = flow.source(ms.Generator(list, schema="ts timestamp, k string", time="ts"))
    source.key_by("k").window(ms.tumbling("1m"), **options).agg(n=ms.count()).sink(ms.Memory())
    told = [line.strip() for line in flow.explain().splitlines() if " emits " in line]
    assert told == ([said] if said else [])
    flow.picture(tmp_path / "plan.svg")
    drawn = (tmp_path / "plan.svg").read_text()
    assert ("emits" in drawn) == (said is not None)

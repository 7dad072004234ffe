"""A checkpoint belongs to a program: every change that matters is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, run_in_process


class Mean(ms.Aggregate):
    def zero(self) -> float:
        return 0.0

    def add(self, state: float, value: float) -> float:
        return state + value

    def combine(self, left: float, right: float) -> float:
        return left + right


class Count(ms.MapReduce):
    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
        yield key, len(values)


class CombiningCount(ms.MapReduce):
    def combine(self, key: Any, values: list[Any]) -> Any:
        return sum(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
        yield key, values[0]


def flow(
    data: Path,
    *,
    name: str = "program",
    path: str = "in.csv",
    time: str = "ts",
    keys: tuple[str, ...] = ("key",),
    window: Any = None,
    finish: Callable[[Any], ms.Stream] = lambda w: w.agg(n=ms.count(), total=ms.sum("value")),
    more: bool = False,
    source: str = "in",
) -> ms.Flow:
    made = ms.Flow(name)
    rows = made.source(ms.Files(data / path, time=time, time_unit="ms"), name=source)
    windowed = rows.where("value > 0").key_by(*keys).window(window or ms.tumbling("10s"))
    finish(windowed).named("step").sink(ms.Memory())
    if more:
        rows.key_by("key").window(ms.tumbling("1s")).agg(n=ms.count()).named("extra").sink(
            ms.Memory()
        )
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("in.csv", "other.csv"):
        (tmp_path / name).write_text("ts,ts2,key,other,value\n1,1,a,b,1\n2,2,b,c,2\n")
    return tmp_path


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "flow": ({"name": "another"}, "it belongs to flow 'program', this is 'another'"),
    "path": ({"path": "other.csv"}, r"source 'in': path was .*in\.csv, is .*other\.csv"),
    "time": ({"time": "ts2"}, "source 'in': time was ts, is ts2"),
    "source": ({"source": "into"}, "source 'in' is gone; source 'into' is new"),
    "keys": ({"keys": ("key", "other")}, "operator 'step': keys was key, is key, other"),
    "no keys": ({"keys": ()}, "operator 'step': keys was key, is none"),
    "window": (
        {"window": ms.sliding("10s", "5s")},
        r"operator 'step': window was tumbling\(10s\), is sliding\(10s, 5s\)",
    ),
    "aggregates": (
        {"finish": lambda w: w.agg(n=ms.count(), total=ms.mean("value"))},
        r"aggregates was n=count\(\), total=sum\(value\), is n=count\(\), total=mean\(value\)",
    ),
    "own aggregate": (
        {"finish": lambda w: w.agg(n=ms.count(), total=Mean("value"))},
        r"is n=count\(\), total=Mean\(value\)",
    ),
    "reduce": (
        {"finish": lambda w: w.reduce(lambda key, rows, window: None)},
        "operator 'step': aggregates was .* is none; operator 'step': kind was agg, is reduce",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_matters_is_refused(data: Path, change: str) -> None:
    run_in_process(flow(data), data / "ck")
    options, message = CHANGES[change]
    with pytest.raises(ms.CheckpointError, match=message) as caught:
        run_in_process(flow(data, **options), data / "ck")
    assert "the program has changed since batch 0 of checkpoint" in str(caught.value)
    assert "Either undo the change, or start afresh with another checkpoint=" in str(caught.value)
    run_in_process(flow(data), data / "ck")  # undone, and the lock was given back


def test_an_operator_that_is_new_is_adopted(data: Path) -> None:
    run_in_process(flow(data), data / "ck")
    run_in_process(flow(data, more=True), data / "ck")
    with pytest.raises(ms.CheckpointError, match="operator 'extra' is gone"):
        run_in_process(flow(data), data / "ck")


def test_state_stays_when_stateless_steps_before_it_change(tmp_path: Path) -> None:
    def of(*, mapped: bool) -> ms.Flow:
        made = ms.Flow("steps")
        files = ms.Files("x", schema="ts bigint, k string", time="ts", lateness="0s", follow=True)
        rows = made.source(files, name="in")
        if mapped:
            rows = rows.map(lambda row: row)
        counted = rows.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count())
        counted.named("counted").sink(ms.Memory())
        return made

    with Driver(of(mapped=False), checkpoint=tmp_path) as driver:
        driver.push("in", [{"ts": 1, "k": "a"}, {"ts": 2, "k": "a"}]).step()
    with Driver(of(mapped=True), checkpoint=tmp_path) as driver:
        driver.push("in", [{"ts": 3, "k": "a"}]).end()
        assert [row["n"] for row in driver.output()] == [3]


@pytest.mark.parametrize("compared", ["distinct", "intersect", "difference"])
def test_rows_that_are_compared_whole_keep_their_columns(tmp_path: Path, compared: str) -> None:
    """Else rows that were counted before would be equal to none, and those that wait lack one."""

    def of(*columns: str) -> ms.Flow:
        flow = ms.Flow("f")
        sources = [
            flow.source(
                ms.Generator(list, schema="ts bigint, k string, s string", time="ts"), name=n
            ).select(*columns)
            for n in ("a", "b")
        ]
        left, right = sources
        both = left.distinct() if compared == "distinct" else getattr(left, compared)(right)
        both.sink(ms.Memory())
        return flow

    with Driver(of("ts", "k"), checkpoint=tmp_path) as driver:
        driver.push("a", [{"ts": 1, "k": "x", "s": "y"}]).step()
    with Driver(of("k", "ts"), checkpoint=tmp_path) as driver:  # in another order is the same
        driver.step()
    with (
        pytest.raises(ms.CheckpointError, match="what is compared of its rows was k, ts, is k, s"),
        Driver(of("ts", "k", "s"), checkpoint=tmp_path),
    ):
        pass


def test_a_column_behind_a_join_that_its_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    """Rows that wait for the other side would have come out without it."""

    def of(*columns: str) -> ms.Flow:
        flow = ms.Flow("f")
        one, other = (
            flow.source(
                ms.Generator(list, schema=f"ts bigint, k string, {n} string", time="ts"), name=n
            )
            for n in ("a", "b")
        )
        one.join(other, on="k").select("k", *columns).sink(ms.Memory())
        return flow

    with Driver(of("b"), checkpoint=tmp_path) as driver:
        driver.push("a", [{"ts": 1, "k": "x", "a": "y"}]).step()
    why = (
        "operator 'join': a of 'a' is read behind it, and the rows that it has stored so far do not"
    )
    with pytest.raises(ms.CheckpointError, match=why), Driver(of("a", "b"), checkpoint=tmp_path):
        pass
    with Driver(of(), checkpoint=tmp_path) as driver:  # fewer are there
        driver.push("b", [{"ts": 1, "k": "x", "b": "z"}]).end()
        assert [row["k"] for row in driver.output()] == ["x"]


def test_an_operator_that_is_gone(data: Path) -> None:
    run_in_process(flow(data, more=True), data / "ck")
    with pytest.raises(ms.CheckpointError, match="operator 'extra' is gone"):
        run_in_process(flow(data), data / "ck")


def test_a_job_that_begins_to_combine(data: Path) -> None:
    def of(job: ms.MapReduce) -> dict[str, Any]:
        return {"finish": lambda w: w.map_reduce(job)}

    run_in_process(flow(data, **of(Count())), data / "ck")
    with pytest.raises(ms.CheckpointError, match=r"has combine\(\) was no, is yes"):
        run_in_process(flow(data, **of(CombiningCount())), data / "ck")


def test_functions_and_sinks_may_change(data: Path, tmp_path: Path) -> None:
    run_in_process(flow(data), data / "ck")
    changed = ms.Flow("program")
    rows = changed.source(
        ms.Files(data / "in.csv", time="ts", time_unit="ms", lateness="5s"), name="in"
    )
    counted = rows.where("value > 1").map(lambda row: row).key_by("key")
    stream = counted.window(ms.tumbling("10s")).agg(n=ms.count(), total=ms.sum("value"))
    stream.named("step").sink(ms.Jsonl(tmp_path / "out"))
    run_in_process(changed, data / "ck")


def test_shards_are_fixed_at_the_first_start(data: Path) -> None:
    run_in_process(flow(data), data / "ck", shards=16)
    run_in_process(flow(data), data / "ck")
    run_in_process(flow(data), data / "ck", shards=16, parallelism=3)
    with pytest.raises(ms.CheckpointError, match="has 16 shards; leave out shards=8, or stop"):
        run_in_process(flow(data), data / "ck", shards=8)


def test_an_output_directory_belongs_to_one_checkpoint(data: Path) -> None:
    def writing(name: str) -> ms.Flow:
        made = ms.Flow(name)
        rows = made.source(ms.Files(data / "in.csv", time="ts", time_unit="ms"))
        rows.sink(ms.Jsonl(data / "out"))
        return made

    run_in_process(writing("one"), data / "ck")
    run_in_process(writing("one"), data / "ck")
    with pytest.raises(
        ms.ConfigError, match=r"holds results of another checkpoint \(flow one \w+\)"
    ):
        run_in_process(writing("two"), data / "ck2")
    with pytest.raises(ms.ConfigError, match="holds results of another checkpoint"):
        run_in_process(writing("one"), data / "ck3")

"""Several flows on one Spark: each has what it would have alone, whatever becomes of the others."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import millstream as ms
from millstream.io.formats import Format
from millstream.io.readers import Split
from millstream.plan.planner import make_plan
from millstream.run.handle import between_looks
from millstream.run.several import Start, _shared_out, start_all
from millstream.run.spark.carrying import Carrier, Delivered, Load, Riding, dealt
from millstream.run.spark.turns import Turns
from millstream.run.tasks.watching import Attempt
from millstream.settings import Settings
from millstream.testing import Driver

NO_BATCH: Any = None
CSV = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
ROWS = [(f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z", "abc"[i % 3], i) for i in range(600)]


def write(path: Path, rows: list[tuple[str, str, int]]) -> None:
    path.parent.mkdir(exist_ok=True)
    hidden = path.parent / f".{path.name}"
    hidden.write_text("ts,k,v\n" + "".join(f"{ts},{k},{v}\n" for ts, k, v in rows))
    hidden.rename(path)


def flow(name: str, place: Path, fn: Callable[[Any], Any] | None = None, **options: Any) -> ms.Flow:
    made = ms.Flow(name)
    stream = made.source(ms.Files(str(place / "in"), time="ts", **options))
    stream = stream if fn is None else stream.map(fn)
    windows = stream.key_by("k").window(ms.tumbling("1m"))
    windows.agg(n=ms.count(), s=ms.sum("v")).sink(ms.Jsonl(str(place / "out" / name)))
    return made


def results(place: Path, name: str) -> Counter[Any]:
    parts = (part.read_text().splitlines() for part in (place / "out" / name).glob("part-*"))
    rows = [json.loads(line) for lines in parts for line in lines]
    return Counter((row["k"], row["window_start"][:16], row["n"], row["s"]) for row in rows)


def expected(rows: list[tuple[str, str, int]]) -> Counter[Any]:
    groups: dict[Any, list[int]] = {}
    for ts, key, value in rows:
        groups.setdefault((key, ts[:16]), []).append(value)
    return Counter((*key, len(values), sum(values)) for key, values in groups.items())


def raises(_: Any) -> Any:
    raise ValueError("no")


def dies(_: Any) -> Any:
    os._exit(3)


@pytest.mark.spark
def test_flows_that_run_together_give_what_each_gives_alone(spark: Any, tmp_path: Path) -> None:
    """Also beside one whose records all fail."""
    write(tmp_path / "in" / "a.csv", ROWS)
    good = [flow(f"good {number}", tmp_path) for number in range(3)]
    with pytest.raises(ms.RunError) as caught:
        ms.run_all(*good, flow("raises", tmp_path, raises), checkpoint=tmp_path / "ck")
    told = str(caught.value)
    assert told.startswith("1 of 4 flows failed, the others did not. 'raises': ")
    assert "ValueError: no" in told
    later = [(f"2026-01-02{ts[10:]}", k, v) for ts, k, v in ROWS]
    write(tmp_path / "in" / "b.csv", later)
    progress = ms.run_all(*good, checkpoint=tmp_path / "ck")
    for one in good:
        assert progress[one.name].new_rows == 600
        assert results(tmp_path, one.name) == expected(ROWS + later)
        assert (tmp_path / "ck" / one.name / "flow.json").exists()


@pytest.mark.spark
@pytest.mark.long
def test_who_takes_a_worker_along_takes_no_other_flow(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", ROWS)
    good = [flow(f"good {number}", tmp_path) for number in range(3)]
    with pytest.raises(ms.RunError, match=r"1 of 4 .*'dies': a Python worker died"):
        ms.run_all(*good, flow("dies", tmp_path, dies), checkpoint=tmp_path / "ck")
    for one in good:
        assert results(tmp_path, one.name) == expected(ROWS)


@pytest.mark.spark
def test_one_is_stopped_and_the_others_go_on(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", ROWS)
    made = [flow(name, tmp_path, follow=True) for name in ("one", "two", "three")]
    handles = ms.start_all(*made, checkpoint={name.name: tmp_path / name.name for name in made})
    try:
        _until(lambda: all(one.rows == 600 for one in handles.progress.values()))
        assert handles["one"].stop().rows == 600
        write(tmp_path / "in" / "b.csv", ROWS[:10])
        _until(lambda: handles.progress["two"].rows == handles.progress["three"].rows == 610)
        assert handles.running and handles.progress["one"].rows == 600
    finally:
        progress = handles.stop()
    assert not handles.running and not handles.failed and list(progress) == ["one", "two", "three"]


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_loads_are_dealt_by_what_they_cost() -> None:
    loads = [Load(name, Attempt("ck", "", 0), NO_BATCH, []) for name in "abcdef"]
    cost = {"a": 5.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0}
    tasks = dealt(loads, cost, 2)
    assert sorted(sorted(load.flow for load in task) for task in tasks) == [["a"], list("bcdef")]
    assert len(dealt(loads[:1], {}, 8)) == 1


def test_loads_that_read_the_same_stay_together() -> None:
    watch = Attempt("ck", "", 0)
    same = [Load(f"same {n}", watch, NO_BATCH, [Split(0, 0, "in/a.csv", 0, 9)]) for n in range(6)]
    others = [Load(f"other {n}", watch, NO_BATCH, [Split(0, 0, f"in/{n}", 0, 9)]) for n in range(6)]
    tasks = dealt([*same[:3], *others, *same[3:]], {}, 2)
    assert sorted({load.flow[:4] for load in task} == {"same"} for task in tasks) == [False, True]
    many = [replace(same[0], flow=str(number)) for number in range(20)]
    assert sorted(len(task) for task in dealt(many, {}, 4)) == [4, 8, 8]


def test_who_has_waited_longest_comes_first() -> None:
    turns, order, threads = Turns(), list[int](), list[threading.Thread]()

    def take(number: int) -> None:
        try:
            with turns.turn(str(number)):
                order.append(number)
        except ms.RunError:
            order.append(-number)

    with turns.turn("first"):
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            _until(lambda: len(turns._queue) == len(threads) + 1)
        assert not order
        turns.let_go("first")  # it has its turn, and others wait on
        turns.let_go("3")
        threads[3].join(60)
        assert order == [-3]
    for thread in threads:
        thread.join(60)
    assert order == [-3, 0, 1, 2, 4]


def test_who_waits_is_told_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 13.5])
    monkeypatch.setattr("millstream.run.spark.turns.time.perf_counter", lambda: next(clock))
    with Turns().turn("one") as waited:
        assert waited == 3.5


@pytest.mark.parametrize(("waited", "then"), [(0.0, 50), (7.0, 200)])
def test_waiting_for_other_flows_makes_no_batch_smaller(
    monkeypatch: pytest.MonkeyPatch, waited: float, then: int
) -> None:
    flow = ms.Flow("one of many")
    flow.source(ms.Generator(tuple, schema="n bigint"), name="in").sink(ms.Memory())
    with Driver(flow, batch_seconds=2.0) as driver:
        driver.push("in", [{"n": 0}]).step()  # the first batch is no measure
        monkeypatch.setattr("millstream.run.batches.pacing._LEAST_ROWS", 1)
        driver.engine.pace.rows, driver._executor.waited = 100, waited
        ticks = itertools.count(0, 8)  # a batch takes eight seconds, by this clock
        clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)), sleep=time.sleep)
        monkeypatch.setattr("millstream.run.batches.engine.time", clock)
        driver.push("in", [{"n": n} for n in range(100)]).step()
        assert driver.engine.pace.rows == then


def test_what_is_decided_for_all_must_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    starts = [
        Start(flow("one", tmp_path), tmp_path / "one", Settings(memory="2GB")),
        Start(flow("two", tmp_path), tmp_path / "two", Settings(memory="3GB")),
    ]
    with pytest.raises(ms.ConfigError, match="want memory='2GB' and memory='3GB'"):
        start_all(starts)


def test_what_is_kept_warm_is_dealt_to_all() -> None:
    assert _shared_out(Settings(warm="1GB"), 4).warm == 2**28
    assert _shared_out(Settings(warm=0), 4).warm == 0
    assert _shared_out(Settings(warm="1GB", memory="1GB"), 4).warm == 2**27  # half of the budget
    least = _shared_out(Settings(memory="256MB"), 4).warm
    assert isinstance(least, int) and 0 < least <= 2**28 // 10 // 4  # a tenth of it


def test_looks_of_idle_flows_take_a_tenth_of_a_core_together() -> None:
    assert between_looks(0.05, 0.0002, 50) == pytest.approx(0.1)
    assert between_looks(0.05, 0.0002, 2) == 0.05
    assert between_looks(0.05, 0.1, 1) == 0.05  # a flow by itself looks as often as it was told


class _NoSpark(Carrier):
    """Carries nothing anywhere: says of each load who went along."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.jobs: list[list[str]] = []
        super().__init__(
            SimpleNamespace(setJobGroup=lambda *_: None, setLocalProperty=lambda *_: None)  # type: ignore[arg-type]
        )

    def _carried(self, loads: list[Load]) -> dict[str, Delivered]:
        self.jobs.append([load.flow for load in loads])
        if self.fails:
            raise OSError("a worker died")
        return {load.flow: Delivered(load.flow, items=[load.flow]) for load in loads}


@pytest.mark.parametrize("fails", [False, True])
def test_everybody_gets_his_own_or_is_told_to_try_alone(fails: bool) -> None:
    carrier, answers = _NoSpark(fails), dict[str, Delivered]()
    names = [f"flow {number}" for number in range(12)]
    for name in names:
        carrier.join(name, None, frozenset())

    def work(name: str) -> None:
        for _ in range(5):
            answers[name] = carrier.carry(Load(name, Attempt("ck", "", 0), NO_BATCH, []))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    carrier.close()
    assert {name: one.items for name, one in answers.items()} == {
        name: None if fails else [name] for name in names
    }
    assert Counter(flow for job in carrier.jobs for flow in job) == dict.fromkeys(names, 5)


def test_who_is_let_go_waits_no_more() -> None:
    carrier = _NoSpark()
    carrier.join("one", None, frozenset({"in"}))
    carrier.join("two", None, frozenset({"in"}))
    under_way, go = threading.Event(), threading.Event()

    def hang(loads: list[Load]) -> dict[str, Delivered]:
        under_way.set()
        go.wait(30)
        return {}

    carrier._carried = hang  # type: ignore[method-assign]
    threading.Thread(target=lambda: (under_way.wait(30), carrier.let_go("one"))).start()
    with pytest.raises(ms.RunError, match="given up"):
        carrier.carry(Load("one", Attempt("ck", "", 0), NO_BATCH, []))
    go.set()
    carrier.close()


def test_what_a_job_of_its_own_meets_is_told_at_once_and_once() -> None:
    """A function that hangs would be waited for as long again if that were tried once more."""
    context = MagicMock()
    made, carrier = flow("slow", Path("nowhere")), _NoSpark()
    plan = make_plan(made.name, made.nodes, {"files": Format("csv", CSV, "ts")})
    riding = Riding(context, plan, Path("ck"), None, carrier)
    carrier._seconds[riding.key] = 5.0
    load = Load(riding.key, riding.watch, NO_BATCH, [])
    met: list[Exception] = [
        ConnectionResetError("answer from Java"),
        PySparkException("...\nValueError: of a worker\n..."),
        ValueError("of this process"),
    ]

    def fail(loads: list[Load]) -> dict[str, Delivered]:
        raise met[0]

    carrier._carried = fail  # type: ignore[method-assign]
    said = [
        (ms.RunError, "JVM is gone"),
        (ms.RunError, "job failed.*of a worker"),
        (ValueError, "of this"),
    ]
    for kind, words in said:
        with pytest.raises(kind, match=words):
            riding._carried(load)
        met.pop(0)
    met.append(ConnectionResetError("cancelled"))
    riding.cancel()
    with pytest.raises(ms.RunError, match="given up"):
        riding._carried(load)
    carrier.close()

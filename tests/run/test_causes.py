"""Whatever a function raises costs one record or result, and is told in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import millstream as ms
from millstream.errors import RunError
from millstream.run.spark.onspark import told
from millstream.run.spark.session import check_cluster, check_workers
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)


class Odd(BaseException):
    """Not an Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def odd() -> None:
    raise Odd("odd")


def mute() -> None:
    raise Mute


class Speechless(Exception):
    def __str__(self) -> str:
        raise Mute


def speechless() -> None:
    raise Speechless


def terminal() -> None:
    raise ValueError("\x1b]0;title\x07 \x9b2J\r")


def surrogate() -> None:
    raise ValueError("\ud800\nsecond line")


CAUSES: dict[Callable[[], None], str] = {
    leave: "SystemExit: 3; a function must not end the process or interrupt it",
    interrupt: "KeyboardInterrupt; a function must not end the process or interrupt it",
    odd: "Odd: odd; a function must not end the process or interrupt it",
    mute: "Mute (its text cannot be shown: RuntimeError: no words)",
    speechless: "Speechless (its text cannot be shown: Mute)",
    terminal: r"ValueError: \x1b]0;title\x07 \x9b2J\r",
    surrogate: r"ValueError: \ud800\nsecond line",
}


class Failing(ms.Aggregate):
    """Fails in one of its methods."""

    def __init__(self, cause: Callable[[], None], method: str, column: str = "v") -> None:
        super().__init__(column)
        self.cause, self.method = cause, method

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        if self.method == "add" and value == 1:
            self.cause()
        return state + value

    def combine(self, left: int, right: int) -> int:
        return left + right

    def result(self, state: int) -> int:
        if self.method == "result" and state == 1:
            self.cause()
        return state


class Job(ms.MapReduce):
    def __init__(self, cause: Callable[[], None]) -> None:
        self.cause = cause

    def map(self, key: Any, value: Any, ts: Any) -> Any:
        if value["v"] == 1:
            self.cause()
        yield value["v"], 1

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
        yield key, len(values)


def steps(cause: Callable[[], None]) -> dict[str, Callable[[ms.Stream], ms.Stream]]:
    """Every place where a user's function is called, each failing for the record with v = 1."""

    def mapped(row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == 1:
            cause()
        return row

    def generated(row: dict[str, Any]) -> Any:
        yield row
        if row["v"] == 1:
            cause()

    def reduced(key: Any, rows: list[Any], window: ms.Window) -> Any:
        if key == 1:
            cause()
        return {"n": len(rows)}

    def updated(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
        slate["n"] = 1
        if event.key == 1:
            cause()
        return {"n": 1}

    return {
        "map": lambda stream: stream.map(mapped),
        "flat_map": lambda stream: stream.flat_map(generated),
        "reduce": lambda stream: stream.key_by("v").reduce(reduced),
        "agg": lambda stream: stream.key_by("v").agg(x=Failing(cause, "result")),
        "agg_2": lambda stream: stream.key_by("v").agg(x=Failing(cause, "add")),
        "updated": lambda stream: stream.key_by("v").update(updated),
        "Job.map": lambda stream: stream.map_reduce(Job(cause)),
    }


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_one_record_and_one_line(cause: Callable[[], None]) -> None:
    flow = ms.Flow("causes")
    stream = flow.source(ms.Generator(tuple, time="ts"), name="in")
    places = steps(cause)
    for at, place in enumerate(places.values()):
        place(stream).sink(ms.Memory(), name=f"out {at}")
    with Driver(flow, now=START.timestamp(), dead_letter_limit=1) as driver:
        driver.push("in", [{"ts": START + timedelta(seconds=v), "v": v} for v in range(3)]).end()
        letters = {letter["operator"]: letter for letter in driver.dead}
        assert len(driver.dead) == len(places)
        assert set(letters) == set(places)
        assert all(len(driver.output(f"out {at}")) == 2 for at in range(len(places)))
    for letter in letters.values():
        assert letter["error"].removeprefix("'x': ") == CAUSES[cause]
        assert "1" in json.dumps(json.loads(letter["raw"]))


def test_a_function_in_sql_costs_one_record_too() -> None:
    def picky(value: int) -> int:
        return leave() if value == 1 else value  # type: ignore[return-value]

    flow = ms.Flow("causes")
    flow.function("picky", picky, returns="bigint")
    flow.sql("CREATE STREAM numbers (v BIGINT) WITH (source = 'http', port = 8401)")
    flow.sql("SELECT picky(v) AS v FROM numbers").sink(ms.Memory(), name="out")
    with Driver(flow, dead_letter_limit=1) as driver:
        driver.push("numbers", [{"v": v} for v in range(3)]).end()
        assert [row["v"] for row in driver.output("out")] == [0, 2]
        (letter,) = driver.dead
        assert CAUSES[leave] in letter["error"]


@pytest.mark.parametrize("cause", [leave, interrupt, odd], ids=lambda cause: cause.__name__)
def test_a_source_of_ones_own_that_raises_anything_ends_the_run(
    tmp_path: Path, cause: Callable[[], None]
) -> None:
    """The thread of a generator must not end without a word: the flow would wait for ever."""

    def records() -> Iterator[dict[str, int]]:
        yield {"v": 1}
        cause()

    def read(file: BinaryIO) -> Iterator[tuple[int, dict[str, int]]]:
        yield 0, {"v": 1}
        cause()

    (tmp_path / "in.bin").write_bytes(b"anything")
    sources = {
        "source 'in' failed: ": ms.Generator(records, schema="v bigint"),
        "the reader of .* raised ": ms.Files(tmp_path / "in.bin", reader=read, schema="v bigint"),
    }
    for at, (says, source) in enumerate(sources.items()):
        flow = ms.Flow("causes")
        flow.source(source, name="in").sink(ms.Memory())
        with pytest.raises(RunError, match=says + CAUSES[cause]):
            run_in_process(flow, tmp_path / f"ck{at}")


def test_a_combine_that_raises_names_what_it_was_given() -> None:
    class Bad(Failing):
        def combine(self, left: int, right: int) -> int:
            raise Mute

    flow = ms.Flow("combine")
    stream = flow.source(ms.Generator(tuple, time="ts"), name="in")
    stream.key_by().agg(x=Bad(leave, "none")).sink(ms.Memory())
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("in", [{"ts": START, "v": 5}]).step()
        driver.push("in", [{"ts": START, "v": 6}])
        with pytest.raises(RunError, match=r"combine\(5, 6\) raised Mute \(its text"):
            driver.end()


class Adding(ms.Aggregate):
    """A sum; what it cannot add it fails on, where states are put together."""

    def zero(self) -> Any:
        return []

    def add(self, state: Any, value: Any) -> Any:
        return [*state, value]

    def combine(self, left: Any, right: Any) -> Any:
        if "bad" in (*left, *right):
            raise ValueError("cannot add these")
        return [*left, *right]

    def result(self, state: Any) -> Any:
        return len(state)


class Subtracting(Adding):
    def combine(self, left: Any, right: Any) -> Any:
        return [*left, *right]

    def uncombine(self, total: Any, expired: Any) -> Any:
        if "bad" in expired:
            raise ValueError("cannot take these away")
        return total[len(expired) :]


class Unstorable(Adding):
    def add(self, state: Any, value: Any) -> Any:
        return [object()] if value == "bad" else state


class JobThatAdds(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Any:
        yield value["k"], value["v"]

    def combine(self, key: Any, values: list[Any]) -> Any:
        if "bad" in values:
            raise ValueError("cannot add these")
        return values[0]

    def reduce(self, key: Any, values: list[Any], window: Any) -> Any:
        yield key, len(values)


class ProgramThatAdds:
    def map(self, key: Any, value: Any) -> Any:
        yield value["k"], value["v"]

    def combine(self, key: Any, values: Any) -> Any:
        if "bad" in list(values):
            raise ValueError("cannot add these")
        yield key, "good"

    def reduce(self, key: Any, values: Any) -> Any:
        yield key, len(list(values))


LONG = ms.sliding("60s", "1s")
STATES: dict[str, Any] = {
    "tumbling": lambda s: s.key_by("k").window(ms.tumbling("1h")).agg(x=Adding("v")),
    "sliding": lambda s: s.key_by("k").window(ms.sliding("4s", "1s")).agg(x=Adding("v")),
    "long": lambda s: s.key_by("k").window(LONG).agg(x=Adding("v")),
    "session": lambda s: s.key_by("k").window(ms.session("1h")).agg(x=Adding("v")),
    "landmark": lambda s: s.key_by("k").window(ms.landmark("1s")).agg(x=Adding("v")),
    "uncombine": lambda s: s.key_by("k").window(LONG).agg(x=Subtracting("v")),
    "unstorable": lambda s: s.key_by("k").window(ms.tumbling("1h")).agg(x=Unstorable("v")),
    "job": lambda s: s.map_reduce(JobThatAdds(), ms.tumbling("1h")),
    "program": lambda s: s.map_reduce(ProgramThatAdds, ms.tumbling("1h")),
}


@pytest.mark.parametrize("window", STATES)
def test_a_state_that_cannot_be_made_names_operator_and_key(window: str) -> None:
    flow = ms.Flow("states")
    stream = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
    STATES[window](stream).named("totals").sink(ms.Memory())
    records = [
        {"ts": START + timedelta(seconds=at), "k": f"key {at % 2}", "v": "good"}
        for at in range(160)
    ]
    records[5]["v"] = "bad"

    def run(driver: Driver) -> None:
        for start in range(0, len(records), 20):
            driver.push("in", records[start : start + 20]).step()
        driver.end()

    with Driver(flow, now=START.timestamp()) as driver:
        with pytest.raises(RunError) as caught:
            run(driver)
        text = str(caught.value)
        assert text.startswith("totals, key 'key 1': ")
        why = "cannot be stored" if window == "unstorable" else "raised ValueError: cannot"
        assert why in text
        assert driver.dead == []


# -- Spark -----------------------------------------------------------------------------------------


def test_a_dead_worker_is_told_in_one_line() -> None:
    from pyspark.errors import PySparkException

    trace = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times\n"
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n"
        "Caused by: java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt"
    )
    text = str(told(PySparkException(trace), ["map", "reduce"]))
    assert "\n" not in text
    assert text.startswith("a Python worker died while it ran functions of 'map' or 'reduce'")
    assert "os._exit" in text and "memory" in text


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), EOFError("empty")])
def test_a_killed_jvm_is_told_in_one_line(error: Exception) -> None:
    text = str(told(error, ["map"]))
    assert "\n" not in text
    assert text.startswith("Spark's JVM is gone")
    assert "run the same command again" in text


class Workers:
    """A Spark context of somebody else, whose workers have some modules."""

    pythonExec = "python3"

    def __init__(self, *modules: str) -> None:
        self.modules, self.names = modules, list[str]()

    def parallelize(self, names: list[str], parts: int) -> Workers:
        self.names = names
        return self

    def map(self, fn: Any) -> Workers:
        return self

    def collect(self) -> list[type]:
        return [object if name in self.modules else type(None) for name in self.names]


def test_a_context_whose_workers_lack_the_package_is_refused_with_what_to_set() -> None:
    check_workers(Workers("millstream", "pyarrow", "msgspec"))  # type: ignore[arg-type]
    with pytest.raises(ms.ConfigError) as caught:
        check_workers(Workers("pyarrow", "msgspec"))  # type: ignore[arg-type]
    assert "Spark's workers run python3, which does not have 'millstream'" in str(caught.value)
    assert f"os.environ['PYSPARK_PYTHON'] = {sys.executable!r}" in str(caught.value)


def test_a_cluster_whose_workers_lack_the_package_is_told_how_to_send_it() -> None:
    cluster = Workers("pyarrow", "msgspec")
    cluster.master = "spark://host:7077"  # type: ignore[attr-defined]
    with pytest.raises(
        ms.ConfigError, match=r"does not have 'millstream'; use an image .*spark\.archives"
    ):
        check_cluster(cluster)  # type: ignore[arg-type]
    cluster.master = "local[2]"  # type: ignore[attr-defined]
    check_cluster(cluster)  # type: ignore[arg-type]


def test_a_module_that_workers_lack_is_named_with_what_to_do() -> None:
    error = RuntimeError(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'geo.shapes'\n\tat org.apache.spark.Task"
    )
    said = str(told(error, ["map"]))
    assert (
        "cannot import 'geo.shapes'" in said and "spark.submit.pyFiles" in said and "\n" not in said
    )

"""Functions that fail: counted against what they were asked for, per step, and never "complete"."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

START = datetime(2024, 1, 1, tzinfo=UTC)


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=i), "k": i, **more} for i in range(count)]


def driver(flow: ms.Flow, **options: Any) -> Driver:
    return Driver(flow, now=START.timestamp(), **options)


def source(flow: ms.Flow) -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts"), name="in")


def reducing(fn: Any, window: Any = None) -> ms.Flow:
    flow = ms.Flow("reducing")
    keyed = source(flow).key_by("k")
    stream = keyed.window(window).reduce(fn) if window is not None else keyed.reduce(fn)
    stream.sink(ms.Memory())
    return flow


def raising_unless(good: Any) -> Any:
    def reducer(key: Any, values: list[Any], window: ms.Window) -> Any:
        if not good(key):
            raise ValueError(f"no {key}")
        return {"n": len(values)}

    return reducer


def test_a_reduce_that_raises_for_every_key_is_not_complete() -> None:
    with driver(reducing(raising_unless(lambda key: False))) as run:
        run.push("in", rows(3))
        with pytest.raises(ms.RunError) as caught:
            run.end()
    text = str(caught.value)
    assert "'reduce' failed on all its input, 3 of 3 results of 'reduce'" in text
    assert "the first error: ValueError: no 0" in text
    assert "run the same command again" in text


def test_failed_results_are_counted_beside_the_others() -> None:
    with driver(reducing(raising_unless(lambda key: key != 1))) as run:
        run.push("in", rows(3)).end()
        account = run.ledger["reduce"]
        assert (account["results"], account["failed"]) == (2, 1)
        assert account["offered"] == account["aggregated"] == 3
        assert len(run.output()) == 2


def test_a_reduce_that_gives_nothing_has_not_failed() -> None:
    def nothing(key: Any, values: list[Any], window: ms.Window) -> None:
        if key == 0:
            raise ValueError("no")

    with driver(reducing(nothing)) as run:
        run.push("in", rows(3)).end()
        assert (run.ledger["reduce"]["answered"], run.ledger["reduce"]["failed"]) == (2, 1)
        assert run.ledger["reduce"].get("results", 0) == len(run.output()) == 0


def test_results_are_the_rows_that_sinks_got() -> None:
    """Whatever number of rows a reduce function makes of one result, and one it loses."""

    def several(key: Any, values: list[Any], window: ms.Window) -> list[dict[str, int]]:
        if key == 3:
            raise ValueError("no")
        return [{"n": n} for n in range(key)]

    with driver(reducing(several, ms.tumbling("1s")), parallelism=2) as run:
        for row in rows(5):
            run.push("in", [row]).step()
        run.end()
        account = run.ledger["reduce"]
        assert account["results"] == len(run.output()) == 0 + 1 + 2 + 4
        assert (account["answered"], account["failed"]) == (4, 1)
        assert run.ledger["memory"]["offered"] == account["results"]


def test_the_limit_applies_to_results_by_themselves() -> None:
    """Three results of 150 are 2 %, although they are 0.2 % of all records."""
    flow = ms.Flow("few")
    several = source(flow).select("k % 150 AS k")
    several.key_by("k").reduce(raising_unless(lambda key: key > 2)).sink(ms.Memory())
    with driver(flow, dead_letter_grace=100) as run:
        run.push("in", rows(1_500))
        with pytest.raises(ms.RunError, match="3 of 150 results of 'reduce' are dead letters"):
            run.end()


def test_the_limit_applies_to_each_step_by_itself() -> None:
    """Five of the 200 records that get to the second function, and of 2,000 read."""

    def second(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / (row["k"] % 40)}

    flow = ms.Flow("second")
    source(flow).where("k < 200").map(second).sink(ms.Memory())
    with driver(flow, dead_letter_grace=200) as run:
        run.push("in", rows(2_000))
        with pytest.raises(ms.RunError, match="5 of 200 records of 'map' are dead letters"):
            run.step()


def test_a_map_that_raises_on_everything_is_not_complete() -> None:
    flow = ms.Flow("broken")
    source(flow).map(lambda row: row["missing"]).sink(ms.Memory())
    with driver(flow) as run:
        run.push("in", rows(2))
        with pytest.raises(
            ms.RunError, match=r"'map' failed on all its input.*KeyError: 'missing'"
        ):
            run.end()


def test_what_failed_in_an_earlier_batch_is_told_at_the_end() -> None:
    flow = reducing(raising_unless(lambda key: False), ms.tumbling("1s"))
    with driver(flow) as run:
        run.push("in", rows(3)).step()
        assert run.ledger["reduce"]["failed"] == 2
        with pytest.raises(ms.RunError) as caught:
            run.end()
    assert "3 of 3 results" in str(caught.value)
    assert "the first error: ValueError: no 0" in str(caught.value)
    assert "start with a new checkpoint" in str(caught.value)


def test_early_looks_at_results_are_counted_too() -> None:
    flow = ms.Flow("early")
    keyed = source(flow).key_by("k")
    windowed = keyed.window(ms.tumbling("1h"), emit="early", every_rows=1)
    windowed.reduce(raising_unless(lambda key: key == 1)).sink(ms.Memory())
    with driver(flow) as run:
        run.push("in", rows(2)).step()
        assert (run.ledger["reduce"]["results"], run.ledger["reduce"]["failed"]) == (1, 1)


def test_a_share_of_one_lets_everything_end() -> None:
    with driver(reducing(raising_unless(lambda key: False)), dead_letter_limit=1) as run:
        run.push("in", rows(3)).end()
        assert run.engine.manifest.complete
        assert len(run.dead) == 3


def test_timers_of_an_updater_that_all_fail_are_results_that_fail() -> None:
    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        ctx.timer(after="5s")

    def ring(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        raise ValueError("the bell is broken")

    flow = ms.Flow("bells")
    source(flow).key_by("k").update(count, on_timer=ring, name="u").sink(ms.Memory())
    with driver(flow) as run:
        run.push("in", rows(2))
        with pytest.raises(ms.RunError, match="'u' failed on all its input, 2 of 2 results"):
            run.end()


# -- aggregates ------------------------------------------------------------------------------------


class Inverse(ms.Aggregate):
    """One through the sum, which some windows do not have."""

    def zero(self) -> float:
        return 0.0

    def add(self, state: float, value: float) -> float:
        return state + value

    def result(self, state: float) -> float:
        return 1 / state


class CombinedInverse(Inverse):
    def combine(self, left: float, right: float) -> float:
        return left + right


class RunningInverse(CombinedInverse):
    def uncombine(self, total: float, expired: float) -> float:
        return total - expired


@pytest.mark.parametrize("kind", [Inverse, CombinedInverse, RunningInverse])
@pytest.mark.parametrize(
    "window",
    [ms.tumbling("10s"), ms.sliding("10s", "1s"), ms.session("1s"), ms.landmark("10s")],
    ids=["tumbling", "sliding", "session", "landmark"],
)
def test_a_result_that_raises_is_one_dead_letter_with_key_and_window(
    kind: type[Inverse], window: Any
) -> None:
    flow = ms.Flow("inverse")
    windows = source(flow).key_by("who").window(window)
    windows.agg(x=kind("v"), n=ms.count()).sink(ms.Memory(), name="out")
    records = [
        {"ts": START + timedelta(seconds=second), "who": who, "v": float(v)}
        for second in range(0, 40, 10)
        for who, v in (("good", 1), ("bad", 0 if second == 20 else 2))
    ]
    with driver(flow, dead_letter_limit=1) as run:
        for at in range(0, len(records), 2):
            run.push("in", records[at : at + 2]).step()
        run.end()
        out, account, letters = run.output("out"), run.ledger["agg"], run.dead
    per_window = 10 if window.kind == "sliding" else 1
    failed = 0 if window.kind == "landmark" else per_window
    assert len(letters) == account.get("failed", 0) == failed
    assert account["results"] == len(out) == 8 * per_window - failed
    for letter in letters:
        assert letter["error"] == "'x': ZeroDivisionError: float division by zero"
        raw = json.loads(letter["raw"])
        assert raw["key"] == "bad"
        start = datetime.fromisoformat(raw["window_start"])
        assert start <= START + timedelta(seconds=20) < datetime.fromisoformat(raw["window_end"])


@pytest.mark.parametrize(("apart", "stops"), [(False, False), (True, True)])
def test_a_record_that_fails_in_several_steps_is_one(apart: bool, stops: bool) -> None:
    flow = ms.Flow("branches")
    stream = source(flow)
    for branch in ("a", "b"):
        stream.key_by(branch).agg(n=ms.count()).sink(ms.Memory())
    records = [{"a": i, "b": i} for i in range(1500)]
    for i in range(9):  # 0.6 %: of both branches, or others of each
        records[i]["a"] = None
        records[i + 700 * apart]["b"] = None
    with driver(flow) as run:
        run.push("in", [{"ts": START, **record} for record in records])
        if stops:
            with pytest.raises(ms.RunError, match=r"18 of 1,500 records are dead letters"):
                run.end()
        else:
            run.end()
            assert len(run.dead) == 18

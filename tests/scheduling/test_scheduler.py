"""Who gets the room of a batch, how far an operator goes without it, and what is told of it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import millstream as ms
from millstream.cli.standing import told_status
from millstream.run.pressure import scheduler
from millstream.run.pressure.memory import Memory
from millstream.run.pressure.queues import Waits
from millstream.run.pressure.scheduler import Scheduler
from millstream.run.reporting import Reporter
from millstream.serve.following import Follower
from millstream.serve.metrics import exposition
from millstream.serve.status import Served
from millstream.state.manifests import QueueState
from millstream.testing import Driver, reference
from tests.scheduling.pressing import NO_TIME, pressed

START = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


def rows(since: int, until: int, key: str = "a") -> Rows:
    return [{"ts": START + timedelta(seconds=n), "k": key} for n in range(since, until)]


class Before:
    """Names of queues in the order in which they are served; remembers what it was asked."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[ms.Queue] = []

    def rank(self, queue: ms.Queue, request: ms.Request) -> float:
        self.asked.append(queue)
        assert 0 <= request.draw < 1
        return -self.names.index(queue.name) if queue.name in self.names else -len(self.names)


def build() -> ms.Flow:
    """Two windows, one after the other, and another one beside them."""
    flow = ms.Flow("pressed")
    trades = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
    first = trades.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).named("first")
    first.sink(ms.Memory(), name="firsts")
    second = first.key_by("k").window(ms.tumbling("30s")).agg(n=ms.sum("n")).named("second")
    second.sink(ms.Memory(), name="seconds")
    beside = trades.key_by("k").update(counted, name="beside")
    beside.sink(ms.Memory(), name="besides")
    return flow


def counted(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"n": slate["n"]}


def driven(policy: Any, **options: Any) -> Driver:
    driver = Driver(build(), scheduler=policy, batch_seconds=NO_TIME, **options)
    driver.push("in", rows(0, 25)).step()  # before it nothing was measured, and nobody is held
    return driver


def test_whoever_is_first_goes_on_and_the_others_wait() -> None:
    with pressed(), driven(Before("first", "in")) as driver:
        assert [row["n"] for row in driver.output("firsts")] == [10, 10]
        assert len(driver.output("besides")) == 24
        driver.push("in", rows(25, 65)).step()
        assert [row["n"] for row in driver.output("firsts")][:3] == [10, 10, 10]
        assert len(driver.output("besides")) == 24
        queues = driver.engine.manifest.queues
        assert queues["beside"].held and queues["beside"].rows == 41
        assert queues["beside"].head == int(rows(24, 25)[0]["ts"].timestamp() * 1e6)
        driver.end()
        assert [row["n"] for row in driver.output("firsts")] == [10, 10, 10, 10, 10, 10, 5]
        assert [row["n"] for row in driver.output("seconds")] == [30, 30, 5]
        assert [row["n"] for row in driver.output("besides")] == list(range(1, 66))


def test_a_batch_under_pressure_takes_no_more_rows_than_one_may() -> None:
    """Also where that is less than a source gives at least."""
    granted, hand_out = [], Scheduler._hand_out

    def handed(*args: Any) -> Any:
        grants = hand_out(*args)
        granted.append(grants.sources["in"][0])
        return grants

    with patch.object(Scheduler, "_hand_out", handed), driven(ms.ODF(), batch_rows=20) as driver:
        for begin in range(25, 85, 10):
            driver.push("in", rows(begin, begin + 10)).step()
    assert {*granted} == {20}


@pytest.mark.parametrize("first", ["in", "beside"])
def test_a_batch_takes_no_more_memory_than_there_is_whoever_is_first(first: str) -> None:
    """Less is read if those behind, who are not held with few rows, make more of it."""
    budget, sizes, request = 10_000.0, [], Scheduler.request

    def asked(*args: Any) -> Any:
        granted = request(*args)
        sizes.append(granted.size)
        return granted

    with (
        Driver(build(), scheduler=Before(first), parallelism=1) as driver,
        patch.object(scheduler, "LEAST", 10),
        patch.object(Memory, "room", budget),
        patch.object(Scheduler, "request", asked),
    ):
        driver.push("in", rows(0, 2_000)).step()
        sizes.clear()  # before it nothing was measured
        driver.push("in", rows(2_000, 4_000)).step()
        assert sizes and max(sizes) <= budget
        driver.end()
        assert len(driver.output("besides")) == 4_000


def test_an_aggregate_without_time_has_none_at_the_head_of_its_queue() -> None:
    flow = ms.Flow("all")
    source = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
    source.key_by("k").agg(n=ms.count()).named("total").sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", rows(0, 25)).step()
        queue = driver.engine.manifest.queues["total"]
        assert queue.rows > 0 and queue.head is None


def test_after_a_stop_the_watermark_is_that_of_a_run(tmp_path: Path) -> None:
    with Driver(build(), checkpoint=tmp_path / "ck") as driver:
        driver.push("in", rows(0, 25)).step()
        marks = dict(driver.engine.footing.watermarks)
        status = Served(Follower(tmp_path / "ck")).status()
    told = {one["name"]: one["watermark"] for one in status["operators"]}
    assert told["first"] == "2026-01-01T00:00:24Z"  # the latest record, not the window's end at 20
    assert marks["first"] == int((START.timestamp() + 24) * 1e6)
    assert status["watermark"] == min(told.values())


def test_who_got_nothing_for_long_comes_first() -> None:
    policy = Before("first", "second", "in")
    with pressed(), driven(policy) as driver:
        for number in range(1, 13):
            driver.push("in", rows(25 * number, 25 * number + 25)).step()
        given = len(driver.output("besides"))
        assert 24 < given < 25 * 13  # it waited, and moved
        waited = max(queue.passed for queue in policy.asked)
        assert 8 <= waited < 8 + 4  # one of the others may have waited as long
        driver.end()
        assert len(driver.output("besides")) == 25 * 13


def test_time_stands_where_the_input_ended_whoever_had_to_wait() -> None:
    def closed(policy: Any, room: float) -> dict[str, int]:
        flow = ms.Flow("ends")
        trades = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
        first = trades.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).named("first")
        first.key_by("k").update(counted, name="then", ttl="5s").sink(ms.Memory())
        with pressed(), Driver(flow, scheduler=policy, batch_seconds=room) as driver:
            driver.push("in", rows(0, 5)).step()
            driver.push("in", rows(5, 61)).end()
            return driver.engine.manifest.closed

    expected = closed(Before(), 3600.0)
    assert closed(Before("first", "in"), NO_TIME) == closed(Before("in"), NO_TIME) == expected


def ticking() -> ms.Flow:
    """A timer that renews itself, over windows."""

    def wind_up(event: Any, slate: Any, ctx: Any) -> None:
        ctx.timer(after="1s")

    def tick(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
        ctx.timer(after="1s")
        return {"at": round((event.ts - START).total_seconds())}

    flow = ms.Flow("ticking")
    trades = flow.source(ms.Generator(tuple, time="ts", lateness="3s"), name="in")
    first = trades.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).named("first")
    ticks = first.key_by("k").update(wind_up, name="then", on_timer=tick)
    ticks.sink(ms.Memory(), name="ticks")
    return flow


def test_timers_that_renew_themselves_end_at_one_time_whoever_had_to_wait() -> None:
    """The watermark stood at 18 s, so the updater at 20 s: a held window brings it to 30 s."""

    def ticks(policy: Any, room: float, *cuts: int) -> list[int]:
        with pressed(), Driver(ticking(), scheduler=policy, batch_seconds=room) as driver:
            for since, until in zip((0, *cuts), (*cuts, 22), strict=True):
                driver.push("in", rows(since, until))
                if until < 22:
                    driver.step()
            driver.end()
            return sorted(row["at"] for row in driver.output("ticks"))

    expected = list(range(11, 32))  # time ends at 30 s, with the window of the record at 21 s
    for cuts in ((), (5, 15)):
        assert ticks(Before("in"), NO_TIME, *cuts) == expected
        assert ticks(Before("first", "in"), NO_TIME, *cuts) == expected
        assert ticks(Before(), 3600.0, *cuts) == expected
    batches = [{"in": rows(0, 5)}, {"in": rows(5, 22)}]
    for found in (reference(ticking(), {"in": rows(0, 22)}), reference(ticking(), batches=batches)):
        assert sorted(row["at"] for row in found["ticks"]) == expected


def test_with_room_for_all_nobody_is_asked() -> None:
    policy = Before()
    with pressed(), Driver(build(), scheduler=policy, batch_seconds=3600.0) as driver:
        for number in range(3):
            driver.push("in", rows(25 * number, 25 * number + 25)).step()
        assert not policy.asked
        assert not any(queue.held for queue in driver.engine.manifest.queues.values())


@pytest.mark.parametrize(("size", "least"), [(100.0, 1_000), (1e5, 10), (1e9, 1), (0.0, 1_000)])
def test_a_source_always_gives_a_little_of_large_rows_less(size: float, least: int) -> None:
    queue = ms.Queue(name="in", kind="source", rows=5_000, ready=5_000, input_size=size)
    assert scheduler._least(Waits(queue, 0)) == least


def test_figures_are_measured_and_survive_a_restart() -> None:
    policy = Before("first", "in")
    with pressed(), driven(policy) as driver:
        driver.push("in", rows(25, 50)).step()
        before = driver.engine.manifest.queues
        driver.restart()
        policy.asked.clear()
        driver.push("in", rows(50, 75)).step()
        asked = {queue.name: queue for queue in policy.asked}
        state = before["beside"]
        assert asked["beside"].selectivity == pytest.approx(state.given / state.taken)
        assert asked["beside"].input_size == pytest.approx(state.taken_size / state.taken)
        assert asked["beside"].seconds == pytest.approx(state.seconds / state.taken)
        assert asked["beside"].input_size > 0 < asked["beside"].seconds
        assert asked["in"].kind == "source" and asked["in"].bytes == 25 * 64
        assert asked["in"].head == int(rows(49, 50)[0]["ts"].timestamp() * 1e6)


class Wrong:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def rank(self, queue: ms.Queue, request: ms.Request) -> float:
        answer: float = self.answer()
        return answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: 1 / 0, r"scheduler Wrong: rank\(\) failed for '.*' with ZeroDivisionError"),
        (lambda: None, r"rank\(\) gave None for '.*'; expected a number"),
        (lambda: "5", r"rank\(\) gave '5' for"),
        (lambda: sys.exit(0), "failed for '.*' with SystemExit: 0; a function must not end"),
        (lambda: float("nan"), r"rank\(\) gave nan"),
    ],
)
def test_a_policy_that_fails_is_named(answer: Any, says: str) -> None:
    with pressed(), driven(Wrong(answer)) as driver:
        driver.push("in", rows(25, 65))
        with pytest.raises(ms.RunError, match=says):
            driver.step()


def test_before_the_first_batch_there_is_nothing_to_tell(tmp_path: Path) -> None:
    flow = ms.Flow("new")
    flow.source(ms.Generator(tuple, time="ts", schema="ts bigint")).sink(ms.Memory())
    with Driver(flow, checkpoint=tmp_path / "ck"):
        assert told_status(tmp_path / "ck") == "new: running, no batch committed yet"


def test_what_has_ended_has_no_watermark(tmp_path: Path) -> None:
    """Neither while the flow runs nor for who looks at its checkpoint: they tell the same."""
    flow = ms.Flow("ended")
    for name in ("short", "long"):
        source = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name=name)
        counted = source.where("k = 'a'").key_by("k").window(ms.tumbling("10s")).agg(n=ms.count())
        counted.named(f"of {name}").sink(ms.Memory(), name=f"out of {name}")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("short", rows(0, 5)).push("long", rows(0, 50)).step()
        told = [_watermarks_told(driver, tmp_path)]
        driver.push("long", rows(50, 60)).end("short")
        told.append(_watermarks_told(driver, tmp_path))
        driver.end()
        told.append(_watermarks_told(driver, tmp_path))
    assert told == [
        ("2026-01-01T00:00:04Z", ["2026-01-01T00:00:04Z", "2026-01-01T00:00:49Z"]),
        ("2026-01-01T00:00:59Z", [None, "2026-01-01T00:00:59Z"]),
        (None, [None, None]),
    ]
    assert told_status(tmp_path).splitlines()[1].startswith("queue")


def _watermarks_told(driver: Driver, checkpoint: Path) -> tuple[Any, list[Any]]:
    """What of the flow and of its operators, by itself and from outside."""
    reporter = Reporter(driver.engine)
    live = reporter.live(reporter.progress(), None)
    found = []
    for one in (Served(Follower(checkpoint)), Served(Follower(checkpoint), lambda: live)):
        status = one.status()
        found.append((status["watermark"], [at["watermark"] for at in status["operators"]]))
    assert found[0] == found[1]
    return found[0]


def test_queues_are_told(tmp_path: Path) -> None:
    with pressed(), driven(Before("first", "in"), checkpoint=tmp_path / "ck") as driver:
        driver.push("in", rows(25, 65)).step()
        status = Served(Follower(tmp_path / "ck")).status()
        queues = {one["name"]: one for one in status["queues"]}
        assert list(queues) == ["in", "first", "second", "beside"]
        assert queues["beside"]["rows"] == 41 and queues["beside"]["held"]
        assert queues["beside"]["head"] == "2026-01-01T00:00:24Z"
        assert queues["beside"]["bytes"] == round(41 * queues["beside"]["input_size"])
        text = exposition(status).decode()
        assert 'millstream_queue_rows{kind="operator",queue="beside"} 41.0' in text
        assert 'millstream_queue_held{kind="operator",queue="beside"} 1.0' in text
        head = START.timestamp() + 24
        assert f'head_timestamp_seconds{{kind="operator",queue="beside"}} {head:.9e}' in text
        lines = told_status(tmp_path / "ck").splitlines()
        assert lines[0] == "pressed: running after batch 1"
        assert any(line.split()[:3] == ["beside", "operator", "41"] for line in lines)


def test_what_rows_cost_is_told_of_all_rows_while_a_backlog_is_worked_off() -> None:
    """C-MR, table 4: averages are of the tuples an operator processes, whenever these came."""
    flow = ms.Flow("backlog")
    schema = "ts bigint, k bigint"
    first, second = (
        flow.source(ms.Generator(tuple, time="ts", time_unit="s", schema=schema), name=name)
        for name in ("burst", "slow")
    )
    keyed = first.union(second).key_by("k").window(ms.tumbling("10s"))
    keyed.agg(n=ms.quantile("ts", 0.5)).named("middle").sink(ms.Memory())

    def measured(driver: Driver) -> QueueState:
        (one,) = (q for q in driver.engine.manifest.queues.values() if q.kind == "operator")
        return one

    with Driver(flow) as driver:
        driver.push("slow", [{"ts": 0, "k": 0}])
        driver.push("burst", [{"ts": n % 200, "k": n % 5} for n in range(2_000)]).step()
        came = measured(driver).taken
        for ts in range(10, 200, 10):  # the watermark goes on by a window, and hardly a row comes
            driver.push("slow", [{"ts": ts, "k": 0}]).step()
        results, cost = len(driver.output()), measured(driver)
        assert results == 19 * 5
        assert cost.given / cost.taken == pytest.approx(results / (came + 19), rel=0.3)


@pytest.mark.parametrize("lateness", ["0s", None])
def test_the_oldest_of_a_source_is_known_also_without_a_lateness(lateness: str | None) -> None:
    """Else ODF would serve it before all others, as one that nothing was read of yet."""
    asked: list[ms.Queue] = []

    class Asking:
        def rank(self, queue: ms.Queue, request: ms.Request) -> float:
            asked.append(queue)
            return 0.0

    flow = ms.Flow("heads")
    source = flow.source(ms.Files("nowhere", time="ts", lateness=lateness), name="in")
    source.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory())
    with pressed(), Driver(flow, scheduler=Asking(), batch_seconds=1e-9) as driver:
        driver.push("in", rows(0, 25)).step()
        driver.push("in", rows(25, 65)).step()
    heads = {queue.head for queue in asked if queue.name == "in"}
    assert heads == {int(rows(24, 25)[0]["ts"].timestamp() * 1e6)}

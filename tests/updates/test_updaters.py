"""What updaters promise, one behaviour at a time; random flows are compared in test_random.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.plan.planner import sketch
from millstream.run.planning import plan_flow
from millstream.testing import Driver

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def event(second: float, key: Any = "a", value: Any = 1) -> dict[str, Any]:
    return {"ts": at(second), "k": key, "v": value}


def flow_with(*, lateness: str = "5s") -> tuple[ms.Flow, ms.Stream]:
    flow = ms.Flow("updates")
    source = ms.Generator(lambda: iter(()), time="ts", lateness=lateness)
    return flow, flow.source(source, name="in")


def updating(fn: Any, **options: Any) -> ms.Flow:
    flow, records = flow_with()
    records.key_by("k").update(fn, name="u", **options).sink(ms.Memory(), name="out")
    return flow


def count(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def test_a_failed_call_leaves_nothing() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> Any:
        slate["n"] = slate.get("n", 0) + 1
        slate.setdefault("all", []).append(event.value["v"])
        ctx.publish("other", event.key, 1)
        ctx.timer(after="1s")
        if event.value["v"] == 2:
            raise ValueError("two is too much")
        return {"n": slate["n"]}

    flow, records = flow_with()
    records.key_by("k").update(fn, name="u", on_timer=count).sink(ms.Memory(), name="out")
    flow.stream("other").sink(ms.Memory(), name="published")
    with Driver(flow) as driver:
        driver.push("in", [event(i, value=i) for i in range(4)]).end()
        assert driver.slates("u")["a"]["all"] == [0, 1, 3]
        assert driver.output("out") == [{"n": 1}, {"n": 3}, {"n": 5}]  # timers count as well
        assert len(driver.output("published")) == 3
        assert driver.ledger["u"]["dead"] == 1
        assert driver.ledger["u"]["offered"] == 4
        (letter,) = driver.dead
        assert "two is too much" in letter["error"]
        assert letter["operator"] == "u"


def test_slates_have_a_size_limit() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate["text"] = slate.get("text", "") + event.value["v"]

    with Driver(updating(fn, max_slate=100)) as driver:
        driver.push("in", [event(0, value="x" * 60), event(1, value="y" * 60)]).end()
        assert driver.slates("u") == {"a": {"text": "x" * 60}}
        assert "max_slate=100" in driver.dead[0]["error"]


def test_what_cannot_be_stored_is_a_dead_letter() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate["x"] = object() if event.value["v"] else 1

    with Driver(updating(fn)) as driver:
        driver.push("in", [event(0, value=0), event(1, value=1)]).end()
        assert driver.slates("u") == {"a": {"x": 1}}
        assert "cannot be stored" in driver.dead[0]["error"]


@pytest.mark.parametrize(
    "value",
    [
        {"a", "b"},
        frozenset([1]),
        date(2026, 1, 1),
        datetime(2026, 1, 1),
        timedelta(1),
        Decimal("1.5"),
        {"deep": [1, {"deeper": (2, {3})}]},
        {(1, 2): 3},
    ],
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    def in_slate(event: Any, slate: Any, ctx: Any) -> None:
        slate["x"] = value

    def in_publication(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("other", event.key, value)

    flow, records = flow_with()
    records.key_by("k").update(in_slate, name="one")
    records.key_by("k").update(in_publication, name="two")
    flow.stream("other").sink(ms.Memory(), name="out")
    with Driver(flow, dead_letter_limit=1) as driver:
        driver.push("in", [event(0)]).end()
        assert driver.slates("one") == {}
        assert driver.output("out") == []
        assert len(driver.dead) == 2
        assert all("stored" in letter["error"] for letter in driver.dead)


def test_what_can_be_kept_comes_back_as_it_was() -> None:
    kept = {
        "i": 2**60,
        "f": 1.5,
        "s": "ü",
        "b": b"\x00",
        "t": True,
        "n": None,
        "l": [1, [2]],
        "d": {"x": at(1)},
    }
    seen = []

    def fn(event: Any, slate: Any, ctx: Any) -> None:
        seen.append(dict(slate))
        slate.update(kept)

    with Driver(updating(fn)) as driver:
        driver.push("in", [event(0), event(1)]).end()
        assert seen == [{}, kept]


@pytest.mark.parametrize("options", [{}, {"ttl": "1h"}])
@pytest.mark.parametrize("gives", [False, True])
def test_whole_numbers_of_more_than_64_bits_stay_numbers(
    options: dict[str, Any], gives: bool
) -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> Any:
        slate["product"] = slate.get("product", 1) * 2**40
        slate.setdefault("all", []).append(slate["product"])
        return {"digits": str(slate["product"])} if gives else None

    with Driver(updating(fn, **options)) as driver:
        driver.push("in", [event(0), event(1), event(2)]).step()
        driver.push("in", [event(9), event(20)]).end()
        products = [2 ** (40 * n) for n in range(1, 6)]
        assert driver.dead == []
        assert driver.slates("u") == {"a": {"product": products[-1], "all": products}}
        assert [int(row["digits"]) for row in driver.output("out")] == products * gives


def test_a_long_key_is_a_dead_letter() -> None:
    with Driver(updating(count), max_key=50) as driver:
        driver.push("in", [event(0, "x" * 100), event(1, "short")]).end()
        assert driver.slates("u") == {"short": {"n": 1}}
        assert "max_key=50" in driver.dead[0]["error"]


@pytest.mark.parametrize("kind", ["map<string, int>", "array<map<string, int>>"])
def test_a_map_is_no_key(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"ts": 1, "k": null}\n')
    flow = ms.Flow("maps")
    source = ms.Files(tmp_path / "in.jsonl", schema=f"ts bigint, k {kind}", time="ts")
    flow.source(source).key_by("k").update(lambda event, slate, ctx: None, name="u")
    with pytest.raises(ms.ConfigError, match=r"u: key 'k' is .*map<"):
        plan_flow(flow)


def test_null_keys_follow_the_policy() -> None:
    with Driver(updating(count)) as driver:
        driver.push("in", [event(0, None), event(1, "a")]).end()
        assert driver.slates("u") == {"a": {"n": 1}}
        assert driver.ledger["u"]["dead"] == 1
    flow, records = flow_with()
    records.key_by("k", nulls="keep").update(count, name="u")
    with Driver(flow) as driver:
        driver.push("in", [event(0, None), event(1, "a")]).end()
        assert driver.slates("u") == {None: {"n": 1}, "a": {"n": 1}}


@pytest.mark.parametrize(
    "keys", [["a", "b"], [1, 2], [1.5, 2.0], [True, False], [at(0), at(1)], ["", "ü\x00/🚀"]]
)
def test_keys_of_any_type(keys: list[Any]) -> None:
    seen = []

    def fn(event: Any, slate: Any, ctx: Any) -> None:
        seen.append(event.key)
        slate["n"] = slate.get("n", 0) + 1

    with Driver(updating(fn), parallelism=2) as driver:
        for second, key in enumerate([*keys, *keys]):
            driver.push("in", [event(second, key)])
            driver.step()
            driver.restart()
        driver.end()
        assert sorted(seen) == sorted([*keys, *keys])
        assert list(driver.slates("u").values()) == [{"n": 2}] * 2


def test_keys_that_are_equal_have_one_slate_whatever_their_column() -> None:
    with Driver(updating(count)) as driver:
        driver.push("in", [event(0, 1)])
        driver.step()
        driver.push("in", [event(1, 1.0), event(2, 2.5)])
        driver.step()
        driver.push("in", [event(3, "1"), event(4, True) | {"k": "1"}]).end()
        assert driver.slates("u") == {1: {"n": 2}, 2.5: {"n": 1}, "1": {"n": 2}}


def test_several_key_columns() -> None:
    flow, records = flow_with()
    records.key_by("k", "v").update(count, name="u")
    with Driver(flow) as driver:
        driver.push("in", [event(0, "a", 1), event(1, "a", 2), event(2, "a", 1)]).end()
        assert driver.slates("u") == {("a", 1): {"n": 2}, ("a", 2): {"n": 1}}


def test_late_events_are_applied_or_diverted() -> None:
    def keep(event: Any, slate: Any, ctx: Any) -> None:
        slate.setdefault("seen", []).append(event.value["v"])

    for late, want, ways in (
        ("apply", [1, 3, 2], {"aggregated": 2, "late": 1, "diverted": 0}),
        ("divert", [1, 3], {"aggregated": 2, "late": 0, "diverted": 1}),
    ):
        flow, records = flow_with(lateness="1s")
        out = records.key_by("k").update(keep, name="u", late=late)
        if late == "divert":
            out.late().sink(ms.Memory(), name="late")
        with Driver(flow) as driver:
            driver.push("in", [event(0, value=1), event(10, value=3), event(20, "b", 0)])
            driver.step()
            driver.push("in", [event(5, value=2)])
            driver.step()
            driver.end()
            assert driver.slates("u")["a"]["seen"] == want
            account = driver.ledger["u"]
            assert account["aggregated"] == ways["aggregated"] + 1
            assert account["late"] == ways["late"]
            assert account["diverted"] == ways["diverted"]
            if late == "divert":
                assert [row["v"] for row in driver.output("late")] == [2]


def test_arrival_order_does_not_wait() -> None:
    flow, records = flow_with(lateness="1h")
    records.key_by("k").update(count, name="now", order="arrival")
    records.key_by("k").update(count, name="then")
    with Driver(flow) as driver:
        driver.push("in", [event(0), event(1)])
        driver.step()
        assert driver.slates("now") == {"a": {"n": 2}}
        assert driver.slates("then") == {}
        driver.end()
        assert driver.slates("then") == {"a": {"n": 2}}


def test_a_slate_that_is_not_written_expires() -> None:
    with Driver(updating(count, ttl="10s"), parallelism=2) as driver:
        driver.push("in", [event(0), event(9), event(8, "b"), event(19.5)])
        driver.step()
        driver.push("in", [event(30, "c")]).end()
        # a: 0, 9 within the time; 19.5 comes 10.5 s after 9, so it begins anew; at 30 it is gone
        assert driver.slates("u") == {"c": {"n": 1}}
        rows = driver.state("u")
        assert {row["key"] for row in rows} == {"a", "b", "c"} or len(rows) < 3  # lazily removed


def test_expired_slates_begin_anew() -> None:
    with Driver(updating(count, ttl="10s")) as driver:
        driver.push("in", [event(0), event(9), event(19.5)]).end()
        assert driver.slates("u") == {"a": {"n": 1}}


def test_wall_clock_ttl_and_timers() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        ctx.timer(after="30s")

    def ring(event: Any, slate: Any, ctx: Any) -> Any:
        assert event.stream == "timer"
        return {"key": event.key, "n": slate.get("n")}

    flow = updating(fn, on_timer=ring, ttl="60s", clock="wall", order="arrival")
    with Driver(flow, now=1_000_000.0) as driver:
        driver.push("in", [event(0)])
        driver.step()
        assert driver.output("out") == []
        assert not driver.advance("29s").step()
        assert driver.advance("2s").step()  # no event comes, the timer fires all the same
        assert driver.output("out") == [{"key": "a", "n": 1}]
        assert not driver.step()
        driver.restart()
        assert not driver.step()  # it has fired, also after a restart
        assert driver.slates("u") == {"a": {"n": 1}}
        driver.advance("61s")
        assert driver.slates("u") == {}
        driver.push("in", [event(100)])
        driver.step()
        assert driver.slates("u") == {"a": {"n": 1}}


def test_timers_fire_when_only_time_moves() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        ctx.timer(after="10s")
        ctx.timer(at=event.ts + timedelta(seconds=10))  # the same moment: one timer

    def ring(event: Any, slate: Any, ctx: Any) -> Any:
        return {"key": event.key, "at": event.ts, "n": slate["n"]}

    with Driver(updating(fn, on_timer=ring)) as driver:
        driver.push("in", [event(0)])
        driver.step()
        driver.restart()
        driver.push("in", [event(20, "b")])
        driver.step()
        assert driver.output("out") == [{"key": "a", "at": at(10), "n": 1}]


def test_a_timer_that_renews_itself_ends_with_the_input() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        if not slate:
            ctx.timer(after="10s")
        slate["n"] = slate.get("n", 0) + 1

    def ring(event: Any, slate: Any, ctx: Any) -> Any:
        ctx.timer(after="10s")
        return {"at": event.ts}

    with Driver(updating(fn, on_timer=ring)) as driver:
        driver.push("in", [event(0), event(35, "b")]).end()
        times = [row["at"] for row in driver.output("out")]
        # a: 10, 20, 30 and, past the last event, the one that was set before it; b: 45 likewise
        assert times == [at(10), at(20), at(30), at(40), at(45)]


def test_delete_and_replace() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        if event.value["v"] == "delete":
            ctx.delete()
        elif event.value["v"] == "replace":
            ctx.replace({"new": True})
        else:
            slate["v"] = event.value["v"]

    for restart in (False, True):
        with Driver(updating(fn)) as driver:
            for second, value in enumerate(["x", "delete", "y", "replace", "delete"]):
                driver.push("in", [event(10 * second, value=value)])
                driver.push("in", [event(10 * second, "b", value)]) if second < 4 else None
                driver.step()
                if restart:
                    driver.restart()
            driver.end()
            assert driver.slates("u") == {"b": {"new": True}}


def test_a_function_that_writes_nothing_makes_no_slate() -> None:
    with Driver(updating(lambda event, slate, ctx: {"seen": event.key})) as driver:
        driver.push("in", [event(0)]).end()
        assert driver.slates("u") == {}
        assert driver.output("out") == [{"seen": "a"}]


def test_classes_and_codecs() -> None:
    class Counter:
        def update(self, event: Any, slate: Any, ctx: Any) -> None:
            ctx.replace(slate + 1)

    class Text:
        def new(self) -> int:
            return 0

        def encode(self, slate: int) -> bytes:
            return str(slate).encode()

        def decode(self, data: bytes) -> int:
            return int(data)

    for given in (Counter, Counter()):
        with Driver(updating(given, codec=Text())) as driver:
            driver.push("in", [event(0), event(1)])
            driver.step()
            driver.restart()
            driver.push("in", [event(2)]).end()
            assert driver.slates("u") == {"a": 3}


def test_merging_equals_updating() -> None:
    def both(one: Any, other: Any) -> Any:
        return {"n": one["n"] + other["n"]}

    flow, records = flow_with()
    records.key_by("k").update(count, name="plain", order="arrival")
    records.key_by("k").update(count, name="merged", merge=both)
    with Driver(flow, parallelism=3) as driver:
        for turn in range(5):
            driver.push("in", [event(turn + i / 10, "hot" if i % 3 else str(i)) for i in range(60)])
            driver.step()
            driver.restart()
        driver.end()
        assert driver.slates("merged") == driver.slates("plain")
        assert driver.slates("merged")["hot"] == {"n": 200}
        assert driver.ledger["merged"] == driver.ledger["plain"]


def test_hot_keys_are_reported() -> None:
    with Driver(updating(count), parallelism=2) as driver:
        driver.push("in", [event(i, "hot" if i % 4 else f"cold {i}") for i in range(40)])
        driver.push("in", [event(100, "later")])
        driver.step()
        hot = driver.engine.manifest.hot["u"]
        assert hot.events == 40
        assert hot.keys[0] == ("hot", 30)


def test_event_streams_and_union() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate.setdefault("from", []).append((event.stream, event.value))
        if event.stream == "in":
            ctx.publish("echo", "b", event.value["v"])

    flow, records = flow_with()
    echo = flow.stream("echo")
    records.key_by("k").union(echo.key_by("key")).update(fn, name="u")
    with Driver(flow) as driver:
        driver.push("in", [event(0, "a", 7)]).end()
        slates = driver.slates("u")
        assert slates["b"] == {"from": [["echo", 7]]}
        assert slates["a"]["from"][0][0] == "in"


# -- cycles ------------------------------------------------------------------------------------


def halve(event: Any, slate: Any, ctx: Any) -> None:
    value = event.value if isinstance(event.value, int) else event.value["v"]
    slate.setdefault("seen", []).append(value)
    if value > 1:
        ctx.publish("half", value // 2, value // 2)


def halving() -> ms.Flow:
    flow, records = flow_with()
    records.key_by("v").union(flow.stream("half").key_by("key")).update(halve, name="u")
    return flow


def test_a_cycle_of_two_keeps_its_slates_with_any_number_of_tasks() -> None:
    """What is stored of each is under its own name, not under that of both."""

    def flow() -> ms.Flow:
        flow = ms.Flow("two")
        schema = "ts bigint, k string, v bigint"
        source = ms.Generator(tuple, time="ts", lateness="0s", schema=schema)
        records = flow.source(source, name="in").key_by("k")
        there, back = flow.stream("there"), flow.stream("back")
        records.union(back.key_by("key")).update(sending("there"), name="ping", publishes=["there"])
        there.key_by("key").update(sending("back"), name="pong", publishes=["back"])
        return flow

    def sending(to: str) -> Any:
        def send(event: Any, slate: dict[str, Any], ctx: Any) -> None:
            slate["n"] = slate.get("n", 0) + 1
            if event.value["v"]:
                ctx.publish(to, event.key, {"v": event.value["v"] - 1})

        return send

    for parallelism in (1, 2, 20):
        with Driver(flow(), parallelism=parallelism) as driver:
            for at in range(3):
                driver.push("in", [{"ts": at, "k": key, "v": 3} for key in "xyz"]).step()
            driver.end()
            for name in ("ping", "pong"):
                assert driver.slates(name) == {key: {"n": 6} for key in "xyz"}


def test_a_cycle_runs_until_quiet() -> None:
    with Driver(halving()) as driver:
        driver.push("in", [event(0, value=40), event(100, value=3)])
        driver.step()
        assert driver.slates("u") == {n: {"seen": [n]} for n in (40, 20, 10, 5, 2, 1)}


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("order", ["event", "arrival"])
def test_a_bounded_cycle_carries_the_rest_and_loses_nothing(order: str, parallelism: int) -> None:
    flow, records = flow_with()
    half = flow.stream("half")
    records.key_by("v").union(half.key_by("key")).update(halve, name="u", order=order)
    half.sink(ms.Memory(), name="went")
    whole = {}
    for limit in (1000, 1):
        with Driver(flow, cycle_events=limit, parallelism=parallelism) as driver:
            driver.push("in", [event(i / 1e6, value=40 + i) for i in range(3)])
            driver.push("in", [event(10, value=1)])
            driver.step()
            batches = 1
            while driver.engine.manifest.carried:
                driver.restart()
                assert driver.step()
                batches += 1
            driver.end()
            whole[limit] = (driver.slates("u"), len(driver.output("went")))
            assert driver.ledger["u"]["offered"] == 4 + len(driver.output("went"))
            assert batches > 3 if limit == 1 else batches == 1
    assert whole[1] == whole[1000]


def test_a_cycle_that_never_settles_is_reported() -> None:
    def forever(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        ctx.publish("round", event.key, 1)

    flow, records = flow_with()
    records.key_by("k").union(flow.stream("round").key_by("key")).update(forever, name="u")
    with Driver(flow, cycle_events=50, cycle_hops=201) as driver:
        driver.push("in", [event(0)])
        with pytest.raises(ms.RunError, match=r"cycle of updater 'u' does not settle.*201 times"):
            driver.end()
        assert driver.slates("u")["a"]["n"] == 200  # four batches of 50 were committed


def test_a_cycle_that_explodes_is_reported() -> None:
    def double(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        for _ in range(2):
            ctx.publish("round", event.key, 1)

    flow, records = flow_with()
    records.key_by("k").union(flow.stream("round").key_by("key")).update(double, name="u")
    with Driver(flow, cycle_events=20) as driver:
        driver.push("in", [event(0)])
        with pytest.raises(ms.RunError, match=r"every event sets off more of them"):
            driver.end()


def test_a_cycle_that_would_settle_is_told_what_to_raise() -> None:
    """Who sets off many events at once is not told that they never end."""

    def spread(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        for number in range(60 if event.stream == "in" else 0):
            ctx.publish("round", number, 1)

    flow, records = flow_with()
    records.key_by("k").union(flow.stream("round").key_by("key")).update(spread, name="u")
    told = r"60 events wait by now, over 50 times the 1 of a batch .*raise cycle_events"
    with Driver(flow, cycle_events=1) as driver, pytest.raises(ms.RunError, match=told):
        driver.push("in", [event(0)]).end()
    with Driver(flow, cycle_events=2) as driver:
        driver.push("in", [event(0)]).end()
        assert len(driver.slates("u")) == 61


def test_a_cycle_with_a_long_backlog_is_not_taken_for_one_that_never_settles() -> None:
    with Driver(halving(), cycle_events=5, cycle_hops=10) as driver:
        driver.push("in", [event(i, value=300 + i) for i in range(60)]).end()
        assert driver.slates("u")[1] == {"seen": [1] * 60}


def test_a_timer_and_an_event_that_set_each_other_off_for_ever_are_reported() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        ctx.timer(after="1s")

    def ring(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("round", event.key, 1)

    flow, records = flow_with()
    keyed = records.key_by("k").union(flow.stream("round").key_by("key"))
    keyed.update(fn, name="u", on_timer=ring)
    with Driver(flow, cycle_hops=100) as driver:
        driver.push("in", [event(0), event(10)])
        driver.step()
        with pytest.raises(ms.RunError, match="does not settle"):
            driver.end()


def test_a_cycle_no_source_leads_to_is_refused() -> None:
    flow, records = flow_with()
    records.key_by("k").update(count, name="other")
    flow.stream("half").key_by("key").update(halve, name="u")
    with pytest.raises(ms.ConfigError, match="no source leads to the cycle half -> u"):
        Driver(flow)


def test_windows_inside_a_cycle_are_refused() -> None:
    flow, records = flow_with()
    back = flow.stream("back")
    counted = records.union(back).key_by("k").window(ms.tumbling("1s")).agg(n=ms.count())
    counted.key_by("k").update(lambda e, s, ctx: ctx.publish("back", e.key, 1), name="u")
    with pytest.raises(ms.ConfigError, match="is part of a cycle"):
        Driver(flow)


# -- which streams a function publishes to ------------------------------------------------------

TARGET = "hot"


def by_constant(event: Any, slate: Any, ctx: Any) -> None:
    ctx.publish("hot", 1, 1)


def by_global(event: Any, slate: Any, ctx: Any) -> None:
    ctx.publish(TARGET, 1, 1)


def by_helper(event: Any, slate: Any, ctx: Any) -> None:
    by_global(event, slate, ctx)


def by_argument(event: Any, slate: Any, ctx: Any, target: str) -> None:
    ctx.publish(target, 1, 1)


class ByAttribute:
    def __init__(self) -> None:
        self.target = "hot"

    def update(self, event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish(self.target, 1, 1)


def by_closure() -> Callable[..., None]:
    target = "hot"
    return lambda event, slate, ctx: ctx.publish(target, 1, 1)


@pytest.mark.parametrize(
    "fn",
    [
        by_constant,
        by_global,
        by_helper,
        functools.partial(by_argument, target="hot"),
        ByAttribute(),
        by_closure(),
    ],
)
def test_published_streams_are_found_in_the_code(fn: Any) -> None:
    flow, records = flow_with()
    records.key_by("k").update(fn, name="u")
    for name in ("hot", "cold"):
        flow.stream(name).sink(ms.Memory(), name=f"{name} sink")
    records.key_by("k").update(lambda e, s, ctx: ctx.publish("cold", 1, 1), name="other")
    assert sketch(flow.name, flow.nodes).publishes == {
        "u": frozenset(["hot"]),
        "other": frozenset(["cold"]),
    }


def test_a_name_made_while_running_may_be_any_stream_or_is_declared() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("".join(["h", "ot"]), event.key, 1)

    flow, records = flow_with()
    records.key_by("k").update(fn, name="u")
    flow.stream("hot").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("in", [event(0)]).end()
        assert driver.output("out") == [{"key": "a", "value": 1}]


def test_an_unforeseen_stream_stops_the_run() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("seen" if event.value["v"] == 1 else "".join(["un", "seen"]), event.key, 1)

    def other(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("unseen", event.key, 1)

    flow, records = flow_with()
    records.key_by("k").update(fn, name="u")
    records.key_by("k").update(other, name="other")
    for name in ("seen", "unseen"):
        flow.stream(name).sink(ms.Memory(), name=f"{name} sink")
    with Driver(flow) as driver, pytest.raises(ms.RunError, match=r"publishes=\['unseen'\]"):
        driver.push("in", [event(0, value=1), event(1, value=2)]).end()


def test_mistakes_of_the_program_stop_the_run() -> None:
    """They would make a dead letter of every event, and an empty answer of the run."""

    def no_stream(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("hott" if event.value["v"] else "hot", event.key, 1)

    def no_on_timer(event: Any, slate: Any, ctx: Any) -> None:
        ctx.timer(after="1s")

    for fn, options, said in (
        (no_stream, {}, "updater 'u': ctx.publish.*there is no stream 'hott'.*Declared: hot"),
        (no_on_timer, {}, r"updater 'u': ctx.timer\(\) needs update\(..., on_timer=...\)"),
    ):
        flow, records = flow_with()
        records.key_by("k").update(fn, name="u", **options)
        if fn is no_stream:
            flow.stream("hot").sink(ms.Memory(), name="out")
        with Driver(flow) as driver:
            driver.push("in", [event(0)])
            with pytest.raises(ms.RunError, match=said):
                driver.end()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"after": "soon"}, "'soon' is not a duration"),
        ({"after": "0s"}, "'0s' must be longer than zero"),
        ({"after": "9" * 400 + "d"}, "is longer than 900 years"),
        ({"after": timedelta.max}, "is longer than 900 years"),
        ({"after": 5}, "expected a duration"),
        ({"at": datetime(2026, 1, 1)}, "expected a datetime with a time zone"),
        (
            {"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
            "date value out of range",
        ),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "beyond the year 8999"),
    ],
)
def test_a_bad_time_of_a_timer_is_the_records_fault(bad: dict[str, Any], said: str) -> None:
    """It may come from the record, and one record does not stop a flow for good."""

    def fn(event: Any, slate: Any, ctx: Any) -> None:
        ctx.timer(**(bad if event.value["v"] == 2 else {"after": "1s"}))
        slate["n"] = slate.get("n", 0) + 1

    def rung(event: Any, slate: Any, ctx: Any) -> None:
        slate["rung"] = event.ts.second

    flow, records = flow_with()
    records.key_by("k").update(fn, name="u", on_timer=rung)
    with Driver(flow) as driver:
        driver.push("in", [event(0, value=1), event(5, value=2)]).end()
        assert driver.slates("u") == {"a": {"n": 1, "rung": 1}}
        (letter,) = driver.dead
        assert said in letter["error"]


def test_a_stream_nobody_publishes_to_is_refused() -> None:
    flow, records = flow_with()
    records.key_by("k").update(count, name="u")
    flow.stream("lonely").sink(ms.Memory())
    with pytest.raises(ms.ConfigError, match="nobody publishes to stream 'lonely'"):
        Driver(flow)


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "random"}, 'use "event" or "arrival"'),
        ({"late": "drop"}, 'use "apply" or "divert"'),
        ({"clock": "sun"}, 'use "event" or "wall"'),
        ({"ttl": "soon"}, "not a duration"),
        ({"max_slate": 0}, "number of bytes"),
        ({"codec": object()}, "new, encode and decode"),
        ({"on_timer": 1}, "expected a function"),
        ({"merge": lambda one, other: one, "ttl": "1s"}, "neither timers"),
        ({"merge": count}, r"merge=\): count\(.*cannot be called with \(slate, slate\)"),
        ({"on_timer": lambda event: None}, r"cannot be called with \(event, slate, ctx\)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    _, records = flow_with()
    with pytest.raises(ms.ConfigError, match=said):
        records.key_by("k").update(count, name="u", **options)


class Nothing:
    """An updater whose method has another name."""

    def updat(self, event: Any, slate: Any, ctx: Any) -> None: ...


async def waits(event: Any, slate: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda event, slate: None, r"cannot be called with \(event, slate, ctx\): too many"),
        (lambda event, slate, ctx, more: None, "missing a required argument: 'more'"),
        (waits, "waits is async; give a plain function"),
        (Nothing(), "an object with a method update, got Nothing"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(fn: Any, said: str) -> None:
    _, records = flow_with()
    with pytest.raises(ms.ConfigError, match=said):
        records.key_by("k").update(fn, name="u")


def test_a_stream_without_a_key_says_so() -> None:
    _, records = flow_with()
    with pytest.raises(ms.ConfigError, match=r"'in' has no key yet; write key_by\(...\).update"):
        records.update(count, name="u")
    assert not hasattr(records, "update")
    with pytest.raises(AttributeError, match="updat: there is no such method"):
        records.updat(count)


def test_merge_refuses_what_needs_an_order() -> None:
    def publishes(event: Any, slate: Any, ctx: Any) -> None:
        ctx.publish("out", 1, 1)

    flow, records = flow_with()
    records.key_by("k").update(publishes, name="u", merge=lambda a, b: a)
    flow.stream("out").sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [event(0)])
        with pytest.raises(ms.RunError, match="'u': an updater with merge cannot publish"):
            driver.end()


def test_a_changed_updater_is_refused_and_a_new_ttl_is_not(tmp_path: Any) -> None:
    with Driver(updating(count, ttl="1h"), checkpoint=tmp_path) as driver:
        driver.push("in", [event(0)])
        driver.step()
    with Driver(updating(count, ttl="2h"), checkpoint=tmp_path) as driver:
        driver.push("in", [event(10)]).end()
        assert driver.slates("u") == {"a": {"n": 2}}
    with pytest.raises(ms.CheckpointError, match="order was event, is arrival"):
        Driver(updating(count, ttl="2h", order="arrival"), checkpoint=tmp_path)
    with pytest.raises(ms.CheckpointError, match="clock was event, is wall"):
        Driver(updating(count, ttl="2h", clock="wall"), checkpoint=tmp_path)


def test_a_removed_slate_does_not_come_back_when_a_later_one_expires() -> None:
    def fn(event: Any, slate: Any, ctx: Any) -> None:
        if event.value["v"] == "delete":
            ctx.delete()
        else:
            slate["v"] = event.value["v"]

    with Driver(updating(fn, ttl="100s"), shards=1) as driver:
        many = [event(100, f"m{i}", "x") for i in range(300)]  # a large oldest segment
        driver.push("in", [event(100, value="old"), *many, event(110, "c", "x")])
        driver.step()
        driver.push("in", [event(105, value="delete"), event(120, "c", "x")])
        driver.step()
        driver.push("in", [event(50, value="late")])  # applied at 120, so it expires at 220
        driver.step()
        for second in range(121, 224, 2):  # many batches, so that small segments are merged
            driver.push("in", [event(second, f"k{second % 3}", "x"), event(second, "c", "x")])
            driver.step()
            assert driver.slates("u").get("a") in (None, {"v": "late"})
        assert "a" not in driver.slates("u")


def test_an_updater_can_be_added_and_not_taken_away(tmp_path: Any) -> None:
    def flow_of(*names: str) -> ms.Flow:
        flow, records = flow_with()
        for name in names:
            records.key_by("k").update(count, name=name)
        return flow

    with Driver(flow_of("one"), checkpoint=tmp_path) as driver:
        driver.push("in", [event(0), event(10)])
        driver.step()
    with Driver(flow_of("one", "two"), checkpoint=tmp_path) as driver:
        assert driver.engine.notes == ["two is new and begins with what comes from now on"]
        driver.push("in", [event(20)]).end()
        assert driver.slates("one") == {"a": {"n": 3}}
        assert driver.slates("two") == {"a": {"n": 1}}
    with pytest.raises(ms.CheckpointError, match="operator 'one' is gone"):
        Driver(flow_of("two"), checkpoint=tmp_path)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_backlog_that_waited_is_applied_in_portions(parallelism: int) -> None:
    """Without lateness everything waits for the end; it must not all come in one batch then."""

    def fn(event: Any, slate: Any, ctx: Any) -> Any:
        slate.setdefault("seen", []).append(event.value["v"])
        ctx.timer(after="3s")
        if event.value["v"] % 10 == 0:
            ctx.publish("tens", "all", event.value["v"])

    def ring(event: Any, slate: Any, ctx: Any) -> Any:
        ctx.timer(after="7s")
        return {"at": event.ts, "n": len(slate["seen"])}

    def tens(event: Any, slate: Any, ctx: Any) -> None:
        slate.setdefault("seen", []).append(event.value)

    def flow() -> ms.Flow:
        made = ms.Flow("portions")
        source = made.source(ms.Generator(lambda: iter(()), time="ts", lateness="1h"), name="in")
        updated = source.key_by("k").update(fn, name="u", on_timer=ring)
        updated.sink(ms.Memory(), name="out")
        updated.key_by("n").window(ms.tumbling("10s")).agg(c=ms.count()).sink(
            ms.Memory(), name="counts"
        )
        made.stream("tens").key_by("key").update(tens, name="t")
        return made

    rows = [event((i * 37) % 200, f"k{i % 5}", i) for i in range(400)]
    found = []
    for batch_rows in (1_000_000, 25):
        per_core = batch_rows // parallelism
        with Driver(flow(), parallelism=parallelism, batch_rows=per_core) as driver:
            for start in range(0, 400, 80):
                driver.push("in", rows[start : start + 80])
                driver.step()
            before = driver.engine.manifest.batch
            driver.end()
            batches = driver.engine.manifest.batch - before
            assert (batches > 10) if batch_rows == 25 else (batches == 1)
            out = sorted(map(str, driver.output("out"))), sorted(map(str, driver.output("counts")))
            found.append((driver.slates("u"), driver.slates("t"), out, driver.ledger))
    assert found[0] == found[1]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_hot_keys_are_known_with_merge_as_without(parallelism: int) -> None:
    def add(left: Any, right: Any) -> Any:
        return {"n": left["n"] + right["n"]}

    flow, records = flow_with()
    records.key_by("k").update(count, name="plain", order="arrival")
    records.key_by("k").update(count, name="merged", order="arrival", merge=add)
    batches = [["a"] * 6 + ["b"] * 3 + ["c"], ["b"] * 5 + [7]]
    with Driver(flow, parallelism=parallelism) as driver:
        for keys in batches:
            for half in (keys[::2], keys[1::2]):  # read by two tasks, if there are two
                driver.push("in", [event(0, key) for key in map(str, half)])
            driver.step()
            hot = driver.engine.manifest.hot
            assert hot["merged"].events == hot["plain"].events == len(keys)
            assert sorted(hot["merged"].keys) == sorted(hot["plain"].keys)
        assert sorted(hot["merged"].keys) == [("7", 1), ("b", 5)]

"""The oracle of updaters, against answers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import reference

START = datetime(2024, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)


def at(seconds: float, **columns: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=seconds), **columns}


def since(moment: datetime) -> float:
    return (moment - START).total_seconds()


def source(flow: ms.Flow, name: str = "in", lateness: str = "0s") -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts", lateness=lateness), name=name)


def count(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"key": event.key, "n": slate["n"], "at": since(event.ts)}


def remember(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate.setdefault("seen", []).append(event.value["v"])


def test_events_are_applied_in_the_order_of_their_time() -> None:
    flow = ms.Flow("f")
    source(flow, lateness="2s").key_by("k").update(remember, name="u")
    rows = [at(2, k="a", v="c"), at(1, k="a", v="a"), at(1, k="a", v="b"), at(0, k="b", v="z")]
    answer = reference(flow, {"in": rows})
    assert answer.slates == {"u": {"a": {"seen": ["a", "b", "c"]}, "b": {"seen": ["z"]}}}
    assert answer.counts == {"u": {"offered": 4, "late": 0}}


def test_what_is_returned_is_a_microsecond_later() -> None:
    flow = ms.Flow("f")
    counted = source(flow).key_by("k").update(count, name="u")
    counted.sink(ms.Memory(), name="out")
    counted.key_by("key").window(ms.tumbling("1s")).agg(n=ms.count()).sink(ms.Memory(), name="n")
    edge = START + timedelta(seconds=1) - MICRO
    answer = reference(flow, {"in": [{"ts": edge, "k": "a"}]})
    assert answer["out"] == [{"key": "a", "n": 1, "at": 0.999999}]
    assert [since(row["window_start"]) for row in answer["n"]] == [1.0]


def test_late_events_are_applied_when_they_are_due_or_set_aside() -> None:
    batches = [{"in": [at(10, k="a", v=1)]}, {"in": [at(20, k="a", v=2)]}, {"in": []}]
    batches.append({"in": [at(5, k="a", v=3), at(4, k="a", v=4), at(30, k="a", v=5)]})
    for late, seen, counts in (
        ("apply", [1, 2, 3, 4, 5], {"offered": 5, "late": 2}),
        ("divert", [1, 2, 5], {"offered": 5, "late": 0, "diverted": 2}),
    ):
        flow = ms.Flow("f")
        updated = source(flow).key_by("k").update(remember, name="u", late=late)
        if late == "divert":
            updated.late().sink(ms.Memory(), name="late")
        answer = reference(flow, batches=batches)
        assert answer.slates["u"]["a"]["seen"] == seen
        assert answer.counts["u"] == counts
        if late == "divert":
            assert [row["v"] for row in answer["late"]] == [4, 3]


def test_order_of_arrival_does_not_wait() -> None:
    flow = ms.Flow("f")
    source(flow, lateness="1h").key_by("k").update(remember, name="u", order="arrival")
    batches = [{"in": [at(9, k="a", v=1), at(8, k="a", v=2)]}, {"in": [at(1, k="a", v=3)]}]
    answer = reference(flow, batches=batches)
    assert answer.slates["u"]["a"]["seen"] == [2, 1, 3]
    assert answer.counts["u"] == {"offered": 3, "late": 0}


def test_a_slate_expires_after_its_last_write() -> None:
    flow = ms.Flow("f")
    source(flow, lateness="10s").key_by("k").update(count, name="u", ttl="10s").sink(
        ms.Memory(), name="out"
    )
    rows = [at(s, k="a") for s in (0, 9, 18, 28, 100)] + [at(95, k="b"), at(90, k="c")]
    answer = reference(flow, {"in": rows})
    assert [row["n"] for row in answer["out"] if row["key"] == "a"] == [1, 2, 3, 1, 1]
    assert answer.slates["u"] == {"a": {"n": 1}, "b": {"n": 1}}


def tick(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    assert event.value is None and event.stream == "timer"
    slate["ticks"] = slate.get("ticks", 0) + 1
    ctx.timer(after="10s")
    return {"key": event.key, "at": since(event.ts), "n": slate.get("n")}


def start(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1
    if slate["n"] == 1:
        ctx.timer(after="10s")
        ctx.timer(at=event.ts + timedelta(seconds=10))  # the same one


def test_timers_come_before_events_and_end_with_the_input() -> None:
    flow = ms.Flow("f")
    source(flow).key_by("k").update(start, name="u", on_timer=tick).sink(ms.Memory(), name="out")
    rows = [at(0, k="a"), at(10, k="a"), at(25, k="b")]
    found = reference(flow, {"in": rows})["out"]
    ticks = [(row["key"], row["at"], row["n"]) for row in found]
    assert ticks == [("a", 10.0, 1), ("a", 20.0, 2), ("a", 30.0, 2), ("b", 35.0, 1)]


def hop(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate.setdefault("hops", []).append(event.value)
    if event.stream == "in":
        ctx.publish("around", event.key, event.value["hops"])
    elif event.value > 0:
        ctx.publish("around", event.key + 1, event.value - 1)


def test_a_cycle_runs_until_it_is_quiet() -> None:
    flow = ms.Flow("f")
    around = flow.stream("around")
    around.sink(ms.Memory(), name="out")
    keyed = source(flow).select("ts", "k", "hops").key_by("k")
    keyed.union(around.key_by("key")).update(hop, name="u")
    row = at(0, k=1, hops=2)
    answer = reference(flow, {"in": [row]})
    assert answer["out"] == [{"key": k, "value": v} for k, v in ((1, 2), (2, 1), (3, 0))]
    assert answer.slates["u"] == {1: {"hops": [row, 2]}, 2: {"hops": [1]}, 3: {"hops": [0]}}


def test_what_fails_leaves_nothing_behind() -> None:
    def update(event: Any, slate: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        slate["n"] = slate.get("n", 0) + 1
        ctx.publish("said", event.key, slate["n"])
        ctx.timer(after="1s")
        yield {"n": slate["n"]}
        if event.value["v"] == "large":
            slate["text"] = "x" * 100
        if event.value["v"] == "strange":
            slate["thing"] = object()
        if event.value["v"] == "raise":
            raise ValueError("no")

    def on_timer(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["timers"] = slate.get("timers", 0) + 1

    flow = ms.Flow("f")
    flow.stream("said").sink(ms.Memory(), name="heard")
    keyed = source(flow).key_by("k")
    out = keyed.update(update, name="u", on_timer=on_timer, max_slate=64)
    out.sink(ms.Memory(), name="out")
    values = ["ok", "large", "strange", "raise", "ok"]
    answer = reference(flow, {"in": [at(10 * i, k="a", v=v) for i, v in enumerate(values)]})
    assert answer["out"] == [{"n": 1}, {"n": 2}]
    assert answer["heard"] == [{"key": "a", "value": 1}, {"key": "a", "value": 2}]
    assert answer.slates["u"] == {"a": {"n": 2, "timers": 2}}
    assert answer.counts["u"] == {"offered": 5, "late": 0, "dead": 3}


def test_slates_are_deleted_replaced_and_not_made_for_nothing() -> None:
    def update(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        match event.value["v"]:
            case "put":
                slate["n"] = slate.get("n", 0) + 1
            case "delete":
                ctx.delete()
            case "replace":
                ctx.replace({"new": True})

    flow = ms.Flow("f")
    source(flow).key_by("k").update(update, name="u")
    rows = [at(i, k=k, v=v) for i, (k, v) in enumerate([("a", "put"), ("b", "put"), ("c", "look")])]
    rows += [at(5, k="a", v="delete"), at(6, k="b", v="replace"), at(7, k="d", v="put")]
    rows += [at(8, k="a", v="put")]
    assert reference(flow, {"in": rows}).slates["u"] == {
        "a": {"n": 1},
        "b": {"new": True},
        "d": {"n": 1},
    }


class Total:
    """A number as a slate, stored as text."""

    def new(self) -> list[int]:
        return [0]

    def encode(self, slate: list[int]) -> bytes:
        return str(slate[0]).encode()

    def decode(self, data: bytes) -> list[int]:
        return [int(data)]


def test_codec_and_merge() -> None:
    def add(event: Any, slate: list[int], ctx: Any) -> None:
        slate[0] += event.value["v"]

    def merge(one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0]]

    rows = [at(i, k=i % 2, v=i) for i in range(7)]
    for options in ({}, {"merge": merge}):
        flow = ms.Flow("f")
        source(flow).key_by("k").update(add, name="u", codec=Total(), **options)
        assert reference(flow, {"in": rows}).slates["u"] == {0: [12], 1: [9]}


def test_the_wall_clock_is_refused() -> None:
    flow = ms.Flow("f")
    source(flow).key_by("k").update(count, ttl="1s", clock="wall")
    with pytest.raises(ms.ConfigError, match="wall clock"):
        reference(flow, {"in": []})

    def ask(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        ctx.timer(after="1s", clock="wall")

    flow = ms.Flow("g")
    source(flow).key_by("k").update(ask, on_timer=tick)
    with pytest.raises(ms.ConfigError, match="wall clock"):
        reference(flow, {"in": [at(0, k="a")]})

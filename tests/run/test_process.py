"""Maps that see events, publish to streams, and choose times."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference, run_in_process
from tests.variants import variants


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def source(flow: ms.Flow, name: str = "in", lateness: str = "0s") -> ms.Stream:
    return flow.source(
        ms.Generator(list, schema="ts bigint, user string, n bigint", time="ts", lateness=lateness),
        name=name,
    )


def test_it_sees_the_event_and_gives_records_at_its_time() -> None:
    seen = []

    def look(event: Any, ctx: Any) -> Any:
        seen.append((event.stream, event.ts, event.key, event.value["n"], ctx.ts))
        return {"n": event.value["n"] * 10}

    flow = ms.Flow("process")
    both = source(flow, "a").union(source(flow, "b"))
    both.key_by("user").process(look).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("a", [{"ts": 1, "user": "x", "n": 1}])
        driver.push("b", [{"ts": 2, "user": "y", "n": 2}]).end()
        assert seen == [("a", at(1), "x", 1, at(1)), ("b", at(2), "y", 2, at(2))]
        assert driver.output() == [{"n": 10}, {"n": 20}]


def test_it_publishes_to_several_streams_later_than_its_cause() -> None:
    flow = ms.Flow("process")

    def route(event: Any, ctx: Any) -> Any:
        ctx.publish("large" if event.value["n"] > 1 else "small", event.value["user"], event.value)
        if event.value["n"] > 2:
            ctx.publish("small", "again", {"n": 0}, ts=event.ts + timedelta(seconds=5))

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate.setdefault("seen", []).append([event.stream, str(event.ts), event.value["n"]])

    source(flow).process(route)
    large, small = flow.stream("large"), flow.stream("small")
    large.key_by("key").union(small.key_by("key")).update(count)
    with Driver(flow) as driver:
        rows = [{"ts": one, "user": "u", "n": one} for one in (1, 2, 3)]
        driver.push("in", rows).end()
        assert driver.slates("count") == {
            "u": {
                "seen": [
                    ["small", "1970-01-01 00:00:01.000001+00:00", 1],
                    ["large", "1970-01-01 00:00:02.000001+00:00", 2],
                    ["large", "1970-01-01 00:00:03.000001+00:00", 3],
                ]
            },
            "again": {"seen": [["small", "1970-01-01 00:00:08+00:00", 0]]},
        }


def backdated(event: Any, ctx: Any) -> None:
    ctx.emit({"user": event.value["user"]}, ts=event.ts - timedelta(seconds=event.value["n"]))


def test_the_watermark_is_held_back_so_that_nothing_given_is_late() -> None:
    flow = ms.Flow("process")
    counts = source(flow).process(backdated, behind="5s").key_by("user")
    late = counts.window(ms.tumbling("10s")).agg(n=ms.count())
    late.sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [{"ts": 8, "user": "a", "n": 0}]).step()
        driver.push("in", [{"ts": 11, "user": "a", "n": 0}]).step()
        assert driver.output() == []  # event time is at 11, but 6 may still be given
        driver.push("in", [{"ts": 14, "user": "a", "n": 5}]).step()
        driver.push("in", [{"ts": 16, "user": "a", "n": 0}]).step()
        assert [(row["window_end"], row["n"]) for row in driver.output()] == [(at(10), 2)]
        driver.end()
        assert [row["n"] for row in driver.output()] == [2, 2]
        assert not driver.ledger["agg"].get("late")


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (backdated, r"ctx.emit\(ts=.*\) lies 0:00:06 before the event, more than behind=0:00:05"),
        (lambda event, ctx: ctx.publish("out", 1, 1, ts=event.ts), "must be later than the event"),
        (lambda event, ctx: ctx.emit(3), "expected a dict, got int"),
        (lambda event, ctx: 3, "expected a dict, an iterable of dicts or None"),
    ],
)
def test_what_cannot_be_is_a_dead_letter_and_gives_nothing(fn: Any, said: str) -> None:
    flow = ms.Flow("process")

    def both(event: Any, ctx: Any) -> Any:
        ctx.emit({"user": "before"})
        ctx.publish("out", "before", 1)
        return fn(event, ctx)

    source(flow).process(both, behind="5s", publishes=["out"]).sink(ms.Memory(), name="given")
    flow.stream("out").sink(ms.Memory(), name="published")
    with Driver(flow, dead_letter_limit=1.0) as driver:
        driver.push("in", [{"ts": 20, "user": "a", "n": 6}]).end()
        (letter,) = driver.dead
        assert re.search(said, letter["error"])
        assert driver.output("given") == driver.output("published") == []
        assert driver.ledger["both"]["dead"] == 1


def test_mistakes_are_refused() -> None:
    flow = ms.Flow("process")
    stream = source(flow)
    with pytest.raises(ms.ConfigError, match=r"cannot be called with \(event, ctx\)"):
        stream.process(lambda event: None)
    with pytest.raises(ms.ConfigError, match="expected a function"):
        stream.process(3)  # type: ignore[arg-type]
    with pytest.raises(ms.ConfigError, match=r"process\(behind=\)"):
        stream.process(backdated, behind="long")

    def loops(event: Any, ctx: Any) -> None:
        ctx.publish("round", 1, 1)

    again = flow.stream("round")
    stream.union(again).process(loops).sink(ms.Memory())
    with pytest.raises(ms.ConfigError, match="'loops' is part of a cycle"):
        Driver(flow)


def test_an_unknown_stream_stops_the_run() -> None:
    flow = ms.Flow("process")
    source(flow).process(lambda event, ctx: ctx.publish("nowhere", 1, 1)).sink(ms.Memory())
    with Driver(flow) as driver, pytest.raises(ms.RunError, match="there is no stream 'nowhere'"):
        driver.push("in", [{"ts": 20, "user": "a", "n": 6}]).end()


def scatter(event: Any, ctx: Any) -> Any:
    """Records at times of their own, before and after, and events for a window and an updater."""
    n = event.value["n"]
    if n == 7:
        raise ValueError("seven")
    ctx.emit({"user": event.value["user"], "n": n}, ts=event.ts - timedelta(seconds=n % 4))
    ctx.emit({"user": "ahead", "n": n}, ts=event.ts + timedelta(seconds=n))
    if n % 3 == 0:
        ctx.publish("thirds", event.value["user"], n)
        ctx.publish("ahead", "all", n, ts=event.ts + timedelta(seconds=n + 1))
    return {"user": "same", "n": n} if n % 2 else None


def total(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
    slate["seen"] = [*slate.get("seen", []), event.value]
    return {"user": event.key, "n": len(slate["seen"])}


def scattered() -> ms.Flow:
    flow = ms.Flow("process")
    out = source(flow, lateness="3s").process(scatter, behind="3s")
    windows = out.key_by("user").window(ms.sliding("10s", "5s")).agg(n=ms.sum("n"), c=ms.count())
    windows.sink(ms.Memory(), name="windows")
    windows.late().sink(ms.Memory(), name="late")
    thirds, ahead = flow.stream("thirds"), flow.stream("ahead")
    thirds.key_by("key").union(ahead.key_by("key")).update(total).sink(ms.Memory(), name="updates")
    ahead.select("key").key_by("key").window(ms.tumbling("10s")).agg(c=ms.count()).sink(
        ms.Memory(), name="published"
    )
    return flow


@pytest.mark.parametrize("seed", variants(range(6), 2))
def test_it_agrees_with_the_reference_whatever_the_batches(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        {"ts": one + rng.randint(0, 3), "user": rng.choice("ab"), "n": rng.randint(0, 9)}
        for one in range(40)
    ]
    flow = scattered()
    cuts = sorted(rng.sample(range(1, 40), rng.randint(0, 6)))
    pieces = list(zip([0, *cuts], [*cuts, 40], strict=True))
    want = reference(flow, batches=[{"in": rows[low:high]} for low, high in pieces])
    assert ordered(want["windows"]) == ordered(reference(flow, {"in": rows})["windows"])
    with Driver(flow, parallelism=rng.choice([1, 3])) as driver:
        for low, high in pieces:
            driver.push("in", rows[low:high]).step()
            if rng.random() < 0.2:
                driver.restart()
        driver.end()
        for sink in ("windows", "late", "published", "updates"):
            assert ordered(driver.output(sink)) == ordered(want[sink]), sink
        assert driver.slates("total") == want.slates["total"]


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    plain = [
        {name: str(v) if isinstance(v, datetime) else v for name, v in row.items()} for row in rows
    ]
    return sorted(map(repr, plain))


def test_it_runs_over_files(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("ts,user,n\n1,a,1\n2,b,2\n")
    flow = ms.Flow("process")
    rows = ms.Memory()
    flow.source(ms.Files(tmp_path / "in.csv", time="ts")).process(
        lambda event, ctx: {"from": event.stream, "n": event.value["n"]}
    ).sink(rows)
    run_in_process(flow, tmp_path / "ck")
    assert rows.rows == [{"from": "files", "n": 1}, {"from": "files", "n": 2}]


def test_records_of_one_late_event_keep_their_own_times() -> None:
    """An updater sees when each happened: one is late, as its cause was, the other is not."""

    def both(event: Any, ctx: Any) -> None:
        for after in (0, 1, 20):
            record = {"k": "a", "id": event.value["id"], "after": after}
            ctx.emit(record, ts=event.ts + timedelta(seconds=after))

    def told(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"after": event.value["after"], "second": (event.ts - begin).total_seconds()}

    begin = datetime(2024, 1, 1, tzinfo=UTC)
    found = []
    for cut in (1, 2):  # all in one batch, or each in its own
        flow = ms.Flow("siblings")
        schema = "ts timestamp, id bigint"
        source = ms.Generator(list, schema=schema, time="ts", lateness="0s")
        events = flow.source(source, name="in").process(both)
        events.where("id = 1").key_by("k").update(told, name="up").sink(ms.Memory(), name="out")
        rows = [{"ts": begin + timedelta(seconds=at), "id": id} for id, at in enumerate((30, 15))]
        with Driver(flow) as driver:
            for start in range(0, 2, cut):
                driver.push("in", rows[start : start + cut]).step()
            driver.end()
            found.append(sorted((row["after"], row["second"]) for row in driver.output("out")))
            assert driver.ledger["up"]["late"] == 2
    assert found == [[(0, 15.0), (1, 16.0), (20, 35.0)]] * 2

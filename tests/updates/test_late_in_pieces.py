"""When a late event is applied does not depend on who read the event that it is late by."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import millstream as ms
from millstream.run.sources.files import tracker as files
from millstream.testing import Driver, run_in_process
from tests.deployments.running import read

LATENESS = 5
Times = list[int]  # of the records of one file


def order_of(times: Times) -> list[int]:
    """The records by when they count: at their time, or where their file was if that is later."""
    due = [max([at, *(t - LATENESS for t in times[:i])]) for i, at in enumerate(times)]
    return sorted(range(len(times)), key=lambda i: (due[i], i))


def remember(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["ids"] = [*slate.get("ids", []), event.value["id"]]
    return {"ids": slate["ids"]}


def applied(place: Path, times: Times, **options: Any) -> list[int]:
    place.mkdir()
    lines = [f"{1_700_000_000 + at},{i},k" for i, at in enumerate(times)]
    (place / "in.csv").write_text("ts,id,key\n" + "\n".join(lines) + "\n")
    flow = ms.Flow("late")
    source = flow.source(ms.Files(place / "in.csv", time="ts", lateness=f"{LATENESS}s"), name="in")
    source.key_by("key").update(remember, name="up").sink(ms.Jsonl(place / "out"))
    with patch.object(files, "_LEAST_ROWS", 1):  # tasks share even the smallest file
        run_in_process(flow, place / "ck", **options)
    ids: list[int] = max((row["ids"] for row in read(place / "out")), key=len)
    return ids


def test_late_events_are_applied_in_one_order_whatever_the_tasks(tmp_path: Path) -> None:
    random = Random(7)
    for case in range(3):
        times = [at - random.choice((0, 0, 4, 5, 6, 20)) for at in range(40, 64)]
        options = {"parallelism": random.randint(2, 4), "batch_rows": random.choice((6, 12, 500))}
        assert applied(tmp_path / str(case), times, **options) == order_of(times), (times, options)


def test_a_late_event_has_its_own_time_also_if_it_goes_round_with_a_later_batch() -> None:
    def noted(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["times"] = [*slate.get("times", []), event.ts.timestamp()]
        if event.value["left"]:
            ctx.publish("again", event.key, {"left": event.value["left"] - 1})

    def times(**options: Any) -> dict[str, Any]:
        flow = ms.Flow("round")
        spec = ms.Generator(tuple, time="ts", lateness="0s", schema="ts bigint, k string, left int")
        once, again = flow.source(spec, name="in").key_by("k"), flow.stream("again").key_by("key")
        once.union(again).update(noted, name="up", order="arrival")
        with Driver(flow, **options) as driver:
            rows = [(10, "a"), (30, "b"), (4, "c"), (31, "a"), (12, "c"), (33, "b")]
            driver.push("in", [{"ts": at, "k": k, "left": 1} for at, k in rows]).step()
            driver.end()
            return driver.slates("up")

    found = times(cycle_events=1)
    assert found == times()
    own = [at for at in found["c"]["times"] if at == int(at)]
    assert own == [4, 12]

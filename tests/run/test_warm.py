"""State that stays warm between batches: read from memory, and the same answers as without."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import ConfigError
from millstream.operators.batch import Batch
from millstream.run.batches import warming
from millstream.run.batches.warming import keep_warm
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit, Item
from millstream.settings import Settings
from millstream.state import memory, segments
from millstream.state.directory import Directory
from millstream.state.warm import Warm
from millstream.testing import Driver

SINKS = ("updates", "sums", "tops", "groups", "pairs")
Rows = list[dict[str, Any]]


def remember(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
    slate["n"] = slate.get("n", 0) + 1
    slate["values"] = [*slate.get("values", [])[-3:], event.value["v"]]
    if slate["n"] % 3 == 0:
        ctx.timer(after="2s")
    return {"k": event.key, "n": slate["n"], "sum": sum(slate["values"])}


def fired(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
    slate["timers"] = slate.get("timers", 0) + 1
    return {"k": event.key, "n": -slate["timers"], "sum": 0}


def flow() -> ms.Flow:
    """An updater with timers, windows by running values and by stacks, a group, a join."""
    flow = ms.Flow("warm")
    schema = "ts double, k string, v int"
    source = ms.Generator(tuple, time="ts", time_unit="s", lateness="1s", schema=schema)
    events = flow.source(source, name="events")
    keyed = events.key_by("k")
    keyed.update(remember, on_timer=fired, name="slates").sink(ms.Memory(), name="updates")
    second = keyed.window(ms.sliding("6s", "1s"))
    second.agg(n=ms.count(), s=ms.sum("v")).sink(ms.Memory(), name="sums")
    keyed.window(ms.sliding("8s", "1s")).agg(top=ms.max("v")).sink(ms.Memory(), name="tops")
    keyed.agg(emit="delta", n=ms.count(), w=ms.min("v")).sink(ms.Memory(), name="groups")
    few = events.where("v < 4").select("k", "v")
    few.join(events.where("v > 96").select("k", "v"), on="k").sink(ms.Memory(), name="pairs")
    return flow


def batches(seed: int, count: int) -> list[Rows]:
    rng = random.Random(seed)
    return [
        [
            {"ts": 1_700_000_000 + at + rng.random(), "k": f"k{rng.randrange(9)}", "v": v}
            for v in (rng.randrange(100) for _ in range(rng.randrange(1, 30)))
        ]
        for at in range(count)
    ]


def answers(driver: Driver) -> dict[str, Any]:
    driver.end()
    found: dict[str, Any] = {sink: sorted(map(str, driver.output(sink))) for sink in SINKS}
    return found | {"slates": driver.slates("slates"), "ledger": driver.ledger}


def cold(pushed: list[Rows]) -> dict[str, Any]:
    with Driver(flow(), now=0.0, warm=0) as driver:
        for rows in pushed:
            driver.push("events", rows).step()
        return answers(driver)


class Repeating(InProcess):
    """Runs some batches twice: as an attempt that is thrown away, and one that comes too late."""

    before: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        if batch.number in self.before:
            super().run(batch, parts)
        items = super().run(batch, parts)
        if batch.number in self.after:
            super().run(batch, parts)
        return items


def test_a_steady_batch_reads_nothing_from_the_checkpoint() -> None:
    with Driver(flow(), parallelism=2, now=0.0) as driver:
        moved = []
        for rows in batches(1, 12):
            driver.push("events", rows).step()
            moved.append(driver.engine.moved)
        assert sum(one.read for one in moved) == 0
        assert all(one.warm and one.written for one in moved[3:])
        assert driver.engine.keep_warm().held() > 0
    assert driver.engine.keep_warm().held() == 0


def test_without_it_every_batch_reads_what_the_one_before_wrote() -> None:
    with Driver(flow(), parallelism=2, now=0.0, warm=0) as driver:
        moved = []
        for rows in batches(1, 12):
            driver.push("events", rows).step()
            moved.append(driver.engine.moved)
        assert all(one.read and not one.warm for one in moved[1:])
        assert driver.engine.keep_warm().held() == 0


CHANGES = st.lists(
    st.sampled_from(["", "moves", "evicted", "worker", "restart", "early", "late"]),
    min_size=8,
    max_size=8,
)


@settings(max_examples=2)
@given(seed=st.integers(0, 2**16), changes=CHANGES, parallelism=st.integers(1, 3))
def test_answers_do_not_depend_on_what_is_warm(
    seed: int, changes: list[str], parallelism: int
) -> None:
    pushed = batches(seed, len(changes))
    with Driver(flow(), parallelism=parallelism, now=0.0) as driver:
        for number, (rows, change) in enumerate(zip(pushed, changes, strict=True)):
            match change:
                case "moves":  # shards go to other tasks
                    driver.engine.pace.parallelism = parallelism % 3 + 1
                case "evicted":
                    driver.engine.keep_warm().committed(())
                case "worker":  # another process takes over
                    segments._open.cache_clear()
                case "restart":
                    driver.restart()
            executor = Repeating(driver.engine.plan, 2)
            batch = frozenset({driver.engine.manifest.batch + 1})
            executor.before = batch if change == "early" else frozenset()
            executor.after = batch if change == "late" else frozenset()
            driver.push("events", rows)
            assert driver.engine.step(executor), number
        found = answers(driver)
    assert found == cold(pushed)


@pytest.mark.spark
def test_workers_of_spark_share_what_is_warm(tmp_path: Path, spark: Any) -> None:
    """Whichever worker gets which shard, also slates that are not flushed."""
    rows = [
        [{"ts": 10 * number + i / 100, "k": f"k{i % 40}", "v": i % 100} for i in range(400)]
        for number in range(5)
    ]
    for number, some in enumerate(rows):
        pq.write_table(pa.Table.from_pylist(some), tmp_path / f"{number}.parquet")
    flow = ms.Flow("shared")
    source = ms.Files(
        tmp_path / "*.parquet", time="ts", time_unit="s", lateness="0s", max_files_per_batch=1
    )
    keyed = flow.source(source, name="events").key_by("k")
    keyed.update(remember, on_timer=fired, name="slates", flush="1h").sink(ms.Memory(), name="out")
    keyed.window(ms.sliding("6s", "2s")).agg(n=ms.count()).sink(ms.Memory(), name="sums")
    seen: dict[int, Any] = {}
    flow.run(tmp_path / "ck", parallelism=2, on_progress=lambda p: seen.setdefault(p.batch, p))
    assert len(seen) >= 5
    assert [one.state_read for one in seen.values()] == [0] * len(seen)
    assert all(one.state_warm for number, one in seen.items() if number)
    found = {key: slate["n"] for key, slate in ms.slates(tmp_path / "ck", "slates")}
    assert found == {f"k{i}": 50 for i in range(40)}


# -- names ----------------------------------------------------------------------------------------


def unsure(counter: Any) -> Any:
    """A function that gives something else whenever it is called, as one with a clock does."""

    def step(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["calls"] = [*slate.get("calls", []), next(counter)]

    return step


def keep_one_of_two_attempts() -> tuple[list[int], list[int]]:
    """What the committed attempt wrote, and what a later batch found, with one that came late."""
    counter = itertools.count()
    flow = ms.Flow("names")
    source = ms.Generator(tuple, time="ts", time_unit="s", lateness="0s")
    flow.source(source, name="in").key_by("k").update(
        unsure(counter), name="slates", order="arrival"
    )
    with Driver(flow, now=0.0) as driver:
        executor = Repeating(driver.engine.plan)
        executor.before = executor.after = frozenset({0})
        driver.push("in", [{"ts": 1.0, "k": "a"}])
        driver.engine.step(executor)
        segments._open.cache_clear()
        driver.push("in", [{"ts": 2.0, "k": "a"}]).step()
        (calls,) = (slate["calls"] for slate in driver.slates("slates").values())
        return [1], calls[:1]


def test_only_the_attempt_that_was_committed_is_found() -> None:
    committed, found = keep_one_of_two_attempts()
    assert found == committed


def test_names_without_the_attempt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: it does if warm segments are known by batch and task alone."""
    keep, find = Warm.keep, Warm.find

    def short(name: str) -> str:
        return name.rpartition("-")[0]

    monkeypatch.setattr(Warm, "keep", lambda self, name, data: keep(self, short(name), data))
    monkeypatch.setattr(Warm, "find", lambda self, name, size: find(self, short(name), size))
    monkeypatch.setattr(Warm, "prune", lambda self, *named: None)
    committed, found = keep_one_of_two_attempts()
    assert found != committed


# -- settings -------------------------------------------------------------------------------------


def test_spark_keeps_blocks_in_memory_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_MEMORY", str(tmp_path))
    state = Directory(str(tmp_path / "state"))

    monkeypatch.setattr(memory, "_PEOPLE", 2**31)

    def scratch(free: int, **options: Any) -> bool:
        monkeypatch.setattr(warming, "room", lambda place: free)
        chosen = Settings(parallelism=2, batch_bytes=2**20, **options)
        warmth = keep_warm(state, chosen)
        try:
            return warmth.scratch(chosen) is not None
        finally:
            warmth.close()

    assert scratch(2**24) and scratch(2**24, warm=0)
    assert not scratch(2**24 - 1)
    assert scratch(2**24 - 1, scratch="memory")
    assert not scratch(2**40, scratch="disk")
    assert not scratch(2**40, master="spark://there:7077")
    monkeypatch.setattr(memory, "_PEOPLE", 0)
    monkeypatch.setattr(memory, "_SYSTEMD", tmp_path)  # it empties what lies in memory
    assert not scratch(2**40)
    assert scratch(2**40, scratch="memory")
    with pytest.raises(ConfigError, match="scratch"):
        scratch(2**40, scratch="memory", master="spark://there:7077")


def test_settings_say_what_they_expect() -> None:
    with pytest.raises(ConfigError, match="warm: 'much': expected a size"):
        Settings(warm="much")
    with pytest.raises(ConfigError, match=r'scratch=.* use "memory" or "disk"'):
        Settings(scratch="tape")

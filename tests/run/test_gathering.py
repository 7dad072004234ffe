"""Many partitions: what tasks tell each other is put together once, and each gets its own state."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import millstream as ms
from millstream.operators.batch import Batch, Heard
from millstream.run.batches import batching
from millstream.run.tasks.executors import InProcess, Reading, gathered, shared_out
from millstream.run.tasks.splits import AnySplit, Item
from millstream.run.tasks.task import Task
from millstream.state import checkpoint as checkpoints
from millstream.state.pages import unpack
from millstream.testing import Driver

RECORDS = [
    {"ts": 100.0 + n / 10, "who": f"w{n % 7}", "key": f"k{n % 13}", "value": n} for n in range(400)
]


def flow() -> ms.Flow:
    """Two levels, each with state, and participants that hold time back."""
    made = ms.Flow("many")
    source = ms.Files("nowhere", time="ts", lateness="1s", participant="who", follow=True)
    counted = made.source(source, name="in").key_by("key").window(ms.sliding("10s", "5s"))
    counts = counted.agg(n=ms.count(), most=ms.max("value"))
    counts.sink(ms.Memory(), name="counts")
    counts.key_by("n").window(ms.tumbling("20s")).agg(m=ms.count()).sink(ms.Memory(), name="twice")
    return made


def outputs(parallelism: int) -> list[list[str]]:
    """What every batch gave to each sink, in an order of its own."""
    seen: list[list[str]] = []
    with Driver(flow(), parallelism=parallelism, now=200.0) as driver:
        for at in range(0, len(RECORDS), 100):
            for piece in range(at, at + 100, 20):
                driver.push("in", RECORDS[piece : piece + 20])
            driver.step()
            seen.append(sorted(map(str, driver.output("counts") + driver.output("twice"))))
        driver.end()
        seen.append(sorted(map(str, driver.output("counts") + driver.output("twice"))))
    return seen


@pytest.mark.parametrize("parallelism", [2, 5])
def test_gathered_gives_the_same_in_every_batch(
    monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    alone = outputs(1)
    assert len(alone[-1]) > 50
    monkeypatch.setattr(batching, "GATHERED", 1)
    assert outputs(parallelism) == alone


def test_many_partitions_gather_by_themselves() -> None:
    assert outputs(batching.GATHERED + 1) == outputs(1)


def test_how_far_participants_are_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the progress of the batch as it is by now, not there and in what was heard."""
    monkeypatch.setattr(batching, "GATHERED", 1)
    told: list[dict[str, int]] = []

    class Looking(InProcess):
        def _keyed(self, batch: Batch, level: int, part: int, items: Any, heard: Any) -> Any:
            assert heard.reached == {}
            told.append(batch.progress["in"].latest)
            return super()._keyed(batch, level, part, items, heard)

    with Driver(flow(), parallelism=2, now=200.0) as driver:
        driver._executor = Looking(driver.engine.plan, 2)
        driver.push("in", RECORDS[:100]).push("in", RECORDS[100:200]).step()
    latest = {row["who"]: int(row["ts"] * 1e6) for row in RECORDS[:200]}
    assert len(told) >= 4  # two partitions of two levels, perhaps again
    assert all(one == latest for one in told)


def test_a_task_is_sent_what_lies_in_its_own_shards() -> None:
    sent: list[Reading] = []

    class Looking(InProcess):
        def _ingest(self, batch: Batch, task: Reading) -> Any:
            assert not batch.segments
            assert not batch.files
            sent.append(task)
            return super()._ingest(batch, task)

    with Driver(flow(), parallelism=3, now=200.0, shards=12) as driver:
        driver._executor = Looking(driver.engine.plan, 3)
        for at in (0, 200):
            sent.clear()
            driver.push("in", RECORDS[at : at + 100]).push("in", RECORDS[at + 100 : at + 200])
            before = driver.engine.manifest
            driver.step()
    stored = [item for task in sent for item in task.stored]
    found: list[tuple[int, int, str]] = []
    for part, tag, level, payload in stored:
        assert tag == "stored"
        segments, files = unpack(payload)
        for tables in segments.values():
            for shards in tables.values():
                assert all(int(shard) % 3 == part for shard in shards)
                assert all(one.file in files for several in shards.values() for one in several)
                found += [(part, int(level), one.file) for s in shards.values() for one in s]
    assert len({part for part, _, _ in found}) == 3
    assert {file for _, _, file in found} == set(before.files)


def many_slates() -> ms.Flow:
    made = ms.Flow("slates")
    source = made.source(ms.Files("nowhere", time="ts", follow=True), name="in")
    source.key_by("key").update(add, name="sums", order="arrival").sink(ms.Memory())
    return made


def add(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + event.value["value"]
    return {"key": event.key, **slate}


@pytest.mark.parametrize("parallelism", [2, 20, 1])
def test_with_much_stored_a_task_is_sent_only_what_has_changed_since(
    parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest it reads itself, in pages of its shards."""
    monkeypatch.setattr(checkpoints, "_worth_a_change", lambda change, manifest: True)
    weights: list[int] = []

    class Weighing(InProcess):
        def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
            bare, tasks = shared_out(self.plan, batch, parts)
            weights.append(len(pickle.dumps((bare, tasks))))
            return super().run(batch, parts)

    def run(many_files: int) -> list[str]:
        weights.clear()
        monkeypatch.setattr(checkpoints, "_MANY_FILES", many_files)
        with Driver(many_slates(), parallelism=parallelism, now=200.0, shards=300) as driver:
            rows = [{"ts": 1.0, "key": f"k{n}", "value": n} for n in range(900)]
            driver.push("in", rows).step()
            driver._executor = Weighing(driver.engine.plan, parallelism)
            for at in range(3):
                driver.push("in", rows[at : at + 2]).step()
            driver.restart()
            driver.push("in", rows[5:6]).step()
            driver.push("in", rows[5:6]).step()
            assert driver.slates("sums")["k899"] == {"n": 899}
            return sorted(map(repr, driver.output()))

    whole = (run(10_000), max(weights))
    assert run(1) == whole[0]
    assert max(weights) < whole[1] / 2


class LosesAnExecutor(InProcess):
    """What tasks said was gathered; then level 0 is run again, and some rows are of that."""

    def __init__(self, plan: Any, lost: set[int]) -> None:
        super().__init__(plan, 3)
        self.lost, self.runs = lost, 0

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        self.runs += 1
        if self.runs > 1:
            return super().run(batch, parts)
        bare, tasks = shared_out(self.plan, batch, parts)
        once, again = ([i for task in tasks for i in self._ingest(bare, task)] for _ in range(2))
        heard: Heard = gathered(item for item in once if item[0] == 3)
        items: list[Item] = []
        for number in range(3):
            mine = [i for i in (again if number in self.lost else once) if i[0] == number]
            items += Task(self.plan, bare, 1, number).keyed(mine, heard)
        return items


@pytest.mark.parametrize("lost", [{0}, {1}, {1, 2}, {0, 1, 2}])
def test_rows_of_another_attempt_than_was_heard_of_are_noticed(
    monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    monkeypatch.setattr(batching, "GATHERED", 1)
    made = ms.Flow("lost")
    stream = made.source(ms.Files("nowhere", time="ts"), name="in").key_by("key")
    stream.window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(made, parallelism=3, now=200.0) as driver:
        executor = driver._executor = LosesAnExecutor(driver.engine.plan, lost)
        driver.push("in", RECORDS[:200]).push("in", RECORDS[200:]).end()
        assert executor.runs >= 2
        assert driver.engine.manifest.batch == executor.runs - 2
        assert sum(row["n"] for row in driver.output()) == len(RECORDS)


@pytest.mark.spark
def test_gathered_on_spark(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    (tmp_path / "in").mkdir()
    for part in range(3):
        lines = [json.dumps(one) + "\n" for one in RECORDS[part::3]]
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines))

    def run(name: str, parallelism: int) -> list[Any]:
        made, memory = ms.Flow(name), ms.Memory()
        stream = made.source(ms.Files(tmp_path / "in", time="ts", time_unit="s"), name="in")
        counts = stream.key_by("key").window(ms.sliding("10s", "5s")).agg(n=ms.count())
        counts.key_by("n").window(ms.tumbling("20s")).agg(m=ms.count()).sink(memory)
        made.run(tmp_path / name, parallelism=parallelism, master="local[2]")
        return sorted(map(str, memory.rows))

    monkeypatch.setattr(batching, "GATHERED", 1)
    alone = run("alone", 1)
    assert len(alone) > 5
    assert run("gathered", 3) == alone

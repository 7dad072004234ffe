"""What flows read together is read once, and nobody can tell from the results."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.io import readers
from millstream.io.readers import Split
from millstream.operators.batch import Batch
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.files.listing import Seen
from millstream.run.sources.viewing import View, Views
from millstream.run.spark.carrying import Load, carried_task
from millstream.run.tasks import once
from millstream.run.tasks.once import reading_once
from millstream.run.tasks.splits import Item
from millstream.run.tasks.watching import Attempt
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process

HEAD = "ts,k,a,b\n"


def made(name: str, place: Path, column: str, **options: Any) -> ms.Flow:
    flow = ms.Flow(name)
    source = ms.Files(str(place / "in"), schema="ts timestamp, k string, a long, b long", time="ts")
    windows = flow.source(source, name="files").key_by("k").window(ms.tumbling("1m"))
    windows.agg(n=ms.count(), s=ms.sum(column)).sink(ms.Jsonl(str(place / "out" / name)))
    return flow


def rows(place: Path, name: str) -> list[str]:
    parts = (place / "out" / name).glob("part-*")
    return sorted(line for part in parts for line in part.read_text().splitlines())


class InOneTask:
    """Runs the batches of several engines in one task, as soon as all of them have one."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self.programs = {}
        for name, engine in engines.items():
            key = str(engine.checkpoint.path)  # plans are kept by it
            value = (key, cloudpickle.dumps(engine.plan))  # type: ignore[no-untyped-call]
            self.programs[name] = SimpleNamespace(value=value)
        self.barrier = threading.Barrier(len(engines), self._go, timeout=60)
        self.loads: dict[str, Load] = {}
        self.items: dict[str, list[Item]] = {}
        self.saved = 0

    def _go(self) -> None:
        for done in carried_task(self.programs, [list(self.loads.values())]):
            assert done.items is not None
            self.items[done.flow], self.saved = done.items, self.saved + done.saved
        self.loads.clear()

    def of(self, name: str) -> Any:
        """The executor of one."""

        def run(batch: Batch, parts: list[list[Any]]) -> list[Item]:
            splits = [split for part in parts for split in part]
            watch = Attempt(batch.checkpoint, "", 0, batch.function_timeout)
            self.loads[name] = Load(name, watch, batch, splits)
            self.barrier.wait()
            return self.items[name]

        def probe(step: str, look: Any, things: list[Any]) -> Any:
            return look(things)

        return SimpleNamespace(cores=1, run=run, probe=probe, waited=0.0)


def run_together(flows: list[ms.Flow], place: Path) -> InOneTask:
    views = Views(node.spec for flow in flows for node in flow.nodes if hasattr(node, "spec"))
    engines = {}
    for flow in flows:
        checkpoint = Checkpoint(place / "together" / flow.name)
        checkpoint.lock()
        settings = Settings(parallelism=1, batch_rows=100, dead_letter_limit=1.0)
        engine = Engine(plan_flow(flow), checkpoint, settings, trackers=views.make_tracker)
        engine.open(1)
        engines[flow.name] = engine
    task = InOneTask(engines)

    def work(name: str, engine: Engine) -> None:
        while not engine.done:
            engine.step(task.of(name))
        engine.close()

    threads = [threading.Thread(target=work, args=one) for one in engines.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(engine.done for engine in engines.values())
    task.items = {}
    return task


@pytest.mark.parametrize("bad", [0, 3], ids=["all good", "some bad"])
def test_together_gives_what_each_gives_alone(
    bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a value that only one flow reads, only that one makes a dead letter."""
    dice = random.Random(bad)
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = [
            f"2026-01-01T00:{number}{i // 60}:{i % 60:02d}Z,{dice.choice('xyz')},{i},{i * 2}\n"
            for i in range(150)
        ]
        for at in dice.sample(range(150), bad if number == 1 else 0):
            lines[at] = f"2026-01-01T00:{number}0:00Z,x,1,no number\n"
        (tmp_path / "in" / f"{number}.csv").write_text(HEAD + "".join(lines))
    alone = {}
    for name, column in (("one", "a"), ("two", "b"), ("three", "a")):
        books = run_in_process(
            made(name, tmp_path, column), tmp_path / "alone" / name, dead_letter_limit=1.0
        )
        assert books["files"]["dead"] == (bad if column == "b" else 0)
        alone[name] = rows(tmp_path, name)
        (tmp_path / "out" / name).rename(tmp_path / f"alone-{name}")
    read: list[Split] = []

    def counted(fmt: Any, split: Split, *more: Any) -> Any:
        read.append(split)
        return readers.read_split(fmt, split, *more)

    monkeypatch.setattr(once, "read_split", counted)
    flows = [made("one", tmp_path, "a"), made("two", tmp_path, "b"), made("three", tmp_path, "a")]
    task = run_together(flows, tmp_path)
    for name, expected in alone.items():
        assert rows(tmp_path, name) == expected
    pieces = [(split.path, split.start, split.end) for split in read]
    if bad:
        assert len(pieces) > len(set(pieces))  # where something is wrong, each reads by itself
    else:
        assert len(pieces) == len(set(pieces)) and task.saved == 2 * 450


def test_one_look_serves_all_who_ask_within_a_moment(tmp_path: Path) -> None:
    clock = [0.0]
    view = View(ms.Files(str(tmp_path), follow=True), lambda: clock[0])

    def names(seen: list[Seen]) -> list[str]:
        return [Path(one.path).name for one in seen]

    (tmp_path / "a.csv").write_text("x\n1\n")
    assert names(view()) == ["a.csv"]
    (tmp_path / "b.csv").write_text("x\n1\n")
    clock[0] = 0.04
    assert names(view()) == ["a.csv"]
    clock[0] = 0.06
    assert names(view()) == ["a.csv", "b.csv"]


def test_only_equal_ways_of_reading_share(tmp_path: Path) -> None:
    """Another delimiter or schema is another reading."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(HEAD + "2026-01-01T00:00:00Z,x,1,2\n")
    fmt = plan_flow(made("one", tmp_path, "a")).formats["files"]
    other = plan_flow(made("two", tmp_path, "b")).formats["files"]
    split = Split(0, 0, str(tmp_path / "in" / "a.csv"), 0, len(HEAD) + 26)
    with reading_once([(fmt, split), (replace(fmt, time=None), split)]) as shared:
        assert not shared._shared
    with reading_once([(fmt, split), (other, replace(split, source=3, file=7))]) as shared:
        (first,) = shared.read(fmt, split)
        (second,) = shared.read(other, split)
        assert first.table.column_names == list(fmt.delivered.names)
        assert second.table.column_names == list(other.delivered.names)
        assert shared.saved == 1

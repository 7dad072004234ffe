"""Logs that are rotated at any moment, also in the middle of a look at them.

What `logrotate` does is cut into single operations (a write, a rename, a copy, a truncation …), and
the next one happens wherever the engine is about to touch a file: no luck of threads is needed.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import millstream as ms
from millstream.io import prints
from millstream.run.batches import engine
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.files import extents, listing, merging, recognising
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint


class World:
    """A log, and the one who writes and rotates it, one operation at a time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = folder / "app.csv"
        self.count = 0
        self.often = self.random.choice([0.0, 0.02, 0.1])  # how often something happens in a look
        self.going = False
        self._steps = self._life(self.random.randrange(3, 9))

    def _life(self, turns: int) -> Iterator[None]:
        for _ in range(turns):
            for _ in range(self.random.randrange(1, 5)):
                self.write(self.random.randrange(1, 60))
                yield
            yield from self._rotate(self.random.choice(["rename", "compress", "copytruncate"]))

    def write(self, rows: int) -> None:
        there = self.log.exists() and self.log.stat().st_size
        with open(self.log, "a") as out:
            new = range(self.count, self.count + rows)
            out.write(("" if there else "ts,n\n") + "".join(f"{n},{n}\n" for n in new))
        self.count += rows

    def _rotate(self, how: str) -> Iterator[None]:
        folder, first = self.log.parent, Path(f"{self.log}.1")
        for old in sorted(folder.glob("app.csv.*"), key=lambda p: -int(p.name.split(".")[2])):
            number = int(old.name.split(".")[2])
            old.rename(folder / old.name.replace(f".{number}", f".{number + 1}"))
            yield
        if how == "copytruncate":
            shutil.copy(self.log, first)
            yield
            os.truncate(self.log, 0)
            yield
            return
        self.log.rename(first)
        yield
        if how == "compress":
            with open(first, "rb") as source, gzip.open(f"{first}.gz", "wb") as out:
                shutil.copyfileobj(source, out)
            yield
            first.unlink()
            yield

    def move(self) -> bool:
        """Let the next thing happen; False if there is none."""
        return next(self._steps, self) is None

    def perhaps(self) -> None:
        """The same in the middle of a look."""
        if self.going and self.random.random() < self.often:
            self.move()


def disturb(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Let things happen wherever a look touches a file."""

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def disturbed(*args: Any, **options: Any) -> Any:
            world.perhaps()
            return call(*args, **options)

        return disturbed

    @contextmanager
    def open_known(*args: Any) -> Iterator[BinaryIO]:
        world.perhaps()
        opened: AbstractContextManager[BinaryIO] = prints.open_known(*args)
        with opened as stream:
            world.perhaps()
            yield stream

    for module in (listing, recognising, merging):
        monkeypatch.setattr(module, "look", before(listing.look))
    monkeypatch.setattr(recognising, "look_around", before(listing.look_around))
    monkeypatch.setattr(recognising, "lead_of", before(prints.lead_of))
    monkeypatch.setattr(extents, "last_line_end", before(extents.last_line_end))
    monkeypatch.setattr(recognising, "open_known", open_known)
    monkeypatch.setattr(prints, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(engine, "_LOOKS", (0.0,) * 6)


class Running:
    """A flow that follows the log, in process, one look at a time."""

    def __init__(self, tmp: Path) -> None:
        flow = ms.Flow("rotation")
        options: dict[str, Any] = {"schema": "ts bigint, n bigint", "time": "ts", "lateness": "2s"}
        source = ms.Files(tmp / "in", format="csv", follow=True, **options)
        flow.source(source, name="in").sink(ms.Jsonl(tmp / "rows"))
        plan, checkpoint = plan_flow(flow), Checkpoint(tmp / "ck")
        checkpoint.lock()
        self.engine, self.executor = Engine(plan, checkpoint, Settings()), InProcess(plan)
        self.engine.open(1)

    def step(self) -> bool:
        for tracker in self.engine.trackers.values():
            tracker._next_look = 0.0  # type: ignore[attr-defined]  # however long the last one took
        return self.engine.step(self.executor)


def live(tmp: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp / "in").mkdir()
    world = World(tmp / "in", seed)
    chance = world.random
    disturb(monkeypatch, world)
    hurry, restarts = chance.choice([0.3, 0.7, 1.0]), chance.choice([0.0, 0.02, 0.08])
    running = Running(tmp)
    while chance.random() > hurry or world.move():
        world.going = True
        what = chance.random()
        if what < 0.6:
            running.step()
        world.going = False
        if what > 1 - restarts:
            running.engine.close()
            running = Running(tmp)
    world.write(1)
    # A copy that is as new as its original may still become it: it is read after a while.
    monkeypatch.setattr(recognising.Recogniser, "COPYING", 0.0)
    for _ in range(8):
        running.step()
    running.engine.close()
    found = [
        json.loads(line)["n"]
        for p in (tmp / "rows").glob("part-*")
        for line in p.read_text().splitlines()
    ]
    assert sorted(found) == list(range(world.count)), f"seed {seed}"


@pytest.mark.parametrize("seed", [0, 11, 13, 44, 50, 63, 72, 1032])
def test_whenever_a_log_is_rotated_every_row_is_read_once(
    seed: int, disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(disk_path, seed, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2400))
def test_many_rotations(seed: int, disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(disk_path, seed, monkeypatch)

"""A flow on the real engine without Spark, killed here and there and started again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import millstream as ms
from millstream.run import faults
from millstream.run.batches import engine
from millstream.run.planning import plan_flow
from millstream.run.sources.files import tracker as files
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from tests.deployments.oracle import Row, Window

Kills = set[tuple[str, int]]  # crash point and batch
Ledger = dict[str, dict[str, int]]


class Killed(BaseException):
    """What `kill -9` is to a process."""


def build(place: Path, source: Any, window: Window | None) -> ms.Flow:
    """One window with four aggregates, or (without a window) a counting updater."""
    flow = ms.Flow("deployed")
    keyed = flow.source(source, name="in").key_by("key")
    if window is None:
        done = keyed.update(count, name="operator", late="divert")
    else:
        done = (
            keyed.window(_window(window))
            .agg(n=ms.count(), total=ms.sum("v"), low=ms.min("v"), last=ms.last("v"))
            .named("operator")
        )
    done.sink(ms.Jsonl(place / "out"), name="out")
    done.late().sink(ms.Jsonl(place / "late"), name="late")
    return flow


def count(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """An updater that tells what it knows after every event."""
    slate["n"] = slate.get("n", 0) + 1
    slate["total"] = slate.get("total", 0) + event.value["v"]
    return {"key": event.key, "n": slate["n"], "total": slate["total"], "id": event.value["id"]}


def _window(window: Window) -> Any:
    if window.gap:
        return ms.session(f"{window.gap}ms")
    return ms.sliding(f"{window.size}ms", f"{window.slide}ms")


class Running:
    """A flow that is stepped by hand; a kill drops the engine and makes another one."""

    def __init__(
        self, place: Path, make: Callable[[], ms.Flow], kills: Kills, **options: Any
    ) -> None:
        self.place, self.make, self.kills = place, make, set(kills)
        self.now, self.opened = time.time(), 0
        self.settings = Settings.from_options({"poll": 0.001, "dead_letter_limit": 1.0, **options})
        self._attempt(self._open)

    def step(self) -> bool:
        """One batch; whether there was something to do (a kill counts as that)."""
        return bool(self._attempt(lambda: self.engine.step(self.executor)))

    def look(self) -> None:
        """One batch after a look at the input, however short ago the last one was."""
        for tracker in self.engine.trackers.values():
            tracker._next_look = 0.0  # type: ignore[attr-defined]
        self.step()

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until it is so and nothing is left to do."""
        deadline = time.monotonic() + 60
        while True:
            busy = self.step()
            if not busy and condition():
                return
            assert time.monotonic() < deadline, f"it did not happen: {self.ledger}"
            if not busy:
                time.sleep(0.002)

    def to_the_end(self) -> None:
        """Step until the input has ended and everything has left."""
        self.until(lambda: self.engine.done)

    @property
    def read(self) -> int:
        """How many records were read."""
        return self.ledger.get("operator", {}).get("offered", 0)

    @property
    def ledger(self) -> Ledger:
        """Where every record went, as of the last commit."""
        return self.engine.manifest.ledger

    def close(self) -> None:
        """End it in good order."""
        self.engine.close()

    def _open(self) -> None:
        plan = plan_flow(self.make(), self.place / "ck")
        self.checkpoint = Checkpoint(self.place / "ck")
        self.checkpoint.lock()
        self.opened += 1
        self.engine = engine.Engine(plan, self.checkpoint, self.settings, clock=lambda: self.now)
        self.executor = InProcess(plan, self.settings.parallelism or 1)
        self.engine.open(self.executor.cores)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        with (
            patch.object(faults, "crash_point", self._crash),
            patch.object(files, "_LEAST_ROWS", 1),  # tasks share even the smallest file
            patch("os.fsync"),  # nobody pulls the plug here
        ):
            try:
                return action()
            except Killed:
                self.engine.close()  # lets go of locks and threads, as death does
                return self._attempt(self._open) or True

    def _crash(self, point: str, batch: int) -> None:
        if (point, batch) in self.kills:
            self.kills.discard((point, batch))
            raise Killed(f"{point}:{batch}")


def read(path: Path) -> list[dict[str, Any]]:
    """All rows a sink has published."""
    parts = sorted(path.glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]


def results(rows: list[dict[str, Any]], window: Window | None) -> list[Row]:
    """What the operator gave, as the oracle's rows."""
    if window is None:
        return sorted((row["key"], row["n"], row["total"], row["id"]) for row in rows)
    return sorted(
        (
            row["key"],
            _millis(row["window_start"]),
            _millis(row["window_end"]),
            *(row[name] for name in ("n", "total", "low", "last")),
        )
        for row in rows
    )


def _millis(at: str | datetime) -> int:
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return round(moment.timestamp() * 1000)

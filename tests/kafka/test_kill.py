"""Killed, paused and cut off from its broker: every result is in the topic once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import prepared

APP = Path(__file__).with_name("app.py")
RECORDS, KEYS = 3000, 11
T0 = 1_700_000_000
POINTS = (
    "batch-planned",
    "tasks-done",
    "before-manifest",
    "after-manifest",
    "half-published",
    "published",
    "before-garbage",
)


class Running:
    """Input in three partitions, a topic for results, and the answer."""

    app = APP

    def __init__(self, topics: Any, place: Path, seed: int = 7) -> None:
        self.topics, self.place = topics, place
        place.mkdir(parents=True, exist_ok=True)
        self.env: dict[str, str] = {}
        self.read, self.written = topics.make(partitions=3), topics.make(partitions=2)
        dice = random.Random(seed)
        rows = [
            {"ts": T0 + n // 10 + dice.randrange(3), "k": f"k{dice.randrange(KEYS)}", "v": n}
            for n in range(RECORDS)
        ]
        for part in range(3):
            mine = [json.dumps(row).encode() for row in rows if row["v"] % 3 == part]
            topics.send(self.read, mine, part)
        sums: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in rows:
            sums[row["k"], row["ts"] // 20 * 20].append(row["v"])
        self.windows = Counter((k, at, len(v), sum(v)) for (k, at), v in sums.items())
        self.events = Counter((row["k"], row["v"]) for row in rows)
        much = Counter(row["k"] for row in rows)
        self.nths = Counter((k, nth) for k in much for nth in range(1, much[k] + 1))

    def run(self, checkpoint: str = "ck", **env: str) -> tuple[int, str]:
        """The app to its end: its exit code, and what it said."""
        given, known = self._given(checkpoint), {**os.environ, **self.env, **env}
        return prepared.run(str(self.app), *given, cwd=self.place, env=known)

    def _given(self, checkpoint: str) -> list[str]:
        return [self.topics.address, self.read, self.written, self._where(checkpoint)]

    def _where(self, checkpoint: str) -> str:
        return str(self.place / checkpoint)

    def start(self, checkpoint: str = "ck", **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.app), *self._given(checkpoint)],
            env={**os.environ, "PYTHONPATH": str(APP.parents[2] / "src"), **self.env, **env},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, checkpoint: str = "ck") -> None:
        """Run it to its end."""
        code, told = self.run(checkpoint)
        assert code == 0, told

    def check(self) -> None:
        """Exactly the answer, as those see it who read what is committed."""
        windows, events, nths = Counter[Any](), Counter[Any](), Counter[Any]()
        for one in self.topics.committed(self.written):
            row = json.loads(one.value())
            assert row["k"].encode() == one.key()
            if "nth" in row:
                events[row["k"], row["v"]] += 1
                nths[row["k"], row["nth"]] += 1
            else:
                at = row["window_start"].replace("Z", "+00:00")
                start = int(datetime.fromisoformat(at).timestamp())
                windows[row["k"], start, row["n"], row["total"]] += 1
        assert windows == self.windows
        assert (events, nths) == (self.events, self.nths)


def test_killed_in_every_place_of_a_commit(topics: Any, tmp_path: Path) -> None:
    running = Running(topics, tmp_path)
    for number, point in enumerate(("tasks-done", "after-manifest", "published")):
        code, told = running.run(MILLSTREAM_CRASH_AT=f"{point}:{number + 1}")
        assert code == -signal.SIGKILL, told
    running.finish()
    running.check()


def overtaken(running: Running, stop_at: str) -> None:
    """Pause a run, let another go on from a copy of its checkpoint to the end, and wake it."""
    zombie = running.start(MILLSTREAM_PAUSE_AT=stop_at)
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    shutil.copytree(running.place / "ck", running.place / "copy")
    running.finish("copy")
    os.kill(zombie.pid, signal.SIGCONT)
    _, told = zombie.communicate(timeout=300)
    assert "another run of this flow" in told, told
    running.check()


def test_a_paused_run_that_wakes_up_too_late_writes_nothing(topics: Any, tmp_path: Path) -> None:
    overtaken(Running(topics, tmp_path), "after-manifest:2")


def struck(
    running: Running,
    dice: random.Random,
    usual: float,
    point: str | None,
    trouble: Callable[[], None] | None,
) -> tuple[int, str]:
    """The exit code and the words of a run that is killed at a point, or else after a while.

    Trouble comes while it runs; `usual` is how many seconds it takes if nothing happens to it.
    """
    process = running.start(**({} if point is None else {"MILLSTREAM_CRASH_AT": point}))
    if trouble is not None:
        time.sleep(dice.uniform(0.5, usual))
        trouble()
    if point is None:
        try:
            process.wait(dice.uniform(0.5, usual))
        except subprocess.TimeoutExpired:
            process.kill()
    _, told = process.communicate(timeout=300)
    return process.returncode, told


def restart(broker: Any, dice: random.Random) -> None:
    """Kill the broker; it comes back soon."""
    broker.kill()
    time.sleep(dice.uniform(0, 1))
    broker.start()


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_zombies_at_every_point(topics: Any, tmp_path: Path, point: str) -> None:
    overtaken(Running(topics, tmp_path), f"{point}:2")


@pytest.mark.long
def test_random_kills_of_the_flow_and_of_the_broker(topics: Any, tmp_path: Path) -> None:
    """`KILLS` (60) runs are killed in all; every fifth time the broker goes down as well."""
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    dice, left, rounds = random.Random(seed), int(os.environ.get("KILLS", "60")), 0
    while left > 0:
        rounds += 1
        running = Running(topics, tmp_path / str(rounds), seed + rounds)
        usual = 4.0
        for _ in range(12):
            named = dice.random() < 0.5
            point = f"{dice.choice(POINTS)}:{dice.randrange(9)}" if named else None
            trouble = partial(restart, topics.broker, dice) if left % 5 == 0 else None
            begun = time.monotonic()
            code, told = struck(running, dice, usual, point, trouble)
            assert code in (0, -signal.SIGKILL), (seed, told)
            left -= code != 0
            if code == 0:
                usual = max(1.0, min(usual, time.monotonic() - begun))
                break
        running.finish()
        running.check()

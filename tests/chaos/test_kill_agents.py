"""A hundred kills of agents, relays and their collector: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import millstream as ms
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process
from tests.agent.centre import free_port
from tests.agent.test_agents import books, rows_in

ROOT = Path(__file__).parents[2]
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NAMES = [f"web-{n}" for n in range(4)]
RECORDS = 20_000  # of each agent: more than are read while there is no haste
EVERYBODY = [("collector",), ("relay", "relay-0"), ("relay", "relay-1")]
EVERYBODY += [("agent", name) for name in NAMES]


def write(place: Path, rng: random.Random) -> None:
    """A file per agent, a little jumbled; no two records of two agents at the same time."""
    for number, name in enumerate(NAMES):
        path = place / "in" / name / "0.json"
        path.parent.mkdir(parents=True)
        lines, at = [], 0
        for _ in range(RECORDS):
            at += rng.choice([10, 100, 300])
            micro = (at - rng.choice([0, 0, 500, 9_000])) * 1000 + number
            when = (NOON + timedelta(microseconds=micro)).isoformat()
            lines.append(json.dumps({"ts": when, "k": rng.choice("xyz"), "v": rng.randint(0, 9)}))
        path.write_text("\n".join(lines) + "\n")


class Tree:
    """All processes, each started again when it is gone."""

    def __init__(self, place: Path, trees: int) -> None:
        ports = " ".join(str(free_port()) for _ in range(3))
        told = {"PLACE": str(place), "PORTS": ports, "TREES": str(trees)}
        self.env = {**os.environ, **told, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        self.log = (place / "log").open("w")
        self.running = {one: self.start(one) for one in EVERYBODY}

    def start(self, one: tuple[str, ...]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.chaos.apps.agents", *one]
        return subprocess.Popen(command, env=self.env, cwd=ROOT, stderr=self.log, text=True)

    def kill(self, one: tuple[str, ...]) -> None:
        process = self.running[one]
        process.kill()
        process.wait()
        self.running[one] = self.start(one)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        self.log.close()


def run_killed(place: Path, kills: int, seed: int, trees: int) -> None:
    from tests.chaos.apps import agents as app

    rng = random.Random(seed)
    write(place, rng)
    tree = Tree(place, trees)
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.3, 3))
            assert not (place / "done").exists(), "it was read before all kills were done"
            tree.kill(rng.choice(EVERYBODY))
        (place / "hurry").touch()
        until = time.monotonic() + 600
        while not (place / "done").exists():
            assert time.monotonic() < until, (place / "log").read_text()[-3000:]
            time.sleep(0.2)
        (place / "end").touch()
        for process in tree.running.values():
            process.wait(100)
    finally:
        tree.end()
    central = ms.Flow("killed")
    app.results(
        central.source(app.files(place / "in" / "*" / "*.json"), name="in"), place / "central"
    )
    ledger = run_in_process(central, place / "checkpoint")
    assert rows_in(place / "out") == rows_in(place / "central"), seed
    manifest = Checkpoint(place / "collector", create=False).latest()
    assert manifest is not None
    assert books(manifest.ledger) == books(ledger), seed
    assert manifest.ledger["in"]["offered"] == RECORDS * len(NAMES)


@pytest.mark.long
@pytest.mark.parametrize("trees", [1, 2])
def test_a_hundred_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trees: int) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PORTS", "1 2 3")
    seed = int(os.environ.get("MILLSTREAM_SEED", "0")) or random.randrange(1_000_000)
    kills = int(os.environ.get("MILLSTREAM_KILLS", "100"))
    print(f"seed {seed}, {kills} kills")
    run_killed(tmp_path, kills, seed, trees)

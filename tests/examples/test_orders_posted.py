"""Orders over HTTP: every one is in a sum, once."""

from __future__ import annotations

import json
import runpy
import threading
import time
from pathlib import Path

import pytest

from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from tests.services import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders_posted.py"


def test_orders_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    example = runpy.run_path(str(EXAMPLE))
    now = int(time.time() * 1000)
    orders = [{"ts": now, "shop": f"s{n % 3}", "cents": n} for n in range(200)]
    last = {"ts": now + 120_000, "shop": "s0", "cents": 0}  # closes the minute of the others

    def send() -> None:
        assert example["post"]([json.dumps(one) for one in orders]) == 200
        assert example["post"]([json.dumps(last)]) == 1

    client = threading.Thread(target=send)
    client.start()  # before anybody listens
    plan = plan_flow(example["flow"])
    place = Checkpoint(tmp_path / "ck")
    place.lock()
    engine = Engine(plan, place, Settings.from_options({}))
    engine.open(1)
    rows: list[dict[str, object]] = []
    deadline = time.monotonic() + 100
    while len(rows) < 3 and time.monotonic() < deadline:
        engine.step(InProcess(plan, 1))
        files = (tmp_path / "out").glob("part-*") if (tmp_path / "out").exists() else ()
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        time.sleep(0.02)
    engine.close()
    client.join()
    assert {row["shop"]: (row["orders"], row["cents"]) for row in rows} == {
        f"s{n}": (len(range(n, 200, 3)), sum(range(n, 200, 3))) for n in range(3)
    }

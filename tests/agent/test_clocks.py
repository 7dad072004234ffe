"""An agent whose clock is two hours ahead costs nobody anything but itself."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.agent import agent as agents
from millstream.agent import clocks
from millstream.agent.agent import Agent
from millstream.run.sources.arrival import ArrivalClock
from tests.agent.centre import Centre, agent_of, free_port, relay_of

HOURS = 2 * 3600
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


class Ahead:
    """The module `time` as a machine sees it whose clock is wrong."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return time.time() + self.seconds

    def monotonic(self) -> float:
        return time.monotonic()


def step(agent: Agent, ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of an agent by the clock of its machine."""
    with monkeypatch.context() as patched:
        patched.setattr(clocks, "time", Ahead(ahead))
        patched.setattr("millstream.agent.working.time", Ahead(ahead))
        agent.step()


def write(place: Path, name: str, *seconds: float) -> None:
    path = place / "in" / name / "0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        for s in seconds:
            out.write(json.dumps({"ts": str(NOW + timedelta(seconds=s)), "k": "x"}) + "\n")


def flow_of(place: Path, port: int, name: str = "a", **options: Any) -> ms.Flow:
    flow = ms.Flow("clocks")
    schema = "ts timestamp, k string"
    options_of = {"time": "ts", "lateness": "0s", "follow": True, "idle_timeout": None}
    reads = ms.Files(place / "in" / name, schema=schema, **options_of)
    collector = {"agents": ["a", "b"], "boundary": "20ms", **options}
    stream = flow.source(ms.Collector(f"127.0.0.1:{port}", reads, **collector), name="in")
    windows = stream.key_by("k").window(ms.tumbling("1s"), fidelity=True)
    windows.agg(n=ms.count()).sink(ms.Jsonl(place / "out"))
    return flow


def rows(place: Path) -> list[dict[str, Any]]:
    files = sorted((place / "out").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("relayed", [False, True])
def test_a_clock_two_hours_ahead_moves_nothing_and_holds_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    relayed: bool,
) -> None:
    port = free_port()
    write(tmp_path, "a", -60, -50, -40)
    write(tmp_path, "b", HOURS - 60, HOURS - 50)  # stamped by the clock of b
    said: list[str] = []
    with Centre(flow_of(tmp_path, port), tmp_path / "collector") as centre:
        to, relays = port, []
        if relayed:
            to = free_port()
            flow = flow_of(tmp_path, port)
            relays = [relay_of(flow, port, to, "rack", tmp_path / "agents", 2)]
        good = agent_of(flow_of(tmp_path, port), to, "a", tmp_path / "agents", say=said.append)
        wrong = agent_of(flow_of(tmp_path, port, "b"), to, "b", tmp_path / "agents")
        wrong.say = said.append

        def go(ahead: float) -> None:
            for _ in range(25):
                good.step()
                step(wrong, ahead, monkeypatch)
                for one in relays:
                    one.step()
                centre.step()
                time.sleep(0.005)  # a boundary is said every 20 ms

        with caplog.at_level(logging.WARNING, "millstream.collector"):
            go(HOURS)
        said = [text for text in said if "clock" in text]  # a relay starts, too
        assert len(said) == 1
        assert "clock of this machine is 2h ahead of the collector's" in said[0]
        told = [one.message for one in caplog.records]
        assert len(told) == 1 and "agent 'b' is 2h ahead" in told[0] and "clock_skew=1m" in told[0]
        # Nobody waits for b, whose records are two hours away, and nothing of a is lost.
        assert [row["n"] for row in rows(tmp_path)] == [1, 1]
        assert {row["participants"] for row in rows(tmp_path)} == {"1/2"}
        assert centre.ledger["in"]["future"] == 2
        assert centre.ledger["agg"]["late"] == 0

        write(tmp_path, "b", -39, -20)  # the clock is right again: b takes part
        write(tmp_path, "a", -30, -10)
        go(0)
        assert [row["n"] for row in rows(tmp_path)] == [1, 1, 1, 1, 1]
        assert centre.ledger["agg"]["late"] == 0
        for agent in (good, wrong, *relays):
            agent.close()


def test_within_the_declared_limit_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    write(tmp_path, "a", HOURS - 60, HOURS)
    said: list[str] = []
    flow = flow_of(tmp_path, port, agents=["a"], clock_skew="3h")
    with Centre(flow, tmp_path / "collector") as centre:
        agent = agent_of(flow, port, "a", tmp_path / "agents", say=said.append)
        for _ in range(20):
            step(agent, HOURS, monkeypatch)
            centre.step()
            time.sleep(0.005)
        assert said == [] and centre.ledger["in"].get("future", 0) == 0
        assert [row["n"] for row in rows(tmp_path)] == [1]
        agent.close()


def test_a_clock_that_is_behind_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clocks.clock_of("1m")
    now = int(time.time() * 1e6)
    assert "2h behind the collector's" in (clock.compare(now + HOURS * 1_000_000) or "")
    assert clock.compare(now + HOURS * 1_000_000) is None
    assert not clock.wrong
    assert clock.compare(now) is None


@pytest.mark.parametrize("jump", [-HOURS, 0, HOURS])
def test_who_was_heard_of_lately_does_not_depend_on_a_clock_that_is_set(
    tmp_path: Path, jump: int
) -> None:
    """A relay says that of those below it: else all are gone at once, or nobody for hours."""
    wall, steady = time.time(), 1_000.0
    with Centre(flow_of(tmp_path, free_port()), tmp_path / "ck") as centre:
        messages = centre.engine.trackers["in"].messages  # type: ignore[attr-defined]
        messages.clock = ArrivalClock(lambda: wall, lambda: steady)
        messages.heard = {"gone": messages.clock.now() / 1e6}
        wall, steady = wall + 30 + jump, steady + 30
        messages.heard["here"] = messages.clock.now() / 1e6
        wall, steady = wall + 1, steady + 1
        assert messages.heard_within(3) == {"here"}

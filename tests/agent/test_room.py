"""An agent whose disk is full, whose messages grow too large, or whose collector is long away."""

from __future__ import annotations

import errno
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.agent.agent import Agent
from millstream.errors import RunError
from millstream.state.directory import Directory
from tests.agent.centre import NOON, Centre, agent_of, write
from tests.agent.test_refusals import flow_of, rows, until_done

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_full_disk_is_waited_for(place: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put, full, said = Directory.put, [True], list[str]()

    def refuse(self: Directory, name: str, data: bytes, **more: Any) -> None:
        if full and "/agents/a" in self.path:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        put(self, name, data, **more)

    with Centre(flow_of(place, port), place / "collector") as centre:
        one = agent_of(flow_of(place, port), port, "a", place / "agents", say=said.append)
        other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
        monkeypatch.setattr(Directory, "put", refuse)
        for _ in range(3):
            one.step()  # not even what the collector says can be kept
        full.clear()
        one.send(), full.append(True)
        for _ in range(3):
            one.step()
        assert one.outbox.last == -1
        assert sum("no space is left" in text for text in said) == 1
        full.clear()
        until_done(centre, one, other)
        assert [row["n"] for row in rows(place)] == [4, 4]
        one.close(), other.close()


def write_keys(place: Path, name: str, many: int) -> None:
    lines = [
        json.dumps({"ts": str(NOON + timedelta(seconds=n / 100)), "k": f"{name} {n * 7919 % 1000}"})
        for n in range(many)
    ]
    (place / "in" / name / "0.json").write_text("\n".join(lines) + "\n")


def test_what_makes_too_large_a_message_is_sent_in_several(
    place: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "largest", 3_500)
    write_keys(place, "a", 400)
    with Centre(flow_of(place, port), place / "collector") as centre:
        one, other = (agent_of(flow_of(place, port, n), port, n, place / "agents") for n in "ab")
        until_done(centre, one, other)
        assert one.outbox.last > 0
        assert centre.ledger["in"]["offered"] == 404
        assert sum(row["n"] for row in rows(place)) == 404
        one.close(), other.close()


def test_a_record_that_is_too_large_for_a_message_is_said(
    centre: Centre, place: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "largest", 100)
    one = agent_of(flow_of(place, port), port, "a", place / "agents")
    with pytest.raises(RunError, match="one record or file of 'in' makes a message of"):
        for _ in range(20):
            one.step()
    one.close()


@pytest.fixture
def centre(place: Path, port: int) -> Any:
    with Centre(flow_of(place, port), place / "collector") as one:
        yield one


def test_while_the_collector_is_away_little_is_gathered(place: Path, port: int) -> None:
    flow = flow_of(place, port, follow=True, boundary="1h")
    with Centre(flow, place / "collector") as centre:
        one = agent_of(flow, port, "a", place / "agents")
        one.step(), one.step()
        made = one.outbox.last
        centre.engine.trackers["in"].close()
        one.collector.close()
        for second in range(20, 30):
            write(place, "a", second)
            one.step()
        assert one.outbox.last <= made + 1
        one.close()

"""Who is there below a relay is known at the root, and what is said of it is only what changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.agent import agent as agents
from millstream.agent.relay import below_now
from millstream.agent.sending import Connection
from millstream.run.messages.greetings import Below
from tests.agent.centre import Centre, agent_of, free_port, relay_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


def test_a_relay_tells_all_once_and_then_what_has_changed() -> None:
    assert below_now(None, {"b", "a"}) == Below(["a", "b"], whole=True)
    assert below_now({"a", "b"}, {"a", "b"}) == Below()
    assert below_now({"a", "b"}, {"b", "c"}) == Below(["c"], ["a"])


def test_who_is_silent_below_a_relay_is_known_at_the_root_also_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, between = free_port(), free_port()
    flow = ms.Flow("boundaries")
    (tmp_path / "in").mkdir()
    reads = ms.Files(tmp_path / "in", schema="ts timestamp", time="ts", format="json", follow=True)
    source = ms.Collector(f"127.0.0.1:{port}", reads, agents=["a", "b"], boundary="200ms")
    flow.source(source, name="in").key_by().window(ms.tumbling("1s")).agg(n=ms.count()).sink(
        ms.Jsonl(tmp_path / "out")
    )
    told: list[Below] = []
    say = Connection.boundary

    def listen(self: Connection, agent: str, life: int, below: Any = None, tree: int = 0) -> Any:
        told.extend([below] if below is not None else [])
        return say(self, agent, life, below, tree)

    monkeypatch.setattr(Connection, "boundary", listen)
    with Centre(flow, tmp_path / "collector") as centre:
        relay = relay_of(flow, port, between, "rack", tmp_path / "agents", 2)
        both = {n: agent_of(flow, between, n, tmp_path / "agents") for n in "ab"}

        def go(condition: Callable[[], bool], *names: str) -> None:
            until = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < until
                for name in names:
                    both[name].step()
                relay.step()
                centre.step()

        def below() -> set[str] | None:
            messages = centre.engine.trackers["in"].messages  # type: ignore[attr-defined]
            return messages.below.get("rack")

        go(lambda: below() == {"a", "b"}, "a", "b")
        go(lambda: Below() in told, "a", "b")  # nothing new: nothing is said of it
        go(lambda: "b" not in (below() or ()), "a")
        assert any("b" in one.silent for one in told)
        centre.crash()
        before = len(told)
        assert below() is None
        go(lambda: below() == {"a", "b"}, "a", "b")
        assert any(one.whole for one in told[before:])
        for agent in (*both.values(), relay):
            agent.close()

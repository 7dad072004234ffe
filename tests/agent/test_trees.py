"""Several trees of relays, each for a part of the keys: what one brings late or not at all."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.agent import agent as agents
from millstream.agent.agent import Agent
from millstream.errors import CheckpointError, ConfigError
from millstream.run.messages.message import sender_of
from millstream.run.planning import plan_flow
from millstream.run.program.program import check_program
from millstream.state.checkpoint import Checkpoint
from tests.agent.centre import Centre, agent_of, free_port, relay_of
from tests.variants import variants

KEYS = "abcdefgh"
FAR = 2 * 86_400  # seconds


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


def flow_of(
    place: Path, port: int, trees: int = 2, names: str = "a", folder: str = "in", **options: Any
) -> ms.Flow:
    flow = ms.Flow("trees")
    files = {"schema": "ts bigint, k string", "time": "ts", "lateness": "0s", "follow": True}
    reads = ms.Files(place / folder, format="json", **files)
    source = {"agents": list(names), "boundary": "20ms", "trees": trees}
    stream = flow.source(ms.Collector(f"127.0.0.1:{port}", reads, **source), name="in")
    counted = stream.key_by("k").window(ms.tumbling("10s"), **options).agg(n=ms.count())
    counted.sink(ms.Jsonl(place / "out"))
    return flow


def write(place: Path, *seconds: int, folder: str = "in") -> None:
    (place / folder).mkdir(exist_ok=True)
    with open(place / folder / "log.json", "a") as out:
        for s in seconds:
            out.writelines(json.dumps({"ts": s, "k": k}) + "\n" for k in KEYS)


def rows(place: Path) -> Counter[str]:
    """Records per key in all windows that have left, but for those of a far time."""
    found: Counter[str] = Counter()
    for path in (place / "out").glob("*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            if row["window_start"] < "1970-01-02":
                found[row["k"]] += row["n"]
    return found


def keys_in(agent: Agent, number: int, tree: int) -> int:
    """How many keys a message has in a tree; each record here has one of its own."""
    return sum(block.rows for block in agent.outbox.read(number, tree)[0].blocks)


def until(what: Callable[[], object], *steps: Callable[[], object]) -> None:
    for _ in range(5000):
        for step in steps:
            step()
        if what():
            return
        time.sleep(0.005)
    pytest.fail("it does not come to that")


def only(agent: Agent, tree: int) -> Callable[[], object]:
    """Send in one tree, and meet the parent there."""

    def send() -> None:
        branch = agent.branches[tree]
        if not branch.parent.connected:
            agent._meet(branch, agent.hello(branch))
        agent._send(branch)

    return send


def test_no_window_leaves_before_all_trees_have_brought_it(tmp_path: Path) -> None:
    port = free_port()
    write(tmp_path, *range(15))
    with Centre(flow_of(tmp_path, port), tmp_path / "collector") as centre:
        one = agent_of(flow_of(tmp_path, port), port, "a", tmp_path / "agents", port)
        only(one, 0)(), one.make()
        keys = [keys_in(one, 0, tree) // 2 for tree in (0, 1)]  # of two windows
        assert sum(keys) == len(KEYS) and all(keys)
        until(lambda: one.branches[0].committed >= 0, only(one, 0), centre.step)
        assert not rows(
            tmp_path
        )  # the first tree has passed its end, the second has brought nothing
        write(tmp_path, 15)
        one.make()
        until(lambda: one.branches[0].committed >= 1, only(one, 0), centre.step)
        assert one.outbox.sizes.keys() == {0, 1}  # the second tree has nothing of either
        account = centre.ledger["agg"]
        assert account["offered"] == account["aggregated"] == 16 * keys[0]  # what is here
        until(lambda: rows(tmp_path), only(one, 1), centre.step)
        assert rows(tmp_path) == dict.fromkeys(KEYS, 10)
        assert centre.ledger["agg"]["aggregated"] == 16 * len(KEYS)
        centre.restart()  # how far each tree has come is remembered
        write(tmp_path, *range(16, 25))
        one.make()
        until(lambda: one.branches[1].committed >= 2, only(one, 1), centre.step)
        assert rows(tmp_path) == dict.fromkeys(KEYS, 10)
        until(lambda: rows(tmp_path)["a"] == 20, only(one, 0), centre.step)
        assert rows(tmp_path) == dict.fromkeys(KEYS, 20)
        one.close()


def test_what_a_tree_brings_after_its_window_was_evicted_is_late(tmp_path: Path) -> None:
    port, close = free_port(), ms.evict(timeout="50ms")
    write(tmp_path, *range(5))
    with Centre(flow_of(tmp_path, port, close=close), tmp_path / "collector") as centre:
        flow = flow_of(tmp_path, port, close=close)
        one = agent_of(flow, port, "a", tmp_path / "agents", port)
        only(one, 0)(), one.make()
        first, second = (keys_in(one, 0, tree) for tree in (0, 1))
        until(lambda: rows(tmp_path), only(one, 0), centre.step)
        assert rows(tmp_path).total() == 5 * first
        until(lambda: one.committed >= 0, only(one, 1), centre.step)
        assert rows(tmp_path).total() == 5 * first
        account = centre.ledger["agg"]
        assert account["offered"] == 5 * len(KEYS)
        assert account["aggregated"] == 5 * first and account["late"] == 5 * second
        one.close()


@pytest.mark.parametrize("seed", variants(range(40)))
def test_the_ledger_adds_up_however_trees_and_evictions_meet(seed: int, tmp_path: Path) -> None:
    rng, port, written = random.Random(seed), free_port(), Counter[str]()
    trees, names = rng.randint(2, 3), "abc"[: rng.randint(1, 3)]
    close = rng.choice([ms.evict(timeout="30ms"), ms.evict(fidelity=0.5)])

    def flow(name: str) -> ms.Flow:
        return flow_of(tmp_path, port, trees, names, name, close=close)

    for name in names:
        write(tmp_path, folder=name)
    with Centre(flow("a"), tmp_path / "collector", rng.randint(1, 2)) as centre:
        more = [port] * (trees - 1)
        there = {n: agent_of(flow(n), port, n, tmp_path / "agents", *more) for n in names}
        for one in there.values():
            one.send()
        for _ in range(120):
            name = rng.choice(names)
            if rng.random() < 0.4:
                seconds = range(written[name], written[name] + rng.randint(1, 9))
                write(tmp_path, *seconds, folder=name)
                written[name] += len(seconds)
            if rng.random() < 0.5:
                there[name].make()
            only(there[name], rng.randrange(trees))()
            if rng.random() < 0.6:
                centre.step()
            if rng.random() < 0.05:
                rng.choice([centre.restart, centre.crash])()
            account = centre.ledger.get("agg", {})
            rest = sum(account.get(way, 0) for way in ("late", "dead", "dropped"))
            assert account.get("offered", 0) == account.get("aggregated", 0) + rest, seed
        sends = [one.send for one in there.values()]
        for one in there.values():
            until(lambda one=one: not one.make(), one.send, centre.step)
        everybody = there.values()
        until(lambda: all(a.committed == a.outbox.last for a in everybody), *sends, centre.step)
        account = centre.ledger["agg"]
        assert account["offered"] == written.total() * len(KEYS) == centre.ledger["in"]["offered"]
        for name, one in there.items():  # all that was taken leaves, each record once
            write(tmp_path, FAR, folder=name)
            one.make()
        until(lambda: rows(tmp_path).total() >= account["aggregated"], *sends, centre.step)
        assert rows(tmp_path).total() == account["aggregated"], seed
        for one in there.values():
            one.close()


def test_who_is_silent_in_a_tree_is_silent(tmp_path: Path) -> None:
    port, close = free_port(), ms.evict(failure_after="200ms")
    write(tmp_path, *range(5))
    now = time.time()

    def pass_time() -> None:
        nonlocal now
        now += 0.02

    flow = flow_of(tmp_path, port, close=close)
    with Centre(flow, tmp_path / "collector", clock=lambda: now) as centre:
        one = agent_of(flow_of(tmp_path, port, close=close), port, "a", tmp_path / "agents", port)
        one.send(), one.make()
        until(lambda: one.committed >= 0, one.send, centre.step)
        silent = (only(one, 0), centre.step, pass_time)  # nothing is heard in the other
        until(lambda: rows(tmp_path), *silent)
        tracker: Any = centre.engine.trackers["in"]
        last = {sender: int(at * 1e6) for sender, at in tracker.messages.last_heard().items()}
        assert tracker.horizon(0).heard["a"] == last[sender_of("a", 1)] < last["a"]
        assert rows(tmp_path) == dict.fromkeys(KEYS, 5)
        one.close()


def test_trees_are_those_of_the_first_start(tmp_path: Path) -> None:
    port, between, relays = free_port(), free_port(), tmp_path / "relays"
    write(tmp_path, 1)
    two = flow_of(tmp_path, port)
    with Centre(two, tmp_path / "collector"):
        with pytest.raises(ConfigError, match=r"trees=2, and there are 1 parents"):
            agent_of(two, port, "a", tmp_path / "few")
        with pytest.raises(ConfigError, match=r"--tree 2: the flow has trees=2"):
            relay_of(two, port, between, "r", relays, 1, tree=2)
        other = agent_of(flow_of(tmp_path, port, trees=1), port, "a", tmp_path / "other")
        with pytest.raises(ConfigError, match=r"source 'in': trees was 2"):
            other.step()
        relay = relay_of(two, port, between, "s", relays, 1, tree=1)
        relay.step()
        lost = agent_of(two, between, "a", tmp_path / "lost", port)
        with pytest.raises(ConfigError, match=r"in tree 1, and 'a' sends .* tree 0"):
            lost.step()
        lost.close(), relay.close(), other.close()
    place = Checkpoint(tmp_path / "collector")
    with pytest.raises(CheckpointError, match="trees was 2"):  # before Spark is started
        check_program(plan_flow(flow_of(tmp_path, port, trees=1)), place, None, 1, ())

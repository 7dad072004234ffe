"""A flow with agents gives exactly what the same flow gives over the same files read centrally."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.agent import agent as agents
from millstream.agent.agent import Agent
from millstream.agent.relay import Relay
from millstream.agent.sending import Away
from millstream.run.batches.letters import letters_in
from millstream.testing import run_in_process
from tests.agent.centre import Centre, abandon, agent_of, free_port, relay_of

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
OPTIONS = {"schema": "ts timestamp, k string, v bigint", "time": "ts", "format": "json"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


# -- flows ----------------------------------------------------------------------------------------


class Count(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield value["k"], 1

    def combine(self, key: Any, values: Any) -> Any:
        return sum(values)

    def reduce(self, key: Any, values: Any, window: Any) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


def aggregated(stream: ms.Stream, sink: Callable[[str], Any]) -> None:
    some = stream.where("v > 0")
    aggs = {"n": ms.count(), "t": ms.sum("v"), "high": ms.max("v"), "one": ms.first("v")}
    some.key_by("k").window(ms.tumbling("10s")).agg(**aggs).sink(sink("tumbling"))
    late = some.key_by("k").window(ms.sliding("20s", "5s")).agg(n=ms.count(), m=ms.mean("v"))
    late.sink(sink("sliding"))
    late.late().sink(sink("late"))
    some.where("v = 9").sink(sink("plain"))


def kept(stream: ms.Stream, sink: Callable[[str], Any]) -> None:
    def values(key: Any, rows: list[Any], window: Any) -> dict[str, Any]:
        return {"all": [row["v"] for row in rows]}

    named = stream.map(lambda row: {**row, "k": row["k"] * 2})
    named.key_by("k").window(ms.session("3s")).reduce(values).sink(sink("session"))
    stream.key_by("k").window(ms.count_window(7)).agg(all=ms.collect("v")).sink(sink("count"))


def jobs(stream: ms.Stream, sink: Callable[[str], Any]) -> None:
    stream.map_reduce(Count(), window=ms.tumbling("10s")).sink(sink("job"))
    stream.key_by("k").agg(n=ms.count(), t=ms.sum("v")).sink(sink("whole"))
    stream.distinct("k", "v").sink(sink("distinct"))


def updated(stream: ms.Stream, sink: Callable[[str], Any]) -> None:
    def last(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
        before, slate["v"] = slate.get("v"), event.value["v"]
        return {"k": event.key, "now": slate["v"], "before": before}

    stream.key_by("k").update(last, name="last").sink(sink("update"))
    stream.select("k", "v * 2 AS w").key_by("k").window(ms.landmark("10s")).agg(t=ms.sum("w")).sink(
        sink("landmark")
    )


FLOWS = {one.__name__: one for one in (aggregated, kept, jobs, updated)}


WINDOWS = (
    lambda rng: ms.tumbling(f"{rng.choice([1, 7, 30])}s"),
    lambda rng: ms.sliding(f"{rng.choice([4, 12])}s", f"{rng.choice([1, 2, 4])}s"),
    lambda rng: ms.hopping("3s", "10s"),
    lambda rng: ms.session(f"{rng.choice([1, 4])}s"),
    lambda rng: ms.landmark("15s"),
    lambda rng: ms.count_window(rng.randint(2, 9), rng.randint(1, 2)),
)
AGGREGATES = {
    "n": ms.count(),
    "t": ms.sum("v"),
    "low": ms.min("v"),
    "m": ms.mean("v"),
    "one": ms.last("v"),
    "all": ms.collect("v"),
    "top": ms.top_k("v", 2),
    "kinds": ms.distinct("v"),
    "mid": ms.quantile("v", 0.5),
}


def random_flow(seed: str, stream: ms.Stream, sink: Callable[[str], Any]) -> None:
    """One to three branches of random steps, windows and aggregates; the same for the same seed."""
    rng = random.Random(seed)
    for branch in range(rng.randint(1, 3)):
        some = stream
        if rng.random() < 0.5:
            some = some.where(f"v > {rng.randint(0, 4)}")
        if rng.random() < 0.3:
            some = some.select("k", f"v % {rng.randint(2, 5)} AS v")
        if rng.random() < 0.3:
            some = some.map(lambda row: [row, {**row, "k": "w"}] if row["v"] % 2 else row)
        keyed = some.key_by(*rng.choice([("k",), ("k", "v"), ()]))
        names = rng.sample(list(AGGREGATES), rng.randint(1, 4))
        aggs = {name: AGGREGATES[name] for name in names}
        if rng.random() < 0.15:
            keyed.agg(**aggs).sink(sink(f"whole {branch}"))
            continue
        results = keyed.window(rng.choice(WINDOWS)(rng)).agg(**aggs)
        results.sink(sink(f"branch {branch}"))
        if rng.random() < 0.3:  # windows over windows
            over = results.key_by().window(ms.tumbling("30s"))
            over.agg(windows=ms.count()).sink(sink(f"over {branch}"))


def flow_of(kind: str, source: Any, out: Path) -> ms.Flow:
    flow = ms.Flow(kind)
    stream, sink = flow.source(source, name="in"), lambda name: ms.Jsonl(out / name)
    if kind in FLOWS:
        FLOWS[kind](stream, sink)
    else:
        random_flow(kind, stream, sink)
    return flow


# -- records --------------------------------------------------------------------------------------


def write_files(place: Path, names: list[str], rng: random.Random, most: int = 60) -> None:
    """Files of every agent: a little jumbled, with late records and broken lines."""
    used: set[int] = set()
    for name in names:
        for file in range(rng.randint(1, 2)):
            path = place / name / f"{file}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines, at = [], rng.uniform(0, 10)
            for _ in range(rng.randint(1, most)):
                at += rng.choice([0.05, 0.3, 1.2])
                micro = int((at - rng.choice([0, 0, 0, 1, 8])) * 1e6)
                while micro in used:  # ties of two agents have another order than those of files
                    micro += 1
                used.add(micro)
                when = (NOON + timedelta(microseconds=micro)).isoformat()
                record = {"ts": when, "k": rng.choice("xyz"), "v": rng.randint(0, 9)}
                broken = rng.random() < 0.004
                lines.append('{"ts": "never"}' if broken else json.dumps(record))
            path.write_text("\n".join(lines) + "\n")


def rows_in(out: Path) -> dict[str, Counter[str]]:
    """All rows of every sink, as a multiset."""
    return {
        sink.name: Counter(
            line for path in sink.glob("*.jsonl") for line in path.read_text().splitlines()
        )
        for sink in out.iterdir()
    }


def books(ledger: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {step: {way: n for way, n in one.items() if n} for step, one in ledger.items()}


# -- running --------------------------------------------------------------------------------------


class World:
    """Agents and their collector, and what may befall them."""

    def __init__(
        self,
        kind: str,
        tmp: Path,
        names: list[str],
        parallelism: int,
        depth: int = 0,
        trees: int = 1,
    ) -> None:
        self.kind, self.tmp, self.names, self.port = kind, tmp, names, free_port()
        self.trees = trees
        self.centre = Centre(self.flow(names[0]), tmp / "collector", parallelism)
        # In each tree a chain of relays; the last one may be shorter.
        self.ports = [
            [self.port, *(free_port() for _ in range(depth - (tree and tree == trees - 1)))]
            for tree in range(trees)
        ]
        self.relays = {
            f"relay-{tree}-{n}": self.start_relay(tree, n)
            for tree in range(trees)
            for n in range(1, len(self.ports[tree]))
        }
        self.agents = {name: self.start(name) for name in names}

    def start_relay(self, tree: int, number: int) -> Relay:
        to, listen = self.ports[tree][number - 1 : number + 1]
        last = number == len(self.ports[tree]) - 1
        return relay_of(
            self.flow(self.names[0]),
            to,
            listen,
            f"relay-{tree}-{number}",
            self.tmp / "agents",
            len(self.names) if last else 1,
            tree=tree,
        )

    def flow(self, name: str) -> ms.Flow:
        reads = ms.Files(self.tmp / "in" / name / "*.json", **OPTIONS, lateness="2s")
        where = f"127.0.0.1:{self.port}"
        collector = ms.Collector(where, reads, agents=self.names, boundary="50ms", trees=self.trees)
        return flow_of(self.kind, collector, self.tmp / "out")

    def start(self, name: str) -> Agent:
        to = [ports[-1] for ports in self.ports]
        return agent_of(self.flow(name), to[0], name, self.tmp / "agents", *to[1:], rows=20)

    def crash(self, name: str) -> None:
        """The agent is gone without a word, and comes back."""
        for branch in self.agents[name].branches:
            branch.parent.close()
        self.agents[name].outbox.hold.release()
        self.agents[name] = self.start(name)

    def send_again(self, name: str, rng: random.Random) -> None:
        """A message that came already, or one that is not yet due."""
        agent = self.agents[name]
        branch = rng.choice(agent.branches)
        if agent.outbox.sizes and branch.parent.connected:
            number = rng.choice(list(agent.outbox.sizes))
            with contextlib.suppress(Away):
                branch.parent.put(*agent.outbox.read(number, branch.tree))

    def crash_relay(self, name: str) -> None:
        """The relay is gone without a word, and comes back."""
        relay = self.relays[name]
        relay.collector.close()
        if relay.working is not None:
            abandon(relay.working.children)
        relay.outbox.hold.release()
        _, tree, number = name.split("-")
        self.relays[name] = self.start_relay(int(tree), int(number))

    def befall(self, name: str, rng: random.Random) -> None:
        if self.relays and rng.random() < 0.2:
            self.crash_relay(rng.choice(list(self.relays)))
            return
        match rng.randrange(5):
            case 0:
                self.crash(name)
            case 1:
                rng.choice([self.centre.restart, self.centre.crash])()
            case 2:
                self.agents[name].make()  # and nothing is sent
            case 3:
                rng.choice(self.agents[name].branches).parent.close()
            case _:
                self.send_again(name, rng)

    def run(self, rng: random.Random, trouble: float) -> None:
        for _ in range(3000):
            name = rng.choice(self.names)
            if rng.random() < trouble:
                self.befall(name, rng)
            self.agents[name].step()
            for relay in self.relays.values():
                if rng.random() < 0.7:
                    relay.step()
            if rng.random() < 0.5:
                self.centre.step()
            everybody = (*self.agents.values(), *self.relays.values())
            if self.centre.engine.done and all(one.done for one in everybody):
                return
        waiting = {
            name: (one.over, one.outbox.last, one.durable, one.committed)
            for name, one in {**self.agents, **self.relays}.items()
            if not one.done
        }
        pytest.fail(f"it does not come to an end: {self.centre.engine.done}, {waiting}")

    def close(self) -> None:
        for one in (*self.agents.values(), *self.relays.values()):
            one.close()
        self.centre.engine.close()


def compare(
    kind: str,
    tmp: Path,
    seed: str,
    most: int,
    trouble: float,
    depth: int = 0,
    trees: int = 1,
) -> None:
    rng = random.Random(seed)
    names = [f"web-{n:02}" for n in range(rng.randint(1, most))]
    write_files(tmp / "in", names, rng)
    central = ms.Files(tmp / "in" / "*" / "*.json", **OPTIONS, lateness="2s")
    ledger = run_in_process(
        flow_of(kind, central, tmp / "central"), tmp / "checkpoint", dead_letter_limit=1
    )
    world = World(kind, tmp, names, rng.randint(1, 3), depth, trees)
    try:
        world.run(rng, trouble)
        assert rows_in(tmp / "out") == rows_in(tmp / "central"), seed
        assert books(world.centre.ledger) == books(ledger), seed
        dead = [
            Counter((one["operator"], one["raw"]) for one in letters_in(place))
            for place in (world.centre.engine.checkpoint.dead, checkpoint_dead(tmp))
        ]
        assert dead[0] == dead[1], seed
    finally:
        world.close()


def checkpoint_dead(tmp: Path) -> Any:
    from millstream.state.checkpoint import Checkpoint

    return Checkpoint(tmp / "checkpoint", create=False).dead


@pytest.mark.parametrize("kind", FLOWS)
def test_agents_give_what_a_central_run_gives(kind: str, tmp_path: Path) -> None:
    compare(kind, tmp_path, kind, 3, trouble=0.1)


@pytest.mark.parametrize(("kind", "depth"), [("aggregated", 1), ("updated", 2)])
def test_relays_change_nothing(kind: str, depth: int, tmp_path: Path) -> None:
    compare(kind, tmp_path, f"{kind} through relays", 3, trouble=0.1, depth=depth)


@pytest.mark.parametrize(
    ("kind", "depth", "trees"), [("aggregated", 1, 2), ("jobs", 0, 3), ("updated", 2, 3)]
)
def test_several_trees_change_nothing(kind: str, depth: int, trees: int, tmp_path: Path) -> None:
    compare(kind, tmp_path, f"{kind} in trees", 3, trouble=0.1, depth=depth, trees=trees)


def test_the_traffic_at_the_root_falls_with_the_children(tmp_path: Path) -> None:
    names = [f"web-{n}" for n in range(16)]
    for name in names:
        path = tmp_path / "in" / name / "0.json"
        path.parent.mkdir(parents=True)
        times = ((NOON + timedelta(seconds=n / 10)).isoformat() for n in range(600))
        lines = [
            json.dumps({"ts": at, "k": "xyz"[n % 3], "v": n % 8}) for n, at in enumerate(times)
        ]
        path.write_text("\n".join(lines) + "\n")
    world = World("aggregated", tmp_path, names, 1, depth=1)
    try:
        (relay,) = world.relays.values()
        relay.send(), relay.make()
        for agent in world.agents.values():
            agent.rows = 10_000
            while not agent.over:
                agent.step()
            agent.send()
        sent = sum(agent.outbox.size(-1) for agent in world.agents.values())
        relay.make()
        head, _ = relay.outbox.read(relay.outbox.last)
        assert {one.agent for one in head.of} == set(names)
        assert head.ledger["in"]["offered"] == 16 * 600
        assert relay.outbox.size(-1) < sent / 4
    finally:
        world.close()


@pytest.mark.long
@pytest.mark.parametrize("number", range(240))
def test_many_agents_and_much_trouble(number: int, tmp_path: Path) -> None:
    """Every fourth case is a flow of above, the others are random ones."""
    known, random_one = list(FLOWS)[number // 4 % len(FLOWS)], f"flow {number}"
    kind = random_one if number % 4 else known
    seed, depth, trees = f"{kind} {number}", number // 4 % 4, 1 + number // 16 % 3
    compare(kind, tmp_path, seed, 16, trouble=0.3, depth=depth, trees=trees)

"""Random cycles under overload: they always come to an end, and only what enters is turned away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.operators.updates import applying
from millstream.run.batches.ledger import WAYS
from millstream.testing import Driver, reference

STEPS = 3_000  # a batch moves time on or works off events; far fewer are needed


class Node:
    """Counts what comes, and publishes to some streams as long as the event may go on."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self.targets = targets

    def update(self, event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        hops = event.value["hops"]
        if hops > 0:
            for stream in self.targets:
                ctx.publish(stream, f"k{slate['n'] % 3}", {"hops": hops - 1})


@dataclass(frozen=True)
class Graph:
    """Streams by number: each leads to an updater, which publishes to some of them."""

    targets: tuple[tuple[int, ...], ...]  # of updater i, which reads stream i
    entries: tuple[int, ...]  # updaters that read the source as well
    policies: tuple[str, ...]
    order: str = "event"

    @property
    def throttled(self) -> bool:
        """Whether nothing is lost."""
        return all(policy == "throttle" for policy in self.policies)

    def flow(self) -> ms.Flow:
        """The same as a flow."""
        flow = ms.Flow("cycles")
        spec = ms.Generator(tuple, time="ts", schema="ts bigint, k string, hops bigint")
        source = flow.source(spec, name="in").key_by("k")
        used = sorted({target for several in self.targets for target in several})
        streams = {number: flow.stream(f"s{number}").key_by("key") for number in used}
        for number, targets in enumerate(self.targets):
            inputs = [source] if number in self.entries else []
            inputs += [streams[number]] if number in streams else []
            if inputs:
                ms.KeyedStreams(tuple(inputs)).update(
                    Node(tuple(f"s{one}" for one in targets)),
                    name=f"u{number}",
                    order=self.order,
                    publishes=[f"s{one}" for one in targets],
                    overload=policy_of(self.policies[number]),
                )
        if any(
            f"u{n}" in {node.name for node in flow.nodes} and policy == "divert"
            for n, policy in enumerate(self.policies)
        ):
            flow.stream("more").sink(ms.Memory())
        return flow


def policy_of(name: str) -> ms.Overload:
    match name:
        case "oldest" | "newest":
            return ms.drop(name, when=1, until=0.5)
        case "divert":
            return ms.divert("more", when=1)
    return ms.throttle(when=1)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """One to four updaters, all in one cycle: nothing is published from outside of it."""
    many = draw(st.integers(1, 4))
    numbers = st.integers(0, many - 1)
    targets = [draw(st.sets(numbers, max_size=2)) for _ in range(many)]
    targets[many - 1].add(0)  # round
    for number in range(many - 1):
        targets[number].add(number + 1)
    policy = st.sampled_from(["throttle", "oldest", "newest", "divert"])
    one = draw(st.booleans())
    policies = [draw(policy) for _ in range(many)]
    return Graph(
        tuple(tuple(sorted(several)) for several in targets),
        tuple(sorted({0} | draw(st.sets(numbers)))),
        tuple(["throttle"] * many if one else policies),
        draw(st.sampled_from(["event", "event", "arrival"])),
    )


@dataclass(frozen=True)
class Input:
    """Bursts that are pushed, how far events go, and how little a batch does."""

    bursts: tuple[int, ...]
    hops: int
    cycle_events: int
    batch_rows: int
    restarts: int


inputs = st.builds(
    Input,
    st.lists(st.integers(1, 15), min_size=1, max_size=4).map(tuple),
    st.integers(0, 2),
    st.integers(4, 20),
    st.integers(4, 20),
    st.integers(0, 3),
)


def check(graph: Graph, given: Input) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applying, "_MOST_CARRIED", 10_000)  # batches are tiny here
        run(graph, given)


def run(graph: Graph, given: Input) -> None:
    flow, at, pushed = graph.flow(), 0, []
    with Driver(
        flow,
        batch_rows=given.batch_rows,
        cycle_events=given.cycle_events,
        now=5_000,
        shards=2,
    ) as driver:
        for number, burst in enumerate(given.bursts):
            records = [
                {"ts": 1_000 + (at + i) // 3, "k": f"k{(at + i) % 3}", "hops": given.hops}
                for i in range(burst)
            ]
            at += burst
            pushed += records
            driver.push("in", records).step()
            if number < given.restarts and not driver.engine.trackers["in"].pending():
                driver.restart()
        driver._tracker("in").ended = True
        for _ in range(STEPS):
            if not driver.step():
                break
        assert driver.engine.done, "it never ends"
        ledger = driver.ledger
        assert ledger["in"]["offered"] == len(pushed) == ledger["in"]["aggregated"]
        for number in range(len(graph.targets)):
            account = ledger.get(f"u{number}")
            if account is None:
                continue
            assert account["offered"] == sum(account[way] for way in WAYS)
            entered = len(pushed) if number in graph.entries else 0
            assert account.get("shed", 0) + account.get("overflow", 0) <= entered
            applied = sum(slate["n"] for slate in driver.slates(f"u{number}").values())
            assert applied == account["aggregated"] + account["late"]
        if graph.throttled and graph.order == "event":
            whole = reference(flow, {"in": pushed})
            for name, slates in whole.slates.items():
                assert driver.slates(name) == slates


BUSY = Input((12, 12, 12), 2, 4, 4, 0)


@settings(max_examples=6)
@given(graphs(), inputs)
@example(Graph(((0,),), (0,), ("throttle",)), BUSY)
@example(Graph(((0,),), (0,), ("newest",)), BUSY)
@example(Graph(((1,), (0,)), (0, 1), ("oldest", "divert")), BUSY)
@example(Graph(((1,), (0,)), (0,), ("oldest", "throttle"), "arrival"), BUSY)
def test_a_cycle_under_overload_comes_to_an_end(graph: Graph, given: Input) -> None:
    check(graph, given)


@pytest.mark.long
@settings(max_examples=1_000)
@given(graphs(), inputs)
def test_a_thousand_cycles_under_overload_come_to_an_end(graph: Graph, given: Input) -> None:
    check(graph, given)

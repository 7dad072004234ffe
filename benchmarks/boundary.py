"""Claim: saying that one is there costs little, and at the root only as much as it has children.

Boundary messages (CMR, section 4.4) of 16, 128 and 1,024 agents through relays with 16 children
each, in one process: every agent and relay says in every period that it is there, and is answered.
What is encoded, sent, decoded and taken in is what agents, relays and the collector send and do;
only the network between them is left out. The peer is the tree with 16 agents. Then one agent in a
hundred falls silent or comes back in every period.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

from benchmarks.common import goal, markdown, workspace

SIZES, QUICK_SIZES = (16, 128, 1024), (16, 64)
FAN_IN = 16
PERIODS, QUICK_PERIODS = 200, 20


def run(quick: bool = False) -> dict[str, Any]:
    """Trees of several sizes, with and without failures."""
    found = []
    for size in QUICK_SIZES if quick else SIZES:
        for failing in (0.0, 0.01):
            one = measure(size, failing, QUICK_PERIODS if quick else PERIODS)
            found.append(one)
            print(f"  {one}", flush=True)
    first = found[0]
    steady = [one for one in found if not one["failing"]]
    linear = max(
        one["bytes"] / one["agents"] / (first["bytes"] / first["agents"]) for one in steady
    )
    root = max(
        one["root_bytes"] / one["root_children"] / (first["root_bytes"] / first["root_children"])
        for one in steady
    )
    busy = max(one["root_cpu_us"] for one in steady) / first["root_cpu_us"]
    cpu = max(one["cpu_us"] / one["agents"] / (first["cpu_us"] / first["agents"]) for one in steady)
    return {
        "runs": found,
        "agree": all(one["known"] for one in found),
        "goals": [
            goal("bytes of all, per agent beside 16 agents", "at most 1.2", linear, linear <= 1.2),
            goal("processor time of all, per agent beside 16", "at most 2", cpu, cpu <= 2),
            goal("bytes at the root, per child beside 16", "at most 1.2", root, root <= 1.2),
            goal("processor time at the root, beside 16 agents", "at most 2", busy, busy <= 2),
        ],
    }


def measure(agents: int, failing: float, periods: int) -> dict[str, Any]:
    """Bytes and processor time of a period, of all and at the root."""
    with workspace("boundary") as work:
        levels = _tree(work, agents)
        names = [f"web-{number:04}" for number in range(agents)]
        rng, gone = random.Random(agents), set[str]()
        sent = at_root = 0
        begun, spent_at_root = time.process_time(), 0.0
        for period in range(periods + 2):
            if period == 2:  # everybody is known by now
                sent = at_root = 0
                begun, spent_at_root = time.process_time(), 0.0
            if failing:
                gone ^= {name for name in names if rng.random() < failing}
            here = [name for name in names if name not in gone]
            for level, receivers in enumerate(levels):
                relays = levels[level - 1] if level else []
                below = [_below(relay, period) for relay in relays]  # what it costs is theirs
                before, started = sent, time.process_time()
                if level == 0:
                    for name in here:
                        sent += _say(receivers[int(name[4:]) // FAN_IN], name, None, period)
                else:
                    for number, relay in enumerate(relays):
                        to = receivers[number // FAN_IN]
                        sent += _say(to, relay.name_here, below[number], period)
                if level == len(levels) - 1:
                    at_root += sent - before
                    spent_at_root += time.process_time() - started
        spent = time.process_time() - begun
        (root,) = levels[-1]
        heard = root.last_heard().items()
        known = {who for who, at in heard if at == periods + 1 and who[:3] == "web"}
        children = len(levels[-2]) if len(levels) > 1 else agents
        return {
            "agents": agents,
            "failing": failing,
            "levels": len(levels),
            "bytes": sent / periods,
            "cpu_us": round(1e6 * spent / periods, 1),
            "root_children": children,
            "root_bytes": at_root / periods,
            "root_cpu_us": round(1e6 * spent_at_root / periods, 1),
            "known": known == set(here),  # the root knows who is there, and nobody else
        }


def _say(receiver: Any, name: str, below: Any, period: int) -> int:
    """One boundary message and its answer; gives their bytes."""
    from millstream.run.messages.greetings import Hello, hellos, welcomes

    first = below is not None and below.whole  # later it need not say what it is
    asked = msgspec.json.encode(Hello(name, 1, relay=first, below=below))
    receiver.clock.period = period
    answer = msgspec.json.encode(receiver.greet(hellos.decode(asked), False))
    welcomes.decode(answer)
    return len(asked) + len(answer)


def _below(relay: Any, period: int) -> Any:
    from millstream.agent.relay import below_now

    recent = {who for who, at in relay.last_heard().items() if at == period}
    told, relay.told_here = relay.told_here, recent
    return below_now(told, recent)


class _Periods:
    """A clock that counts periods."""

    period = 0

    def now(self) -> int:
        return self.period * 1_000_000


def _tree(work: Any, agents: int) -> list[list[Any]]:
    """Those who receive, the ones agents talk to first, the root last."""
    import millstream as ms
    from millstream.run.sources.collector import collecting
    from millstream.state.storage import open_storage

    collecting.CollectorServer = lambda receiver, spec: None  # type: ignore[assignment, misc]
    spec = ms.Collector("127.0.0.1:9", ms.HostStats(), agents=agents)
    levels: list[list[Any]] = []
    below = agents
    while not levels or len(levels[-1]) > 1:
        count = -(-below // FAN_IN)
        level = []
        for number in range(count):
            place = work / f"{len(levels)}-{number}"
            place.mkdir()
            program: dict[str, Any] = {part: {} for part in collecting.PROGRAM}
            (place / "flow.json").write_bytes(msgspec.json.encode(program))
            one: Any = collecting.MessageReceiver("in", spec, open_storage(place), "in")
            one.clock, one.told_here = _Periods(), None
            one.name_here = f"relay-{len(levels)}-{number}"
            level.append(one)
        levels.append(level)
        below = count
    return levels


# -- telling --------------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    head = ["agents", "failing, % a period", "levels", "bytes a period", "CPU, µs a period"]
    head += ["children of the root", "bytes at the root", "CPU at the root, µs"]
    rows = [
        [
            one["agents"],
            100 * one["failing"],
            one["levels"],
            one["bytes"],
            one["cpu_us"],
            one["root_children"],
            one["root_bytes"],
            one["root_cpu_us"],
        ]
        for one in figures["runs"]
    ]
    return markdown(head, rows)

"""A collector's flow in the hands of a test: the real engine, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import millstream as ms
from millstream.agent.agent import Agent
from millstream.agent.relay import Relay
from millstream.agent.sending import Connection
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.replacing import replace_program
from millstream.run.sources.arrival import ArrivalClock
from millstream.run.sources.collector.collecting import MessageReceiver
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from tests.services import free_port

__all__ = ["NOON", "Centre", "abandon", "agent_of", "free_port", "relay_of", "write"]

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def write(place: Path, name: str, *seconds: float, file: str = "0.json") -> None:
    path = place / "in" / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"ts": str(NOON + timedelta(seconds=s)), "k": "x"}) for s in seconds]
    with path.open("a") as out:
        out.write("\n".join(lines) + "\n")


def abandon(receiver: MessageReceiver) -> None:
    """Have a receiver end as if its process were killed: what is not sealed is lost."""
    with receiver._sealing:
        receiver._closed = True
    receiver.ask_to_stop(0)
    receiver.join()


class Centre:
    """The engine of a flow with a collector; it can be restarted as after a crash."""

    def __init__(
        self,
        flow: ms.Flow,
        checkpoint: Path,
        parallelism: int = 1,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: one that the test owns; who was heard of lately is said by it, too."""
        self.flow, self.path, self.parallelism, self.clock = flow, checkpoint, parallelism, clock
        self.open()

    def open(self) -> None:
        plan = plan_flow(self.flow, self.path)
        place = Checkpoint(self.path)
        place.lock()
        settings = Settings.from_options({"parallelism": self.parallelism})
        self.engine = Engine(plan, place, settings, clock=self.clock or time.time)
        self.engine.open(self.parallelism)
        if self.clock is not None:
            messages = self.engine.trackers["in"].messages  # type: ignore[attr-defined]
            messages.clock = ArrivalClock(self.clock, self.clock)
        self.executor = InProcess(plan, self.parallelism)

    def step(self) -> bool:
        return self.engine.step(self.executor)

    def replace(self, flow: ms.Flow) -> None:
        """Go on with another program, as a reload does."""
        ready: list[InProcess] = []
        replace_program(
            self.engine,
            flow.name,
            flow.nodes,
            lambda plan: ready.append(InProcess(plan, self.parallelism)),
            dry_run=False,
        )
        self.flow, self.executor = flow, ready[0]

    def restart(self) -> None:
        self.engine.close()
        self.open()

    def crash(self) -> None:
        """Gone without a word: what is not sealed is lost, what is not committed is not."""
        abandon(self.engine.trackers["in"].messages)  # type: ignore[attr-defined]
        self.engine.footing.outside.owned.release()
        self.engine.checkpoint.close()
        self.open()

    @property
    def ledger(self) -> dict[str, dict[str, int]]:
        return self.engine.manifest.ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()


def relay_of(
    flow: ms.Flow, to: int, listen: int, name: str, place: Path, most: int, **options: Any
) -> Relay:
    spec = next(node.spec for node in flow.nodes if isinstance(node.spec, ms.Collector))
    here = ms.Collector(
        f"127.0.0.1:{listen}",
        spec.reads,
        agents=spec.agents,
        boundary=spec.boundary,
        trees=spec.trees,
    )
    parent, asking = (Connection(f"127.0.0.1:{to}", None) for _ in range(2))
    return Relay(flow, parent, asking, name, place / name, here, most, **options)


def agent_of(
    flow: ms.Flow, port: int, name: str, place: Path, *others: int, **options: Any
) -> Agent:
    first, *more = (Connection(f"127.0.0.1:{one}", None) for one in (port, *others))
    return Agent(flow, first, name, place / name, others=tuple(more), **options)

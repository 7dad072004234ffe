"""A collector's flow in the hands of a test: the real engine, without Spark."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Self

import millstream as ms
from millstream.agent.agent import Agent
from millstream.agent.sending import Collector
from millstream.run.engine import Engine
from millstream.run.executors import InProcess
from millstream.run.planning import plan_flow
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Centre:
    """The engine of a flow with a collector; it can be restarted as after a crash."""

    def __init__(self, flow: ms.Flow, checkpoint: Path, parallelism: int = 1) -> None:
        self.flow, self.path, self.parallelism = flow, checkpoint, parallelism
        self.open()

    def open(self) -> None:
        plan = plan_flow(self.flow, self.path)
        place = Checkpoint(self.path)
        place.lock()
        settings = Settings.from_options({"parallelism": self.parallelism})
        self.engine = Engine(plan, place, settings)
        self.engine.open(self.parallelism)
        self.executor = InProcess(plan, self.parallelism)

    def step(self) -> bool:
        return self.engine.step(self.executor)

    def restart(self) -> None:
        self.engine.close()
        self.open()

    def crash(self) -> None:
        """Gone without a word: what is not sealed is lost, what is not committed is not."""
        receiver = self.engine.trackers["in"].messages  # type: ignore[attr-defined]
        with receiver._sealing:
            receiver._closed = True
        receiver.ask_to_stop(0)
        receiver.join()
        self.engine._owned.release()
        self.engine.checkpoint.close()
        self.open()

    @property
    def ledger(self) -> dict[str, dict[str, int]]:
        return self.engine.manifest.ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()


def agent_of(flow: ms.Flow, port: int, name: str, place: Path, **options: Any) -> Agent:
    return Agent(flow, Collector(f"127.0.0.1:{port}", None), name, place / name, **options)

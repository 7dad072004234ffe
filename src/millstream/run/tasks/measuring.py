"""What work costs in a task: who was at it for how long, and what came of it.

Whoever takes rows from a queue is a worker: a source with the steps behind it, or a keyed operator
with those behind it, up to the next exchange. What it gives to an exchange is counted as it leaves
the task, so after rows were merged; several that gave to one operator share that by their rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.operators.batch import Worked
from millstream.operators.protocol import Inlet


class Meter:
    """The work of one task."""

    def __init__(self) -> None:
        self.worker = ""
        self.seconds: dict[str, float] = {}
        self.sunk: dict[str, tuple[int, int]] = {}  # worker -> rows and bytes for sinks
        self.given: dict[int, Counter[str]] = {}  # inlet -> rows of each worker
        self.sent: dict[str, tuple[int, int]] = {}  # operator -> rows and bytes as they left

    @contextmanager
    def at_work(self, worker: str) -> Iterator[None]:
        """Somebody works until the end of this."""
        self.worker, begun = worker, time.perf_counter()
        yield
        self.seconds[worker] = self.seconds.get(worker, 0.0) + time.perf_counter() - begun

    def sink(self, rows: int, size: int) -> None:
        """Rows for a sink."""
        before = self.sunk.get(self.worker, (0, 0))
        self.sunk[self.worker] = (before[0] + rows, before[1] + size)

    def give(self, inlet: Inlet, rows: int) -> None:
        """Rows for an operator, as they come to its inlet."""
        self.given.setdefault(id(inlet), Counter())[self.worker] += rows

    def send(self, operator: str, rows: int, size: int) -> None:
        """Rows for an operator, as they leave."""
        before = self.sent.get(operator, (0, 0))
        self.sent[operator] = (before[0] + rows, before[1] + size)

    def worked(self, inlets: dict[str, Inlet]) -> dict[str, Worked]:
        """For how long each worker was at it, and what it gave; `inlets` by operator."""
        rows = {name: float(many) for name, (many, _) in self.sunk.items()}
        size = {name: float(much) for name, (_, much) in self.sunk.items()}
        for operator, (many, much) in self.sent.items():
            givers = self.given.get(id(inlets.get(operator))) or Counter({self.worker: 1})
            total = sum(givers.values()) or 1
            for name, count in givers.items():
                rows[name] = rows.get(name, 0.0) + many * count / total
                size[name] = size.get(name, 0.0) + much * count / total
        return {
            name: Worked(self.seconds.get(name, 0.0), rows.get(name, 0.0), size.get(name, 0.0))
            for name in {**self.seconds, **rows}
            if name
        }

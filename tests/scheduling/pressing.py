"""Flows under pressure: batches without room, so that the scheduler has to choose every time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from hypothesis import strategies as st

import millstream as ms
from millstream.run.pressure import scheduler
from millstream.run.pressure.memory import Memory

NO_TIME = 1e-9  # seconds a batch should take


class Anyhow:
    """A user's own policy: whoever comes."""

    def rank(self, queue: ms.Queue, request: ms.Request) -> float:
        return Random(f"{request.draw} {queue.name}").random()


class Largest:
    """Another: whoever has the most."""

    def rank(self, queue: ms.Queue, request: ms.Request) -> float:
        return queue.bytes


POLICIES = [ms.ODF(), ms.MEM(), ms.Hybrid(), ms.Hybrid(0, 1, 3), Anyhow(), Largest()]
SECONDS = [NO_TIME, 1e-4, 1e-3, 1e-2]
BUDGETS = [(math.inf, 0.0), (0.0, 0.95), (1_000.0, 0.7), (20_000.0, 1.2)]
policies, seconds, budgets = map(st.sampled_from, (POLICIES, SECONDS, BUDGETS))


@contextmanager
def pressed(room: float = math.inf, used: float = 0.0) -> Iterator[None]:
    """However few rows there are, operators are made to wait with them.

    room, used: bytes of rows that batches have room for, and the share of the memory they take.
    """
    with (
        patch.object(scheduler, "SMALL", 0),
        patch.object(scheduler, "LEAST", 1),
        patch.object(Memory, "room", room),
        patch.object(Memory, "pressure", used),
    ):
        yield

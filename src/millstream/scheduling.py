"""Who gets the room of a batch: policies that rank queues (C-MR, sections 4.2 and 4.3).

A *request for work* is a batch that is about to be planned. Whatever has something to do has a
queue: a source what was admitted and not yet read, a keyed operator the rows that lie in its store
and were not worked on. A policy ranks queues by what is known of them, and the highest comes first.
When results come depends on that, and never what they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

from millstream.errors import ConfigError

_LEAST_SECONDS = 1e-9
_TERMS = 300  # of a fraction that settles within a few dozens, or some roots of its parameters
_TINY = 1e-300


@dataclass(frozen=True)
class Queue:
    """What is known of one queue when a batch is planned; means are of what was measured.

    name, kind: of a step; "source" or "operator".
    rows, ready, bytes: what waits; how many of these rows could be worked on now; their bytes.
    head: the event time at the front, in microseconds UTC; None if nothing is known of it.
    input_size, output_size: bytes of a row that goes in and of one that comes out.
    selectivity: rows that come out for one that goes in.
    seconds: what one row that goes in takes.
    passed: requests in a row that gave it nothing.
    """

    name: str
    kind: str
    rows: int = 0
    ready: int = 0
    bytes: int = 0
    head: int | None = None
    input_size: float = 0.0
    output_size: float = 0.0
    selectivity: float = 0.0
    seconds: float = 0.0
    passed: int = 0


@dataclass(frozen=True)
class Request:
    """A batch with room.

    batch: its number.
    memory: the share in use of what processes leave of the memory budget by themselves.
    draw: a random number from 0 to 1, one for all queues of the request.
    """

    batch: int
    memory: float
    draw: float


@runtime_checkable
class Policy(Protocol):
    """Ranks queues; those of one request are compared with each other only."""

    def rank(self, queue: Queue, request: Request) -> float:
        """The higher, the earlier the queue is served."""


@dataclass(frozen=True)
class ODF:
    """Oldest data first: low latency, as long as there is memory."""

    def rank(self, queue: Queue, request: Request) -> float:
        """The earlier the time at the front, the higher."""
        return math.inf if queue.head is None else -float(queue.head)


@dataclass(frozen=True)
class MEM:
    """The best memory trade-off first: whoever makes the most bytes go away in a second."""

    def rank(self, queue: Queue, request: Request) -> float:
        """Bytes that a row frees, by the time it takes.

        What waits at a source lies outside: to read it frees nothing, and brings more in.
        """
        taken = 0.0 if queue.kind == "source" else queue.input_size
        freed = taken - queue.selectivity * queue.output_size
        return freed / max(queue.seconds, _LEAST_SECONDS)


@dataclass(frozen=True)
class Hybrid:
    """ODF while there is memory, and the less is left the more often MEM.

    threshold: the share of the budget in use from which on MEM is drawn at all.
    alpha, beta: of the Beta distribution by which it then becomes more likely, up to always.
    """

    threshold: float = 0.5
    alpha: float = 2.5
    beta: float = 1.0
    odf: ODF = field(default=ODF(), init=False, repr=False)
    mem: MEM = field(default=MEM(), init=False, repr=False)

    def __post_init__(self) -> None:
        if not _number(self.threshold) or not 0 <= self.threshold < 1:
            raise ConfigError(
                f"Hybrid(threshold={self.threshold!r}): expected a share from 0 to below 1"
            )
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not _number(value) or not 0 < value < math.inf:
                raise ConfigError(f"Hybrid({name}={value!r}): expected a number above 0")

    def chance(self, memory: float) -> float:
        """How likely MEM is with so much of the memory in use (C-MR, equation 1)."""
        if memory < self.threshold:
            return 0.0
        return beta_cdf((memory - self.threshold) / (1.0 - self.threshold), self.alpha, self.beta)

    def rank(self, queue: Queue, request: Request) -> float:
        """By the policy that was drawn for the request."""
        drawn = self.mem if request.draw < self.chance(request.memory) else self.odf
        return drawn.rank(queue, request)


BY_NAME: dict[str, type[Policy]] = {"odf": ODF, "mem": MEM, "hybrid": Hybrid}


def policy_of(given: Any) -> Policy:
    """What `scheduler=` says: a policy, or the name of one of ours."""
    if isinstance(given, str) and given.lower() in BY_NAME:
        return BY_NAME[given.lower()]()
    if isinstance(given, str):
        near = get_close_matches(given.lower(), BY_NAME, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(
            f"scheduler={given!r}: a text names one of {', '.join(BY_NAME)}{hint} One with "
            "parameters, or of your own, is an object in Python, or stands in the table [run] of a "
            "configuration file"
        )
    if isinstance(given, type) and isinstance(given, Policy):
        raise ConfigError(f"scheduler={given.__name__}: give an instance, {given.__name__}()")
    if not isinstance(given, Policy) or not callable(given.rank):
        raise ConfigError(
            f"scheduler={given!r}: expected ms.ODF(), ms.MEM(), ms.Hybrid(), one of their names, "
            "or an object with a method rank(queue, request) that gives a number"
        )
    return given


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def beta_cdf(x: float, alpha: float, beta: float) -> float:
    """The distribution function of Beta(alpha, beta): the regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(
        math.lgamma(alpha + beta)
        - math.lgamma(alpha)
        - math.lgamma(beta)
        + alpha * math.log(x)
        + beta * math.log1p(-x)
    )
    if x < (alpha + 1.0) / (alpha + beta + 2.0):
        return min(1.0, front * _fraction(x, alpha, beta) / alpha)
    return max(0.0, 1.0 - front * _fraction(1.0 - x, beta, alpha) / beta)


def _fraction(x: float, a: float, b: float) -> float:
    """Its continued fraction (Abramowitz and Stegun 26.5.8), by Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, _TERMS + 10 * math.isqrt(int(min(max(a, b), 1e9)))):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            found *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return found

"""When failures end a run: too many dead letters, or a step that failed on everything it got.

Asked by the engine before it commits a batch. Records are judged against the records a step was
offered, results against the results it was asked for: a reduce function that raises for every key
has read all its records, and has still done nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millstream.ops.records import DeadLetter

Ledger = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Share:
    """How many of the records or results of a step (or of a whole flow) failed."""

    failed: int
    of: int
    what: str  # "records" or "results"
    step: str | None = None  # None: the whole flow

    def exceeds(self, limit: float, grace: int) -> bool:
        """Whether that is more than a share of them, once there are so many."""
        return self.of >= grace and self.failed > limit * self.of

    @property
    def all(self) -> bool:
        """Whether none went well."""
        return 0 < self.failed == self.of

    def __str__(self) -> str:
        where = "" if self.step is None else f" of {self.step!r}"
        return f"{self.failed:,} of {self.of:,} {self.what}{where}"


def shares_of(ledger: Ledger, steps: Iterable[str]) -> Iterator[Share]:
    """Per step what failed of its records, and of its results."""
    for step in steps:
        account = ledger.get(step, {})
        taken = account.get("offered", 0) - account.get("dropped", 0)
        yield Share(account.get("dead", 0), taken, "records", step)
        failed = account.get("failed", 0)
        yield Share(failed, account.get("answered", 0) + failed, "results", step)


def too_many(
    ledger: Ledger, whole: Share, dead: list[DeadLetter], limit: float, grace: int
) -> Share | None:
    """The first share that is above the limit: of a step that failed just now, or of the flow."""
    steps = dict.fromkeys(letter.operator for letter in dead)
    shares = [*shares_of(ledger, steps), whole] if dead else []
    return next((one for one in shares if one.exceeds(limit, grace)), None)


def all_failed(ledger: Ledger, steps: Iterable[str]) -> Share | None:
    """The first step of which nothing went well."""
    return next((one for one in shares_of(ledger, steps) if one.all), None)


def lost_in(dead: Iterable[DeadLetter]) -> int:
    """How many records and results they are about: one that failed in several steps is one."""
    records, results = set(), 0
    for letter in dead:
        if letter.source < 0:  # of a result, which only the step that gave it has
            results += 1
        else:
            records.add((letter.source, letter.position))
    return len(records) + results


def most_frequent(dead: list[DeadLetter]) -> str:
    """The most frequent errors, with their operators."""
    kinds = Counter(f"{letter.operator}: {letter.error}"[:200] for letter in dead)
    return "; ".join(f"{number} x {text}" for text, number in kinds.most_common(3))

"""When early results are due: by the wall clock, by records taken in, or by event time.

By the wall clock and by records an operator fires at most once per batch, with all it has. By event
time alone it fires at every multiple of the period that the watermark has passed, with the records
before that multiple: so what it gives does not depend on batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from millstream.ops.chunks import Int64


@dataclass(frozen=True)
class Emission:
    """The contract of a window's results; times in microseconds, 0 for "not by this"."""

    mode: str = "final"  # "final", "early", "delta" or "snapshot"
    every: int = 0  # early: by the wall clock
    every_rows: int = 0  # early: by the number of records taken in
    every_event: int = 0  # early: by event time
    looks: Any = None  # snapshot: when to look and how sure to be (`api.early.Looks`)

    @property
    def by_event(self) -> bool:
        """Event time alone decides when early results leave."""
        return bool(self.every_event and not self.every and not self.every_rows)


FINAL = Emission()


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """When an operator fired early last, and how many records it has taken in since."""

    at: int = 0
    event: int = -(2**62)
    rows: int = 0
    over: int = 0  # records it had taken in by then, past the last multiple of `every_rows`


def fires(how: Emission, last: Firing, now: int, event: int, rows: int) -> bool:
    """Whether early results are due after so many more records; periods begin with the first."""
    if how.mode != "early" or how.by_event or last.rows + rows == 0:
        return False
    if crosses(how, last, rows):
        return True
    if last.at == 0:
        return False
    return bool(
        (how.every and now - last.at >= how.every)
        or (how.every_event and event // how.every_event > last.event // how.every_event)
    )


def crosses(how: Emission, last: Firing, rows: int) -> bool:
    """Whether so many more records cross a multiple of `every_rows`."""
    return bool(how.every_rows) and last.over + last.rows + rows >= how.every_rows


def fired(how: Emission, last: Firing, now: int, event: int, rows: int) -> Firing:
    """What is to be known after early results have left."""
    over = (last.over + last.rows + rows) % how.every_rows if how.every_rows else 0
    return Firing(now, event, 0, over)


def passes(how: Emission, last: Firing | None, event: int) -> bool:
    """Whether event time alone makes early results due, with or without records."""
    if last is None or not how.by_event:
        return False
    return event // how.every_event > last.event // how.every_event


def multiples(how: Emission, times: Int64, after: int, until: int) -> list[int]:
    """The multiples in (after, until] at which something is new: there are records just before."""
    next_ones = np.unique((times // how.every_event + 1) * how.every_event)
    due: list[int] = next_ones[(next_ones > after) & (next_ones <= until)].tolist()
    return due

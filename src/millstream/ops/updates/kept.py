"""What is kept of a slate: nothing of a blank one, and others until they expire.

Partial slates, made beside the records, are merged into stored ones here.
"""

from __future__ import annotations

from typing import Any

from millstream.ops.records import as_json, describe
from millstream.ops.updates.cells import Cell, Failure, Outcome
from millstream.ops.updates.job import NEVER, UpdateJob


class Keeper:
    """Writes the slates of one updater in one batch."""

    def __init__(self, job: UpdateJob, now: int) -> None:
        self.job, self._now = job, now
        self.blank = job.codec.encode(job.codec.new())

    def write(self, cell: Cell, us: int, data: bytes | None, *, fresh: bool) -> None:
        """Put a slate into a cell; None: it is deleted. fresh: there was none."""
        job = self.job
        if data is None:
            cell.gone = cell.wrote = cell.stored or cell.wrote
            cell.data = None
            cell.ts = cell.expires = -NEVER
            return
        if fresh and data == self.blank:
            return  # nothing was put into a fresh slate: there is none
        if fresh:
            cell.ts = cell.expires = -NEVER
        cell.data, cell.wrote, cell.gone = data, True, False
        if us > cell.ts:
            cell.ts = us
        if job.ttl is None:
            cell.expires = NEVER
        else:
            cell.expires = max(cell.expires, (self._now if job.clock == "wall" else us) + job.ttl)

    def merge(
        self, cell: Cell, at: tuple[int, int, int], partial: bytes, events: int, out: Outcome
    ) -> None:
        """Take a partial slate of so many events into the stored one, or all of them aside.

        at: time, origin and position of the last of them.
        """
        try:
            self._merge(cell, at[0], partial)
        except BaseException as error:  # a user's function may raise anything
            raw = as_json({"key": cell.key, "value": self._shown(partial)})
            why = f"{events:,} event{'s' * (events != 1)} of this key in one batch: "
            out.failures.append(Failure(*at, raw, why + describe(error), False, False, events))

    def _shown(self, data: bytes) -> Any:
        try:
            return self.job.codec.decode(data)
        except Exception:  # it may be what failed
            return data

    def _merge(self, cell: Cell, us: int, partial: bytes) -> None:
        job = self.job
        if cell.data is not None and cell.expires <= self._now:
            cell.data = None
            cell.ts = cell.expires = -NEVER
        if cell.data is None:
            data = partial
        else:
            whole = job.merge(job.codec.decode(cell.data), job.codec.decode(partial))  # type: ignore[misc]
            data = job.codec.encode(whole)
        if len(data) > job.max_slate:
            raise ValueError(
                f"the merged slate would have {len(data):,} bytes, more than max_slate="
                f"{job.max_slate:,}; keep less in it, or raise max_slate"
            )
        self.write(cell, us, data, fresh=cell.data is None)

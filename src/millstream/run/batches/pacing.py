"""How large batches are: about `batch_seconds` of work each, by what the last ones took."""

from __future__ import annotations

from millstream.settings import Settings

_SMALL = 20_000  # rows a single task handles faster than two and an exchange
_FIRST_ROWS = 100_000  # per core
_LEAST_ROWS = 500  # per core
_ROW_BYTES = 64  # of what waits, until rows are read


class Pace:
    """The size of a run's batches, and what the last one came to."""

    def __init__(self, settings: Settings) -> None:
        self.seconds = settings.batch_seconds  # that a batch should take
        self.rows = min(settings.batch_rows, _FIRST_ROWS)  # per core that it takes for that
        self.cores = 1  # tasks at once
        self.last_seconds = 0.0
        self.last_rows = 0
        self.parallelism = settings.parallelism  # None: as many tasks as pay
        self._most_rows, self._most_bytes = settings.batch_rows, settings.batch_bytes

    def begin(self, cores: int) -> None:
        """The next batch may have so many cores."""
        self.cores = max(1, self.parallelism or cores)

    @property
    def room(self) -> tuple[float, int, int]:
        """Seconds of all tasks, and the rows and bytes of a source, that a batch has room for."""
        return self.seconds * self.cores, self.rows * self.cores, self._most_bytes * self.cores

    def tasks(self, pending: int) -> int:
        """How many tasks work on a batch of which so many bytes wait."""
        if self.parallelism is not None:
            return self.parallelism
        few = min(pending / _ROW_BYTES, self.rows * self.cores) < _SMALL
        return 1 if few else self.cores

    def aim_at(self, rows: float) -> None:
        """Let the next batch take so many rows, if it may be so many."""
        self.rows = min(self._most_rows, max(self.rows, int(rows / self.cores) + 1))

    def learn(self, rows: int, seconds: float, besides: float, *, first: bool) -> None:
        """Let the next batch cost what it should; change by at most a factor of two.

        besides: seconds that were no cost of its rows, as waiting for other flows: they would make
            each other's batches ever smaller. first: the first batch of all is no measure.
        """
        self.last_rows, self.last_seconds = rows, seconds
        if rows >= self.rows * self.cores // 2 and not first:
            factor = self.seconds / max(seconds - besides, 1e-3)
            target = int(self.rows * min(2.0, max(0.5, factor)))
            self.rows = min(self._most_rows, max(_LEAST_ROWS, target))

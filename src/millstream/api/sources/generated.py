"""Records that are made where the flow runs: by a function, a clock, or the machine itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from millstream.api.frames import plainly
from millstream.api.sources.timing import Timing, fill
from millstream.durations import Duration, micros
from millstream.errors import ConfigError


@plainly
@dataclass(frozen=True)
class Generator(Timing):
    """Records from a Python generator function: dicts, or Arrow tables for speed.

    After a restart the function is called again and as many records as were already taken are
    skipped; with `replayable=False` nothing is skipped.
    """

    fn: Callable[[], Iterable[Any]] = field(default=tuple)
    schema: Any = None
    replayable: bool = True

    def __init__(self, fn: Callable[[], Iterable[Any]], **options: Any) -> None:
        fill(self, Generator, {"fn": fn, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise ConfigError(
                f"Generator(fn): expected a generator function, got {type(self.fn).__name__}; "
                "give the function itself, not what it returns"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fn": tuple}  # the generator runs in the driver only


@plainly
@dataclass(frozen=True)
class Rate(Timing):
    """Numbered records at a steady rate, for trying things out: columns `ts` and `value`.

    With `limit` it ends after so many records.
    """

    rows_per_second: float = 1.0
    limit: int | None = None

    def __init__(self, rows_per_second: float = 1.0, **options: Any) -> None:
        fill(self, Rate, {"rows_per_second": rows_per_second, "time": "ts", **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rows_per_second, int | float) or not self.rows_per_second > 0:
            raise ConfigError(
                f"Rate(rows_per_second={self.rows_per_second!r}): expected a number above zero"
            )
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ConfigError(
                f"Rate(limit={self.limit!r}): expected how many records there are, at least 1; "
                "leave it out if it has no end"
            )

    @property
    def endless(self) -> bool:
        return self.limit is None


@plainly
@dataclass(frozen=True)
class HostStats(Timing):
    """Figures of the machine it runs on, one record `every` so long; it needs psutil.

    Columns: `ts`, `host`, `cpu`, `memory` and `swap` (percent), `load` (of one minute), and bytes
    since the record before: `swapped_in`, `swapped_out`, `disk_read`, `disk_written`, `sent` and
    `received`.

    host: what stands in the column `host`; the name of the machine if it is left out.
    """

    every: Duration = "1s"
    host: str | None = None
    time: str | None = field(default="ts", init=False)
    time_unit: str = field(default="s", init=False)
    time_format: str | None = field(default=None, init=False)
    time_pattern: str | None = field(default=None, init=False)
    zone: str | None = field(default=None, init=False)

    def __init__(self, every: Duration = "1s", **options: Any) -> None:
        fill(self, HostStats, {"every": every, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        micros(self.every, "HostStats(every=)")
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise ConfigError(f"HostStats(host={self.host!r}): expected a name")

    schema: ClassVar[str] = (
        "ts timestamp, host string, cpu double, memory double, swap double, load double, "
        "swapped_in bigint, swapped_out bigint, disk_read bigint, disk_written bigint, "
        "sent bigint, received bigint"
    )
    replayable: ClassVar[bool] = False  # what was not kept is past

    @property
    def endless(self) -> bool:
        return True

    def fn(self) -> Iterator[dict[str, Any]]:
        """Its records, without end."""
        from millstream.io.hosts import figures

        return figures(micros(self.every, "every") / 1e6, self.host)

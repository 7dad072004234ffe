"""Settings of a run, with the defaults that suit most."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.scheduling import Policy, policy_of
from millstream.sizes import bytes_of

LEAST_MEMORY = 256 << 20


@dataclass(frozen=True)
class Settings:
    """How a flow runs; what it computes does not depend on any of these.

    master: Spark's master; "local[*]" uses all cores of this machine, "sc://host:15002" a server of
        Spark Connect.
    runner: "rdd", or "frames" for tasks on DataFrames; default "rdd", and "frames" over Connect.
    shards: parts of the state, chosen at the first start; default 4 x cores, at least 8, on a
        cluster at least 256.
    parallelism: tasks per stage; default as many as Spark has cores, asked before every batch.
    min_cores: cores that must be there before anything is decided; cores_wait: seconds they have.
        Without it, a cluster is waited for until no more executors come.
    batch_rows, batch_bytes: the most one batch takes in per core, or per task if `parallelism` is
        given; the size follows `batch_seconds`.
    batch_seconds: what a batch should cost; a backlog runs in batches of about this length.
    scheduler: who gets the room of a batch if there is more to do: ms.ODF(), ms.MEM(), ms.Hybrid(),
        their names, or an object with a method rank(queue, request).
    memory: what queues and operators of the flow may have together, like "2GB": driver, JVM and
        Python workers. Batches are as large as it allows. Default 0.8 of what the machine or the
        container has.
    interval: seconds from the beginning of one batch to the next at least; 0 waits for nothing.
    dead_letter_limit, dead_letter_grace: the run stops once more than this share of all records
        after the first so many were dead letters, or of the records or results of one step.
    cycle_events: published events a cycle of updaters handles in one batch; the rest is carried.
    cycle_hops: how often what one event sets off may go round a cycle, before the run stops.
    max_key: the most bytes the key of a slate or a window may have.
    max_participants: the most values a column named with participant= may have.
    incremental: a run that finds more input than the one before gives results over the whole input
        of what is new alone; else of everything, as changes of those given before.
    remove: operators, and aggregates as "operator.aggregate", that the program no longer has:
        what the checkpoint stores for them is dropped.
    earliest, latest: a record whose time lies outside is a dead letter; the zero and the last
        moment of other systems (years 1 and 9999) would lead windows out of the calendar.
    retain: committed batches kept for going back.
    poll: seconds between looks at idle sources.
    warm: bytes of state kept in memory between batches, as "2GB", where driver and workers are on
        one machine; 0 keeps none. Default a tenth of the memory that is free, at most half of what
        is free in /dev/shm.
    scratch: where Spark keeps the blocks of a batch: "memory", "disk", or None for memory where
        four batches of the largest size fit into half of it, and nobody empties it meanwhile.
    compression: of stored segments, by zstd where a sample says that it pays: "auto" those that are
        read after a crash only, "large" also those of more than 50,000 merged rows, "none".
    disk_full_wait: seconds to wait for room when the disk is full.
    function_timeout: how long one call of a function may take, before it is given up with its
        worker and tried again, once; None lets it take for ever.
    stop_timeout: seconds the current batch has to end after a stop, before it is given up.
    debug: show Spark's log, and compare what windows keep with recomputation at every slide.
    quiet: flow.run() shows no progress, and logs nothing.
    serve: serve slates and status over HTTP while the flow runs: a port, or "host:port".
    token_file: with serve, a file with the token that requests must carry; by default the token is
        in the environment variable MILLSTREAM_TOKEN. Beyond this machine there must be one.
    spark: further Spark properties.
    on_progress: called after every batch.
    """

    master: str = "local[*]"
    runner: str | None = None
    shards: int | None = None
    parallelism: int | None = None
    min_cores: int | None = None
    cores_wait: float = 60.0
    batch_rows: int = 1_000_000
    batch_bytes: int = 128 * 1024 * 1024
    batch_seconds: float = 2.0
    scheduler: str | Policy = "hybrid"
    memory: int | str | None = None
    interval: float = 0.0
    dead_letter_limit: float = 0.01
    dead_letter_grace: int = 1_000
    cycle_events: int = 200_000
    cycle_hops: int = 100_000
    max_key: int = 1024
    max_participants: int = 10_000
    incremental: bool = False
    remove: tuple[str, ...] = ()
    earliest: str = "1800-01-01"
    latest: str = "2200-01-01"
    retain: int = 10
    poll: float = 0.05
    warm: int | str | None = None
    scratch: str | None = None
    compression: str = "auto"
    disk_full_wait: float = 30.0
    function_timeout: Duration | None = "5m"
    stop_timeout: float = 60.0
    ui: bool = False
    debug: bool = False
    quiet: bool = False
    serve: int | str | None = None
    token_file: str | Path | None = None
    spark: dict[str, str] = field(default_factory=dict)
    on_progress: Callable[[Any], None] | None = None

    @property
    def times(self) -> tuple[int, int]:
        """`earliest` and `latest` in microseconds UTC."""
        return _moment("earliest", self.earliest), _moment("latest", self.latest)

    @property
    def policy(self) -> Policy:
        """What `scheduler` says."""
        return policy_of(self.scheduler)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes."""
        return None if self.memory is None else bytes_of(self.memory, "memory")

    @property
    def function_micros(self) -> int | None:
        """`function_timeout` in microseconds."""
        given = self.function_timeout
        return None if given is None else micros(given, "function_timeout")

    def __post_init__(self) -> None:
        self._check_types()
        policy_of(self.scheduler)
        if (memory := self.memory_bytes) is not None and memory < LEAST_MEMORY:
            raise ConfigError(
                f"memory={self.memory!r} is too little for a driver, Spark's JVM and "
                f"Python workers; give at least {LEAST_MEMORY >> 20}MB, or better 1500MB or more"
            )
        if self.runner not in (None, "rdd", "frames"):
            raise ConfigError(f'runner={self.runner!r}: use "rdd" or "frames"')
        if self.scratch not in (None, "memory", "disk"):
            raise ConfigError(f'scratch={self.scratch!r}: use "memory" or "disk"')
        if self.compression not in ("auto", "large", "none"):
            raise ConfigError(f'compression={self.compression!r}: use "auto", "large" or "none"')
        if self.warm not in (None, 0):
            bytes_of(self.warm, "warm")
        for name in (
            "batch_rows",
            "batch_bytes",
            "retain",
            "cycle_events",
            "cycle_hops",
            "max_key",
            "max_participants",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("shards", "parallelism", "min_cores"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number from 1, got {value!r}")
        if not isinstance(self.master, str) or not self.master:
            raise ConfigError(f'master is a text like "local[4]", got {self.master!r}')
        if isinstance(self.remove, str):
            raise ConfigError(f"remove is a list of names, got the text {self.remove!r}")
        if self.interval < 0:
            raise ConfigError(f"interval is a number of seconds from 0, got {self.interval!r}")
        if (given := self.function_micros) is not None and given < 100_000:
            raise ConfigError(
                f"function_timeout must be at least 100ms, got {self.function_timeout!r}"
            )
        if self.cores_wait < 0:
            raise ConfigError(f"cores_wait is a number of seconds from 0, got {self.cores_wait!r}")
        if self.stop_timeout < 0:
            raise ConfigError(
                f"stop_timeout is a number of seconds from 0, got {self.stop_timeout!r}"
            )
        earliest, latest = self.times
        if not earliest < latest:
            raise ConfigError(f"earliest={self.earliest!r} must lie before latest={self.latest!r}")
        if not 0 <= self.dead_letter_limit <= 1:
            raise ConfigError("dead_letter_limit is a share between 0 and 1")

    def _check_types(self) -> None:
        """Refuse texts in place of numbers, and anything but True and False for switches."""
        for one in fields(self):
            value, kind = getattr(self, one.name), str(one.type)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if kind == "bool" and not isinstance(value, bool):
                raise ConfigError(f"{one.name} is a switch, True or False, got {value!r}")
            if kind == "int" and (not number or value != int(value)):
                raise ConfigError(f"{one.name} is a whole number, got {value!r}")
            if kind == "float" and not number:
                what = "a share" if one.name == "dead_letter_limit" else "a number of seconds"
                like = one.default or 1.5
                raise ConfigError(f"{one.name} is {what}, like {one.name}={like}, got {value!r}")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Settings:
        """Settings from keyword options; an unknown one is refused with the nearest known."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
                raise ConfigError(f"there is no setting {name!r}{hint}")
        return cls(**options)


def _moment(name: str, text: Any) -> int:
    """A day or time of the years 1000 to 8999: windows must not leave the calendar."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ConfigError(f'{name}={text!r} is not a time; write a day like "1970-01-01"') from None
    if not 1000 <= moment.year < 9000:
        raise ConfigError(f"{name}={text!r} must lie in the years 1000 to 8999")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

"""Sinks: where results go. A sink is a description; writers live in `io/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.arguments import named_columns
from millstream.api.frames import plainly
from millstream.api.sources.kafka import Kafka
from millstream.api.tables import TableSink
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.io.mirrors import Address
from millstream.ops.chunks import concat
from millstream.sizes import bytes_of
from millstream.state.locations import located

_LARGEST = 2 << 30


@plainly
@dataclass(frozen=True)
class FileSink:
    """What file sinks share: exactly-once, and no reader ever sees half a file."""

    path: str | Path

    def __post_init__(self) -> None:
        step = type(self).__name__
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise ConfigError(f"{step}(path): expected a path, got {self.path!r}")
        try:
            file = located(self.path).resolve().is_file()
        except (OSError, ValueError, RuntimeError) as error:
            # too long, a zero byte, links in a circle
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{step}(path): expected a directory, got {self.path!r}: {why}"
            ) from None
        if file:
            raise ConfigError(
                f"{step}({str(self.path)!r}) is a file, and ms.{step} writes into a directory; to "
                f"read a file use ms.Files({str(self.path)!r})"
            )

    @property
    def directory(self) -> Path:
        """Where the files go: the same for every way to write the path."""
        return located(self.path).resolve()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory,)  # a worker may stand somewhere else


@plainly
@dataclass(frozen=True)
class Parquet(FileSink):
    """Parquet files in a directory.

    partition_by: columns whose values name folders, as `day=2026-11-17/`; files there lack them.
    target_size: how large files are to be, like "128MB". Results then wait, hidden and committed,
        until a folder has enough of them for a file.
    at_latest: for how long results wait at most; at the end of the input or of the run they do not.
    """

    suffix = "parquet"
    partition_by: str | tuple[str, ...] = field(default=(), kw_only=True)
    target_size: int | str | None = field(default=None, kw_only=True)
    at_latest: Duration = field(default="10m", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        named_columns("Parquet", self.partition_by, "partition_by")
        micros(self.at_latest, "Parquet(at_latest=)")
        if self.target_bytes > _LARGEST:
            raise ConfigError(
                f"Parquet(target_size={self.target_size!r}): a file is put together in memory and "
                "may have 2GB at most; readers gain nothing beyond 1GB"
            )

    @property
    def folders(self) -> tuple[str, ...]:
        """The columns whose values name folders."""
        return named_columns("Parquet", self.partition_by, "partition_by")

    @property
    def target_bytes(self) -> int:
        """How large files are to be; 0: as large as they come."""
        return 0 if self.target_size is None else bytes_of(self.target_size, "Parquet(target_size)")

    def __reduce__(self) -> tuple[Any, ...]:
        exact = {"path": self.directory, "partition_by": self.folders}
        return partial(Parquet, **{**vars(self), **exact}), ()


@plainly
@dataclass(frozen=True)
class Csv(FileSink):
    """Files of comma-separated values in a directory, each with a line of names.

    Null is an empty field, an empty text is `""`; lists and records are JSON.
    """

    suffix = "csv"


@plainly
@dataclass(frozen=True)
class Jsonl(FileSink):
    """Files of JSON lines in a directory.

    Where the columns are known before the run, every line has all of them; of functions without a
    schema= a line has those in which its row has a value.
    """

    suffix = "jsonl"


@plainly
@dataclass(frozen=True)
class Text(FileSink):
    """Files of plain lines in a directory, of a stream with one column of texts or bytes.

    A null is an empty line. A value with a line break is no line, and a dead letter.
    """

    suffix = "txt"


@plainly
@dataclass(frozen=True)
class Console:
    """A table on the terminal, at most `limit` rows a batch; in a notebook the last ones so far."""

    limit: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.limit, int) or self.limit < 1:
            raise ConfigError(f"Console(limit={self.limit!r}): expected a number from 1 on")


@plainly
@dataclass(frozen=True)
class Call:
    """Any Python function, called in the driver with every result (a dict), in order.

    It is called after the batch was committed: each result at least once, and exactly once unless
    the driver is killed between the commit and the end of the calls.
    """

    fn: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ConfigError(f"Call(fn): expected a function, got {type(self.fn).__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (len,)  # the function stays in the driver


@plainly
@dataclass(frozen=True)
class Memory:
    """Results kept in this process: `rows` as dicts, `table()` as Arrow, or `pandas()`."""

    tables: list[pa.Table] = field(default_factory=list, compare=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All results so far, in order."""
        return [row for table in self.tables for row in table.to_pylist()]

    def table(self) -> pa.Table:
        """All results so far as one table."""
        if not self.tables:
            return pa.table({})
        return concat(self.tables)

    def pandas(self) -> Any:
        """All results so far as a pandas DataFrame."""
        return self.table().to_pandas()

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()  # results stay in the driver


@plainly
@dataclass(frozen=True)
class Redis:
    """A mirror in Redis, written after each commit; values are JSON.

    On the stream of an updater it has all its slates and follows their changes; on any other
    stream the newest row per `key`. Nothing shows the user and password of the URL.

    prefix: what all keys begin with; by default "millstream:<flow>:".
    key: for streams that are not of an updater, the column or columns that name a row.
    ttl: how long such a row stays. Slates have the ttl of their updater.
    wait: how long to try when Redis is away before the run stops.
    password_env: the environment variable with the password, if the URL has none.
    """

    url: str = field(default="redis://127.0.0.1:6379/0", repr=False)
    prefix: str | None = field(default=None, kw_only=True)
    key: str | tuple[str, ...] = field(default=(), kw_only=True)
    ttl: Duration | None = field(default=None, kw_only=True)
    wait: Duration = field(default="30s", kw_only=True)
    password_env: str = field(default="MILLSTREAM_REDIS_PASSWORD", kw_only=True)

    def __post_init__(self) -> None:
        address = self.address  # checks the URL
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise ConfigError(f"Redis(prefix={self.prefix!r}): expected a text")
        named_columns("Redis", self.key)
        if self.ttl is not None:
            micros(self.ttl, "Redis(ttl=)")
        micros(self.wait, "Redis(wait=)")
        if not isinstance(self.password_env, str) or not self.password_env:
            raise ConfigError(f"Redis(password_env=): expected a name, at {address.shown}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return named_columns("Redis", self.key)

    @property
    def address(self) -> Address:
        """Where it is; printed without secrets."""
        return Address.parse(self.url, self.password_env)

    def __repr__(self) -> str:
        return f"Redis({self.address.shown!r}, prefix={self.prefix!r}, key={self.columns!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Redis, (self.address.shown,)  # written in the driver; secrets stay there


SinkSpec = Parquet | Csv | Jsonl | Text | Console | Call | Memory | Redis | TableSink | Kafka

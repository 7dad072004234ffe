"""Sinks: where results go. A sink is a description; writers live in `io/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError


@dataclass(frozen=True)
class FileSink:
    """What file sinks share: exactly-once, and no reader ever sees half a file."""

    path: str | Path

    def __post_init__(self) -> None:
        step = type(self).__name__
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise ConfigError(f"{step}(path): expected a path, got {self.path!r}")
        if Path(self.path).is_file():
            raise ConfigError(f"{step}({str(self.path)!r}) is a file; give a directory")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (Path(self.path).absolute(),)  # a worker may stand somewhere else


@dataclass(frozen=True)
class Parquet(FileSink):
    """Parquet files in a directory."""

    suffix = "parquet"


@dataclass(frozen=True)
class Jsonl(FileSink):
    """Files of JSON lines in a directory."""

    suffix = "jsonl"


@dataclass(frozen=True)
class Console:
    """A table on the terminal, at most `limit` rows a batch."""

    limit: int = 20


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


@dataclass(frozen=True)
class Memory:
    """Results kept in this process: `rows` as dicts, `table()` as Arrow."""

    tables: list[pa.Table] = field(default_factory=list, compare=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All results so far, in order."""
        return [row for table in self.tables for row in table.to_pylist()]

    def table(self) -> pa.Table:
        """All results so far as one table."""
        if not self.tables:
            return pa.table({})
        return pa.concat_tables(self.tables, promote_options="permissive")

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()  # results stay in the driver


SinkSpec = Parquet | Jsonl | Console | Call | Memory

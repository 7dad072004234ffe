"""What a table of another system must do to take batches, each once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millstream.errors import ConfigError

# The checksum of what a batch gave a sink, 0 of nothing; None if that is not known any more.
Gave = Callable[[str, int], int | None]


class Noted(NamedTuple):
    """The last batch that a table has, and what tells it from another of its number."""

    batch: int = -1
    checksum: int | None = None  # earlier releases noted none


class TableWriter(Protocol):
    """A table that takes batches, each once."""

    def reached(self) -> Noted: ...

    def write(self, rows: pa.Table, gone: pa.Table | None, before: Noted, noted: Noted) -> None:
        """Put rows in and take others out, in the transaction that says that it has this batch.

        gone: the keys of rows that are no longer there; None: rows are only added. before: what it
        was seen to have; if that is no longer so, it is a Conflict.
        """

    def close(self) -> None: ...


class Conflict(Exception):
    """Somebody else has changed the table meanwhile: look again which batch it has."""


class Lost(Exception):
    """The system went away: ask again for a while, and look which batch it has."""


def required(module: str, extra: str, what: str) -> Any:
    """A package that is an extra of this one."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs a package more: pip install 'millstream[{extra}]'"
        ) from error

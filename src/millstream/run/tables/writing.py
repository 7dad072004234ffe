"""What a table of another system must do to take batches, each once."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import pyarrow as pa

from millstream.errors import ConfigError


class TableWriter(Protocol):
    """A table that takes batches, each once."""

    def reached(self) -> int:
        """The last batch it has; -1 for none."""

    def write(self, rows: pa.Table, gone: pa.Table | None, batch: int) -> None:
        """Put rows in and take others out, in the transaction that says that it has this batch.

        gone: the keys of rows that are no longer there; None: rows are only added.
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

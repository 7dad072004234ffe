"""Tables of other systems as sinks, each batch in one of their transactions.

Rows are staged with the batch and written after its commit. The table itself remembers which batch
it has, in the same transaction as the rows, so that a batch that is written again changes nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.api.arguments import named_columns
from millstream.api.frames import plainly
from millstream.api.sources.delta import Delta
from millstream.errors import ConfigError

_NAME = re.compile(r"[^\W\d][\w$]*(\.[^\W\d][\w$]*)*")


@plainly
@dataclass(frozen=True)
class Iceberg:
    """An Iceberg table, appended to exactly once; it is made if it is not there.

    table: its name in the catalog, as "shop.orders".
    catalog: the name of a catalog in PyIceberg's own configuration, or its properties as a dict.
    key: the columns that name a row: rows replace those of the same key, and `-` deletes them.
    """

    table: str
    catalog: str | dict[str, str] = field(default="default", kw_only=True, repr=False)
    key: str | tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or "." not in self.table:
            raise ConfigError(
                f"Iceberg(table={self.table!r}): expected a namespace and a name, like "
                '"shop.orders"'
            )
        if not isinstance(self.catalog, str | dict):
            raise ConfigError("Iceberg(catalog=): expected a name or a dict of properties")
        named_columns("Iceberg", self.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return named_columns("Iceberg", self.key)

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.table

    def __reduce__(self) -> tuple[Any, ...]:
        # written in the driver; properties stay there
        return partial(Iceberg, self.table, key=self.key), ()

    def __hash__(self) -> int:
        return hash((self.table, self.columns))


@plainly
@dataclass(frozen=True)
class Postgres:
    """A table of PostgreSQL; the rows of a batch and its number are written in one transaction.

    url: as `postgresql://user@host:5432/name`; the password better comes from `password_env`.
    table: its name, also with a schema. It is made if it is not there, with a primary key.
    key: the columns that name a row: a row replaces the one with its key, and `-` deletes it.
        Without it rows are inserted.
    password_env: the environment variable with the password, if the URL has none.
    """

    url: str = field(repr=False)
    table: str = field(kw_only=True)
    key: str | tuple[str, ...] = field(default=(), kw_only=True)
    password_env: str = field(default="MILLSTREAM_POSTGRES_PASSWORD", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(
            ("postgresql://", "postgres://")
        ):
            raise ConfigError("Postgres(url): expected postgresql://user@host:port/database")
        if not isinstance(self.table, str) or not _NAME.fullmatch(self.table):
            raise ConfigError(
                f'Postgres(table={self.table!r}): expected a name, like "shop.orders"'
            )
        named_columns("Postgres", self.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return named_columns("Postgres", self.key)

    @property
    def shown(self) -> str:
        """What messages call it: without user and password."""
        return (
            f"{self.table} at {self.url.partition('://')[2].rpartition('@')[2].partition('?')[0]}"
        )

    @property
    def password(self) -> str | None:
        """From the environment; None: the URL has it, or none is needed."""
        return os.environ.get(self.password_env)

    def __reduce__(self) -> tuple[Any, ...]:
        # written in the driver; secrets stay there
        return partial(Postgres, "postgresql://elsewhere", table=self.table, key=self.key), ()


TableSink = Delta | Iceberg | Postgres

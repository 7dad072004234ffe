"""A Delta table, as a source and as a sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millstream.api.arguments import named_columns
from millstream.api.frames import plainly
from millstream.api.sources.timing import Followed, fill
from millstream.errors import ConfigError
from millstream.state.locations import located


@plainly
@dataclass(frozen=True)
class Delta(Followed):
    """A Delta table: as a sink exactly once, as a source its rows and with `follow` those appended.

    key: as a sink of changes, the columns that name a row: rows are merged, and `-` deletes them.
        Without it rows are appended, those of changes with their column `op`.
    follow: as a source, whether versions that come are read as well; only appended ones can be.
    """

    path: str | Path = ""
    key: str | tuple[str, ...] = field(default=(), kw_only=True)
    follow: bool = field(default=False, kw_only=True)

    def __init__(self, path: str | Path, **options: Any) -> None:
        fill(self, Delta, {"path": path, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise ConfigError(f"Delta(path): expected a path or a URL, got {self.path!r}")
        named_columns("Delta", self.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return named_columns("Delta", self.key)

    @property
    def location(self) -> str:
        """Where it is, the same for every way to write the path."""
        return str(located(self.path).resolve())

    @property
    def shown(self) -> str:
        """What messages call it."""
        return str(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Delta, **{**vars(self), "path": located(self.path).resolve()}), ()

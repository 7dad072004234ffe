"""Files, stored or growing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.api.frames import plainly
from millstream.api.sources.timing import Followed, fill
from millstream.errors import ConfigError
from millstream.io.formats import KINDS, check_delimiter, codec


@plainly
@dataclass(frozen=True)
class Files(Followed):
    """Files in a directory, one file, or a glob: csv, json (lines), parquet or text; also .gz.

    Format "debezium" is lines of JSON with changes of a table: its columns are those of the table
    and `__op`, for `changes(key=, op="__op")`.

    With `follow=True` new files are taken up as they appear and text files as they grow.
    delimiter: what parts the fields of csv; without it a comma, semicolon, tab or bar, if the first
        lines show which.
    nulls: fields of csv that stand for a missing value, like ["NA", ""], in every column. Without
        it, if columns are inferred, NA, NULL and the like are null in all columns but texts.
    comment: lines of csv that begin with it are skipped, like "#".
    encoding: of csv and text that is not UTF-8, like "cp1252"; positions stay those of the file.
    multiline: quoted fields of csv may run over line ends; every file is then read whole, by one
        task, and is taken to be finished when it is seen.
    links: whoever may put files into a directory could link any file of this machine there, so
        links in it are refused (and with `follow=True` left out, with a warning) unless True.
    reader: a function of your own for other formats: it gets the open file (bytes, decompressed,
        with a `name`) and gives (position, record), positions ascending, records as dicts.
    """

    path: str | Path = ""
    format: str | None = None
    schema: Any = None
    follow: bool = False
    max_files_per_batch: int | None = None
    header: bool = True
    delimiter: str | None = None
    nulls: Sequence[str] | None = None
    comment: str | None = None
    encoding: str | None = None
    multiline: bool = False
    reader: Callable[[Any], Iterable[tuple[int, Any]]] | None = None
    links: bool = False

    def __init__(self, path: str | Path, format: str | None = None, **options: Any) -> None:
        fill(self, Files, {"path": path, "format": format, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str | Path) or not str(self.path):
            several = (
                '; for several files give a pattern like "in/*.csv", or a source for each and union'
                if isinstance(self.path, list | tuple | set)
                else ""
            )
            raise ConfigError(f"Files(path): expected a path, got {self.path!r}{several}")
        if self.format is not None and self.format not in KINDS:
            raise ConfigError(
                f"Files(format={self.format!r}): use one of {', '.join(KINDS)}, or leave it "
                "out to go by the file names"
            )
        for name in ("follow", "header", "multiline", "links"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"Files({name}={getattr(self, name)!r}): use True or False")
        self._check(check_delimiter, "delimiter")
        self._check(codec, "encoding")
        if self.nulls is not None and (
            isinstance(self.nulls, str)
            or not isinstance(self.nulls, Iterable)
            or not all(isinstance(one, str) for one in self.nulls)
        ):
            raise ConfigError(
                f'Files(nulls={self.nulls!r}): expected a list of texts, like ["NA", ""]'
            )
        if self.comment is not None and (not isinstance(self.comment, str) or not self.comment):
            raise ConfigError(f'Files(comment={self.comment!r}): expected a text, like "#"')
        if self.reader is not None and not callable(self.reader):
            raise ConfigError(
                f"Files(reader={self.reader!r}): expected a function that gets an open file and "
                "gives (position, record)"
            )
        if self.reader is not None and self.format is not None:
            raise ConfigError(
                f"Files(format={self.format!r}, reader=): a reader decides itself what the bytes "
                "mean; leave format= out"
            )
        most = self.max_files_per_batch
        if most is not None and (not isinstance(most, int) or most < 1):
            raise ConfigError(f"Files(max_files_per_batch={most!r}): expected a number from 1 on")

"""A Delta table as a source: the files of its versions, as its log tells them.

What is in the table when a flow first looks is written down, so that the same files are meant after
every restart; of later versions only those can be read that add rows.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from millstream.api.sources import Delta
from millstream.errors import ConfigError, RunError
from millstream.run.outputs.tables.delta import store_options
from millstream.run.outputs.tables.writing import required
from millstream.run.sources.files.listing import Seen, look
from millstream.state.storage import Storage, open_storage


class _Begun(msgspec.Struct):
    """A table as it was when it was first looked at."""

    version: int
    files: list[str]


_begun = msgspec.json.Decoder(_Begun)


def open_table(spec: Delta) -> Any:
    """The table as it is now; refused where its files alone do not say what its rows are."""
    lake = required("deltalake", "delta", "ms.Delta")
    try:
        table = lake.DeltaTable(spec.location, storage_options=store_options(spec.location))
    except Exception as error:  # whatever deltalake makes of a place that is no table
        line = (str(error).splitlines() or ["?"])[0][:300]
        raise ConfigError(f"{spec.shown} is not a Delta table that can be read ({line})") from None
    if table.metadata().partition_columns:
        raise ConfigError(
            f"{spec.shown} is partitioned by {', '.join(table.metadata().partition_columns)}, and "
            "its files lack these columns; read it with ms.Frame(spark.read.format('delta')...)"
        )
    if table.protocol().min_reader_version > 1:
        raise ConfigError(
            f"{spec.shown} needs reader version {table.protocol().min_reader_version} (deletion "
            "vectors or mapped columns), this reads version 1; read it with ms.Frame"
        )
    return table


def paths_of(table: Any) -> list[str]:
    """The files of a table as it is."""
    return sorted(uri.removeprefix("file://") for uri in table.file_uris())


class Versions:
    """What there is to read of a table: called at every look."""

    def __init__(self, spec: Delta, sources: Storage, stem: str) -> None:
        self.spec = spec
        self._log = open_storage(spec.location).within("_delta_log")
        name = f"{stem}.delta"
        if not sources.exists(name):
            table = open_table(spec)
            begun = _Begun(table.version(), paths_of(table))
            sources.put(name, msgspec.json.encode(begun))
        begun = _begun.decode(sources.read(name))
        self.version, self.paths = begun.version, begun.files
        self._seen: dict[str, Seen] = {}  # files of a table never change

    def __call__(self) -> list[Seen]:
        while self.spec.follow and self._log.exists(name := f"{self.version + 1:020d}.json"):
            self._add(self._log.read(name), self.version + 1)
            self.version += 1
        if self.spec.follow:
            self._check_gap()
        for path in self.paths:
            if path not in self._seen and (seen := look(path)) is not None:
                self._seen[path] = seen
        return [self._seen[path] for path in self.paths if path in self._seen]

    def _check_gap(self) -> None:
        """Logs are removed after a while: then it cannot be known what a version added."""
        later = [name for name in self._log.names() if name > f"{self.version + 1:020d}.json"]
        if any(name.endswith(".json") and name[:20].isdigit() for name in later):
            raise RunError(
                f"version {self.version + 1} of {self.spec.shown} is gone from its log before it "
                "was read (delta.logRetentionDuration): what it added cannot be known; start with "
                "a new checkpoint and output directory"
            )

    def _add(self, log: bytes, version: int) -> None:
        for line in log.splitlines():
            action = msgspec.json.decode(line) if line.strip() else {}
            added, removed = action.get("add"), action.get("remove")
            if removed is not None and removed.get("dataChange", True):
                raise RunError(
                    f"version {version} of {self.spec.shown} deletes or changes rows, and only "
                    "appended ones can be followed; keep changes in a table of their own, or read "
                    "its change feed with ms.FrameStream"
                )
            if added is not None and added.get("dataChange", True):
                path = unquote(added["path"])
                self.paths.append(path if "://" in path else f"{self.spec.location}/{path}")

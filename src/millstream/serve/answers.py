"""Snapshots under a name: published one by one, each whole or not at all, for any reader.

A snapshot is a Parquet file whose name tells its progress, so the last name is the newest. What
else a snapshot says stands in the metadata of the file.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.api.early import Snapshot, Unseen
from millstream.api.frames import plainly
from millstream.errors import ConfigError, RunError
from millstream.state.storage import Storage, open_storage

_KEY = b"millstream"
_NAME = re.compile(r"snapshot-(\d\.\d{6})\.parquet")


class _Said(msgspec.Struct):
    """What a snapshot says beside its table."""

    run: str
    progress: float
    exact: bool
    confidence: float
    promise: str
    unseen: tuple[int, float, dict[str, float]] | None = None
    ended_by: str | None = None
    elapsed: float = 0.0
    notes: tuple[str, ...] = ()
    heavy: tuple[str, ...] = ()


_said = msgspec.json.Decoder(_Said)
_ALIKE = [name for name in _Said.__struct_fields__ if name not in ("run", "unseen")]


def publish_snapshot(place: Storage, snapshot: Snapshot, run: str) -> str:
    """Let a snapshot appear under its name; one of the same progress is replaced by itself."""
    check_run(place, run)
    unseen = None if (u := snapshot.unseen) is None else (u.blocks, u.share, u.holds)
    said = _Said(run, unseen=unseen, **{name: getattr(snapshot, name) for name in _ALIKE})
    table = snapshot.table.replace_schema_metadata({_KEY: msgspec.json.encode(said)})
    data = io.BytesIO()
    pq.write_table(_writable(table), data)
    # Progress is cut, not rounded: only the exact answer is called 1.
    share = 1.0 if snapshot.exact else min(snapshot.progress, 0.999999)
    name = f"snapshot-{int(share * 1e6) / 1e6:.6f}.parquet"
    place.create(private=False)
    place.put(name, data.getvalue())
    return name


def _writable(table: pa.Table) -> pa.Table:
    """Parquet has no column of nothing but nulls without a type."""
    fields = [
        pa.field(f.name, pa.float64() if pa.types.is_null(f.type) else f.type) for f in table.schema
    ]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def check_run(place: Storage, run: str) -> None:
    """Snapshots of one run only, or the newest would be one of another."""
    names = _names(place)
    if names and (other := _read(place, names[-1], rows=False)[1].run) != run:
        raise ConfigError(
            f"snapshots(publish=): {place.where()} has snapshots of another run ({other}); give a "
            "directory of its own, or remove them"
        )


@plainly
def newest_snapshot(path: str | Path) -> Snapshot | None:
    """The newest snapshot that was published in a directory; None if there is none yet."""
    place = open_storage(path)
    for name in reversed(_names(place)):
        try:
            table, said = _read(place, name)
        except FileNotFoundError:
            continue
        unseen = None if said.unseen is None else Unseen(*said.unseen)
        alike = {name: getattr(said, name) for name in _ALIKE}
        return Snapshot(table=table.replace_schema_metadata(None), unseen=unseen, **alike)
    return None


def _names(place: Storage) -> list[str]:
    """The snapshots of a directory, the newest last."""
    if not place.exists():
        return []
    return sorted(name for name in place.names() if _NAME.fullmatch(name))


def _read(place: Storage, name: str, *, rows: bool = True) -> tuple[pa.Table, _Said]:
    """A snapshot and what it says of itself; without its rows, its columns are empty.

    No thread of Arrow's reads: one that lets go of memory of Python's while the interpreter ends
    aborts the process, which has done all its work by then.
    """
    source = pa.BufferReader(place.read(name))
    try:
        with pq.ParquetFile(source, pre_buffer=False) as file:
            schema = file.schema_arrow
            table = file.read(use_threads=False) if rows else schema.empty_table()
        return table, _said.decode((schema.metadata or {})[_KEY])
    except (pa.ArrowInvalid, KeyError, msgspec.DecodeError) as error:
        raise RunError(f"{place.where(name)} is not a snapshot of Millstream: {error}") from error

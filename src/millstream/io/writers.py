"""Writing results: whole files under temporary names, published under their final ones.

A task stages its file inside the sink's own directory (a hidden folder readers skip), so that
publishing is one atomic step on one file system, and can be repeated after a crash. It never
replaces a file: what stands under the final name is ours already, or somebody else's.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import CheckpointError, RunError
from millstream.ops.mixed import holds_mixed, in_order
from millstream.state.manifests import STAGING
from millstream.state.places import create_new, link_new, read_regular
from millstream.state.segments import sync_directory


def stage_file(
    directory: Path, name: str, suffix: str, table: pa.Table
) -> tuple[str, tuple[int, int]]:
    """Write a table whole and durably; gives its path, and its size and checksum."""
    staged = directory / STAGING / f"{name}.{suffix}"
    staged.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    data: pa.Buffer | bytes
    if suffix == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", compression_level=1)
        data = sink.getvalue()
    else:
        data = json_lines(table)
    with os.fdopen(create_new(staged), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return str(staged), (len(data), zlib.crc32(data))


_json = msgspec.json.Encoder(enc_hook=str)


def json_lines(table: pa.Table) -> bytes:
    """A table as JSON lines; times in ISO form, NaN and infinities as null."""
    rows = table.to_pylist()
    if any(holds_mixed(kind) for kind in table.schema.types):
        rows = map(_in_json, rows)
    return b"".join(_encoded(row) + b"\n" for row in rows)


def json_text(value: Any) -> str:
    """One value as JSON."""
    return _encoded(_in_json(value)).decode()


def _encoded(value: Any) -> bytes:
    try:
        return _json.encode(value)
    except TypeError:  # a dict whose keys JSON does not have
        return _json.encode(_in_json(value))


def _in_json(value: Any) -> Any:
    """The same with text for every key of a dict, and sets as lists in one order."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): _in_json(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=in_order)
    if isinstance(value, list | tuple):
        return [_in_json(one) for one in value]
    return value


def check_staged(staged: Path, final: Path | None, size: int, checksum: int) -> None:
    """Refuse to publish a file that is not what its batch wrote."""
    found = staged if os.path.lexists(staged) else final
    if found is not None and os.path.lexists(found) and not _same(found, size, checksum):
        what = "staged file" if found == staged else "published file"
        raise RunError(
            f"the {what} {found} of a committed batch is damaged and was not published; "
            "`millstream doctor` tells how to go back to the batch before"
        )


def publish_file(staged: Path, final: Path, size: int, checksum: int) -> None:
    """Give a staged file its final name; a second time does nothing."""
    if not os.path.lexists(staged):
        if not os.path.lexists(final):
            raise RunError(
                f"neither the staged file {staged} nor {final} exists: somebody removed committed "
                "output; restore it, or start with a new checkpoint and an empty output directory"
            )
        return
    try:
        link_new(staged, final)
    except FileExistsError as error:
        if not _same(final, size, checksum):
            raise RunError(
                f"{final} is there already and was not written by this flow; it is left as it is "
                "and nothing is lost: move it away and start again"
            ) from error
    staged.unlink(missing_ok=True)
    sync_directory(final.parent)


def _same(path: Path, size: int, checksum: int) -> bool:
    """Whether a file is what a batch wrote."""
    try:
        data = read_regular(path)
    except CheckpointError:
        return False
    return (len(data), zlib.crc32(data)) == (size, checksum)


def discard_staged(directory: Path) -> None:
    """Remove staged files of attempts that were never committed."""
    for path in (directory / STAGING).glob("[0-9]*-*"):
        if path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)

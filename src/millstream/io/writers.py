"""Writing results: whole files under temporary names, published by a rename in the same directory.

A task stages its file inside the sink's own directory (a hidden folder readers skip), so that
publishing is one atomic rename on one file system, and can be repeated after a crash.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import ConfigError, RunError
from millstream.state.segments import sync_directory, write_durably

STAGING = ".millstream"


def stage_file(
    directory: Path, name: str, suffix: str, table: pa.Table
) -> tuple[str, tuple[int, int]]:
    """Write a table whole and durably; gives its path, and its size and checksum."""
    staged = directory / STAGING / f"{name}.{suffix}"
    staged.parent.mkdir(parents=True, exist_ok=True)
    data: pa.Buffer | bytes
    if suffix == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", compression_level=1)
        data = sink.getvalue()
    else:
        data = json_lines(table)
    with open(staged, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return str(staged), (len(data), zlib.crc32(data))


def json_lines(table: pa.Table) -> bytes:
    """A table as JSON lines; times in ISO form, NaN and infinities as null."""
    encoder = msgspec.json.Encoder(enc_hook=str)
    return b"".join(encoder.encode(row) + b"\n" for row in table.to_pylist())


def check_staged(staged: str, size: int, checksum: int) -> None:
    """Refuse to publish a file that is not what its batch wrote."""
    if os.path.exists(staged):
        data = Path(staged).read_bytes()
        if (len(data), zlib.crc32(data)) != (size, checksum):
            raise RunError(
                f"the staged file {staged} of a committed batch is damaged and was not published; "
                "`millstream doctor` tells how to go back to the batch before"
            )


def publish_file(staged: str, final: str) -> None:
    """Give a staged file its final name; a second time does nothing."""
    if os.path.exists(staged):
        os.replace(staged, final)
        sync_directory(Path(final).parent)
    elif not os.path.exists(final):
        raise RunError(
            f"neither the staged file {staged} nor {final} exists: somebody removed committed "
            "output; restore it, or start with a new checkpoint and an empty output directory"
        )


def check_owner(directory: Path, owner: str | None) -> str | None:
    """Whose results a directory holds; those of another checkpoint are refused."""
    marker = directory / STAGING / "owner"
    other = marker.read_text().strip() if marker.exists() else None
    if other is not None and other != owner and any(directory.glob("part-*")):
        raise ConfigError(
            f"{directory} holds results of another checkpoint (flow {other}); choose another "
            "directory, remove it, or go on with the checkpoint they belong to"
        )
    return other


def claim(directory: Path, owner: str) -> None:
    """Make a sink's directory ours, or refuse if it holds the results of another checkpoint."""
    marker = directory / STAGING / "owner"
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        if check_owner(directory, owner) != owner:
            write_durably(marker, owner.encode())
    except OSError as error:
        raise ConfigError(
            f"output directory {directory} cannot be written "
            f"({error.strerror}); make it writable or choose another"
        ) from error


def discard_staged(directory: Path, keep: set[str]) -> None:
    """Remove staged files of attempts that were never committed."""
    for path in (directory / STAGING).glob("*-*"):
        if str(path) not in keep:
            path.unlink(missing_ok=True)

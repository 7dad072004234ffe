"""Manifests: one file per committed batch that says what the state is.

A batch exists once its manifest has its final name; before that, nothing it wrote is visible, and
after it, everything is. Each manifest stands alone: offsets, progress, segments, ledger and the
outputs still to be published, closed by a checksum.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec

from millstream.errors import CheckpointError
from millstream.state.segments import Segment, SegmentFile, write_durably

FORMAT = 1


class Output(msgspec.Struct, frozen=True):
    """A staged file and the name under which it is published (or the sink it is delivered to)."""

    sink: str
    staged: str
    final: str | None  # None: handed to the sink in the driver
    rows: int
    size: int = 0
    checksum: int = 0


class Hot(msgspec.Struct, frozen=True):
    """How events are spread over keys: their number, and the keys (as text) that had the most."""

    events: int
    keys: list[tuple[str, int]]


class SourceState(msgspec.Struct):
    """How far a source has been read, and how far its time has come."""

    registry: int = 0  # bytes of the registry of files that are valid
    registry_sum: int = 0  # and their checksum
    files: int = 0
    open: dict[str, int] = {}  # file number -> offset reached, for files not yet complete
    latest: dict[str, int] = {}
    seen_at: dict[str, float] = {}  # wall-clock time a participant was last heard of
    ended: bool = False
    extra: dict[str, Any] = {}


class Manifest(msgspec.Struct):
    """The state after a batch."""

    batch: int
    at: float = 0.0
    format: int = FORMAT
    sources: dict[str, SourceState] = {}
    closed: dict[str, int] = {}  # operator -> last window end that has left, in microseconds
    segments: dict[str, dict[str, dict[str, list[Segment]]]] = {}  # operator, table, shard
    files: dict[str, SegmentFile] = {}
    ledger: dict[str, dict[str, int]] = {}
    firing: dict[str, list[int]] = {}  # operator -> when it gave early results last
    strategies: dict[str, str] = {}  # operator -> how its windows slid last
    rates: dict[str, dict[str, Any]] = {}  # family -> whether it keeps panes or values, and why
    rung: dict[str, int] = {}  # updater -> wall clock up to which its timers have fired
    due: dict[str, list[int]] = {}  # updater -> next event time and wall clock it waits for
    carried: dict[str, int] = {}  # updater of a cycle -> events left over for the next batch
    readers: dict[str, int] = {}  # source -> tasks that read it in this batch
    hot: dict[str, Hot] = {}  # updater -> its most frequent keys, in its last batch with events
    outputs: list[Output] = []
    dead: int = 0  # dead letters so far
    windows: int = 0  # results so far
    complete: bool = False  # all input read and all windows closed


def name_of(batch: int) -> str:
    """The file name of a batch's manifest."""
    return f"{batch:08d}.json"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Commit a batch."""
    body = msgspec.json.encode(manifest)
    tail = f"\n{zlib.crc32(body):08x}\n".encode()
    write_durably(directory / name_of(manifest.batch), body + tail)


def read_manifest(path: Path) -> Manifest:
    """Read one manifest; anything but what was written is refused."""
    data = path.read_bytes()
    body, _, tail = data.rstrip(b"\n").rpartition(b"\n")
    if not body or tail != f"{zlib.crc32(body):08x}".encode():
        raise CheckpointError(f"manifest {path} is damaged (its checksum does not match)")
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"manifest {path} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"manifest {path} has format {manifest.format}, this version reads {FORMAT}; "
            "use the version of millstream that wrote it"
        )
    return manifest


def list_manifests(directory: Path) -> list[Path]:
    """All manifests, oldest first."""
    return sorted(p for p in directory.glob("[0-9]*.json") if p.stem.isdigit())


def check_registry(path: Path, state: SourceState) -> bytes:
    """The part of a registry that a manifest stands for; refused if it is not what was written."""
    if not state.registry:
        return b""
    try:
        data = path.read_bytes()[: state.registry]
    except FileNotFoundError:
        data = b""
    if len(data) != state.registry or zlib.crc32(data) != state.registry_sum:
        raise CheckpointError(
            f"registry {path} is damaged: its first {state.registry} bytes are not what was "
            "written, so it is not known which files were read; `millstream doctor` names the "
            "last good batch"
        )
    return data

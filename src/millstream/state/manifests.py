"""Manifests: one file per committed batch that says what the state is.

A batch exists once its manifest has its final name; before that, nothing it wrote is visible, and
after it, everything is. It has offsets, progress, segments, ledger and the outputs still to be
published, closed by a checksum. With much state it says of the segments what has changed since a
base (`bases.py`); whoever reads one gets all of them. It names the batch before it by its digest,
so that a manifest in the wrong place is found.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

import msgspec

from millstream.errors import ASK_DOCTOR, CheckpointError
from millstream.state.bases import Change, Segments, applied, read_base
from millstream.state.segments import SegmentFile, safe_name
from millstream.state.storage import Storage
from millstream.state.unflushed import is_ahead_of_flush
from millstream.state.values import (
    Amount,
    Count,
    Firing,
    Int64,
    Number,
    Pair,
    Print,
    Seconds,
    Spell,
)

T = TypeVar("T")

FORMAT = 5
FLUSHED = 4  # what is written as long as it says all, so that older versions can go on from it
# 1: no `previous`, and outputs with whole paths; 2: see `segments.renamed`; 3: nothing waits;
# 4: every slate is flushed
_READ = (1, 2, 3, 4, 5)
OVERLOADED = "overload_since"  # in `extra` of a source: when overload set in, microseconds
STAGING = ".millstream"  # the folder of a sink's directory for what is not published yet
_NAME = re.compile(r"([0-9]{1,18})\.json", re.ASCII)
_STAGED = re.compile(
    r"(?P<stem>(?P<batch>\d{8,18})-\d+-\d+)-[0-9a-f]+\.(?P<suffix>[a-z]+)(\.staged)?", re.ASCII
)
# Folders named by values of columns: each part has a `=`, so that none leads anywhere else.
FOLDER = re.compile(r"[\w.~%-]+=[\w.~%-]*(/[\w.~%-]+=[\w.~%-]*)*", re.ASCII)


class Output(msgspec.Struct, frozen=True):
    """A staged file and the name under which it is published (or the sink it is delivered to).

    Both are names in the directory of the sink; where that is, only the plan says.
    """

    sink: str
    staged: str
    final: str | None  # None: handed to the sink in the driver
    rows: Count
    size: Count = 0
    checksum: Count = 0
    folder: str = ""  # in the directory of the sink, named by values of columns


class Waiting(msgspec.Struct, frozen=True):
    """A staged file of a committed batch that is to be part of a larger one (`target_size`)."""

    staged: str
    rows: Count
    size: Count
    checksum: Count
    since: Seconds  # when its oldest rows were committed
    folder: str = ""


class Hot(msgspec.Struct, frozen=True):
    """How events are spread over keys: their number, and the keys (as text) that had the most."""

    events: Count
    keys: list[tuple[str, Count]]


class Left(msgspec.Struct, frozen=True):
    """What the last window that left stood on."""

    end: Int64
    fidelity: Annotated[float, msgspec.Meta(ge=0, le=1)]
    participants: str
    closed_by: str


class Opened(msgspec.Struct):
    """Windows of a family that a closing policy may evict."""

    panes: list[Pair] = []  # ranges of panes with records that some window still needs
    oldest: dict[str, Pair] = {}  # operator -> end of the oldest open one, and since when it is


class PartitionState(msgspec.Struct, frozen=True):
    """How far a partition of a Kafka topic has been read."""

    topic: str
    partition: Count
    id: str  # of the topic: another of the same name has another one
    base: Count  # the offset with position 0
    next: Count
    latest: Int64 | None = None  # its latest time


class QueueState(msgspec.Struct, frozen=True):
    """What waits at a source, an operator or a sink, and what its rows were measured to cost.

    What was measured are sums in which the last batches count most.
    """

    kind: str  # source, operator, sink
    rows: Count = 0
    size: Count = 0  # bytes
    head: Int64 | None = None  # the time of what stands first
    held: bool = False  # the scheduler did not let it go as far as it could have
    taken: Amount = 0.0  # rows that it took, and their bytes
    taken_size: Amount = 0.0
    given: Amount = 0.0  # rows that came of them, and their bytes
    given_size: Amount = 0.0
    seconds: Amount = 0.0  # that it worked on them


class SourceState(msgspec.Struct):
    """How far a source has been read, and how far its time has come."""

    registry: Count = 0  # bytes of the registry of files that are valid
    registry_sum: Count = 0  # and their checksum
    seen: Count = 0  # the same of the files that were seen, begun or not
    seen_sum: Count = 0
    files: Count = 0
    open: dict[Number, Count] = {}  # file number -> offset reached, for files not yet complete
    reached: dict[Number, Int64] = {}  # and the latest time in each
    prints: dict[Number, Print] = {}  # and by what it is known again, whatever its name
    latest: dict[str, Int64] = {}  # participant -> its latest time
    seen_at: dict[str, Seconds] = {}  # wall-clock time a participant was last heard of
    heard: Seconds = 0.0  # the same of anybody
    top: Int64 | None = None  # the latest time of all
    watermark: Int64 | None = None  # None: it holds nothing back
    ended: bool = False
    extra: dict[str, Int64] = {}
    partitions: list[PartitionState] = []  # of Kafka topics, by their numbers
    shares: list[Spell] = []  # of its records, if overload keeps some: `ops/times/shares.py`
    unplaced: Count = 0  # records dropped behind the latest time


class Manifest(msgspec.Struct):
    """The state after a batch."""

    batch: Int64
    at: Seconds = 0.0
    format: Int64 = FLUSHED  # see `format_for`
    previous: str = ""  # digest of the manifest of the batch before
    epoch: Count = 0  # of the run that committed it, where epochs protect and not locks
    run: str = ""  # and something that no other run has
    shards: Count = 0  # into which the state is parted; 0: as the program said then (`shards_of`)
    sources: dict[str, SourceState] = {}
    closed: dict[str, Int64] = {}  # operator -> last window end that has left, in microseconds
    segments: Segments = {}
    files: dict[str, SegmentFile] = {}
    base: Int64 = -1  # batch of the base on which segments and files say what has changed
    base_digest: str = ""
    gone: list[str] = []  # files of the base that are no longer used
    watermarks: dict[str, Int64] = {}  # operator -> how far its input has come, for good
    told: dict[str, Int64] = {}  # step that gives times -> the latest it gave
    shares: dict[str, list[Spell]] = {}  # what became of the events of updaters that may shed
    ledger: dict[str, dict[str, Int64]] = {}
    firing: dict[str, Firing] = {}  # operator -> when it gave early results last
    strategies: dict[str, str] = {}  # operator -> how its windows slid last
    rates: dict[str, dict[str, Any]] = {}  # family -> whether it keeps panes or values, and why
    combining: dict[str, dict[str, Any]] = {}  # family -> how much it combines before it sends
    rung: dict[str, Int64] = {}  # updater -> wall clock up to which its timers have fired
    due: dict[str, Pair] = {}  # updater -> next event time and wall clock it waits for
    worked: dict[str, Int64] = {}  # updater -> how far it came beyond the end of the input
    carried: dict[str, Count] = {}  # updater of a cycle -> events left over for the next batch
    queues: dict[str, QueueState] = {}  # source, operator or sink -> what waits there
    readers: dict[str, Count] = {}  # source -> tasks that read it in this batch
    memos: dict[str, dict[str, Int64]] = {}  # operator -> what else it needs for the next batch
    opened: dict[str, Opened] = {}  # family -> its open windows, if they may be evicted
    left: dict[str, Left] = {}  # operator -> what its last window stood on, if it tells
    late: dict[str, dict[str, Count]] = {}  # operator -> participant -> late records, likewise
    hot: dict[str, Hot] = {}  # updater -> its most frequent keys, in its last batch with events
    outputs: list[Output] = []
    waiting: dict[str, list[Waiting]] = {}  # Parquet sink -> files to be put together, in order
    written: dict[str, str] = {}  # Parquet sink -> the columns of its files (an Arrow schema)
    dead: Count = 0  # dead letters so far
    lost: Count = 0  # records and results that they are about: one may fail in several steps
    windows: Count = 0  # results so far
    complete: bool = False  # all input read and all windows closed

    def source(self, name: str) -> SourceState:
        """How far a source is, which may never have been read."""
        return self.sources.get(name) or SourceState()

    def read(self, told: Any, kind: type[T], what: str) -> T:
        """Some of what operators write here, as they know it."""
        try:
            return msgspec.convert(told, kind)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"the manifest of batch {self.batch} is damaged: {what} make no sense ({error})"
            ) from None


_manifest = msgspec.json.Decoder(Manifest)


def shards_of(manifest: Manifest | None, program: dict[str, Any]) -> int:
    """Into how many shards the state of a manifest is parted.

    Manifests of older versions do not say it, and were all written before the number could change.
    """
    shards: int = program["shards"]
    if manifest is None or manifest.batch < 0:
        return shards
    return manifest.shards or int(program.get("first_shards", shards))


def sizes_of(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Bytes that are stored by the folder of their owner, and how many they are uncompressed."""
    found: dict[str, tuple[int, int]] = {}
    for one in manifest.files.values():
        folder = one.file.partition("/")[0]
        stored, plain = found.get(folder, (0, 0))
        found[folder] = (stored + one.size, plain + (one.plain or one.size))
    return found


def format_for(segments: Segments) -> int:
    """The format of a manifest with these segments.

    A version that knows nothing of slates in memory would go on without them, so it has to refuse.
    """
    return FORMAT if any(map(is_ahead_of_flush, segments.values())) else FLUSHED


class Overtaken(CheckpointError):
    """Another run has committed what this one was about to."""


def name_of(batch: int) -> str:
    """The file name of a batch's manifest."""
    return f"{batch:08d}.json"


def write_manifest(directory: Storage, manifest: Manifest) -> str:
    """Commit a batch; gives the digest of its manifest."""
    body = msgspec.json.encode(manifest)
    data = body + f"\n{zlib.crc32(body):08x}\n".encode()
    name = name_of(manifest.batch)
    try:
        directory.put_new(name, data)
    except FileExistsError:
        if directory.read(name) != data:
            raise Overtaken(
                f"manifest {directory.where(name)} is there already: another run has committed "
                f"batch {manifest.batch}; stop one of them"
            ) from None
        directory.put(name, data)  # the same one: it may not be durable yet
    if directory.shared:
        _check_newest(directory, manifest.batch)
    return _digest(body)


def _check_newest(directory: Storage, batch: int) -> None:
    """A run that slept for long may have created the manifest of a batch that was long removed."""
    if list_manifests(directory)[-1:] != [batch]:
        directory.delete(name_of(batch))
        raise Overtaken(
            f"another run has gone on from {directory.where()} beyond batch {batch}, while this "
            "one slept; nothing of this batch counts"
        )


def read_manifest(directory: Storage, batch: int) -> Manifest:
    """Read one manifest; anything but what was written is refused."""
    return load_manifest(directory, batch)[0]


def load_manifest(directory: Storage, batch: int) -> tuple[Manifest, str]:
    """Read one manifest, with its digest."""
    name = name_of(batch)
    path = directory.where(name)
    body, _, tail = directory.read(name).rstrip(b"\n").rpartition(b"\n")
    if not body or tail != f"{zlib.crc32(body):08x}".encode():
        raise CheckpointError(
            f"manifest {path} is damaged (its checksum does not match); `millstream doctor` names "
            "the last good batch"
        )
    try:
        manifest = _manifest.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"manifest {path} cannot be read: {error}") from error
    if manifest.format not in _READ:
        raise CheckpointError(
            f"manifest {path} has format {manifest.format}, this version reads {max(_READ)}; "
            "use the version of millstream that wrote it"
        )
    if manifest.base >= 0:
        manifest = _on_base(directory, batch, manifest)
    _check_content(path, batch, manifest)
    return manifest, _digest(body)


def _on_base(directory: Storage, batch: int, manifest: Manifest) -> Manifest:
    """A manifest that says what has changed, as one that says all."""
    name = name_of(batch)
    try:
        base = read_base(directory, manifest.base, manifest.base_digest)
    except CheckpointError as error:
        if not directory.exists(name):  # both were collected meanwhile
            raise FileNotFoundError(directory.where(name)) from error
        raise CheckpointError(
            f"manifest {directory.where(name)} cannot be used: {error}"
        ) from error
    change = Change(manifest.segments, manifest.files, manifest.gone)
    segments, files = applied(base.segments, base.files, change)
    return msgspec.structs.replace(manifest, segments=segments, files=files, gone=[])


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _check_content(path: str, batch: int, manifest: Manifest) -> None:
    """A manifest is of the batch its name says, and its files lie in the checkpoint."""
    if manifest.batch != batch:
        raise CheckpointError(
            f"manifest {path} is the one of batch {manifest.batch}, under the name of another"
        )
    for name, file in manifest.files.items():
        parts = PurePosixPath(name).parts
        if name != file.file or name.startswith("/") or ".." in parts or "\0" in name:
            raise CheckpointError(f"manifest {path} names {file.file!r} outside of the state")
    for step, account in manifest.ledger.items():
        if "offered" not in account:
            raise CheckpointError(f"manifest {path} has an account of {step!r} without its input")
    for tables in manifest.segments.values():
        for shards in tables.values():
            for segments in shards.values():
                for segment in segments:
                    if segment.file not in manifest.files:
                        raise CheckpointError(
                            f"manifest {path} uses {segment.file!r}, which it does not list"
                        )
                    if segment.rows > manifest.files[segment.file].size:
                        raise CheckpointError(
                            f"manifest {path} has more rows in {segment.file!r} than that has bytes"
                        )


def list_manifests(directory: Storage) -> list[int]:
    """The batches that have a manifest, the oldest first."""
    found = ((_NAME.fullmatch(name), name) for name in directory.names())
    return sorted(
        int(match[1]) for match, name in found if match and name == name_of(int(match[1]))
    )


@dataclass(frozen=True)
class Place:
    """Where an output is staged and where it goes; `final` None: to the sink in the driver."""

    storage: Storage
    staged: str
    final: str | None


def staged_at(batch: int, output: Output, directory: Storage | None, deliveries: Storage) -> Place:
    """Where an output lies, from the sink's directory and nothing else.

    `directory`: where a file sink writes, None for a sink that is not one.
    """
    if output.final is None:
        place = Place(deliveries, f"{batch:08d}-{safe_name(output.sink)}.arrow", None)
    elif directory is None:
        raise CheckpointError(
            f"batch {batch} is committed and has {output.rows} rows for the files of sink "
            f"{output.sink!r}, which the flow no longer has; start it once with that sink"
        )
    else:
        name = _STAGED.fullmatch(PurePosixPath(output.staged).name)
        if name is None or int(name["batch"]) != batch:
            raise CheckpointError(
                f"the manifest of batch {batch} names {output.staged!r}, which is no staged file"
            )
        final = f"part-{name['stem']}.{name['suffix']}"
        if output.folder:
            if not FOLDER.fullmatch(output.folder):
                raise CheckpointError(
                    f"the manifest of batch {batch} names {output.folder!r}, which is no folder of "
                    "a sink"
                )
            final = f"{output.folder}/{final}"
        place = Place(directory, f"{STAGING}/{name[0]}", final)
    for given, derived in ((output.staged, place.staged), (output.final, place.final)):
        if given is not None and derived is not None and not _names(given, place.storage, derived):
            raise CheckpointError(
                f"the manifest of batch {batch} has {given!r} as output of sink {output.sink!r}, "
                f"which writes {place.storage.where(derived)}; if the sink was moved, start once "
                "with its old path"
            )
    return place


def waits_at(waiting: Waiting) -> str:
    """The name of a file that waits, in the directory of its sink."""
    if not _STAGED.fullmatch(waiting.staged) or not (
        waiting.folder == "" or FOLDER.fullmatch(waiting.folder)
    ):
        raise CheckpointError(
            f"a manifest has {waiting.staged!r} for folder {waiting.folder!r} among the files that "
            "wait to be put together, and that is no staged file of a sink"
        )
    return f"{STAGING}/{waiting.staged}"


def _names(given: str, storage: Storage, derived: str) -> bool:
    """Whether what a manifest says is this file: its name, or (format 1) its whole path."""
    if given == PurePosixPath(derived).name:
        return True
    whole = given.startswith("/") and "\0" not in given
    return whole and _resolved(given) == _resolved(storage.where(derived))


def _resolved(path: str) -> str:
    """A path with its directory resolved, and its last part as it is."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def check_registry(sources: Storage, name: str, state: SourceState) -> bytes:
    """The part of a registry that a manifest stands for; refused if it is not what was written."""
    if not state.registry:
        return b""
    said = "which files were read"
    data = _checked(sources, name, state.registry, state.registry_sum, said)
    return data[: state.registry]


def check_sightings(sources: Storage, name: str, state: SourceState) -> bytes:
    """All that was written of files that were seen; refused if a manifest stands for more."""
    return _checked(sources, name, state.seen, state.seen_sum, "which files are still to be read")


def _checked(sources: Storage, name: str, size: int, checksum: int, unknown: str) -> bytes:
    try:
        data = sources.read(name)
    except FileNotFoundError:
        data = b""
    if len(data) < size or zlib.crc32(data[:size]) != checksum:
        raise CheckpointError(
            f"registry {sources.where(name)} is damaged: its first {size} bytes are not what was "
            f"written, so it is not known {unknown}{ASK_DOCTOR}"
        )
    return data

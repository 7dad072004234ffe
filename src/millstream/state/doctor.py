"""What `millstream doctor` says of a checkpoint: what is wrong, and the last batch that is good.

It changes nothing, takes no lock, and follows nothing it finds there: whatever lies in the
directory, the answer is a list of findings.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from millstream.errors import ASK_DOCTOR, CheckpointError
from millstream.state.checkpoint import SCRATCH, Checkpoint, Published
from millstream.state.manifests import (
    Manifest,
    check_registry,
    check_sightings,
    list_manifests,
    load_manifest,
    name_of,
    staged_at,
    waits_at,
)
from millstream.state.segments import map_segment, safe_name, verify_named
from millstream.state.storage import open_storage
from millstream.state.warm import ALONE


def examine(path: str | Path) -> tuple[list[str], bool]:
    """One line a finding, and whether everything is sound."""
    checkpoint = Checkpoint(path, create=False)
    lines: list[str] = []
    bad = [f"{name}  BAD: {problem}" for name, problem in _places(checkpoint)]
    program: dict[str, Any] | None = None
    try:
        program = checkpoint.read_program()
        lines.append(f"flow.json      {'absent' if program is None else 'good'}")
    except CheckpointError as error:
        bad.append(f"flow.json      BAD: {error}")
    manifests = list_manifests(checkpoint.manifests)
    published = checkpoint.published()
    good: list[Manifest] = []
    for manifest, problems in _manifests(checkpoint, manifests, published, program or {}):
        bad.extend(problems)
        if manifest is not None:
            good.append(manifest)
    bad.extend(f"spool          BAD: {problem}" for problem in _spool(checkpoint))
    lines.extend(line.replace(ASK_DOCTOR, "") for line in bad)  # it is doing so
    newest = max([*manifests, published.batch if published else -1])
    lines.extend(_way_back(good, newest, bool(manifests)))
    if good and any(one.plain for one in good[-1].files.values()):
        lines.append(_packed(good[-1]))
    lines.append("result         " + ("DAMAGED" if bad else "sound"))
    return lines, not bad


def _places(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """What should not be there at all."""
    try:
        checkpoint.store.check("checkpoint", given=True)
    except CheckpointError as error:
        yield "checkpoint   ", str(error)
    for name, problem in checkpoint.store.strangers(SCRATCH, ("lock", "published")):
        yield name, f"{checkpoint.store.where(name)} {problem}"


def _manifests(
    checkpoint: Checkpoint, numbers: list[int], published: Published | None, program: dict[str, Any]
) -> Iterator[tuple[Manifest | None, list[str]]]:
    """Every manifest if it is good, and what is wrong with it."""
    if published is not None and published.batch > max(numbers, default=-1):
        gone = name_of(published.batch)
        yield None, [f"{gone}  BAD: its batch was published, but it is missing"]
    for before, number in pairwise(numbers):
        if number != before + 1:
            yield None, [f"{name_of(before + 1)}  BAD: it is missing between two others"]
    for number in numbers:
        try:
            manifest, digest = load_manifest(checkpoint.manifests, number)
            checkpoint.check_chain(manifest, digest)
        except (OSError, CheckpointError) as error:
            yield None, [f"{name_of(number)}  BAD: {error}"]
            continue
        problems = [*_missing(checkpoint, manifest), *_waiting(manifest, program)]
        if manifest.batch == numbers[-1] and (not published or published.batch != manifest.batch):
            problems += _staged(checkpoint, manifest, program)
        told = [f"{name_of(number)}  BAD: {problem}" for problem in problems]
        yield (None if problems else manifest), told


def _missing(checkpoint: Checkpoint, manifest: Manifest) -> list[str]:
    """Segments and registries that are not what was written."""
    problems = []
    for file in manifest.files.values():
        if file.file.startswith(ALONE):
            continue  # in memory until it is flushed; its log is here
        try:
            map_segment(checkpoint.state, file)
        except CheckpointError as error:
            problems.append(str(error))
    for name, source in manifest.sources.items():
        try:
            check_registry(checkpoint.sources, f"{safe_name(name)}.jsonl", source)
            check_sightings(checkpoint.sources, f"{safe_name(name)}.seen", source)
        except CheckpointError as error:
            problems.append(str(error))
    return problems


def _packed(manifest: Manifest) -> str:
    """How much smaller the compressed segments of a manifest are."""
    files = [one for one in manifest.files.values() if one.plain]
    stored, plain = sum(one.size for one in files), sum(one.plain for one in files)
    return (
        f"compressed     {len(files)} of {len(manifest.files)} segments: {stored:,} bytes for "
        f"{plain:,}"
    )


def _waiting(manifest: Manifest, program: dict[str, Any]) -> Iterator[str]:
    """Committed results that wait to be put together in larger files and are not there."""
    directories = program.get("sinks", {})
    for sink, files in manifest.waiting.items():
        directory = directories.get(sink)
        if directory is None:
            yield f"results wait for sink {sink!r}, which the program does not have"
            continue
        storage = open_storage(directory)
        for file in files:
            try:
                data = storage.read(waits_at(file))
                if (len(data), zlib.crc32(data)) != (file.size, file.checksum):
                    yield f"file {storage.where(waits_at(file))}, which waits, is damaged"
            except FileNotFoundError:
                yield f"file {storage.where(waits_at(file))}, which waits, is missing"
            except (CheckpointError, OSError) as error:
                yield f"file {file.staged}, which waits: {error}"


def _staged(checkpoint: Checkpoint, manifest: Manifest, program: dict[str, Any]) -> list[str]:
    """Outputs of a batch still to be published that are not what was written."""
    problems = []
    directories = program.get("sinks", {})
    for output in manifest.outputs:
        directory = directories.get(output.sink)
        if manifest.format == 1 and directory is None and output.final is not None:
            directory = str(Path(output.final).parent)  # only the manifest knew it then
        try:
            place = staged_at(
                manifest.batch,
                output,
                None if directory is None else open_storage(directory),
                checkpoint.staged,
            )
        except CheckpointError as error:
            problems.append(str(error))
            continue
        staged = place.storage.where(place.staged)
        try:
            data = place.storage.read(place.staged)
            if (len(data), zlib.crc32(data)) != (output.size, output.checksum):
                problems.append(f"staged file {staged} is damaged")
        except FileNotFoundError:
            if place.final is not None and not place.storage.exists(place.final):
                problems.append(f"staged file {staged} is missing")
        except (CheckpointError, OSError, ValueError) as error:
            problems.append(f"staged file {staged}: {error}")
    return problems


def _spool(checkpoint: Checkpoint) -> Iterator[str]:
    """Pieces that were received and are not what was written."""
    for name in checkpoint.spool.walk():
        if fnmatchcase(name, "*/[!.]*-*-*-*.*"):
            try:
                verify_named(checkpoint.spool, name)
            except (OSError, CheckpointError) as error:
                yield str(error)


def _way_back(good: list[Manifest], newest: int, any_manifest: bool) -> Iterator[str]:
    if not any_manifest:
        yield "manifests      none: no batch was committed yet"
    elif not good:
        yield "manifests      no good batch is left; start with a new checkpoint"
    else:
        last = good[-1]
        yield (
            f"last good      batch {last.batch}, {last.dead} dead letters, "
            f"{len(last.files)} segments"
        )
        if last.batch < newest:
            yield (
                f"to go back     remove the manifests after {name_of(last.batch)} and the file "
                "'published'; file sinks keep what later batches published, so remove their part "
                "files too"
            )

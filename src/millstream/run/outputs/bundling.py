"""Files of results that are as large as they should be (`ms.Parquet(target_size=)`).

What tasks staged is not published at once: it waits in the hidden folder of its sink, named by the
manifest, until a folder has enough for a file, or has waited long enough, or the run ends. Then it
is written anew as one file, which the same manifest publishes that no longer has the small ones
among those that wait. So whoever lists the directory sees only files that never change, and every
row in exactly one of them (decision 33).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from millstream.api.sinks import Parquet
from millstream.durations import micros, text
from millstream.errors import RunError
from millstream.io.bundles import Made, Order
from millstream.state.manifests import Manifest, Output, Waiting, waits_at
from millstream.state.storage import open_storage

_RATIO = 7  # a file is written anew with those after it once these have so many times its bytes
_ENOUGH = 2  # a file of half the target is large enough: small files have more bytes than they need

Merge = Callable[[str, list[Order]], list[list[Made]]]


@dataclass(frozen=True)
class Bundle:
    """Files that become one; `leaves`: which readers are to see."""

    files: tuple[Waiting, ...]
    leaves: bool


def bundled(files: list[Waiting], target: int, *, due: bool) -> list[Waiting | Bundle]:
    """What is to become of the files of one folder, in their order.

    due: all are to leave, however small.
    """
    found: list[Waiting | Bundle] = []
    run: list[Waiting] = []
    size = 0
    for file in files:
        run.append(file)
        size += file.size
        if size >= target:
            found.append(Bundle(tuple(run), True))
            run, size = [], 0
    if due:
        return [*found, Bundle(tuple(run), True)] if run else found
    first = _uneven(run)
    rest = [Bundle(tuple(run[first:]), False)] if first < len(run) else []
    return [*found, *run[:first], *rest]


def _uneven(files: list[Waiting]) -> int:
    """The first file that is small beside all that came after it: from there on they become one.

    So as many wait as there are powers of eight in their bytes, times seven, and a row is written
    once for each of these powers.
    """
    sizes = [one.size for one in files]
    after = [0, *accumulate(reversed(sizes))][-2::-1]
    small = (i for i, size in enumerate(sizes) if _RATIO * size <= after[i])
    return next(small, len(files))


def bundle(
    manifest: Manifest, old: Manifest, sinks: dict[str, Any], merge: Merge, *, due: bool
) -> tuple[list[Output], dict[str, list[Waiting]]]:
    """The outputs of a batch, and what waits after it.

    due: nothing is to wait, because the run ends.
    """
    # Without a target any more, what waits leaves in front of what is new, as it came.
    gathering = {name for name, spec in sinks.items() if name in old.waiting or _gathers(spec)}
    outputs = [one for one in manifest.outputs if one.sink not in gathering]
    waiting: dict[str, list[Waiting]] = {}
    for name, spec in sinks.items():
        if name not in gathering:
            continue
        fresh = {one.staged: one for one in manifest.outputs if one.sink == name}
        folders: dict[str, list[Waiting]] = {}
        new = (_waits(one, manifest.at) for one in fresh.values())
        for file in [*old.waiting.get(name, []), *new]:
            folders.setdefault(file.folder, []).append(file)
        left, kept = _put_together(manifest, name, spec, folders.values(), fresh, merge, due)
        outputs += left
        if kept:
            waiting[name] = kept
    return outputs, waiting


def _put_together(
    manifest: Manifest,
    sink: str,
    spec: Parquet,
    folders: Iterable[list[Waiting]],
    fresh: dict[str, Output],
    merge: Merge,
    due: bool,
) -> tuple[list[Output], list[Waiting]]:
    """What leaves of the folders of a sink, and what waits on; `fresh` is what this batch gave."""
    target = spec.target_bytes or 1 << 62
    oldest = manifest.at - micros(spec.at_latest, "at_latest") / 1e6
    plans: list[tuple[bool, list[Waiting | Bundle]]] = []
    for files in folders:
        ripe = due or manifest.complete or not spec.target_bytes
        ripe |= min(one.since for one in files) <= oldest
        plans.append((ripe, bundled(files, target, due=ripe)))
    bundles = [
        one
        for _, plan in plans
        for at, one in enumerate(plan)
        if isinstance(one, Bundle) and _as_it_is(one, at, fresh) is None
    ]
    orders = [
        Order(str(spec.directory), manifest.batch, number, one.files)
        for number, one in enumerate(bundles)
    ]
    made = dict(zip(bundles, merge(sink, orders) if orders else [], strict=True))
    done = [_outcome(sink, target, *plan, fresh, made) for plan in plans]
    return [one for left, _ in done for one in left], [one for _, kept in done for one in kept]


def _outcome(
    sink: str,
    target: int,
    ripe: bool,
    plan: list[Waiting | Bundle],
    fresh: dict[str, Output],
    made: dict[Bundle, list[Made]],
) -> tuple[list[Output], list[Waiting]]:
    """What of a folder leaves; what comes after something that stays, stays as well."""
    outputs: list[Output] = []
    waiting: list[Waiting] = []
    for at, one in enumerate(plan):
        if isinstance(one, Waiting):
            waiting.append(one)
            continue
        whole = _as_it_is(one, at, fresh)
        if whole is not None:
            outputs.append(whole)
            continue
        name, since = one.files[0].folder, min(file.since for file in one.files)
        for file in made[one]:
            about = file.rows, file.size, file.checksum
            if one.leaves and not waiting and (ripe or file.size * _ENOUGH >= target):
                outputs.append(Output(sink, file.staged, file.final, *about, name))
            else:
                waiting.append(Waiting(file.staged, *about, since, name))
    return outputs, waiting


def _as_it_is(one: Bundle, at: int, fresh: dict[str, Output]) -> Output | None:
    """The output that a bundle is already: one file of this batch, and nothing leaves before it.

    Files of tasks have names that come before those that are put together in the same batch.
    """
    if at or not one.leaves or len(one.files) > 1:
        return None
    return fresh.get(one.files[0].staged)


def _gathers(spec: Any) -> bool:
    return isinstance(spec, Parquet) and bool(spec.target_bytes)


def _waits(output: Output, at: float) -> Waiting:
    return Waiting(output.staged, output.rows, output.size, output.checksum, at, output.folder)


# -- between batches -------------------------------------------------------------------------------


def overdue(manifest: Manifest, sinks: dict[str, Any], now: float) -> bool:
    """Whether something has waited as long as it may, though nothing came."""
    for name, files in manifest.waiting.items():
        spec = sinks.get(name)
        if not isinstance(spec, Parquet) or not spec.target_bytes:
            return True
        if min(one.since for one in files) + micros(spec.at_latest, "at_latest") / 1e6 <= now:
            return True
    return False


def check_waiting(manifest: Manifest, sinks: dict[str, Any]) -> None:
    """Refuse a program in which committed results that wait have no place, or that lost them."""
    for name, files in manifest.waiting.items():
        spec = sinks.get(name)
        rows = sum(one.rows for one in files)
        if not isinstance(spec, Parquet):
            raise RunError(
                f"sink {name!r} is gone or no longer writes Parquet, and {rows} committed results "
                "wait for it to be put together (target_size); start once more with the sink as "
                "it was and stop, which gives them their files, then without it"
            )
        directory = open_storage(spec.directory)
        for file in files:
            if not directory.exists(waits_at(file)):
                raise RunError(
                    f"sink {name!r}: {directory.where(waits_at(file))} is not there, one of "
                    f"{len(files)} files with {rows} committed results that wait to be put "
                    "together (target_size). If the sink was moved, start once with its old path "
                    "and stop; if the file was removed, restore it"
                )


def notes_on_waiting(sinks: dict[str, Any]) -> list[str]:
    """What somebody should know who looks into an output directory and finds nothing yet."""
    return [
        f"sink {name!r} writes files of about {spec.target_size}: results are seen once there is "
        f"enough for one, after {text(micros(spec.at_latest, 'at_latest'))} (at_latest), or when "
        "the run ends"
        for name, spec in sinks.items()
        if _gathers(spec)
    ]

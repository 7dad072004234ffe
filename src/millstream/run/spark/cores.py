"""How many cores Spark has: waited for at the start, and asked for again before every batch.

On a cluster executors register one after the other, after the context is there. The number of
shards is decided once, and tasks are as many as there are cores; so neither is decided before the
cores have come that were declared (`min_cores`), or before no more come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import RunError
from millstream.run.program.program import LEAST_SHARDS
from millstream.settings import Settings

_LOOK = 0.1  # seconds between looks
_QUIET = 2.0  # seconds without a new executor, after which those that are there are all
_CLUSTER_SHARDS = 256  # at least: a cluster that grows can use as many cores


@dataclass(frozen=True)
class Decided:
    """What a run begins with: cores, and the shards of a new checkpoint if none were given."""

    cores: int
    least_shards: int
    note: str = ""


def wait_for_cores(
    context: Any,
    settings: Settings,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Decided:
    """Wait until executors have registered, and say what there is."""
    local = context.master.startswith("local")
    least = settings.min_cores
    begun = since = clock()
    cores = cores_of(context)
    while True:
        now = clock()
        if least is not None and cores >= least:
            break
        if least is None and (local or (_executors(context) and now - since >= _QUIET)):
            break
        if now - begun >= settings.cores_wait:
            if least is not None or not _executors(context):
                raise RunError(_too_few(cores, least, settings.cores_wait, context.master))
            break
        sleep(_LOOK)
        found = cores_of(context)
        since, cores = (since if found == cores else clock()), found
    if local:
        return Decided(cores, LEAST_SHARDS)
    note = f"Spark at {context.master} has {cores} cores: so many tasks at once for now"
    return Decided(cores, _CLUSTER_SHARDS, note)


def cores_of(context: Any) -> int:
    """The cores of all executors that are there now."""
    return max(1, int(context.defaultParallelism))


def _executors(context: Any) -> int:
    """Executors beside the driver, which is listed among them."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _too_few(cores: int, least: int | None, waited: float, master: str) -> str:
    if least is None:
        return (
            f"no executor of Spark at {master} registered within {waited:g} s (cores_wait): look "
            "there whether the cluster has room, or wait longer; nothing was begun"
        )
    return (
        f"Spark at {master} has {cores} of the {least} cores declared with min_cores after "
        f"{waited:g} s (cores_wait): start more executors, wait longer, or declare fewer; nothing "
        "was begun"
    )

"""Starting several flows on one Spark: nothing starts before all of them have been checked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.graph.nodes import Source
from millstream.plan.outputs import check_apart, check_each_other
from millstream.run.batches.warming import SHARE
from millstream.run.handle import Handle
from millstream.run.handles import Handles
from millstream.run.runner import Ready, check_ports, make_ready
from millstream.run.sources.viewing import Views
from millstream.run.spark.sharing import Spark
from millstream.settings import Settings
from millstream.sizes import bytes_of
from millstream.state.memory import available_memory

if TYPE_CHECKING:
    from millstream.api.flow import Flow

_OF_SPARK = ("master", "runner", "spark", "ui", "min_cores", "cores_wait", "memory")


@dataclass(frozen=True)
class Start:
    """One flow, where it remembers how far it is, and how it runs."""

    flow: Flow
    checkpoint: Path | None
    settings: Settings
    locating: Callable[[], AbstractContextManager[None]] = nullcontext  # around its checks


def start_all(starts: Sequence[Start]) -> Handles:
    """Check all flows, take their checkpoints, and run them on one Spark."""
    _check_names(starts)
    _check_settings(starts)
    views = Views(
        node.spec for one in starts for node in one.flow.nodes if isinstance(node, Source)
    )
    with ExitStack() as undo:
        ready = []
        for number, one in enumerate(starts):
            settings = _with_port(_shared_out(one.settings, len(starts)), number)
            ready.append(_make_ready(one, settings, views))
            undo.callback(ready[-1].give_back)
        _check_apart(ready)
        undo.pop_all()
    return _begin(ready, Spark(_title(starts), starts[0].settings, len(starts)))


def _make_ready(one: Start, settings: Settings, views: Views) -> Ready:
    try:
        with one.locating():
            trackers = views.make_tracker
            return make_ready(one.flow, one.checkpoint, settings, trackers=trackers)
    except ConfigError as error:
        error.args = (f"flow {one.flow.name!r}: {error}",)
        raise


def _begin(ready: list[Ready], spark: Spark) -> Handles:
    begun: dict[str, Handle] = {}
    try:
        for one in ready:
            begun[one.name] = one.begin(spark)
    except BaseException:  # a port that is taken
        for handle in begun.values():
            handle.request_stop()
        for one in ready[len(begun) :]:
            spark.close(one, None)
            one.give_back()
        for handle in begun.values():
            handle.rest(handle.patience)
        raise
    return Handles(begun)


def _shared_out(settings: Settings, flows: int) -> Settings:
    """Together they keep as much in memory as one would alone.

    It is part of the budget of all of them, of which at most half goes there.
    """
    if settings.warm == 0:
        return settings
    budget = settings.memory_bytes or sys.maxsize
    there = min(available_memory(), budget)
    warm = there // SHARE if settings.warm is None else min(bytes_of(settings.warm), budget // 2)
    return replace(settings, warm=max(1, warm // flows))


def _with_port(settings: Settings, number: int) -> Settings:
    """Every flow serves at a port of its own: the one that was given and those after it."""
    if settings.serve is None or not number:
        return settings
    from millstream.serve.server import parse_address

    host, port = parse_address(settings.serve)
    host = f"[{host}]" if ":" in host else host
    return replace(settings, serve=f"{host}:{port + number if port else 0}")


def _title(starts: Sequence[Start]) -> str:
    names = [one.flow.name for one in starts]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# -- what cannot work ------------------------------------------------------------------------------


def _check_names(starts: Sequence[Start]) -> None:
    if not starts:
        raise ConfigError("there is no flow to run; give at least one, as in run_all(a, b)")
    often = [name for name, n in Counter(one.flow.name for one in starts).items() if n > 1]
    if often:
        raise ConfigError(
            f"two flows are named {often[0]!r}; their names must differ, since state, progress and "
            'messages are known by them: ms.Flow("another name")'
        )
    places = {one.checkpoint.resolve(): one for one in starts if one.checkpoint is not None}
    for one in starts:
        if one.checkpoint is None:
            continue
        mine, name = one.checkpoint.resolve(), one.flow.name
        for place in (mine, *mine.parents):
            if (other := places.get(place, one)) is not one:
                what = (
                    f"flows {name!r} and {other.flow.name!r} both have the checkpoint "
                    f"{one.checkpoint}"
                    if place == mine
                    else f"the checkpoint {one.checkpoint} of flow {name!r} is inside that of "
                    f"{other.flow.name!r}, {other.checkpoint}"
                )
                raise ConfigError(
                    f"{what}; give each its own, or none: then each gets its name as a directory"
                )


def _check_settings(starts: Sequence[Start]) -> None:
    """What is decided once for the Spark of all flows is the same for all of them."""
    first = starts[0]
    for one in starts[1:]:
        for name in _OF_SPARK:
            here, there = getattr(first.settings, name), getattr(one.settings, name)
            if here != there:
                raise ConfigError(
                    f"flows {first.flow.name!r} and {one.flow.name!r} run on one Spark, and want "
                    f"{name}={here!r} and {name}={there!r}; let both say the same, or say it on "
                    "the command line"
                )


def _check_apart(ready: Sequence[Ready]) -> None:
    """No flow writes where another one writes or keeps its state, or listens where it does."""
    plans = [one.engine.plan for one in ready]
    check_each_other(plans)
    for plan in plans:
        for one in ready:
            check_apart(plan, one.engine.checkpoint.path)
    check_ports(plans)

"""Updaters: a slate per key, changed by a function per event of one or several streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream.api.arguments import check_call
from millstream.api.frames import plainly
from millstream.api.overload import check_overload
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.overload import THROTTLE, Overload
from millstream.ops.updates.job import DICTS, UpdateJob

if TYPE_CHECKING:
    from millstream.api.keyed import KeyedStream
    from millstream.api.stream import Stream


@plainly
class KeyedStreams:
    """Keyed streams an updater subscribes to together."""

    def __init__(self, streams: tuple[KeyedStream, ...]) -> None:
        self.streams = streams

    def union(self, *others: KeyedStream) -> KeyedStreams:
        """These and others."""
        first = self.streams[0]
        flow = first.stream.flow
        for other in others:
            if not isinstance(other, type(first)):
                raise ConfigError(
                    f"union(): expected keyed streams (with key_by), got {type(other).__name__}"
                )
            if other.stream.flow is not flow:
                raise ConfigError(
                    f"union(): stream {other.stream.name!r} belongs to flow "
                    f"{other.stream.flow.name!r}, this one to {flow.name!r}"
                )
        return KeyedStreams((*self.streams, *others))

    def update(
        self,
        fn: Any,
        *,
        name: str | None = None,
        ttl: Duration | None = None,
        on_timer: Callable[..., Any] | None = None,
        order: str = "event",
        late: str = "apply",
        clock: str = "event",
        merge: Callable[[Any, Any], Any] | None = None,
        codec: Any = None,
        publishes: Iterable[str] | None = None,
        overload: Overload = THROTTLE,
        max_slate: int = 1 << 20,
        flush: Duration = "batch",
    ) -> Stream:
        """One slate per key, changed by a function per event.

        fn: `update(event, slate, ctx)`, or an object (or class) with that method and, if it wants,
            `on_timer` and `merge`. The records it returns are the stream this gives.
        ttl: a slate not written for so long is gone. on_timer: called for `ctx.timer(...)`.
        order: "event" applies events in the order of their time, once the watermark has passed
            them; "arrival" applies them with the batch they come in.
        late: what comes after its time is applied all the same ("apply") or set aside ("divert").
        clock: what ttl and timers go by, "event" time or the "wall" clock.
        merge: `merge(slate, slate)` for updates whose order does not matter: partial slates are
            built where records are read, so that a hot key costs no more than others.
        codec: how slates that are not dicts are made (`new`), stored (`encode`) and read
            (`decode`). max_slate: the most bytes one may have.
        overload: what to do when more events are due than can be applied: ms.throttle(), the
            default, has its sources wait; ms.drop() and ms.divert("overflow") turn away what comes.
        publishes: the streams it publishes to, where that cannot be seen in its code.
        flush: "batch" writes changed slates with every batch; a time like "10s" keeps them in
            memory for as long, and the events that changed them in the checkpoint: after a crash
            they are applied again, so the function must give the same slate for the same events.
        """
        update, timer, merging = _updater(fn, on_timer, merge)
        for what, given, known in (
            ("order", order, ("event", "arrival")),
            ("late", late, ("apply", "divert")),
            ("clock", clock, ("event", "wall")),
        ):
            if given not in known:
                raise ConfigError(f'update({what}={given!r}): use "{known[0]}" or "{known[1]}"')
        if merging is not None and (timer is not None or (ttl is not None and clock == "event")):
            raise ConfigError(
                "update(merge=): an update whose order does not matter can have neither timers "
                'nor a ttl in event time; use clock="wall" for a ttl'
            )
        if codec is not None and not all(
            callable(getattr(codec, method, None)) for method in ("new", "encode", "decode")
        ):
            raise ConfigError("update(codec=): expected an object with new, encode and decode")
        if not isinstance(max_slate, int) or max_slate < 1:
            raise ConfigError(f"update(max_slate={max_slate!r}): expected a number of bytes")
        _check_relief(overload, merging)
        if isinstance(publishes, str):
            publishes = (publishes,)
        partition = self.streams[0].partition
        if any(one.partition is not partition for one in self.streams):
            raise ConfigError(
                "update(): its streams have different key_by(partition=); events of one key must "
                "come to one place, so give all of them the same function"
            )
        stream = self.streams[0].stream
        stem = str(getattr(fn, "__name__", type(fn).__name__))
        job = UpdateJob(
            "",
            update,
            timer,
            merging,
            DICTS if codec is None else codec,
            None if ttl is None else micros(ttl, "update(ttl=)"),
            "arrival" if merging is not None else order,
            late,
            clock,
            max_slate,
            partition,
            overload,
            None if flush == "batch" else micros(flush, "update(flush=)"),
        )
        node = stream.flow.add(
            nodes.Update,
            stem if stem.isidentifier() else "update",
            tuple(one.stream.node for one in self.streams),
            name=name,
            keys=tuple(one.keys for one in self.streams),
            null_keys=tuple(one.nulls for one in self.streams),
            job=job,
            publishes=None if publishes is None else tuple(publishes),
        )
        return stream._to(node)


def _check_relief(policy: Any, merging: Any) -> None:
    """Refuse a policy for what cannot be too much, or was taken in already."""
    check_overload("update", policy)
    if policy.sheds and merging is not None:
        raise ConfigError(
            f"update(overload={policy}): an update with merge= never has events that wait; give "
            "overload= to the source"
        )
    if policy.kind == "divert" and policy.keep == "newest":
        raise ConfigError(
            f"update(overload={policy}): the oldest events have been taken in when newer ones are "
            "too many, so an updater diverts what comes; leave keep= out"
        )


def _updater(fn: Any, on_timer: Any, merge: Any) -> tuple[Any, Any, Any]:
    """The functions of an updater: given one by one, or as methods of one object."""
    if isinstance(fn, type):
        try:
            fn = fn()
        except TypeError as error:
            raise ConfigError(
                f"update(): {fn.__name__} cannot be made without arguments ({error}); give an "
                "instance"
            ) from error
    if callable(getattr(fn, "update", None)) and not isinstance(fn, dict | set):
        on_timer = on_timer or getattr(fn, "on_timer", None)
        merge = merge or getattr(fn, "merge", None)
        fn = fn.update
    elif not callable(fn):
        raise ConfigError(
            f"update(): expected a function or an object with a method update, got "
            f"{type(fn).__name__}"
        )
    for what, one in (("on_timer=", on_timer), ("merge=", merge)):
        if one is not None and not callable(one):
            raise ConfigError(f"update({what}): expected a function, got {one!r}")
    check_call("update()", fn, "event", "slate", "ctx")
    check_call("update(on_timer=)", on_timer, "event", "slate", "ctx")
    check_call("update(merge=)", merge, "slate", "slate")
    return fn, on_timer, merge

"""Changes as server-sent events, as fast as a listener takes them.

Nothing is queued for a listener: it has a batch up to which it was told everything, and is told
what changed from there to the newest. A slow one skips what was overwritten meanwhile; one that
takes nothing at all is let go. What changed is found once for all of them, on one thread on which
they take turns, so many listeners hold up each other and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from millstream.ops.expressions import Expression
from millstream.serve.changes import Change, Changed, find_changes
from millstream.serve.guard import HEAD, Receive, Rules, Scope, Send
from millstream.serve.moves import moves
from millstream.serve.slates import Snapshot, Stored
from millstream.serve.status import Served
from millstream.serve.telling import content, iso, to_json
from millstream.serve.workers import Workers

_HEARTBEAT = 15.0  # seconds
_AT_ONCE = 1 << 16  # bytes per write, and one change
_REMEMBERED = 4  # pairs of snapshots
_RETRY = 2000  # milliseconds a browser waits before it connects again


class Listeners:
    """Who listens, and the clock that wakes them when a batch is committed."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.heartbeat = _HEARTBEAT
        self._bell = asyncio.Event()
        self.worker = Workers("events", 2 * most)  # never full: a listener has one thing to do
        self._found: OrderedDict[tuple[Any, ...], tuple[Snapshot, list[Changed]]] = OrderedDict()

    def ring(self) -> None:
        """A new batch is there."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def wait(self) -> None:
        """Until a batch is there, or it is time for a sign of life."""
        bell = self._bell
        try:
            await asyncio.wait_for(bell.wait(), self.heartbeat)
        except TimeoutError:
            return

    def find(self, old: Snapshot, new: Snapshot, stored: Stored) -> list[Changed]:
        """What changed, for all who want to know; only on the worker's thread."""
        asked = (old.batch, new.batch, stored.name)
        kept = self._found.get(asked)
        if kept is None or kept[0] is not new:  # another program may stand at the same batch
            kept = self._found[asked] = (new, find_changes(old, new, stored))
        self._found.move_to_end(asked)
        while len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)
        return kept[1]

    def close(self) -> None:
        """Nobody listens any more."""
        self.worker.close()


class Stream:
    """The response to one listener (an ASGI application)."""

    def __init__(
        self,
        view: Served,
        listeners: Listeners,
        rules: Rules,
        tell: Callable[[Snapshot, Snapshot], Iterator[bytes]],
        since: int | None,
    ) -> None:
        """`tell`: the events from one snapshot to another. Their id is the batch before: a batch
        that was cut short comes again."""
        self.view, self.listeners, self.rules = view, listeners, rules
        self.tell, self.since = tell, since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        if scope.get(HEAD):
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        self.listeners.count += 1
        gone = asyncio.ensure_future(_disconnected(receive))
        talk = asyncio.ensure_future(self._talk(send, start))
        try:
            await asyncio.wait({gone, talk}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.listeners.count -= 1
            for task in (gone, talk):
                task.cancel()
            await asyncio.gather(gone, talk, return_exceptions=True)
        if not talk.cancelled() and not isinstance(talk.exception(), TimeoutError):
            talk.result()  # what went wrong is for the log

    async def _talk(self, send: Send, start: dict[str, Any]) -> None:
        async def write(text: bytes) -> None:
            body = {"type": "http.response.body", "body": text, "more_body": True}
            await asyncio.wait_for(send(body), self.rules.stalled)

        now = self.view.snapshot
        await send(start)
        await write(b"retry: %d\n\n" % _RETRY)
        told: Snapshot | None = now
        if self.since is not None and self.since != now.batch:
            told = await self.listeners.worker.do(partial(self.view.follower.at, self.since))
        if told is None:
            await write(_event("reset", now.batch, {"batch": now.batch}))
            told = now
        while True:
            now = self.view.snapshot
            if now.batch > told.batch:
                pieces = _pieces(self.tell(told, now))
                while piece := await self.listeners.worker.do(partial(next, pieces, b"")):
                    await write(piece)
                await write(_event("batch", now.batch, {"batch": now.batch}))
                told = now
            else:
                await self.listeners.wait()
                if self.view.snapshot.batch == told.batch:
                    await write(b": still here\n\n")


def _pieces(events: Iterator[bytes]) -> Iterator[bytes]:
    """Events, some at a time."""
    some, size = [], 0
    for event in events:
        some.append(event)
        size += len(event)
        if size >= _AT_ONCE:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def slate_events(
    listeners: Listeners, updater: str | None, prefix: str, old: Snapshot, new: Snapshot
) -> Iterator[bytes]:
    """The slates of one updater, or of all, that are other ones or gone."""
    for about in new.updaters.values():
        if updater in (None, about.name):
            for one in listeners.find(old, new, about):
                for change in one.told(about, prefix):
                    yield _event("slate", old.batch, _told(new, change))


def row_events(
    listeners: Listeners, view: str, where: Expression | None, old: Snapshot, new: Snapshot
) -> Iterator[bytes]:
    """The rows of a view that came, went, or took another's place."""
    about = new.views.get(view)
    if about is None:  # the program that has it has been replaced
        return
    for move in moves(old, about, listeners.find(old, new, about), where):
        before = {} if move.before is None else {"before": move.before}
        told = {"view": view, "op": move.op, "row": move.row, **before, "batch": new.batch}
        yield _event("row", old.batch, told)


def _told(snapshot: Snapshot, change: Change) -> dict[str, Any]:
    slate = None
    if change.data is not None:
        slate = content(change.updater, snapshot.decode(change.updater, change.data))
    return {
        "updater": change.updater.name,
        "key": change.key,
        "slate": slate,
        "ts": iso(change.ts),
        "batch": snapshot.batch,
    }


def _event(kind: str, batch: int, data: dict[str, Any]) -> bytes:
    # JSON has no line breaks outside of strings, and inside they are written \n.
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (batch, kind.encode(), to_json(data))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Changes as server-sent events, as fast as a listener takes them.

Nothing is queued for a listener: it has a batch up to which it was told everything, and is told
what changed from there to the newest. A slow one skips what was overwritten meanwhile; one that
takes nothing at all is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

from millstream.serve.changes import Change, changes
from millstream.serve.guard import HEAD, Receive, Rules, Scope, Send
from millstream.serve.slates import Snapshot
from millstream.serve.status import View
from millstream.serve.telling import content, iso, to_json

_HEARTBEAT = 15.0  # seconds
_AT_ONCE = 200  # changes per write
_RETRY = 2000  # milliseconds a browser waits before it connects again


class Listeners:
    """Who listens, and the clock that wakes them when a batch is committed."""

    def __init__(self) -> None:
        self.count = 0
        self.heartbeat = _HEARTBEAT
        self._bell = asyncio.Event()

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


class Stream:
    """The response to one listener (an ASGI application)."""

    def __init__(
        self,
        view: View,
        listeners: Listeners,
        rules: Rules,
        updater: str | None,
        prefix: str,
        since: int | None,
    ) -> None:
        self.view, self.listeners, self.rules = view, listeners, rules
        self.updater, self.prefix, self.since = updater, prefix, since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope.get(HEAD):
            await send({"type": "http.response.body", "body": b""})
            return
        self.listeners.count += 1
        gone = asyncio.ensure_future(_disconnected(receive))
        talk = asyncio.ensure_future(self._talk(send))
        try:
            await asyncio.wait({gone, talk}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.listeners.count -= 1
            for task in (gone, talk):
                task.cancel()
            await asyncio.gather(gone, talk, return_exceptions=True)

    async def _talk(self, send: Send) -> None:
        async def write(text: bytes) -> None:
            body = {"type": "http.response.body", "body": text, "more_body": True}
            await asyncio.wait_for(send(body), self.rules.stalled)

        now = self.view.snapshot
        await write(b"retry: %d\n\n" % _RETRY)
        told: Snapshot | None = now
        if self.since is not None and self.since != now.batch:
            told = await asyncio.to_thread(self.view.follower.at, self.since)
        if told is None:
            await write(_event("reset", now.batch, {"batch": now.batch}))
            told = now
        while True:
            now = self.view.snapshot
            if now.batch > told.batch:
                pieces = self._pieces(told, now)
                while piece := await asyncio.to_thread(next, pieces, b""):
                    await write(piece)
                await write(_event("batch", now.batch, {"batch": now.batch}))
                told = now
            else:
                await self.listeners.wait()
                if self.view.snapshot.batch == told.batch:
                    await write(b": still here\n\n")

    def _pieces(self, old: Snapshot, new: Snapshot) -> Iterator[bytes]:
        """Changes, some at a time. Their id is the batch before: a batch cut short comes again."""
        found = (
            change
            for updater in new.updaters.values()
            if self.updater in (None, updater.name)
            for change in changes(old, new, updater, self.prefix)
        )
        while some := list(islice(found, _AT_ONCE)):
            yield b"".join(_event("slate", old.batch, _told(new, change)) for change in some)


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

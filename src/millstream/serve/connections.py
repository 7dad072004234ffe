"""Connections: how many there are, and how long each may keep the server waiting.

uvicorn ends a connection on which nothing comes after an answer, and leaves all other waiting to
the client: for the rest of a request, and for somebody who takes the answer. Here every wait has an
end, all answers together have a bound, and whoever has kept us waiting longest makes room for
others. Nothing is known of uvicorn's protocol but asyncio's own callbacks and the one method that
refuses what is no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from millstream.serve.guard import HEADERS, Asgi, Message, Receive, Rules, Scope, Send
from millstream.serve.telling import to_json

_CONNECTION = "millstream.connection"  # in the state uvicorn hands to every request
_PIECE = 1 << 16  # bytes of an answer given to the transport at a time


class Crowd:
    """All open connections of a server, in the order in which they would be let go."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}  # for a request, the longest first
        self.taking: dict[Connection, int] = {}  # bytes of an answer, the oldest first

    def server(self, app: Asgi, **options: Any) -> uvicorn.Server:
        """A server for these connections: nothing is logged, and nothing told of what it is."""
        config = uvicorn.Config(
            Attending(app),
            http=cast(Any, self.protocol),
            ws="none",
            log_config=None,
            log_level="critical",  # the guard has a line for every request
            access_log=False,
            server_header=False,
            headers=[(name.decode(), value.decode()) for name, value in HEADERS],
            proxy_headers=False,
            timeout_keep_alive=cast(int, self.rules.idle),
            loop="asyncio",
            **options,
        )
        return uvicorn.Server(config)

    def protocol(self, **given: Any) -> Connection:
        """What uvicorn calls for every connection."""
        return Connection(self, **given)

    def enter(self, one: Connection) -> None:
        """A new connection; who has been silent longest makes room for it, else it is let go."""
        if len(self.open) >= self.rules.connections:
            leaving = next(iter([*self.waiting, *self.taking, one]))
            leaving.abort()
            if leaving is one:
                return
        self.open.add(one)
        self.waiting[one] = None

    def leave(self, one: Connection) -> None:
        """It is closed."""
        self.open.discard(one)
        self.waiting.pop(one, None)
        self.taking.pop(one, None)

    @contextlib.contextmanager
    def giving(self, one: Connection, size: int) -> Iterator[None]:
        """While an answer is taken; if all are too much, the oldest of the others are let go."""
        for other in [*self.taking]:
            if sum(self.taking.values()) + size <= self.rules.unsent:
                break
            other.abort()
        self.taking[one] = size
        try:
            yield
        finally:
            self.taking.pop(one, None)


class Connection(H11Protocol):
    """HTTP/1.1 in which a client has so long for each request, and so long for each answer."""

    def __init__(self, crowd: Crowd, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(app_state={**app_state, _CONNECTION: self}, **given)
        self.crowd, self._answering = crowd, 0
        self._request = _Deadline(self, crowd.rules.patience)
        self._taken = _Deadline(self, crowd.rules.stalled)

    # -- what asyncio calls ---------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(Any, _Gathering(transport, self)))
        self._request.begin()
        self.crowd.enter(self)

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            self._request.begin()
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._taken.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.end()
        self._taken.end()
        self.crowd.leave(self)
        super().connection_lost(exc)

    # -- what it is told ------------------------------------------------------------------------

    def ending(self) -> None:
        """What is written must be taken in time, also when it is the last."""
        self._taken.begin()

    def abort(self) -> None:
        """End it at once; what was not taken is thrown away."""
        self.crowd.leave(self)
        self.transport.abort()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is being answered it is the client who waits."""
        self._request.end()
        self._answering += 1  # the next of a pipeline may begin before this one has ended
        self.crowd.waiting.pop(self, None)
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering and self in self.crowd.open:
                self.crowd.waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with the headers every answer has."""
        body = to_json({"error": "this is not a valid HTTP request"})
        about = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *HEADERS,
        ]
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % one for one in about), b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()


class _Deadline:
    """So long a client may keep us waiting for one thing; however much of it comes meanwhile."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on, unless it has begun already."""
        if self._timer is None:
            one = self._connection
            self._timer = one.loop.call_later(self._seconds, one.abort)

    def end(self) -> None:
        """It is there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Gathering:
    """A transport that sends what is written in one go: an answer is a head and a body."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self._written: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this at the end of the current turn of the loop, or when it is much."""
        if not self._written:
            self._connection.loop.call_soon(self._send)
        self._written.append(data)
        self._size += len(data)
        if self._size >= _PIECE:  # the transport must see how much it is to say when to stop
            self._send()

    def close(self) -> None:
        """Send what is left and close; whoever does not take it is not waited for."""
        self._send()
        self._connection.ending()
        self._transport.close()

    def _send(self) -> None:
        if self._written:
            data, self._written, self._size = b"".join(self._written), [], 0
            self._transport.write(data)


class Attending:
    """An application whose answers are given piece by piece, as fast as they are taken."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        connection: Connection = scope["state"][_CONNECTION]
        with connection.answering():
            await self.app(scope, receive, partial(_give, connection, send))


async def _give(connection: Connection, send: Send, message: Message) -> None:
    body = message.get("body", b"")
    if len(body) <= _PIECE:
        await send(message)
        return
    rules = connection.crowd.rules
    try:
        with connection.crowd.giving(connection, len(body)):
            async with asyncio.timeout(rules.stalled):
                for at in range(0, len(body), _PIECE):
                    more = at + _PIECE < len(body) or message.get("more_body", False)
                    piece = {"body": body[at : at + _PIECE], "more_body": more}
                    await send({**message, **piece})
    except TimeoutError:
        connection.abort()

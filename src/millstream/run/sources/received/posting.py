"""The web server that takes posted records; who may post is decided as for pages that are served.

Every request is bounded: in the time it may take to arrive, in its size, and in how much of all
requests is held in memory at the same time. Every refusal says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.api.sources import Http
from millstream.errors import ConfigError
from millstream.run.sources.received.taken import AnotherBody
from millstream.serve.connections import Crowd
from millstream.serve.guard import Guard, Receive, Rules, Scope, Send, is_local
from millstream.serve.telling import to_json
from millstream.serve.tokens import find_token

if TYPE_CHECKING:
    from millstream.run.sources.received.posts import PostReceiver

MAX_BODY = 8 * 1024 * 1024  # bytes of one request; a line of it is never too long for a record
_POSTED = "millstream.posted"  # in a scope: the request as it came
_BODY_SECONDS = 30.0  # for the body to arrive
_DURABLE_SECONDS = 30.0  # for the disk
_HELD = 64 * 1024 * 1024  # bytes of bodies that are arriving
_LONGEST_KEY = 200
_OURS = (b"content-length", b"transfer-encoding", b"cookie", b"authorization")  # not the guard's


class Refused(Exception):
    """A request that is not taken: status, what to do, and whether the connection ends."""

    def __init__(self, status: int, what: str, *, close: bool = False, **headers: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if close:  # the rest of the body is not waited for
            self.headers["connection"] = "close"


def _busy(what: str) -> Refused:
    return Refused(503, f"{what}; send it again later", close=True, retry_after="1")


class Posted:
    """The application: one path that takes POST."""

    def __init__(self, taking: PostReceiver, path: str, token: str | None) -> None:
        self.taking, self.path, self.token = taking, path, token
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, headers = 200, dict[str, str]()
        answer: dict[str, Any]
        try:
            answer = {"records": await self._take(scope[_POSTED], receive)}
        except Refused as refused:
            status, answer, headers = refused.status, {"error": refused.what}, refused.headers
        except _Gone:
            return
        body = to_json(answer)
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    async def _take(self, scope: Scope, receive: Receive) -> int:
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        self._check(scope, headers)
        key = _key_in(headers)
        if self.taking.stopping:
            raise _busy("the flow is being stopped")
        if self.taking.behind():
            raise _busy("the flow is behind with what it has received")
        with self._holding() as held:
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    body = await self._body(receive, held)
            except TimeoutError:
                what = f"the body did not arrive within {_BODY_SECONDS:g} s; send it in parts"
                raise Refused(408, what, close=True) from None
        try:
            done = self.taking.offer(body, key)
            async with asyncio.timeout(_DURABLE_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(done))
        except AnotherBody:
            what = "this Idempotency-Key was used with another body; new records need a new key"
            raise Refused(422, what) from None
        except TimeoutError:
            raise _busy("it is not durable yet, the disk may be full or slow") from None

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        if self.token is not None:
            kind, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(
                given.strip().encode("utf-8", "replace"), self.token.encode()
            )
            if kind.lower() != "bearer" or not same:
                what = "a token is needed: send it as `Authorization: Bearer TOKEN`"
                raise Refused(401, what, close=True, www_authenticate="Bearer")
        if scope["path"] != self.path:
            raise Refused(404, f"there is nothing here; records are posted to {self.path}")
        if scope["method"] != "POST":
            raise Refused(405, "records are sent with POST", close=True, allow="POST")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "send it without a Content-Encoding", close=True)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise _too_large()

    async def _body(self, receive: Receive, held: list[int]) -> bytes:
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            parts.append(part)
            held[0] += len(part)
            self._held += len(part)
            if held[0] > MAX_BODY:
                raise _too_large()
            if self._held > _HELD:
                raise _busy("too much is being sent at the same time")
            if not message.get("more_body", False):
                return b"".join(parts)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[list[int]]:
        held = [0]
        try:
            yield held
        finally:
            self._held -= held[0]


class _Gone(Exception):
    """Who sent it has gone before it was complete."""


def _too_large() -> Refused:
    limit = f"{MAX_BODY >> 20} MiB"
    return Refused(413, f"a request may have {limit}; send the lines in parts", close=True)


def _key_in(headers: dict[str, str]) -> str | None:
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isascii()):
        what = f"an Idempotency-Key has 1 to {_LONGEST_KEY} ASCII characters, like a UUID"
        raise Refused(400, what, close=True)
    return key


class _Door:
    """The guard of served pages in front of what is posted.

    It knows requests without a body only, so it is shown one; what it lets through has the whole.
    """

    def __init__(self, app: Posted, rules: Rules) -> None:
        self._guard = Guard(app, rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            kept = [pair for pair in scope["headers"] if pair[0].lower() not in _OURS]
            shown = {"method": "GET", "headers": kept, "query_string": b"", _POSTED: scope}
            scope = {**scope, **shown}
        await self._guard(scope, receive, send)


class PostServer:
    """Takes requests on the thread that serves, until it is stopped."""

    def __init__(self, taking: PostReceiver, spec: Http) -> None:
        self.spec = spec
        token = _token(spec)
        rules = Rules(host=spec.host)
        door = _Door(Posted(taking, spec.route, token), rules)
        self._server = Crowd(rules).server(door, lifespan="off", timeout_graceful_shutdown=2)
        self._socket: socket.socket | None = None

    def bind(self) -> None:
        """Take the port; whoever connects from now on is answered once it serves."""
        self._socket = _listen(self.spec)

    def serve(self) -> None:
        """Take requests until it is stopped."""
        assert self._socket is not None
        asyncio.run(self._server.serve([self._socket]))
        self._socket.close()

    def stop(self) -> None:
        """End it: requests under way have two seconds."""
        self._server.should_exit = True


def check_places(specs: Iterable[Http]) -> None:
    """All ports can be had, and tokens are there: asked before anything else is started."""
    with contextlib.ExitStack() as held:
        for spec in specs:
            _token(spec)
            held.enter_context(_listen(spec))


def _listen(spec: Http) -> socket.socket:
    try:
        family = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((spec.host, spec.port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"Http({spec.port}, host={spec.host!r}): cannot listen there ({reason}); "
            + ("choose another port" if taken else "give an address of this machine")
        ) from None


def _token(spec: Http) -> str | None:
    """The token, which who takes records from other machines needs; none is ever shown."""
    file = None if spec.token_file is None else Path(spec.token_file)
    token = find_token(file, spec.token_env)
    if token is None and not is_local(spec.host):
        raise ConfigError(
            f"Http(host={spec.host!r}) takes records from other machines, which needs a token: "
            f"set {spec.token_env} or give token_file=, or listen on 127.0.0.1"
        )
    return token

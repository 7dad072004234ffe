"""Who may ask: every request passes here before anything looks at it.

Pages of other sites can make a browser send requests to this machine, and can give this machine a
name of theirs. So the host must be one of ours, a request that says where it comes from must come
from here, nothing but reading is possible, and beyond this machine a token is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote

from millstream.serve.telling import to_json

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "millstream"
HEAD = "millstream.head"  # in the scope of a request for headers only
_LOCAL = ("localhost", "127.0.0.1", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = [  # of every answer, whoever makes it
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]{0,5})?", re.IGNORECASE | re.ASCII)
_LONGEST_HEADERS = 16 << 10  # bytes, all together
_LONGEST_COOKIES = 4 << 10
_MOST_PARAMETERS = 16
_LONGEST_LINE = 500  # characters in the log
_log = logging.getLogger("millstream.serve")


@dataclass(frozen=True)
class Rules:
    """Who may ask, and how much at a time."""

    host: str = "127.0.0.1"  # the address it is bound to
    token: str | None = None
    names: tuple[str, ...] = ()  # further names this server goes by
    connections: int = 512
    requests: int = 64  # that need a thread, at the same time
    listeners: int = 64  # of changes, at the same time
    patience: float = 10.0  # seconds in which a request must be there
    idle: float = 30.0  # seconds without a request after an answer
    stalled: float = 30.0  # seconds in which an answer, or what a listener is told, must be taken
    seconds: float = 2.0  # of work for one page
    page: int = 1 << 20  # bytes of slates on one page
    unsent: int = 64 << 20  # bytes of all answers that are not taken yet


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """The application behind the rules."""

    def __init__(self, app: Asgi, rules: Rules) -> None:
        self.app, self.rules = app, rules
        names = {*_LOCAL, rules.host, *rules.names}
        if not is_local(rules.host):
            names.add(socket.gethostname())
        self._names = {name.lower() for name in names}
        self._cookie = _cookie_of(rules.token) if rules.token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        reply = _Reply(send, scope["method"] == "HEAD")
        try:
            await self._answer(scope, receive, reply)
        except Exception as error:  # of our own; a request never ends the server
            _log.error("%s failed: %s", _line(scope), _clipped(_cause(error)))
            _log.debug("where a request failed", exc_info=error)
            if not reply.status:
                await _refuse(reply, 500, "this could not be read; the server's log says why", [])
            return
        if _log.isEnabledFor(logging.INFO):
            took = (time.monotonic() - begun) * 1e3
            _log.info("%s %d %.1f ms", _line(scope), reply.status, took)

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        headers = _headers(scope)
        refused = self._refusal(scope, headers)
        if refused is None and self.rules.token is not None:
            refused = self._entry(scope, headers)
        if refused is not None:
            await _refuse(reply, *refused)
            return
        # Routes see the path as it was sent: a slash inside a key stays %2F.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        head = scope["method"] == "HEAD"
        scope = {**scope, "path": raw.decode("latin-1"), "method": "GET", HEAD: head}
        await self.app(scope, receive, reply)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> _Refusal | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _LONGEST_HEADERS:
            return 431, "the headers are too long", [(b"connection", b"close")]
        if scope["query_string"].count(b"&") >= _MOST_PARAMETERS:
            return 400, f"there are more than {_MOST_PARAMETERS} parameters", []
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD are possible", [(b"allow", b"GET, HEAD")]
        if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
            return 413, "a request has no body here", [(b"connection", b"close")]
        host = headers.get("host", "")
        if not self._is_ours(_name_of(host)):
            return 400, "this server does not go by the name in the Host header", []
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (
            f"http://{host}".lower(),
            f"https://{host}".lower(),
        ):
            return 403, "requests from pages of other sites are refused", []
        crossing = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if crossing and headers.get("sec-fetch-mode") != "navigate":
            return 403, "requests from pages of other sites are refused", []
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        if is_local(self.rules.host):
            return False
        try:  # another site cannot make an address its own, only a name
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _entry(self, scope: Scope, headers: dict[str, str]) -> _Refusal | None:
        """None for who has the token; the page gets a cookie for it, once."""
        assert self.rules.token is not None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self.rules.token):
            return None
        if _same(_cookie_in(headers.get("cookie", "")), self._cookie):
            return None
        if scope["path"] == "/":
            asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            if _same(asked.get("token", [""])[-1], self.rules.token):
                cookie = f"{COOKIE}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"
                moved = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
                return 303, "go to the page", moved
        return (
            401,
            "a token is needed: send it as `Authorization: Bearer TOKEN`, or open the page once "
            "with /?token=TOKEN",
            [(b"www-authenticate", b"Bearer")],
        )


_Refusal = tuple[int, str, list[tuple[bytes, bytes]]]


class _Reply:
    """Sends a response, without a body for HEAD, and remembers its status."""

    def __init__(self, send: Send, head: bool) -> None:
        self._send, self._head = send, head
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


async def _refuse(send: Send, status: int, reason: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = to_json({"error": reason})
    about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": about + headers})
    await send({"type": "http.response.body", "body": body})


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in scope["headers"]}


def _name_of(host: str) -> str:
    """The name in a Host header, without its port; none if it is not wholly understood."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def _cookie_of(token: str) -> str:
    return hmac.new(token.encode(), b"millstream cookie", hashlib.sha256).hexdigest()


def _cookie_in(header: str) -> str:
    """Our cookie, taken by hand: a parser for all of them can be made to take seconds."""
    if len(header) <= _LONGEST_COOKIES:
        for one in header.split(";"):
            name, _, value = one.partition("=")
            if name.strip() == COOKIE:
                return value.strip()
    return ""


def _same(given: str, expected: str) -> bool:
    """Compared in a time that tells nothing; an empty secret opens nothing."""
    same = hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
    return same and bool(expected)


def _line(scope: Scope) -> str:
    """A request in the log: never its parameters, where a token may stand."""
    client = scope.get("client") or ("-", 0)
    path = scope.get("raw_path") or scope["path"].encode()
    return f"{client[0]} {_clipped(scope['method'])} {_clipped(path.decode('latin-1'))}"


def _cause(error: BaseException) -> str:
    where, last = "", error.__traceback__
    while last is not None:
        where, last = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}", last.tb_next
    return f"{type(error).__name__} at {where}: {error}"


def _clipped(text: str) -> str:
    """Text of others on one line of the log."""
    shown = repr(text[:_LONGEST_LINE])[1:-1][:_LONGEST_LINE]
    return shown if len(text) <= _LONGEST_LINE else f"{shown}…"

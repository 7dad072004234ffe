"""Who may ask: every request passes here before anything looks at it.

Pages of other sites can make a browser send requests to this machine, and can give this machine a
name of theirs. So the host must be one of ours, a request that says where it comes from must come
from here, nothing but reading is possible, and beyond this machine a token is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
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
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_OWN = {name for name, _ in _HEADERS}


@dataclass(frozen=True)
class Rules:
    """Who may ask, and how much at a time."""

    host: str = "127.0.0.1"  # the address it is bound to
    token: str | None = None
    names: tuple[str, ...] = ()  # further names this server goes by
    requests: int = 256  # at the same time
    listeners: int = 64  # of changes, at the same time
    seconds: float = 10.0  # for one page
    stalled: float = 30.0  # how long a listener may take nothing


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
        self.busy = 0
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
        head = scope["method"] == "HEAD"
        reply = _Reply(send, head)
        headers = _headers(scope)
        refused = self._refusal(scope, headers)
        if refused is None and self.rules.token is not None:
            refused = self._entry(scope, headers)
        if refused is None and self.busy >= self.rules.requests:
            refused = (429, "too many requests at the same time", [(b"retry-after", b"1")])
        if refused is not None:
            await _refuse(reply, *refused)
            return
        # Routes see the path as it was sent: a slash inside a key stays %2F.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        scope = {**scope, "path": raw.decode("latin-1"), "method": "GET", HEAD: head}
        self.busy += 1
        try:
            await self.app(scope, receive, reply)
        finally:
            self.busy -= 1

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> _Refusal | None:
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
    """Sends a response with the headers every response has, without a body for HEAD."""

    def __init__(self, send: Send, head: bool) -> None:
        self._send, self._head = send, head

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [one for one in message.get("headers", []) if one[0].lower() not in _OWN]
            message = {**message, "headers": kept + _HEADERS}
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
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _cookie_of(token: str) -> str:
    return hmac.new(token.encode(), b"millstream cookie", hashlib.sha256).hexdigest()


def _cookie_in(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _same(given: str, expected: str) -> bool:
    """Compared in a time that tells nothing; an empty secret opens nothing."""
    same = hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
    return same and bool(expected)

"""The server: uvicorn in a thread of its own, or in the foreground for `millstream serve`."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sys
import threading
import time

from millstream.errors import ConfigError
from millstream.serve.app import make_app
from millstream.serve.connections import Crowd
from millstream.serve.guard import Rules, is_local
from millstream.serve.status import Served
from millstream.serve.tokens import TOKEN_VARIABLE

DEFAULT_PORT = 8321
_START = 10.0
_SWITCH = 0.0005  # seconds
_LONGEST_HEAD = 1 << 17  # bytes: the longest key, percent-encoded, however it comes in pieces
_UNREAD = 1 << 17  # bytes the kernel keeps per connection; it takes twice that


class Server:
    """Serves a view from a thread until it is stopped."""

    def __init__(self, view: Served, host: str, port: int, rules: Rules) -> None:
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.crowd = Crowd(rules)
        self._server = self.crowd.server(
            make_app(view, rules),
            lifespan="on",
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_graceful_shutdown=1,
        )
        self._thread = threading.Thread(target=self._main, name="millstream-serve", daemon=True)

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Serve; returns when requests are answered.

        A thread of the flow that computes in Python lets go of the interpreter only after the
        switch interval, and a request needs it several times.
        """
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, _SWITCH))
        self._thread.start()
        until = time.monotonic() + _START
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        """End it: listeners are let go, requests under way have a second."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5)
            sys.setswitchinterval(self._interval)
        self._socket.close()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _main(self) -> None:
        asyncio.run(self._server.serve([self._socket]))


def open_server(view: Served, host: str, port: int, token: str | None = None) -> Server:
    """A server on an address; beyond this machine only with a token."""
    if not is_local(host) and token is None:
        raise ConfigError(
            f"serving on {host} makes slates readable from other machines, which needs a token: "
            f"set {TOKEN_VARIABLE} or give --token-file, or serve on 127.0.0.1"
        )
    return Server(view, host, port, Rules(host=host, token=token))


def parse_address(address: int | str | bool) -> tuple[str, int]:
    """Host and port of "host:port", a port, or an address on the usual port."""
    text = str(address)
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}|\[[0-9a-fA-F:]+\]|localhost", text):
        text = f"{text}:{DEFAULT_PORT}"
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") if colon else "127.0.0.1"
    if not port.isdecimal() or not 0 <= int(port) <= 65535 or not host:
        raise ConfigError(f"serve={address!r}: expected a port or host:port, like {DEFAULT_PORT}")
    return host, int(port)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        raise ConfigError(f"{host} is no address of this machine; serve on 127.0.0.1") from None
    # With the protocol named, asyncio sends small answers at once instead of waiting for an ACK.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is not read waits in the kernel first, which would take megabytes per connection.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
        found.bind((host, port))
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is taken by another program; choose another port"
            ) from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"cannot serve on {host}:{port} ({reason})") from None
    return found

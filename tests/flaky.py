"""A store that fails as stores do: a proxy before a server of S3's protocol."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FATES = ("refused", "throttled", "done and throttled", "done and unanswered", "cut", "slow")
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class FlakyStore:
    """Passes requests on; a share of them meets a fate, by dice with a seed.

    refused: the connection ends before anything was done; throttled: 503; done and throttled, done
    and unanswered: it was done, and the client is not told; cut: half of the answer; slow.
    """

    def __init__(self, url: str, seed: int = 0, share: float = 0.0) -> None:
        self.target, self.share = urlsplit(url).netloc, share
        self.dice, self.lock = random.Random(seed), threading.Lock()
        self.met: Counter[str] = Counter()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def fate(self) -> str:
        """What becomes of the next request."""
        with self.lock:
            meets = self.dice.random() < self.share
            found = self.dice.choice(FATES) if meets else "passed"
            self.met[found] += 1
            return found

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _handler(store: FlakyStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or every answer waits for 40 ms

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fate = store.fate()
            if fate == "slow":
                time.sleep(0.3)
            if fate == "refused":
                return self._hang_up()
            if fate == "throttled":
                return self._answer(503, {}, _SLOW_DOWN)
            try:
                status, headers, data = self._ask(body)
            except (OSError, http.client.HTTPException):  # the server is away, or goes away
                store.met["away"] += 1
                return self._hang_up()
            match fate:
                case "done and throttled":
                    self._answer(503, {}, _SLOW_DOWN)
                case "done and unanswered":
                    self._hang_up()
                case "cut" if data and self.command == "GET":
                    self._answer(status, headers, data, sent=len(data) // 2)
                    self._hang_up()
                case _:
                    self._answer(status, headers, data)

        def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(store.target, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()
            finally:
                connection.close()

        def _answer(
            self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None
        ) -> None:
            self.send_response_only(status)
            said = {name.lower(): value for name, value in headers.items()}
            length = said.get("content-length", "0") if self.command == "HEAD" else str(len(data))
            skipped = ("content-length", "connection", "transfer-encoding")
            for name, value in said.items():
                if name not in skipped:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[:sent])
                self.wfile.flush()

        def _hang_up(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

        def log_message(self, *given: Any) -> None:
            """Tests say what they need."""

    return Handler

"""Small HTTP servers of tests: each on a port of its own, in a thread, and silent."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalServer:
    """Answers by a handler until it is closed."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """What handlers of tests have in common."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits for 40 ms

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def ask(
        self, netloc: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """Pass the request on to another server."""
        connection = http.client.HTTPConnection(netloc, timeout=60)
        try:
            connection.request(self.command, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def answer(
        self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None
    ) -> None:
        """Answer; sent: only so much of what is promised."""
        self.send_response_only(status)
        said = {name.lower(): value for name, value in headers.items()}
        length = said.get("content-length", "0") if self.command == "HEAD" else str(len(data))
        for name, value in said.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])
            self.wfile.flush()

    def log_message(self, *given: Any) -> None:
        """Tests say what they need."""

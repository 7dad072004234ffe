"""A store that fails as stores do: a proxy before a server of S3's protocol."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

from tests.local import Handler, LocalServer

FATES = ("refused", "throttled", "done and throttled", "done and unanswered", "cut", "slow")
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class FlakyStore(LocalServer):
    """Passes requests on; a share of them meets a fate, by dice with a seed.

    refused: the connection ends before anything was done; throttled: 503; done and throttled, done
    and unanswered: it was done, and the client is not told; cut: half of the answer; slow.
    """

    def __init__(self, url: str, seed: int = 0, share: float = 0.0) -> None:
        self.target, self.share = urlsplit(url).netloc, share
        self.dice, self.lock = random.Random(seed), threading.Lock()
        self.met: Counter[str] = Counter()
        super().__init__(_handler(self))

    def fate(self) -> str:
        """What becomes of the next request."""
        with self.lock:
            meets = self.dice.random() < self.share
            found = self.dice.choice(FATES) if meets else "passed"
            self.met[found] += 1
            return found


def _handler(store: FlakyStore) -> type[Handler]:
    class Flaky(Handler):
        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def _any(self) -> None:
            body, fate = self.body(), store.fate()
            if fate == "slow":
                time.sleep(0.3)
            if fate == "refused":
                return self._hang_up()
            if fate == "throttled":
                return self.answer(503, {}, _SLOW_DOWN)
            try:
                asked = (store.target, self.path, body, dict(self.headers))
                status, headers, data = self.ask(*asked)
            except (OSError, http.client.HTTPException):  # the server is away, or goes away
                store.met["away"] += 1
                return self._hang_up()
            match fate:
                case "done and throttled":
                    self.answer(503, {}, _SLOW_DOWN)
                case "done and unanswered":
                    self._hang_up()
                case "cut" if data and self.command == "GET":
                    self.answer(status, headers, data, sent=len(data) // 2)
                    self._hang_up()
                case _:
                    self.answer(status, headers, data)

        def _hang_up(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    return Flaky

"""The receiver of what is posted over HTTP: a request is answered once its records are durable.

Requests that come while the disk is busy with others are sealed together. A piece begins with a
line of JSON, the keys of the requests in it, so that records and keys become durable together.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millstream.api.sources import Http
from millstream.io.lines import BOM, scan
from millstream.run.sources.received.posting import PostServer
from millstream.run.sources.received.spool import PATIENCE, Receiver, Sealed
from millstream.run.sources.received.taken import AnotherBody, Taken, TakenKeys
from millstream.state.storage import Storage

_LINE = re.compile(rb"[^\n]*")


@dataclass
class Post:
    """One request: its lines, and who waits for it to be durable."""

    lines: bytes
    records: int
    key: str | None = None
    digest: str = ""
    done: Future[int] = field(default_factory=Future)


class PostReceiver(Receiver):
    """Lines of requests, each request whole."""

    suffix = "posts"
    worth = 1  # somebody waits for the answer
    sent_again = True  # who got no answer asks again

    def __init__(self, name: str, spec: Http, spool: Storage) -> None:
        super().__init__(name, spec, spool)
        self.keys = TakenKeys(spool)
        self._waiting: list[Post] = []
        self._size = 0
        self._named: dict[str, Post] = {}  # by key: not durable yet
        self._blanks = spec.format == "text"
        self._server = PostServer(self, spec)

    # -- requests ----------------------------------------------------------------------------------

    def offer(self, body: bytes, key: str | None) -> Future[int]:
        """Take a request in; the future has the number of its records once they are durable."""
        body = body.removeprefix(BOM)
        if body and not body.endswith(b"\n"):
            body += b"\n"
        digest = hashlib.blake2b(body, digest_size=8).hexdigest() if key is not None else ""
        post = Post(body, len(scan(body, 0, blanks=self._blanks)), key, digest)
        with self._lock:
            if key is not None:
                known = self.keys.get(key)
                under_way = self._named.get(key)
                if (known or under_way or post).digest != digest:
                    raise AnotherBody
                if known is not None:
                    post.done.set_result(known.records)
                    return post.done
                if under_way is not None:
                    return under_way.done
                self._named[key] = post
            if not post.records and key is None:
                post.done.set_result(0)
                return post.done
            self._waiting.append(post)
            self._size += len(body)
            self._came.notify()
        return post.done

    def behind(self) -> bool:
        """Whether the engine is so far behind that nothing more is taken."""
        with self._lock:
            return self._held >= self.most_held or self._size >= self.most_held

    @property
    def stopping(self) -> bool:
        """Whether nothing more is taken because the flow stops."""
        return self._stopping.is_set()

    # -- sealing -----------------------------------------------------------------------------------

    def amount(self) -> int:
        return len(self._waiting)

    def cut(self) -> list[Post] | None:
        posts, self._waiting, self._size = self._waiting, [], 0
        return posts or None

    def encode(self, content: list[Post]) -> tuple[bytes, int]:
        keys = msgspec.json.encode(list(_taken(content)))
        data = b"".join([keys, b"\n", *(post.lines for post in content)])
        return data, sum(post.records for post in content)

    def kept(self, content: list[Post]) -> None:
        with self._lock:
            self.keys.add(_taken(content))
            for post in content:
                if post.key is not None:
                    del self._named[post.key]
        for post in content:
            post.done.set_result(post.records)

    def forgetting(self, names: list[str]) -> None:
        taken = [one for name in names for one in _keys_in(self.spool, name)]
        with self._lock:
            self.keys.log(taken)

    # -- the thread --------------------------------------------------------------------------------

    def resume(self, taken: int, rows: int, arrival: int) -> list[Sealed]:
        self.keys.load()
        rest = super().resume(taken, rows, arrival)
        for piece in rest:
            self.keys.add(_keys_in(self.spool, piece.name))
        return rest

    def start(self) -> None:
        self._server.bind()
        super().start()

    def receive(self) -> None:
        self._server.serve()

    def ask_to_stop(self, patience: float = PATIENCE) -> None:
        super().ask_to_stop(patience)
        self._server.stop()


def _taken(posts: Iterable[Post]) -> Iterable[Taken]:
    return (Taken(post.key, post.digest, post.records) for post in posts if post.key is not None)


def _keys_in(spool: Storage, name: str) -> list[Taken]:
    first = _LINE.match(memoryview(spool.map(name)))
    assert first is not None
    found: list[Any] = msgspec.json.decode(first[0])
    return [Taken(*one) for one in found]

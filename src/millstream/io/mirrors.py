"""A mirror in Redis: keys that follow committed batches, written by one process at a time.

Beside its keys a mirror has a hash that says whose it is and how far it has come: `owner`, `batch`
(the last one mirrored whole), and of the writing under way `attempt`, `epoch` and `written`.
Entries are written in pieces, each of them one script that looks there first. So a writer that was
overtaken changes nothing any more, and a Redis that lost something is noticed, whether it was
emptied or went back to an older snapshot.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qs, urlsplit

from millstream.errors import ConfigError, RunError

_PIECE_KEYS = 500
_PIECE_BYTES = 1 << 20
_IN_FLIGHT = 8  # pieces sent before an answer is waited for
_SCANNED = 1000
_SCHEMES = ("redis", "rediss", "unix")
_TIMEOUT = 10.0  # seconds for one answer
_LONGEST_PAUSE = 2.0

_BEGIN = """
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'attempt', ARGV[2], 'written', '0')
if ARGV[3] == 'whole' then redis.call('HSET', KEYS[1], 'batch', '-1') end
return redis.call('HINCRBY', KEYS[1], 'epoch', 1)
"""

# Whether the attempt is still ours and nothing it wrote is lost; `said` is what to answer if not.
_GUARD = """
local m = redis.call('HMGET', KEYS[1], 'attempt', 'epoch', 'written')
if m[1] ~= ARGV[1] or tonumber(m[3]) < tonumber(ARGV[3]) - 1 then
  if m[1] and m[1] ~= ARGV[1] and tonumber(m[2]) > tonumber(ARGV[2]) then return 'taken' end
  return 'lost'
end
"""

# An empty value removes the key; a time is '@' and a moment, or '+' and a duration, in ms.
_WRITE = (
    _GUARD
    + """
for i = 2, #KEYS do
  local value, ends = ARGV[2 * i], ARGV[2 * i + 1]
  if value == '' then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], value)
    local kind = string.sub(ends, 1, 1)
    if kind == '@' then redis.call('PEXPIREAT', KEYS[i], string.sub(ends, 2)) end
    if kind == '+' then redis.call('PEXPIRE', KEYS[i], string.sub(ends, 2)) end
  end
end
redis.call('HSET', KEYS[1], 'written', ARGV[3])
return 'ok'
"""
)

_FINISH = _GUARD + "redis.call('HSET', KEYS[1], 'batch', ARGV[4]) return 'ok'"

T = TypeVar("T")


class Entry(NamedTuple):
    """One key: its value (None removes it), and when it ends ('@' or '+' and ms, or '')."""

    key: bytes
    value: bytes | None
    ends: str = ""


class Lost(Exception):
    """Redis does not have what was written to it."""


@dataclass(frozen=True)
class Address:
    """Where a Redis is. Shown without user, password and options."""

    url: str = field(repr=False)
    password_env: str
    shown: str

    @classmethod
    def parse(cls, url: Any, password_env: str) -> Address:
        """Check a URL; no message repeats what may be a password."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            parse_qs(parts.query, strict_parsing=bool(parts.query))
        except (ValueError, TypeError, AttributeError):
            parts = host = port = None
        if parts is None or parts.scheme not in _SCHEMES or not _whole(parts):
            raise ConfigError(
                "Redis(url): expected an address like redis://127.0.0.1:6379/0, rediss://... (TLS) "
                "or unix:///path/to/socket; characters like @, / and # in a password are written "
                "as %40, %2F, %23"
            )
        if parts.scheme == "unix":
            return cls(url, password_env, f"unix://{parts.path}")
        name = f"[{host}]" if host and ":" in host else host or "localhost"
        return cls(url, password_env, f"{parts.scheme}://{name}:{port or 6379}{parts.path}")

    def connect(self) -> Any:
        """A client; nothing is sent yet."""
        redis = require_redis()
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {}
        password = os.environ.get(self.password_env)
        parts = urlsplit(self.url)
        if password and not parts.password and "password" not in parse_qs(parts.query):
            options["password"] = password
        try:
            return redis.Redis.from_url(
                self.url,
                socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT,
                retry=Retry(NoBackoff(), 0),  # `Mirror` tries again, and says so
                **options,
            )
        except (ValueError, TypeError):
            raise ConfigError(
                f"Redis at {self.shown}: its URL has options that redis-py does not know"
            ) from None


def _whole(parts: SplitResult) -> bool:
    """Whether a URL was understood: else a part of a password may pass for host, port or path."""
    rest = parts.path + parts.query + parts.fragment
    if parts.scheme == "unix":
        return bool(parts.path) and not parts.fragment and not (parts.netloc and "@" in rest)
    return bool(parts.hostname) and "@" not in rest and not parts.fragment


def require_redis() -> Any:
    """The package, or what to do to have it."""
    try:
        import redis
    except ImportError:
        raise ConfigError(
            "ms.Redis needs the package redis: pip install 'millstream[redis]'"
        ) from None
    return redis


class Mirror:
    """The keys under one head, and the hash of that name that says how far they are."""

    def __init__(
        self,
        address: Address,
        head: str,
        owner: str,
        patience: float,
        waiting: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.address, self.head, self.owner = address, head, owner
        self.patience, self.waiting = patience, waiting
        self.client = address.connect()
        self._meta = head.encode()
        self._attempt = ""
        self._epoch = self._piece = 0

    def key(self, text: str) -> bytes:
        """The name of an entry in Redis."""
        return f"{self.head}:{text}".encode()

    def where(self) -> tuple[str | None, int]:
        """Whose the mirror is (None: there is none), and the last batch that is in it whole."""
        owner, batch = self._patiently(lambda: self.client.hmget(self._meta, "owner", "batch"))
        return None if owner is None else owner.decode(), int(batch or -1)

    def begin(self, *, whole: bool) -> None:
        """Become the one who writes. `whole`: until it has finished, nothing counts as mirrored."""
        self._attempt, self._piece = secrets.token_hex(8), 0
        args = (self.owner, self._attempt, "whole" if whole else "")
        self._epoch = self._patiently(lambda: self.client.eval(_BEGIN, 1, self._meta, *args))

    def write(self, entries: Iterable[Entry]) -> int:
        """Set and remove keys, a few pieces at a time; gives how many."""
        count = 0
        group: list[tuple[Any, ...]] = []
        for piece in _pieces(entries):
            self._piece += 1
            count += len(piece)
            keys = [self._meta, *(entry.key for entry in piece)]
            values = [part for entry in piece for part in (entry.value or b"", entry.ends)]
            fence = (self._attempt, self._epoch, self._piece)
            group.append((_WRITE, len(keys), *keys, *fence, *values))
            if len(group) == _IN_FLIGHT:
                self._send(group)
                group = []
        self._send(group)
        return count

    def finish(self, batch: int) -> None:
        """Say that a batch is in the mirror whole."""
        fence = (self._attempt, self._epoch, self._piece + 1, batch)
        self._send([(_FINISH, 1, self._meta, *fence)])

    def pages(self) -> Iterator[list[bytes]]:
        """All keys there are, some at a time; one may come twice."""
        pattern = _literally(self.head.encode()) + b":*"
        cursor = 0
        while True:
            cursor, found = self._patiently(
                lambda at=cursor: self.client.scan(at, match=pattern, count=_SCANNED)  # type: ignore[misc]
            )
            if found:
                yield found
            if not cursor:
                return

    def values(self, keys: list[bytes]) -> list[bytes | None]:
        """What stands under some keys; None for what is no text."""
        return list(self._patiently(lambda: self.client.mget(keys))) if keys else []

    def check_outer(self) -> None:
        """Refuse to write among the keys of a mirror whose name this one's begins with."""
        parts = self.head.split(":")
        for outer in (":".join(parts[:n]) for n in range(1, len(parts))):
            kind = self._patiently(lambda key=outer: self.client.type(key))  # type: ignore[misc]
            if kind == b"hash" and self._patiently(
                lambda key=outer: self.client.hexists(key, "attempt")  # type: ignore[misc]
            ):
                raise ConfigError(
                    f"the mirror {self.head!r} would write among the keys of the mirror {outer!r} "
                    f"in Redis at {self.address.shown}; choose a prefix= that does not begin with "
                    "another mirror's name"
                )

    def close(self) -> None:
        """Let go of the connection."""
        self.client.close()

    def _send(self, calls: list[tuple[Any, ...]]) -> None:
        if not calls:
            return

        def send() -> list[Any]:
            with self.client.pipeline(transaction=False) as pipe:
                for call in calls:
                    pipe.eval(*call)
                return list(pipe.execute())

        answers = self._patiently(send)
        if b"taken" in answers:
            raise RunError(
                f"another run has taken over the mirror {self.head!r} in Redis at "
                f"{self.address.shown}; give each flow a prefix= of its own"
            )
        if b"lost" in answers:
            raise Lost

    def _patiently(self, work: Callable[[], T]) -> T:
        """Try until Redis answers, or for as long as patience lasts."""
        redis = require_redis()
        deadline = time.monotonic() + self.patience
        pause = 0.05
        waited = False
        while True:
            try:
                result = work()
            except redis.exceptions.AuthenticationError as error:
                raise ConfigError(
                    f"Redis at {self.address.shown} does not let us in ({_reason(error)}); give "
                    f"user and password in the URL, or the password in ${self.address.password_env}"
                ) from None
            except (redis.exceptions.RedisError, OSError) as error:
                if not _passing(redis, error):
                    raise RunError(f"Redis at {self.address.shown}: {_reason(error)}") from None
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Away(self.address.shown, self.patience, _reason(error)) from None
                self.waiting(
                    f"paused: Redis at {self.address.shown} is away ({_reason(error)}); tried "
                    f"again for {left:.0f} s more"
                )
                waited = True
                time.sleep(min(pause * random.uniform(0.8, 1.2), left))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if waited:
                    self.waiting(None)
                return result


class Away(RunError):
    """Redis did not answer for as long as was waited."""

    def __init__(self, shown: str, waited: float, reason: str) -> None:
        super().__init__(f"Redis at {shown} has been away for {waited:g} s ({reason})")


def _passing(redis: Any, error: Exception) -> bool:
    """Whether it may be different in a moment."""
    kinds = redis.exceptions
    passing = (OSError, kinds.ConnectionError, kinds.TimeoutError, kinds.BusyLoadingError)
    text = str(error)
    return isinstance(error, passing) or any(
        word in text for word in ("OOM", "READONLY", "LOADING", "MASTERDOWN", "BUSY", "MISCONF")
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _pieces(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry.key) + len(entry.value or b"")
        if len(piece) == _PIECE_KEYS or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _literally(text: bytes) -> bytes:
    """A pattern of Redis that matches this text and no other."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]^-\\" else bytes([c]) for c in text)

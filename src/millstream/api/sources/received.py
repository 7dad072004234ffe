"""Lines that others send: over a socket, on standard input, by HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.api.frames import plainly
from millstream.api.sources.timing import Timing, fill
from millstream.errors import ConfigError
from millstream.io.formats import check_delimiter


@plainly
@dataclass(frozen=True)
class Lines(Timing):
    """What line-based receivers share."""

    format: str = "text"
    schema: Any = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        step = type(self).__name__
        if self.format not in ("text", "json", "csv", "debezium"):
            raise ConfigError(f"{step}(format={self.format!r}): use text, json, csv or debezium")
        self._check(check_delimiter, "delimiter")
        if self.format != "text" and self.schema is None:
            raise ConfigError(
                f'{step}(format={self.format!r}): give a schema, like schema="ts timestamp, '
                'symbol string, price double"; a live source has no sample to infer it from'
            )


@plainly
@dataclass(frozen=True)
class Socket(Lines):
    """Lines from a TCP server. Received data is spooled durably before it is processed.

    The source ends when the server closes the connection, unless `reconnect=True`.
    """

    host: str = "localhost"
    port: int = 0
    reconnect: bool = False

    def __init__(self, host: str, port: int, **options: Any) -> None:
        fill(self, Socket, {"host": host, "port": port, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise ConfigError(f"Socket(port={self.port!r}): expected a number from 1 to 65535")

    @property
    def endless(self) -> bool:
        return self.reconnect


@plainly
@dataclass(frozen=True)
class Stdin(Lines):
    """Lines from standard input, spooled durably; it ends with the input."""


@plainly
@dataclass(frozen=True)
class Http(Lines):
    """Lines that others POST to this machine; each request is answered once it is durable.

    A request with an `Idempotency-Key` header is taken once, however often it is sent. The source
    ends when the flow is stopped.

    port, host: where it listens; beyond this machine only with a token.
    path: what requests are posted to.
    token_file, token_env: where the token is that requests must bring, as a file or as the name of
        an environment variable.
    """

    format: str = "json"
    port: int = 0
    host: str = "127.0.0.1"
    path: str = "/"
    token_file: str | Path | None = None
    token_env: str = "MILLSTREAM_INPUT_TOKEN"

    def __init__(self, port: int, host: str = "127.0.0.1", **options: Any) -> None:
        fill(self, Http, {"port": port, "host": host, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise ConfigError(f"Http(port={self.port!r}): expected a number from 1 to 65535")
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError(f'Http(host={self.host!r}): expected an address, like "127.0.0.1"')
        if not isinstance(self.path, str) or set(self.path) & set("?# %"):
            raise ConfigError(f'Http(path={self.path!r}): expected a path, like "/events"')
        if not isinstance(self.token_env, str) or not self.token_env:
            raise ConfigError("Http(token_env=): expected the name of an environment variable")

    @property
    def route(self) -> str:
        """The path with its slash."""
        return "/" + self.path.lstrip("/")

    @property
    def endless(self) -> bool:
        return True

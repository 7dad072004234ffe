"""The collector over the network: Arrow Flight, which lets in who has the token.

The actions `hello`, `boundary` and `code`, and messages that are put. What is said is in
`run/messages/`, what becomes of it in `collecting.py`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from millstream.api.sources import Collector
from millstream.errors import ConfigError, RunError
from millstream.run.messages.code import Given, askeds, bearer
from millstream.run.messages.greetings import (
    NEVER,
    Hello,
    Later,
    Refused,
    Twice,
    Welcome,
    hellos,
    hush,
)
from millstream.run.messages.message import MOST_BYTES, check_blocks, pack, read_head
from millstream.serve.guard import is_local
from millstream.serve.tokens import find_token

if TYPE_CHECKING:
    from millstream.run.sources.collector.collecting import MessageReceiver

_PATIENCE = 1.0  # seconds for calls under way when the server ends
WAIT = 30.0  # seconds an agent waits for its message to be durable


class _Token(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets nobody in without the token."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        if self.token is None:
            return
        given = next(iter(headers.get("authorization", [])), "")
        if not secrets.compare_digest(given.encode(), f"Bearer {bearer(self.token)}".encode()):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class CollectorServer(flight.FlightServerBase):  # type: ignore[misc]
    """Arrow Flight: the actions `hello`, `boundary` and `code`, and messages that are put."""

    def __init__(self, receiver: MessageReceiver, spec: Collector) -> None:
        self.receiver = receiver
        token, tls = check_place(spec)
        self.token = token if tls else None  # what code is proven by; it is given over TLS only
        hush()
        host, port = spec.place
        scheme = "grpc+tls" if tls else "grpc+tcp"
        super().__init__(
            f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}",
            tls_certificates=tls,
            middleware={"token": _Token(token)},
        )
        self._ended = threading.Lock()

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Say who one is, and hear what is known of one."""
        if action.type not in ("hello", "boundary", "code"):
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        body = action.body.to_pybytes()
        answer: Given | Welcome
        try:
            if action.type == "code":
                answer = self.receiver.give(askeds.decode(body).nonce)
            else:
                answer = self.receiver.greet(hellos.decode(body), action.type == "hello")
        except Later as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except (msgspec.DecodeError, RunError) as error:
            raise flight.FlightServerError(str(error)) from None
        return iter([flight.Result(pa.py_buffer(msgspec.json.encode(answer)))])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A message: its head is the command, its blocks are the rows of the one column."""
        try:
            head = read_head(descriptor.command)
            self.receiver.greet(Hello(head.agent, head.life, tree=head.tree), False)
            self.receiver.check_source(head)
            blocks = list(_bounded(reader, len(descriptor.command)))
            check_blocks(head, blocks)
            self.receiver.offer(head, pack(head, blocks)).result(WAIT)
        except (RunError, TimeoutError) as error:
            raise flight.FlightServerError(
                str(error) or "it could not be written in time",
                NEVER if isinstance(error, Twice) else b"",
            ) from None
        welcome = self.receiver.greet(Hello(head.agent, head.life, tree=head.tree), False)
        writer.write(pa.py_buffer(msgspec.json.encode(welcome)))

    def end(self) -> None:
        """Stop, once.

        Not by `shutdown`: Flight would do it again when this object goes, or at the interpreter's
        end, and it may be done only once.
        """
        if self._ended.acquire(blocking=False):
            # It waits for calls under way, and who sends half a message could hold it for ever.
            impatience = threading.Timer(_PATIENCE, _hang_up, [self.port])
            impatience.daemon = True
            impatience.start()
            self.__exit__(None, None, None)
            self.wait()
            impatience.cancel()


def _hang_up(port: int) -> None:
    """End all connections to a port of this process; Flight knows no way to."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family != socket.AF_UNIX and one.getsockname()[1] == port:
                    one.shutdown(socket.SHUT_RDWR)


def _bounded(reader: Any, size: int) -> Iterator[bytes]:
    """The blocks of a message, as long as it is not too large."""
    for chunk in reader:
        for block in chunk.data.column(0):
            data = block.as_buffer().to_pybytes()
            size += len(data)
            if size > MOST_BYTES:
                raise Refused(f"a message has more than {MOST_BYTES >> 20} MiB")
            yield data


def check_place(spec: Collector) -> tuple[str | None, list[tuple[bytes, bytes]]]:
    """The token, and what TLS needs; refuses to listen beyond this machine without them."""
    host, port = spec.place
    token = find_token(None if spec.token_file is None else Path(spec.token_file), spec.token_env)
    if token is None and not is_local(host):
        raise ConfigError(
            f"Collector({spec.address!r}) takes messages from other machines, which needs a token: "
            f"set {spec.token_env} or give token_file=, or listen on 127.0.0.1"
        )
    tls: list[tuple[bytes, bytes]] = []
    if spec.certificate is not None and spec.private_key is not None:
        try:
            with open(spec.certificate, "rb") as one, open(spec.private_key, "rb") as other:
                tls = [(one.read(), other.read())]
        except OSError as error:
            raise ConfigError(f"Collector({spec.address!r}): {error}") from None
    if not is_local(host) and not tls:
        raise ConfigError(
            f"Collector({spec.address!r}): beyond this machine messages are encrypted; give "
            "certificate= and private_key= (PEM files), or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"Collector({spec.address!r}): cannot listen there ({error.strerror or error}); free "
            "the port or use another"
        ) from None
    return token, tls


def check_places(specs: Iterable[Collector]) -> None:
    """All ports can be had, and tokens and certificates are there."""
    for spec in specs:
        check_place(spec)

"""The way to the collector: Arrow Flight, with a token, and with TLS if a certificate is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from millstream.errors import ConfigError, RunError
from millstream.run.messages.code import Asked, Given, bearer, givens
from millstream.run.messages.greetings import NEVER, Below, Hello, Welcome, hush, welcomes
from millstream.run.messages.message import Head

_SCHEMA = pa.schema([("block", pa.large_binary())])
_TIMEOUT = 60.0  # seconds for one answer
# A new connection is tried at once: gRPC would make it wait for those that failed before it.
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Away(Exception):
    """The collector cannot be reached now."""


class Connection:
    """The collector as an agent sees it."""

    def __init__(self, address: str, token: str | None, ca: Path | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f'--to {address}: expected "host:port"')
        hush()
        self.address = address
        self._options: dict[str, Any] = {"generic_options": _CHANNEL}
        if ca is not None:
            try:
                self._options["tls_root_certs"] = ca.read_bytes()
            except OSError as error:
                raise ConfigError(f"certificate {ca} cannot be read ({error})") from None
        self._where = f"grpc+{'tls' if ca is not None else 'tcp'}://{address}"
        shown = "" if token is None else f"Bearer {bearer(token)}"  # the token itself stays here
        headers = [(b"authorization", shown.encode())] if shown else []
        self._call = flight.FlightCallOptions(timeout=_TIMEOUT, headers=headers)
        self._client: Any = None

    @property
    def connected(self) -> bool:
        """Whether it has answered, and not failed since."""
        return self._client is not None

    def hello(self, who: Hello) -> Welcome:
        """Say who one is; whatever is wrong with that is an error for people."""
        client = flight.connect(self._where, **self._options)
        try:
            welcome = self._act(client, "hello", who)
        except flight.FlightServerError as error:
            client.close()
            raise ConfigError(f"the collector at {self.address} refuses: {_told(error)}") from None
        except BaseException:
            client.close()
            raise
        self._client = client
        return welcome

    def boundary(self, agent: str, life: int, below: Below | None = None, tree: int = 0) -> Welcome:
        """Say that one is there, and of a relay who else is."""
        try:
            return self._act(self._client, "boundary", Hello(agent, life, below=below, tree=tree))
        except flight.FlightServerError as error:
            raise self._gone(error) from None

    def code(self, nonce: str) -> Given:
        """The collector's program, with a proof for this number."""
        if self._client is None:
            self._client = flight.connect(self._where, **self._options)
        try:
            return givens.decode(self._answer(self._client, "code", Asked(nonce)))
        except flight.FlightServerError as error:
            raise ConfigError(f"the collector at {self.address}: {_told(error)}") from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"the collector at {self.address} gave no code: {error}") from None

    def put(self, head: Head, blocks: list[bytes]) -> Welcome:
        """Send a message; it is durable there when this returns."""
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(head))
        try:
            writer, answers = self._client.do_put(descriptor, _SCHEMA, self._call)
            for block in blocks:
                writer.write_batch(pa.record_batch([pa.array([block], pa.large_binary())], _SCHEMA))
            writer.done_writing()
            answer = answers.read()
            writer.close()
        except flight.FlightUnauthenticatedError:
            raise ConfigError(self._wrong_token()) from None
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "extra_info", b"") == NEVER:
                raise RunError(f"the collector at {self.address} refuses: {_told(error)}") from None
            raise self._gone(error) from None
        if answer is None:
            raise self._gone("it gave no answer")
        return welcomes.decode(answer.to_pybytes())

    def _act(self, client: Any, name: str, hello: Hello) -> Welcome:
        return welcomes.decode(self._answer(client, name, hello))

    def _answer(self, client: Any, name: str, asked: Hello | Asked) -> bytes:
        action = flight.Action(name, msgspec.json.encode(asked))
        try:
            (result,) = client.do_action(action, self._call)
        except flight.FlightUnauthenticatedError:
            raise ConfigError(self._wrong_token()) from None
        except flight.FlightServerError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._gone(error) from None
        answer: bytes = result.body.to_pybytes()
        return answer

    def _wrong_token(self) -> str:
        return (
            f"the collector at {self.address} does not take this token; give the one it has, with "
            "--token-file or in MILLSTREAM_AGENT_TOKEN"
        )

    def _gone(self, error: object) -> Away:
        self.close()
        answered, told = isinstance(error, flight.FlightServerError), _told(error)
        what = "does not take this" if answered else "cannot be reached"
        if "certificate" in told:
            what = "has a certificate that is not trusted; give the right one with --ca"
        elif "tls_root_certs" not in self._options and told == "Socket closed":
            what = "hangs up; if it has a certificate (TLS), give that with --ca"
        return Away(f"the collector at {self.address} {what} ({told})")

    def close(self) -> None:
        """Hang up."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _told(error: object) -> str:
    """What an error says, without what Flight adds to it."""
    told = str(error).partition(". gRPC client debug context")[0].partition(". Detail:")[0].strip()
    return told.rpartition(": ")[2] if "failed to connect to all addresses" in told else told

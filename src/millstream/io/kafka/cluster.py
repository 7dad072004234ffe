"""Where a Kafka cluster is and how to speak to it; nothing here shows what may be a secret.

Settings are librdkafka's own (TLS, SASL, sizes). A value "env:NAME" is that of an environment
variable, "file:PATH" the content of a file, looked up in the driver when the run starts. What tasks
need travels to them in Spark's own channel, and is never written down.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millstream.errors import ConfigError, RunError

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]@/]+):[0-9]{1,5}")
# What exactness hangs on, or what has an option of its own here.
_OURS = {
    "bootstrap.servers": "give it as the first argument",
    "metadata.broker.list": "give it as the first argument",
    "group.id": "positions are in the checkpoint, not in a consumer group",
    "group.instance.id": "positions are in the checkpoint, not in a consumer group",
    "enable.auto.commit": "positions are in the checkpoint, not in a consumer group",
    "enable.auto.offset.store": "positions are in the checkpoint, not in a consumer group",
    "enable.partition.eof": "readers need it as it is",
    "auto.offset.reset": "say with start= where to begin, and with lost= what to do about loss",
    "isolation.level": "what a transaction has not committed is never read",
    "transactional.id": "it follows from the flow and the sink",
    "enable.idempotence": "results are written once, and that needs it",
    "acks": "results are written once, and that needs all",
    "request.required.acks": "results are written once, and that needs all",
}
_LOOK = 1.0  # seconds for one answer, of several
REGISTRY = "registry."  # settings of the schema registry


@dataclass(frozen=True)
class Cluster:
    """Brokers by their addresses, and settings that may hold secrets."""

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    whole: bool = False  # what the environment and files say is in the options already

    def found(self) -> Mapping[str, str]:
        """The options with what the environment and files of this machine say."""
        return self.options if self.whole else find_secrets(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cluster, (self.servers, dict(self.found()), True)  # others may not have them

    def client(self, **more: Any) -> dict[str, Any]:
        """The settings of a client of librdkafka."""
        own = {name: v for name, v in self.found().items() if not name.startswith(REGISTRY)}
        return {
            "bootstrap.servers": self.servers,
            "client.id": "millstream",
            "log_level": 2,  # what matters comes as an error, and is told with its place
            "error_cb": partial(_note, self.servers),
            **own,
            **more,
        }

    def registry(self) -> dict[str, str]:
        """The settings of the schema registry, without what they all begin with."""
        return {
            name.removeprefix(REGISTRY): value
            for name, value in self.found().items()
            if name.startswith(REGISTRY)
        }


def _note(servers: str, error: Any) -> None:
    """Errors of single brokers pass by themselves, or a call fails that cannot say why."""
    codes = require_kafka().KafkaError
    if error.code() in (codes._AUTHENTICATION, codes._SSL, codes._RESOLVE):
        _noted[servers] = (error.code() != codes._RESOLVE, " ".join(error.str().split()))


_noted: dict[str, tuple[bool, str]] = {}  # of brokers: whether settings are wrong, and why


def check_servers(step: str, servers: Any) -> str:
    """Addresses as they are, if they are some."""
    several = servers.split(",") if isinstance(servers, str) else [""]
    if not all(_SERVER.fullmatch(one.strip()) for one in several):
        raise ConfigError(
            f'{step}(servers): expected addresses like "host:9092" or "a:9092,b:9092"; user and '
            "password belong into options="
        )
    return ",".join(one.strip() for one in several)


def check_options(step: str, options: Any) -> None:
    """Refuse settings that are none, or that would make results inexact; shows no value."""
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(
            f"{step}(options=): expected a table of librdkafka's settings, like {{\"security."
            'protocol": "SASL_SSL"}'
        )
    for name, value in options.items():
        if name in _OURS:
            raise ConfigError(f"{step}(options=): {name!r} cannot be set: {_OURS[name]}")
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"{step}(options=): {name!r}: expected a text or a number, got "
                f"{type(value).__name__}"
            )


def find_secrets(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings with what the environment and files say."""
    return {name: _found(name, value) for name, value in (options or {}).items()}


def _found(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if text.startswith("env:"):
        found = os.environ.get(text[4:])
        if found is None:
            raise ConfigError(
                f"Kafka(options=): {name!r} is to be found in the environment variable "
                f"{text[4:]}, which is not set"
            )
        return found
    if text.startswith("file:"):
        try:
            return Path(text[5:]).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"Kafka(options=): {name!r} is to be found in {text[5:]}, which cannot be read: "
                f"{getattr(error, 'strerror', None) or 'it is no text'}"
            ) from None
    return text


def require_kafka() -> Any:
    """The client library; one line says what to install."""
    try:
        import confluent_kafka
    except ImportError:
        raise ConfigError(
            "ms.Kafka needs the package confluent-kafka: pip install 'millstream[kafka]'"
        ) from None
    return confluent_kafka


def connect(kind: Any, cluster: Cluster, **settings: Any) -> Any:
    """A client of some kind; a setting that librdkafka does not have is refused."""
    try:
        return kind(cluster.client(**settings))
    except require_kafka().KafkaException as error:
        raise ConfigError(f"Kafka(options=): {told(error)}") from None


def told(error: Any) -> str:
    """What Kafka says is wrong, in one line."""
    found = error.args[0] if getattr(error, "args", None) else error
    text = found.str() if hasattr(found, "str") else str(found)
    name = found.name() if hasattr(found, "name") else ""
    return " ".join(f"{text} ({name})".split()) if name else " ".join(text.split())


def away(cluster: Cluster, error: Any, what: str, client: Any = None) -> RunError | ConfigError:
    """The cluster did not do what it was asked for; `client` may have heard why."""
    if client is not None:
        client.poll(0)
    wrong, why = _noted.pop(cluster.servers, (False, ""))
    found = error.args[0] if getattr(error, "args", None) else error
    codes = require_kafka().KafkaError
    wrong |= found.code() in (codes._AUTHENTICATION, codes._SSL)
    text = f"Kafka at {cluster.servers}: {what}: {told(error)}{f' ({why})' if why else ''}"
    if wrong or "AUTHORIZATION" in found.name():
        return ConfigError(f"{text}; see the TLS and SASL settings in options=")
    return RunError(text)


def topics_of(cluster: Cluster, admin: Any, seconds: float) -> Any:
    """All topics there are; given up early if brokers refuse who asks."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return admin.list_topics(timeout=min(seconds, _LOOK)).topics
        except require_kafka().KafkaException as error:
            admin.poll(0)
            refused = _noted.get(cluster.servers, (False, ""))[0]
            if refused or time.monotonic() > deadline:
                raise away(cluster, error, "its topics cannot be listed") from None

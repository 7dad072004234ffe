"""Kafka as a source and as a sink: one description, of which each uses its own options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millstream.api.frames import plainly
from millstream.api.sources.timing import Followed, Timing, fill
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.io.formats import check_delimiter
from millstream.io.kafka.cluster import Cluster, check_options, check_servers
from millstream.io.kafka.decoding import RECORD_TIME, REGISTERED
from millstream.io.kafka.registry import Registry, check_url

FORMATS = ("json", "csv", "avro", "protobuf", "text", "bytes", "debezium")
WRITTEN = ("json", "avro", "text", "bytes")
CHANGES = ("debezium", "upsert")
record_time = RECORD_TIME  # the column with the time that Kafka has of a record

_OF_SOURCES = ("pattern", "schema", "delimiter", "start", "follow", "lost")
_OF_SINKS = ("changes", "progress")


@plainly
@dataclass(frozen=True)
class Kafka(Followed):
    """Records of Kafka topics, or results as records of one. It needs the extra `kafka`.

    As a source, partitions are participants of the watermark, and each record is read once. As a
    sink, each result is written once, in transactions: whoever reads it has
    `isolation.level=read_committed`.

    servers: addresses of brokers, like "a:9092,b:9092".
    topic: the topic (a source may have several); pattern: a regular expression for names of topics,
        of which new ones are taken up.
    format: of values: json, csv, avro, protobuf, text (a column `value`), bytes (the same as
        bytes), or debezium; a sink writes json, avro, text or bytes.
    schema: the columns of values in json, csv and debezium.
    time: the column of event time, or `ms.record_time`, the time Kafka has of each record.
    key: the column (of a sink also several) that is the key of records. In a source it is a text
        unless the schema declares it.
    headers: columns that are headers of records of the same names, not part of values.
    start: where partitions are begun that are there at the first start: "earliest", "latest", or a
        moment; later ones are read from their beginning.
    follow: with False the source ends at what is there when the run starts.
    lost: what to do about records that were removed before they were read: "stop", or "count".
    changes: how a sink tells changes: "debezium" for envelopes, "upsert" for the newest row per key
        and a tombstone where it is gone; else a column `op` says what happened.
    progress: the topic in which sinks note how far they are.
    registry: the address of a schema registry, for avro and protobuf; its user and password may be
        the setting "registry.auth" in options, as "user:password".
    subject: what the schema is known by there; by default the topic and "-value".
    wait: how long to try when Kafka is away before the run stops.
    options: settings of librdkafka, such as those of TLS and SASL; "env:NAME" stands for what an
        environment variable has, "file:PATH" for the content of a file. They are never shown.
    """

    servers: str = ""
    topic: str | Sequence[str] | None = None
    pattern: str | None = None
    format: str = "json"
    schema: Any = None
    delimiter: str = ","
    key: str | Sequence[str] = ()
    headers: str | Sequence[str] = ()
    start: str | datetime = "earliest"
    follow: bool = True
    lost: str = "stop"
    changes: str | None = None
    progress: str = "millstream-progress"
    registry: str | None = None
    subject: str | None = None
    wait: Duration = "60s"
    options: Mapping[str, str] | None = None

    def __init__(
        self, servers: str, topic: str | Sequence[str] | None = None, **given: Any
    ) -> None:
        fill(self, Kafka, {"servers": servers, "topic": topic, **given})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "servers", check_servers("Kafka", self.servers))
        check_options("Kafka", self.options)
        self._check(check_delimiter, "delimiter")
        for name in ("topic", "key", "headers"):
            _check_names(name, getattr(self, name))
        if (self.pattern is None) == (not self.topics):
            raise ConfigError(
                'Kafka(topic=, pattern=): say which topics, with topic="trades" or with '
                'pattern="trades-.*"'
            )
        if self.pattern is not None:
            _check_pattern(self.pattern)
        known = tuple(dict.fromkeys((*FORMATS, *WRITTEN)))
        if self.format not in known:
            raise ConfigError(f"Kafka(format={self.format!r}): use one of {', '.join(known)}")
        if self.lost not in ("stop", "count"):
            raise ConfigError(f'Kafka(lost={self.lost!r}): use "stop" or "count"')
        if self.changes is not None and self.changes not in CHANGES:
            raise ConfigError(f"Kafka(changes={self.changes!r}): use one of {', '.join(CHANGES)}")
        if not isinstance(self.progress, str) or not self.progress:
            raise ConfigError("Kafka(progress=): expected the name of a topic")
        micros(self.wait, "Kafka(wait=)")
        self._check_registry()
        _check_start(self.start)

    def _check_registry(self) -> None:
        registered = self.format in REGISTERED
        if registered != (self.registry is not None):
            raise ConfigError(
                f"Kafka(format={self.format!r}, registry=): {' and '.join(REGISTERED)} need a "
                "registry, which has their schemas, and no other format does"
            )
        if self.registry is not None:
            check_url("Kafka", self.registry)
            if self.schema is not None:
                raise ConfigError("Kafka(schema=, registry=): the registry has the schema")
            if self.subject is None and len(self.topics) != 1:
                raise ConfigError(
                    "Kafka(subject=): of several topics, say what their schema is known by"
                )
        elif self.subject is not None:
            raise ConfigError("Kafka(subject=): this is for a registry")

    # -- what each side of it asks ---------------------------------------------------------------

    def check_source(self) -> None:
        """Refuse what only a sink has, or a source lacks."""
        self._refuse(_OF_SINKS, "source")
        if len(self.keys) > 1:
            raise ConfigError(f"Kafka(key={self.key!r}): a record has one key; name one column")
        if self.format in ("json", "csv", "debezium") and self.schema is None:
            raise ConfigError(
                f'Kafka(format={self.format!r}): give a schema, like schema="ts timestamp, symbol '
                'string, price double"; a topic does not say what its values hold'
            )

    def check_sink(self) -> None:
        """Refuse what only a source has, or a sink lacks."""
        self._refuse((*_OF_SOURCES, *Timing.__dataclass_fields__), "sink")
        if len(self.topics) != 1:
            raise ConfigError("Kafka(topic=): a sink writes to one topic")
        if self.format not in WRITTEN:
            raise ConfigError(
                f"Kafka(format={self.format!r}): a sink writes {', '.join(WRITTEN)}"
                + ('; changes="debezium" makes envelopes' if self.format == "debezium" else "")
            )
        if self.changes is not None and not self.keys:
            raise ConfigError(
                f'Kafka(changes="{self.changes}"): say with key= which columns name a row'
            )
        if self.changes == "debezium" and self.format != "json":
            raise ConfigError('Kafka(changes="debezium"): envelopes are written in json')

    def _refuse(self, names: Sequence[str], side: str) -> None:
        for name in names:
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                other = "sink" if side == "source" else "source"
                raise ConfigError(f"Kafka({name}=): this is for a {other}, and here is a {side}")

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by their names."""
        return _several(self.topic)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return _several(self.key)

    @property
    def header_columns(self) -> tuple[str, ...]:
        """The columns that are headers."""
        return _several(self.headers)

    @property
    def path(self) -> str:
        """The topics, as a plan shows them and a checkpoint remembers them."""
        return ", ".join(self.topics) if self.pattern is None else f"/{self.pattern}/"

    @property
    def cluster(self) -> Cluster:
        """Where the brokers are and how to speak to them."""
        return Cluster(self.servers, dict(self.options or {}))

    @property
    def schemas(self) -> Registry | None:
        """The schema registry."""
        if self.registry is None:
            return None
        own = self.cluster.registry()
        return Registry(self.registry, own.get("auth"), own.get("ca"))

    @property
    def known_by(self) -> str:
        """What the schema of values is known by in the registry."""
        return self.subject or f"{self.topics[0]}-value"

    def __repr__(self) -> str:
        return f"Kafka({self.servers!r}, {self.path}, format={self.format!r})"


def _several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _check_names(what: str, names: Any) -> None:
    several = [names] if isinstance(names, str) else [] if names is None else names
    if not isinstance(several, list | tuple) or any(
        not isinstance(one, str) or not one for one in several
    ):
        raise ConfigError(f"Kafka({what}={names!r}): expected a name, or several")
    if len(set(several)) != len(several):
        raise ConfigError(f"Kafka({what}={names!r}): a name comes twice")


def _check_pattern(pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f'Kafka(pattern={pattern!r}): expected a regular expression, like "trades-.*": {error}'
        ) from None


def _check_start(start: Any) -> None:
    if isinstance(start, str) and start in ("earliest", "latest"):
        return
    if moment_of(start) is None:
        raise ConfigError(
            f'Kafka(start={start!r}): expected "earliest", "latest", or a moment with its zone, '
            'like "2026-11-17T00:00:00Z"'
        )


def moment_of(start: Any) -> int | None:
    """A moment in milliseconds, None if it is none."""
    try:
        at = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        return None
    return int(at.timestamp() * 1000)

"""One real broker for all tests of a session, with topics of their own."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from kafka import Broker, Unavailable, free_port  # noqa: E402

from tests.services import unavailable  # noqa: E402

Record = tuple[bytes | None, bytes | None]


class Topics:
    """A broker, and what tests do with it."""

    def __init__(self, broker: Broker, certificate: Path | None = None) -> None:
        self.broker, self.certificate = broker, certificate  # of its secure port
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        self._numbers = itertools.count()

    @property
    def address(self) -> str:
        return self.broker.address

    def make(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """A new topic; settings are written with underscores."""
        name = name or f"t{next(self._numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[name].result(30)
        return name

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def remove(self, topic: str, before: int) -> None:
        """Remove what lies before an offset, as retention does."""
        place = kafka.TopicPartition(topic, 0, before)
        self.admin.delete_records([place])[place].result(30)

    def send(self, topic: str, values: Sequence[Any], partition: int = 0, **options: Any) -> None:
        """Records in one partition; a tuple is key and value, and perhaps a time."""
        producer = self.producer()
        for one in values:
            key, value, *at = one if isinstance(one, tuple) else (None, one)
            more = {"timestamp": at[0]} if at else {}
            producer.produce(topic, value, key, partition=partition, **more, **options)
        assert producer.flush(30) == 0

    def producer(self, **settings: Any) -> Any:
        return kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "message.max.bytes": 4_000_000,
                "enable.idempotence": True,
                **settings,
            }
        )

    def committed(self, topic: str) -> list[Any]:
        """All that a reader sees who reads what is committed, as messages."""
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        known = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        ends = 0
        found = []
        consumer.assign(
            [kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING) for number in known]
        )
        while ends < len(known):
            message = consumer.poll(20)
            assert message is not None, f"{topic} cannot be read to its end"
            if message.error() is None:
                found.append(message)
                continue
            assert message.error().code() == kafka.KafkaError._PARTITION_EOF, message.error()
            ends += 1
        consumer.close()
        return sorted(found, key=lambda one: (one.partition(), one.offset()))


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """The broker; without one the tests are skipped."""
    place = tmp_path_factory.mktemp("kafka")
    certificate = make_certificate(place)
    try:
        secured = {} if certificate is None else secure_settings(place)
        broker = Broker(place / "broker", **secured).start()
    except Unavailable as error:
        unavailable(f"no Kafka broker: {error}")
    yield Topics(broker, certificate)
    broker.stop()


def make_certificate(place: Path) -> Path | None:
    """A key and a certificate of our own for this machine, if it can make one."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=broker"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", place / "key.pem"]
    command = [openssl, *made.split(), *more, "-out", place / "certificate.pem"]
    subprocess.run(command, check=True, capture_output=True)
    return place / "certificate.pem"


def secure_settings(place: Path) -> dict[str, Any]:
    """A second port, with TLS and passwords."""
    both = (place / "key.pem").read_text() + (place / "certificate.pem").read_text()
    (place / "keystore.pem").write_text(both)
    module = "org.apache.kafka.common.security"
    return {
        "secure": free_port(),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place / "keystore.pem"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_plain="a-plain-word";'
        ),
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            f"{module}.scram.ScramLoginModule required;"
        ),
    }

"""Committed results to a topic, exactly once: transactions that also say how far they are.

Beside its records every transaction has one record for a compacted topic of one partition: of which
run (epoch) and batch they are, and how many of its rows were sent by then. Whoever starts first
fences and aborts what was under way (`init_transactions`), then reads how far its sink is, and goes
on from there with what is staged. So a transaction that timed out is sent again and never lost, and
a run that was overtaken finds a higher epoch, and ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import ConfigError, RunError
from millstream.io.kafka.cluster import Cluster, away, connect, require_kafka, told, topics_of
from millstream.io.kafka.consuming import READING

_ROWS = 50_000  # in one transaction
_BYTES = 32 * 1024 * 1024
_ANSWER = 10.0  # seconds for one answer
_TRANSACTION = 60.0  # seconds after which Kafka gives up a transaction that nobody ends
_WRITING = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's clients have it
    "linger.ms": 5,
    "queue.buffering.max.messages": 200_000,
    "transaction.timeout.ms": int(_TRANSACTION * 1000),
}


class Progress(msgspec.Struct, frozen=True):
    """How far a sink is: rows of a batch that were sent, with what tells the batch from others."""

    epoch: int
    batch: int = -1
    rows: int = 0
    checksum: int = 0


_progress = msgspec.json.Decoder(Progress)


class Overtaken(RunError):
    """Another run writes for this sink by now."""


class Publisher:
    """What writes for one sink of one flow."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        headers: tuple[str, ...],
        progress_topic: str,
        name: str,
        epoch: int,
        patience: float,
        waiting: Callable[[str | None], None] = lambda why: None,
    ) -> None:
        self.cluster, self.topic, self.headers = cluster, topic, headers
        self.progress_topic, self.name, self.epoch = progress_topic, name, epoch
        self.patience, self.waiting = patience, waiting
        self._kafka = require_kafka()
        self._producer: Any = None
        self._noted = False
        self.progress = Progress(epoch)

    # -- starting -------------------------------------------------------------------------------

    def check(self) -> None:
        """See whether Kafka answers and has the topic; the one for progress is made."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = connect(AdminClient, self.cluster)
        known = topics_of(self.cluster, admin, _ANSWER)
        if self.topic not in known:
            raise ConfigError(
                f"Kafka at {self.cluster.servers} has no topic {self.topic!r}; see the name, or "
                "create it"
            )
        if self.progress_topic in known:
            if len(known[self.progress_topic].partitions) != 1:
                raise ConfigError(
                    f"topic {self.progress_topic!r} has "
                    f"{len(known[self.progress_topic].partitions)} partitions, and what sinks note "
                    "there needs one; name another with progress="
                )
            return
        config = {"cleanup.policy": "compact", "retention.ms": "-1"}
        new = NewTopic(self.progress_topic, num_partitions=1, replication_factor=-1, config=config)
        try:
            admin.create_topics([new], operation_timeout=_ANSWER)[self.progress_topic].result(
                2 * _ANSWER
            )
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise away(
                    self.cluster, error, f"topic {self.progress_topic!r} cannot be made"
                ) from None

    def open(self, *, noted: bool = False) -> None:
        """Fence whoever wrote before, see how far the sink is, and say whose it is from now on.

        noted: rows wait of a run that had noted how far it was; without its note it is not known
        whether they were sent.
        """
        self._noted = noted
        self._patiently(self._begin)

    def _begin(self) -> None:
        self.close()
        settings = {**_WRITING, **self.cluster.client(), "transactional.id": self.name}
        self._producer = connect(self._kafka.Producer, self.cluster, **settings)
        self._producer.init_transactions(_ANSWER)
        found = self._read_progress()
        if found.epoch > self.epoch:
            raise Overtaken(
                f"another run of this flow (number {found.epoch}; this is {self.epoch}) writes to "
                f"topic {self.topic!r} by now; this one ends"
            )
        if found.epoch == 0 and self._noted:
            raise RunError(
                f"topic {self.progress_topic!r} no longer says how far this sink is: it was "
                f"removed, or does not keep its records. Rows wait that topic {self.topic!r} may "
                f"have. To send them, perhaps again, write a record with key {self.name!r} "
                """and value '{"epoch":1}' to it, and start again"""
            )
        self.progress = found
        if found.epoch < self.epoch:
            self._send(pa.table({}), Progress(self.epoch, found.batch, found.rows, found.checksum))
        self._noted = True

    def _read_progress(self) -> Progress:
        """What was noted last; waits for transactions of others that lie before it."""
        from confluent_kafka.admin import AdminClient, OffsetSpec

        place = self._kafka.TopicPartition(self.progress_topic, 0)
        level = self._kafka.IsolationLevel.READ_UNCOMMITTED
        admin = connect(AdminClient, self.cluster)
        asked = admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=level, request_timeout=_ANSWER
        )
        end = asked[place].result(2 * _ANSWER).offset
        found = Progress(0)
        place.offset = self._kafka.OFFSET_BEGINNING
        consumer = connect(self._kafka.Consumer, self.cluster, **READING)
        deadline = time.monotonic() + _TRANSACTION + self.patience
        try:
            consumer.assign([place])
            while end > 0:
                message = consumer.poll(0.1)
                if time.monotonic() > deadline:
                    raise RunError(
                        f"topic {self.progress_topic!r} cannot be read to its end: a transaction "
                        "in it is open for longer than it may be"
                    )
                if message is None:
                    continue
                error, offset = message.error(), message.offset()
                if error is not None:
                    if error.code() != self._kafka.KafkaError._PARTITION_EOF:
                        raise self._kafka.KafkaException(error)
                    if offset >= end:
                        break
                    continue
                if message.key() == self.name.encode():
                    found = _progress.decode(message.value())
                if offset >= end - 1:
                    break
        finally:
            consumer.close()
        return found

    # -- sending --------------------------------------------------------------------------------

    def publish(self, records: pa.Table, batch: int, checksum: int) -> None:
        """Send what was not sent yet of the records of a committed batch."""
        self._patiently(lambda: self._go_on(records, batch, checksum))

    def _go_on(self, records: pa.Table, batch: int, checksum: int) -> None:
        if self._producer is None:
            self._begin()
        at = 0
        if self.progress.batch > batch:  # batches are sent in their order
            return
        if self.progress.batch == batch:
            self.check_same(batch, lambda _: checksum)
            at = self.progress.rows
        while at < len(records):
            end = _next_end(records, at)
            self._send(records.slice(at, end - at), Progress(self.epoch, batch, end, checksum))
            at = end

    def check_same(self, newest: int, gave: Callable[[int], int | None]) -> None:
        """Refuse a checkpoint without the batch that was sent last.

        newest: its last batch; gave: the checksum of what one of its batches gave this sink, None
        if that is not known any more.
        """
        sent = self.progress
        if sent.batch > newest or (
            sent.batch >= 0 and gave(sent.batch) not in (None, sent.checksum)
        ):
            raise RunError(
                f"topic {self.topic!r} has results of a batch {sent.batch} of this flow that the "
                f"checkpoint, which ends with batch {newest}, does not have: it is an older copy. "
                "Go on with the one that is ahead, or begin with a new checkpoint (and a new topic)"
            )

    def _send(self, records: pa.Table, progress: Progress) -> None:
        """One transaction."""
        producer = self._producer
        producer.begin_transaction()
        for key, value, headers in _rows(records):
            named = [
                pair for pair in zip(self.headers, headers, strict=True) if pair[1] is not None
            ]
            while True:
                try:
                    producer.produce(self.topic, value, key, headers=named)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.produce(self.progress_topic, msgspec.json.encode(progress), self.name)
        producer.commit_transaction(_TRANSACTION)
        self.progress = progress

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do it, and again from where it is if Kafka fails, for as long as it may be away."""
        deadline: float | None = None
        while True:
            try:
                work()
                self.waiting(None)
                return
            except self._kafka.KafkaException as error:
                now = time.monotonic()
                deadline = now + self.patience if deadline is None else deadline
                if self._producer is not None:
                    with contextlib.suppress(self._kafka.KafkaException):  # another run has it
                        self._producer.poll(0)  # it may have heard why
                self.close()
                if now > deadline or not _passes(self._kafka, error.args[0]):
                    what = f"topic {self.topic!r} was not written"
                    raise away(self.cluster, error, what) from None
                self.waiting(f"waiting for Kafka at {self.cluster.servers}: {told(error)}")
                time.sleep(0.2)

    def close(self) -> None:
        """Let go of the connection; a transaction that is open is aborted by whoever is next."""
        self._producer = None


def _rows(records: pa.Table) -> Any:
    if not len(records):
        return ()
    return zip(*(records.column(n).to_pylist() for n in ("key", "value", "headers")), strict=True)


def _next_end(records: pa.Table, start: int) -> int:
    """How far one transaction goes: so many rows, or so many bytes."""
    end = min(len(records), start + _ROWS)
    while end - start > 1 and records.slice(start, end - start).nbytes > _BYTES:
        end = start + (end - start) // 2
    return end


def _passes(kafka: Any, error: Any) -> bool:
    """Whether it may go well another time."""
    codes = kafka.KafkaError
    hopeless = (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.MSG_SIZE_TOO_LARGE,
        codes._AUTHENTICATION,
        codes._INVALID_ARG,
    )
    return error.code() not in hopeless

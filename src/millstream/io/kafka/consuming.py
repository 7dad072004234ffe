"""Ranges of offsets to raw records, inside tasks: a consumer per process and partition, some kept.

A consumer is made when the first range of its partition is read, in the process that reads it, as
librdkafka does not survive a fork. It goes on where it stands if the next range begins there, else
it is assigned anew. A task assigns all its partitions first, so that they are fetched side by side.
Offsets have gaps (aborted transactions, markers, compaction): a range is over at the first record
behind it or at the end of the partition, never after so many records.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from millstream.errors import ConfigError, RunError
from millstream.io.kafka.cluster import Cluster, away, connect, require_kafka, told
from millstream.io.timestamps import Ints

GONE = "offsets that were there are there no more"
BLOCK_RECORDS = 20_000
BLOCK_BYTES = 8 * 1024 * 1024
_CONSUMERS = 8  # that a process keeps; each has threads and a connection of its own
_Key: TypeAlias = tuple[int, str, str, str, int]
_PAUSE = 0.01  # seconds that one look for more records takes at most
READING = {
    "group.id": "millstream",  # librdkafka wants one; nothing is ever committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,  # 1000 unless said: what a range waits for once enough was ahead
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.error.backoff.ms": 50,
}


@dataclass(frozen=True)
class Stretch:
    """Offsets [start, end) of a partition, which one task reads."""

    source: int
    file: int  # the number of the partition among all of its source
    topic: str
    partition: int
    start: int
    end: int
    base: int  # the offset with position 0: positions have fewer bits than offsets
    after: int | None = None  # the latest time in the partition before this batch
    lost: int = 0  # offsets before it that were removed before they were read


@dataclass(frozen=True)
class Wanted:
    """What is taken of each record beside its value."""

    keys: bool = False
    times: bool = False
    headers: tuple[str, ...] = ()
    patience: float = 60.0  # seconds without an answer


@dataclass
class Block:
    """Some records of a partition as they are, one after the other."""

    offsets: Ints
    values: list[bytes | None]
    keys: list[bytes | None] = field(default_factory=list)
    times: Ints | None = None  # milliseconds; -1 where Kafka has none
    headers: dict[str, list[bytes | None]] = field(default_factory=dict)
    size: int = 0


def begin_stretches(cluster: Cluster, stretches: Iterable[Stretch]) -> None:
    """Have ranges fetched that are read soon: the first of every partition."""
    firsts: dict[tuple[str, int], Stretch] = {}
    for one in stretches:
        firsts.setdefault((one.topic, one.partition), one)
    for one in list(firsts.values())[:_CONSUMERS]:
        _reader_of(cluster, one).go_to(one.partition, one.start)


def read_stretch(cluster: Cluster, wanted: Wanted, stretch: Stretch) -> Iterator[Block]:
    """All records of a range, some at a time."""
    reader = _reader_of(cluster, stretch)
    try:
        yield from reader.read(stretch, wanted)
    except BaseException:
        _readers.pop(_key(cluster, stretch), None)  # it may stand anywhere
        reader.close()
        raise


def _key(cluster: Cluster, stretch: Stretch) -> _Key:
    options = str(sorted(cluster.options.items()))
    return os.getpid(), cluster.servers, options, stretch.topic, stretch.partition


def _reader_of(cluster: Cluster, stretch: Stretch) -> _Reader:
    """The consumer of a partition; of many partitions the one that was used longest ago."""
    key = _key(cluster, stretch)
    reader = _readers.pop(key, None)
    mine = [one for one in _readers if one[0] == os.getpid()]
    if reader is None and len(mine) >= _CONSUMERS:
        oldest = next((one for one in mine if one[:4] == key[:4]), None)
        if oldest is None:
            _readers.pop(mine[0]).close()
        else:
            reader = _readers.pop(oldest)
    if reader is None:
        reader = _Reader(cluster, stretch.topic)
    _readers[key] = reader
    return reader


def close_readers() -> None:
    """Let go of the consumers of this process."""
    for key in [key for key in _readers if key[0] == os.getpid()]:
        _readers.pop(key).close()


class _Reader:
    """A consumer of one partition at a time, and where it stands."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self._kafka = require_kafka()
        self._message = self._kafka.Message  # its methods are called once per record
        self._consumer = connect(self._kafka.Consumer, cluster, **READING)
        self._stands: tuple[int, int] | None = None  # partition, and the offset that comes next
        self._ahead: list[Any] = []  # records that came and belong to the next range
        self._ended = -1  # up to where all has come, as the end of the partition was told

    def read(self, stretch: Stretch, wanted: Wanted) -> Iterator[Block]:
        """The records of a range."""
        self.go_to(stretch.partition, stretch.start)
        self._stands = None  # until the range is read
        block: list[Any] = []
        size = 0
        for several in self._messages(stretch, wanted.patience):
            block += several
            size += sum(map(len, several))
            if len(block) >= BLOCK_RECORDS or size >= BLOCK_BYTES:
                yield self._block(block, wanted, size)
                block, size = [], 0
        self._stands = (stretch.partition, stretch.end)
        if block:
            yield self._block(block, wanted, size)

    def go_to(self, partition: int, start: int) -> None:
        """Let the consumer stand at an offset of a partition."""
        if self._stands == (partition, start):
            return
        self._ahead.clear()
        self._ended = -1
        self._consumer.assign([self._kafka.TopicPartition(self.topic, partition, start)])
        self._stands = (partition, start)

    def _messages(self, stretch: Stretch, patience: float) -> Iterator[list[Any]]:
        """Messages with offsets in the range; what comes behind it is kept for the next one."""
        end, at = stretch.end, stretch.start
        heard = time.monotonic()
        while at < end and (self._ahead or self._ended < end):
            several, self._ahead = self._ahead, []
            if not several:
                several = self._consume(min(end - at, BLOCK_RECORDS), stretch)
            if several:
                heard = time.monotonic()
            found = self._records(several, stretch)
            offsets = list(map(self._message.offset, found))
            low, high = bisect_left(offsets, at), bisect_left(offsets, end)
            if high < len(found):
                self._ahead = [*found[high:], *self._ahead]
            if low < high:
                at = offsets[high - 1] + 1
                yield found[low:high]
            if self._ahead:
                if high < len(found) or at >= end:
                    return
                raise self._wrong(self._ahead.pop(0).error(), stretch)
            if not several and time.monotonic() - heard > patience:
                self._check_there(stretch)
                raise RunError(
                    f"Kafka at {self.cluster.servers} has not answered for {patience:.0f} s, while "
                    f"offset {at} of {_named(stretch)} was read; nothing is lost: see that it "
                    "runs, and start again"
                )

    def _records(self, several: list[Any], stretch: Stretch) -> list[Any]:
        """Those that are records, up to an error, which is left ahead; ends are noted."""
        if any(map(self._message.error, several)):
            found = []
            for number, one in enumerate(several):
                error = one.error()
                if error is None:
                    found.append(one)
                elif one.partition() != stretch.partition:
                    continue
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    self._ended = max(self._ended, one.offset())
                else:
                    self._ahead = several[number:]
                    break
            several = found
        if all(map(stretch.partition.__eq__, map(self._message.partition, several))):
            return several
        return [one for one in several if one.partition() == stretch.partition]

    def _check_there(self, stretch: Stretch) -> None:
        """Refuse a range that is there no more, because Kafka has lost the end of a partition."""
        part = self._kafka.TopicPartition(self.topic, stretch.partition)
        try:
            found = self._consumer.get_watermark_offsets(part, 10)
        except self._kafka.KafkaException:
            return
        if found is not None and found[1] < stretch.end:
            raise RunError(
                f"Kafka at {self.cluster.servers}: {_named(stretch)} ends at offset {found[1]}, "
                f"and offsets up to {stretch.end} were there: {GONE}"
            )

    def _consume(self, most: int, stretch: Stretch) -> list[Any]:
        try:
            found: list[Any] = self._consumer.consume(most, _PAUSE)
        except self._kafka.KafkaException as error:
            raise self._wrong(error.args[0], stretch) from None
        return found

    def _wrong(self, error: Any, stretch: Stretch) -> RunError | ConfigError:
        codes = self._kafka.KafkaError
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return RunError(
                f"Kafka at {self.cluster.servers}: {_named(stretch)} cannot be read from offset "
                f"{stretch.start} on: {GONE} ({told(error)})"
            )
        return away(self.cluster, error, f"{_named(stretch)} cannot be read")

    def _block(self, messages: list[Any], wanted: Wanted, size: int) -> Block:
        kind, count = self._message, len(messages)
        block = Block(
            np.fromiter(map(kind.offset, messages), np.int64, count),
            list(map(kind.value, messages)),
            size=size,
        )
        if wanted.keys:
            block.keys = list(map(kind.key, messages))
        if wanted.times:
            found = map(kind.timestamp, messages)
            block.times = np.fromiter((at if known else -1 for known, at in found), np.int64, count)
        if wanted.headers:
            several = [dict(one.headers() or ()) for one in messages]
            block.headers = {name: [one.get(name) for one in several] for name in wanted.headers}
        return block

    def close(self) -> None:
        self._consumer.close()


def _named(stretch: Stretch) -> str:
    return f"partition {stretch.partition} of topic {stretch.topic!r}"


_readers: dict[_Key, _Reader] = {}  # those used last are last

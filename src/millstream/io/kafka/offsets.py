"""What topics and partitions there are and how far they reach, asked by the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from millstream.errors import ConfigError, RunError
from millstream.io.kafka.cluster import Cluster, away, connect, require_kafka, topics_of

Partition = tuple[str, int]  # topic and number
_ANSWER = 10.0  # seconds for one answer
_LAST = 60.0  # after which it is not waited for, whatever librdkafka does


class Away(RunError):
    """The cluster does not answer; it may later."""


class Offsets:
    """A look at a cluster."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self.cluster = cluster
        self._kafka = require_kafka()
        from confluent_kafka import admin

        self._admin_names = admin
        self._answer = min(_ANSWER, patience)
        self._admin = connect(admin.AdminClient, cluster)

    def topics(self, names: tuple[str, ...], pattern: str | None) -> dict[str, int]:
        """Topics and how many partitions each has; names that are not there are left out."""
        try:
            found = topics_of(self.cluster, self._admin, self._answer)
        except RunError as error:
            raise Away(str(error)) from None
        if pattern is not None:
            fits = re.compile(pattern).fullmatch
            names = tuple(one for one in found if not one.startswith("__") and fits(one))
        there = {}
        for name in sorted(names):
            if name in found and found[name].error is None:
                there[name] = len(found[name].partitions)
        return there

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What tells a topic from another of the same name, which may come after it."""
        wanted = list(topics)
        if not wanted:
            return {}
        asked = self._admin.describe_topics(
            self._kafka.TopicCollection(wanted), request_timeout=self._answer
        )
        try:
            return {name: str(one.result(_LAST).topic_id) for name, one in asked.items()}
        except self._kafka.KafkaException as error:
            raise self._failed(error, "its topics cannot be described") from None

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where what is committed ends: the last stable offsets."""
        return self._offsets(partitions, self._admin_names.OffsetSpec.latest())

    def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offsets that are still there."""
        return self._offsets(partitions, self._admin_names.OffsetSpec.earliest())

    def since(self, partitions: Iterable[Partition], millis: int) -> dict[Partition, int]:
        """The first offsets of records from a moment on, or the end where there are none."""
        several = list(partitions)
        found = self._offsets(several, self._admin_names.OffsetSpec.for_timestamp(millis))
        ends = self.ends(several)
        return {one: at if at >= 0 else ends[one] for one, at in found.items()}

    def _offsets(self, partitions: Iterable[Partition], which: Any) -> dict[Partition, int]:
        wanted = {self._kafka.TopicPartition(*one): which for one in partitions}
        if not wanted:
            return {}
        asked = self._admin.list_offsets(
            wanted,
            isolation_level=self._kafka.IsolationLevel.READ_COMMITTED,
            request_timeout=self._answer,
        )
        try:
            return {
                (one.topic, one.partition): answer.result(_LAST).offset
                for one, answer in asked.items()
            }
        except self._kafka.KafkaException as error:
            raise self._failed(error, "its offsets cannot be listed") from None

    def _failed(self, error: Any, what: str) -> RunError | ConfigError:
        found = away(self.cluster, error, what, self._admin)
        return found if isinstance(found, ConfigError) else Away(str(found))

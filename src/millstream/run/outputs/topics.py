"""Kafka sinks of a flow: what tasks encoded and a manifest names goes to topics, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from millstream.api.sources.kafka import Kafka
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.graph import nodes as graph
from millstream.io.kafka.encoding import MAX_RECORD, Encoding, newest
from millstream.io.kafka.producing import Publisher
from millstream.plan.stages import Plan
from millstream.run.outputs.tables.writing import Gave
from millstream.state.manifests import Manifest


def encoding_of(plan: Plan, sink: graph.Sink) -> Encoding:
    """How tasks encode the rows of a sink."""
    spec: Kafka = sink.spec
    most = int((spec.options or {}).get("message.max.bytes", MAX_RECORD))
    return Encoding(
        sink.name,
        spec.format,
        spec.keys,
        spec.header_columns,
        spec.changes,
        min(most, 2**31 - 1),
        spec.schemas,
        spec.known_by,
        given=plan.columns.get(sink.inputs[0].name) is None,
    )


class TopicSink:
    """One sink, and what writes for it."""

    def __init__(self, name: str, spec: Kafka, publisher: Publisher) -> None:
        self.name, self.spec, self.publisher = name, spec, publisher

    def deliver(self, table: pa.Table, batch: int, checksum: int) -> None:
        """Send the records of a committed batch, as far as they were not sent yet."""
        records = newest(table) if self.spec.changes == "upsert" else table
        try:
            self.publisher.publish(records, batch, checksum)
        except (RunError, ConfigError) as error:
            raise RunError(
                f"sink {self.name!r}: {error}; batch {batch} is committed, and what is missing of "
                "it will be sent at the next start"
            ) from None


class TopicSinks:
    """All Kafka sinks of a flow on its checkpoint."""

    def __init__(
        self, plan: Plan, owner: str, epoch: int, waiting: Callable[[str | None], None]
    ) -> None:
        self.sinks: dict[str, TopicSink] = {}
        for sink in plan.sinks():
            if isinstance(sink.spec, Kafka):
                spec = sink.spec
                publisher = Publisher(
                    spec.cluster,
                    spec.topics[0],
                    spec.header_columns,
                    spec.progress,
                    f"millstream-{owner}-{sink.name}",
                    epoch,
                    micros(spec.wait, "wait") / 1e6,
                    waiting,
                )
                self.sinks[sink.name] = TopicSink(sink.name, spec, publisher)

    def check(self) -> None:
        """See whether Kafka answers, before anything is computed for it."""
        for name, one in self.sinks.items():
            try:
                one.publisher.check()
            except (RunError, ConfigError) as error:
                raise type(error)(f"sink {name!r}: {error}") from None

    def open(self, newest: int, gave: Gave, unpublished: Sequence[Manifest] = ()) -> None:
        """Take the sinks over; refuses a checkpoint that is behind what they have."""
        waits = {output.sink for manifest in unpublished for output in manifest.outputs}
        for name, one in self.sinks.items():
            try:
                one.publisher.open(noted=name in waits)
                one.publisher.check_same(newest, partial(gave, name))
            except RunError as error:
                raise RunError(f"sink {name!r}: {error}") from None

    def close(self) -> None:
        """Let go of the connections."""
        for one in self.sinks.values():
            one.publisher.close()

"""Figures for Prometheus, made when they are asked for from the same status as the page's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Figures(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status

    def collect(self) -> Iterator[Metric]:
        status, flow = self.status, self.status["flow"]

        def gauge(name: str, help_text: str, value: float | None) -> Iterator[Metric]:
            if value is not None:
                metric = GaugeMetricFamily(f"millstream_{name}", help_text, labels=["flow"])
                metric.add_metric([flow], float(value))
                yield metric

        yield from gauge("batch", "The last committed batch.", status["batch"])
        yield from gauge("committed_timestamp_seconds", "When it was committed.", status["at"])
        yield from gauge("running", "Whether the flow runs.", status["running"])
        yield from gauge("complete", "Whether all input is read.", status["complete"])
        yield from gauge("lag_seconds", "Wall clock minus watermark.", status["lag_seconds"])
        for name, value in status["rates"].items():
            yield from gauge(name, f"Of the last batch: {name.replace('_', ' ')}.", value)
        moved = GaugeMetricFamily(
            "millstream_state_bytes",
            "Of state: read, had from memory and written by the last batch, and kept in memory.",
            labels=["flow", "what"],
        )
        for what, size in status["state_bytes"].items():
            moved.add_metric([flow, what], size)
        yield moved
        memory = status["memory"] or {}
        for name, help_text in (
            ("used", "Bytes that driver, JVM and workers had at the peak of the last batch."),
            ("budget", "Bytes that they may have (`memory`)."),
        ):
            yield from gauge(f"memory_{name}_bytes", help_text, memory.get(name))
        dead = CounterMetricFamily("millstream_dead_letters", "Dead letters.", labels=["flow"])
        dead.add_metric([flow], status["dead"])
        yield dead
        records = CounterMetricFamily(
            "millstream_records", "Records per step and where they went.", labels=["step", "way"]
        )
        for step, account in status["ledger"].items():
            for way, count in account.items():
                records.add_metric([step, way], count)
        yield records
        for name, help_text, key, kind in (
            ("source_pending_bytes", "Bytes that wait at a source.", "pending_bytes", "sources"),
            ("slates", "Stored slates, at most.", "slates", "operators"),
            ("pending_rows", "Rows that wait for the watermark.", "pending", "operators"),
            ("stored_bytes", "Bytes of state in the checkpoint.", "stored_bytes", "operators"),
            ("plain_bytes", "And how many uncompressed.", "plain_bytes", "operators"),
            ("carried_events", "Events carried in a cycle.", "carried", "operators"),
        ):
            metric = GaugeMetricFamily(f"millstream_{name}", help_text, labels=["step"])
            for one in status[kind]:
                if one[key] is not None:
                    metric.add_metric([one["name"]], one[key])
            yield metric
        yield from self._queues()
        yield from self._overload()

    def _queues(self) -> Iterator[Metric]:
        """What waits: how much, since which time, and whether the scheduler holds it back."""
        for name, help_text, key in (
            ("queue_bytes", "Bytes that wait in a queue.", "bytes"),
            ("queue_rows", "Rows that wait in a queue.", "rows"),
            ("queue_head_timestamp_seconds", "The event time at the front of a queue.", "head"),
            ("queue_held", "Whether the scheduler held it back in the last batch.", "held"),
        ):
            metric = GaugeMetricFamily(f"millstream_{name}", help_text, labels=["queue", "kind"])
            for one in self.status["queues"]:
                value = one[key]
                if isinstance(value, str):
                    value = datetime.fromisoformat(value).timestamp()
                if value is not None:
                    metric.add_metric([one["name"], one["kind"]], float(value))
            yield metric

    def _overload(self) -> Iterator[Metric]:
        """Of steps with a policy that drops or diverts, and of those that are overloaded."""
        overloaded = GaugeMetricFamily(
            "millstream_overloaded", "Whether a step is overloaded now.", labels=["step"]
        )
        pressure = GaugeMetricFamily(
            "millstream_overload_pressure", "What waits, by what may wait.", labels=["step"]
        )
        for one in (*self.status["sources"], *self.status["operators"]):
            if (told := one["overload"]) is not None:
                overloaded.add_metric([one["name"]], float(told["since"] is not None))
                if told["pressure"] is not None:
                    pressure.add_metric([one["name"]], told["pressure"])
        yield overloaded
        yield pressure


def exposition(status: dict[str, Any]) -> bytes:
    """The text of `GET /metrics`."""
    registry = CollectorRegistry()
    registry.register(_Figures(status))
    return generate_latest(registry)

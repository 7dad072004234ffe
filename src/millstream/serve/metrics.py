"""Figures for Prometheus, made when they are asked for from the same status as the page's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST

_OF_FLOW = (
    ("batch", "The last committed batch.", "batch"),
    ("committed_timestamp_seconds", "When it was committed.", "at"),
    ("running", "Whether the flow runs.", "running"),
    ("complete", "Whether all input is read.", "complete"),
    ("lag_seconds", "Wall clock minus watermark.", "lag_seconds"),
)
_OF_SEVERAL = (
    ("source_pending_bytes", "Bytes that wait at a source.", "pending_bytes", "sources"),
    ("slates", "Stored slates, at most.", "slates", "operators"),
    ("pending_rows", "Rows that wait for the watermark.", "pending", "operators"),
    ("stored_bytes", "Bytes of state in the checkpoint.", "stored_bytes", "operators"),
    ("plain_bytes", "And how many uncompressed.", "plain_bytes", "operators"),
    ("carried_events", "Events carried in a cycle.", "carried", "operators"),
    ("queue_bytes", "Bytes that wait in a queue.", "bytes", "queues"),
    ("queue_rows", "Rows that wait in a queue.", "rows", "queues"),
    ("queue_head_timestamp_seconds", "The event time at the front of a queue.", "head", "queues"),
    ("queue_held", "Whether the scheduler held it back in the last batch.", "held", "queues"),
)


class _Figures(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status

    def collect(self) -> Iterator[Metric]:
        status, flow = self.status, self.status["flow"]

        def alone(metric: str, words: str, value: float | None) -> Iterator[Metric]:
            if value is not None:
                yield _gauge(metric, words, ["flow"], [([flow], value)])

        for metric, words, field in _OF_FLOW:
            yield from alone(metric, words, status[field])
        for name, value in status["rates"].items():
            yield from alone(name, f"Of the last batch: {name.replace('_', ' ')}.", value)
        yield _gauge(
            "state_bytes",
            "Of state: read, had from memory and written by the last batch, and kept in memory.",
            ["flow", "what"],
            (([flow, what], size) for what, size in status["state_bytes"].items()),
        )
        memory = status["memory"] or {}
        words = "Bytes that driver, JVM and workers had at the peak of the last batch."
        yield from alone("memory_used_bytes", words, memory.get("used"))
        words = "Bytes that they may have (`memory`)."
        yield from alone("memory_budget_bytes", words, memory.get("budget"))
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
        for metric, words, field, kind in _OF_SEVERAL:
            labels = {"queue": "name", "kind": "kind"} if kind == "queues" else {"step": "name"}
            told = (([row[of] for of in labels.values()], row[field]) for row in status[kind])
            yield _gauge(metric, words, list(labels), told)
        every = (*status["sources"], *status["operators"])
        # Steps with a policy that drops or diverts, and those that are overloaded.
        shed = [([one["name"]], told) for one in every if (told := one["overload"]) is not None]
        since = ((name, told["since"] is not None) for name, told in shed)
        yield _gauge("overloaded", "Whether a step is overloaded now.", ["step"], since)
        pressure = ((name, told["pressure"]) for name, told in shed)
        yield _gauge("overload_pressure", "What waits, by what may wait.", ["step"], pressure)


def _gauge(
    metric: str, words: str, labels: list[str], values: Iterable[tuple[list[str], Any]]
) -> Metric:
    """What is known of some things; a time as seconds."""
    family = GaugeMetricFamily(f"millstream_{metric}", words, labels=labels)
    for names, value in values:
        if isinstance(value, str):
            value = datetime.fromisoformat(value).timestamp()
        if value is not None:
            family.add_metric(names, float(value))
    return family


def exposition(status: dict[str, Any]) -> bytes:
    """The text of `GET /metrics`."""
    registry = CollectorRegistry()
    registry.register(_Figures(status))
    return generate_latest(registry)

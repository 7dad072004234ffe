"""Claim: windowed averages from one Kafka topic to another cost at most three times the transport.

Two million trades as JSON in four partitions, averages per symbol and ten seconds to another topic,
exactly once. The peer is the limit for anything in Python: plain confluent-kafka, one process that
consumes the same records and produces as many results, and neither parses nor computes. Times are
from the first record that is there to the last result, without start-up: of the flow, from its
second batch on. The averages are compared with those worked out when the trades were made.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import goal, markdown, module, side, workspace

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

TRADES, SYMBOLS, PARTITIONS = 2_000_000, 500, 4
APART = 0.6  # ms of event time between trades
WINDOW = 10_000
T0 = 1_700_000_000_000
WANTED = 3.0
LIMIT = 900.0


def run(quick: bool = False) -> dict[str, Any]:
    """Send the trades, run both sides, compare the averages."""
    from kafka import Broker  # type: ignore[import-not-found]

    count = 200_000 if quick else TRADES
    with workspace("topics") as work:
        broker = Broker(work / "broker").start()
        try:
            answer = _send(broker.address, count)
            plain = side(module("topics", "plain", broker.address, len(answer)), LIMIT)
            ours = side(module("topics", "flow", broker.address, work), LIMIT)
            agree = _averages(broker.address) == answer
        finally:
            broker.stop()
    times = plain["rate"] / ours["rate"]
    print(
        f"  plain {plain['rate']:,.0f} records/s, millstream {ours['rate']:,.0f}; {len(answer):,} "
        f"averages, equal: {agree}"
    )
    return {
        "records": count,
        "results": len(answer),
        "plain": plain,
        "millstream": ours,
        "times": round(times, 2),
        "agree": agree,
        "goals": [
            goal("time beside consume + produce", f"at most {WANTED:g}x", times, times <= WANTED)
        ],
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = [
        ["consume + produce, one process", round(figures["plain"]["rate"]), 1.0],
        ["millstream, averages", round(figures["millstream"]["rate"]), figures["times"]],
    ]
    return markdown([f"{figures['records']:,} trades", "records/s", "times the limit"], rows)


def _settings(servers: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": servers, **more}


def _send(servers: str, count: int) -> dict[tuple[str, int], tuple[int, float]]:
    """Make topics and trades; gives the number and the sum of prices per symbol and window."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    new = [NewTopic(name, num_partitions=PARTITIONS) for name in ("trades", "plain", "averages")]
    admin = AdminClient(_settings(servers))
    for made in admin.create_topics(new).values():
        made.result(30)
    rng = np.random.default_rng(5)
    ts = (T0 + np.arange(count) * APART).astype(np.int64)
    symbol, cents = rng.integers(0, SYMBOLS, count), rng.integers(1000, 100_000, count)
    producer = Producer(_settings(servers, **{"enable.idempotence": True, "linger.ms": 20}))
    answer: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for at, which, price in zip(ts.tolist(), symbol.tolist(), cents.tolist(), strict=True):
        value = b'{"ts":%d,"symbol":"S%03d","price":%d}' % (at, which, price)
        while True:
            try:
                producer.produce("trades", value, partition=which % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        total = answer[f"S{which:03d}", at // WINDOW * WINDOW]
        total[0] += 1
        total[1] += price
    producer.flush()
    return {key: (n, total / n) for key, (n, total) in answer.items()}


def _reader(servers: str, topic: str) -> tuple[Any, int]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    reading = {"group.id": "b", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer(_settings(servers, **reading, **{"fetch.queue.backoff.ms": 5}))
    parts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    consumer.assign(parts)
    return consumer, len(parts)


def _averages(servers: str) -> dict[tuple[str, int], tuple[int, float]]:
    """What the flow gave, as a reader of what is committed sees it; each once."""
    from datetime import datetime

    consumer, left = _reader(servers, "averages")
    found: dict[tuple[str, int], tuple[int, float]] = {}
    while left:
        for message in consumer.consume(10_000, 0.1):
            if message.error() is not None:
                left -= 1
                continue
            row = json.loads(message.value())
            start = datetime.fromisoformat(row["window_start"].replace("Z", "+00:00"))
            key = (row["symbol"], int(start.timestamp() * 1000))
            assert key not in found, f"{key} is there twice"
            found[key] = (row["n"], row["avg"])
    consumer.close()
    return found


def plain(servers: str, results: int) -> dict[str, Any]:
    """Consume all trades, produce so many records."""
    from confluent_kafka import Producer

    consumer, left = _reader(servers, "trades")
    producer = Producer(_settings(servers, **{"enable.idempotence": True, "linger.ms": 5}))
    value = b'{"symbol":"S000","window_start":"2026-11-17T00:00:00Z","avg":123.456,"n":33}'
    rows, begun = 0, None
    while left:
        for message in consumer.consume(20_000, 0.05):
            begun = begun or time.perf_counter()
            if message.error() is not None:
                left -= 1
            else:
                rows += len(message.value()) > 0
    for number in range(results):
        producer.produce("plain", value, b"S000", partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush()
    return {"rows": rows, "rate": rows / (time.perf_counter() - (begun or 0))}


def flow(servers: str, work: Path) -> dict[str, Any]:
    """The averages; the rate is that after the first batch, in which workers start."""
    import millstream as ms

    averages = ms.Flow("averages")
    trades = averages.source(
        ms.Kafka(
            servers,
            "trades",
            schema="ts bigint, symbol string, price bigint",
            time="ts",
            time_unit="ms",
            lateness="1s",
            follow=False,
        ),
        name="trades",
    )
    windows = trades.key_by("symbol").window(ms.tumbling("10s"))
    means = windows.agg(avg=ms.mean("price"), n=ms.count())
    means.sink(ms.Kafka(servers, "averages", key="symbol"))
    seen: list[tuple[float, int]] = []
    averages.run(
        checkpoint=work / "ck",
        quiet=True,
        on_progress=lambda progress: seen.append((time.perf_counter(), progress.rows)),
    )
    (first, before), (last, rows) = seen[0], seen[-1]
    return {"rows": rows, "batches": len(seen), "rate": (rows - before) / (last - first)}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["plain", servers, results]:
            print(json.dumps(plain(servers, int(results))))
        case ["flow", servers, work]:
            print(json.dumps(flow(servers, Path(work))))

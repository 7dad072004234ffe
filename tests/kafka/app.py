"""A flow from topic to topic, without Spark, to be killed: app.py SERVERS IN OUT CHECKPOINT."""

from __future__ import annotations

import sys
from typing import Any

import millstream as ms
from millstream.testing import run_in_process


def count(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"k": event.key, "nth": slate["n"], "v": event.value["v"]}


def input_of(servers: str, topic: str) -> ms.Kafka:
    """What is in the topic when the run starts."""
    schema = "ts bigint, k string, v bigint"
    return ms.Kafka(servers, topic, schema=schema, time="ts", lateness="3s", follow=False)


def build(servers: str, read: str, written: str) -> ms.Flow:
    flow = ms.Flow("kafka")
    source = flow.source(input_of(servers, read), name="in")
    sink = ms.Kafka(servers, written, key="k")
    windows = source.key_by("k").window(ms.tumbling("20s"))
    windows.agg(n=ms.count(), total=ms.sum("v")).sink(sink, name="windows")
    source.key_by("k").update(count, name="counts").sink(sink, name="events")
    return flow


if __name__ == "__main__":
    servers, read, written, checkpoint = sys.argv[1:]
    try:
        run_in_process(build(servers, read, written), checkpoint, batch_rows=400)
    except ms.MillstreamError as error:
        sys.exit(f"refused: {error}")

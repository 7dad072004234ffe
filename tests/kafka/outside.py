"""From topic to topic and tables, all else in a store: outside.py SERVERS IN OUT ROOT."""

from __future__ import annotations

import sys

from app import count, input_of

import millstream as ms
from millstream.testing import run_in_process


def make_flow(servers: str, read: str, written: str, root: str) -> ms.Flow:
    flow = ms.Flow("outside")
    source = flow.source(input_of(servers, read), name="in")
    windows = source.key_by("k").window(ms.tumbling("20s")).agg(n=ms.count(), total=ms.sum("v"))
    windows.sink(ms.Kafka(servers, written, key="k"), name="windows to a topic")
    windows.sink(ms.Delta(f"{root}/windows"), name="windows to a table")
    events = source.key_by("k").update(count, name="counts")
    events.sink(ms.Kafka(servers, written, key="k"), name="events to a topic")
    totals = source.key_by("k").agg(emit="delta", n=ms.count(), total=ms.sum("v"))
    totals.sink(ms.Delta(f"{root}/totals", key="k"), name="totals to a table")
    return flow


if __name__ == "__main__":
    servers, read, written, root = sys.argv[1:]
    try:
        run_in_process(make_flow(servers, read, written, root), f"{root}/ck", batch_rows=400)
    except ms.MillstreamError as error:
        sys.exit(f"refused: {error}")

"""What functions give, on its way into the flow: rows as chunks, events to streams by name."""

from __future__ import annotations

import numpy as np

from millstream.operators.protocol import Host
from millstream.ops.chunks import Chunk
from millstream.ops.codec import decode_row
from millstream.ops.records import DeadLetter, Row, as_json, given_table
from millstream.ops.updates.cells import Publication

NONE: frozenset[str] = frozenset()


def as_chunk(host: Host, step: str, rows: list[Row], ts: list[int], pos: list[int]) -> Chunk:
    """Records as columns; what cannot be stored is a dead letter."""
    number, bad = host.number(step), dict[int, str]()
    table, kept = given_table(rows, None, range(len(rows)), bad)
    for index, why in bad.items():
        letter = DeadLetter(step, number, pos[index], as_json(rows[index]), why)
        host.control.dead.append(letter)
        host.ledger(step)["failed"] += 1
    for figure in ("results", "answered"):
        host.ledger(step)[figure] += len(kept)
    times, places = (np.array(one, np.int64)[kept] for one in (ts, pos))
    return Chunk(table, times, places, number)


def event_chunk(host: Host, stream: str, events: list[Publication]) -> Chunk:
    """Published events as records."""
    return as_chunk(
        host,
        stream,
        [{"key": one.key, "value": decode_row(one.value)} for one in events],
        [one.us for one in events],
        [one.pos for one in events],
    )


def publish(
    host: Host, events: list[Publication], cycle: frozenset[str] = NONE, *, inside: bool = False
) -> None:
    """Events to the consumers of their streams, inside or outside the cycle at hand."""
    by_stream: dict[str, list[Publication]] = {}
    for one in events:
        by_stream.setdefault(one.stream, []).append(one)
    for name, several in by_stream.items():
        in_cycle = name in cycle
        if inside == in_cycle:  # each is counted once, where it arrives
            host.count(name, len(several), 0)
        chunk: Chunk | None = None
        for consumer in host.consumers(name):  # in this order: it is that of equal events
            if (consumer.name in cycle and in_cycle) != inside:
                continue
            stream = next(one for one in consumer.inputs if one.name == name)
            inlet = host.inlet(consumer.name)
            if inlet is None or not inlet.take_published(consumer, stream, several):
                chunk = event_chunk(host, name, several) if chunk is None else chunk
                host.push(name, chunk, consumer.name.__eq__)

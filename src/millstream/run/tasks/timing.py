"""`Stream.at`: records get the event time that an expression or a function says.

The watermark after such a step is held back by how far new times may lie before old ones
(`behind`). A record whose new time lies further back is late, as one is that its source has out of
order: that follows from the record alone, not from the batch it came in. Where the input is
complete before anything leaves (no lateness), nothing is late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.graph import nodes
from millstream.io.columns import event_time, times_of
from millstream.io.formats import Format
from millstream.ops.chunks import Chunk, Int64, all_but
from millstream.ops.records import DeadLetter, describe, without
from millstream.ops.times.progress import Reached
from millstream.ops.zones import timestamp
from millstream.run.tasks.steps import computed

_COLUMN = "at()"


def assign_times(
    node: nodes.At, chunk: Chunk, within: tuple[int, int], complete: bool
) -> tuple[Chunk, list[DeadLetter]]:
    """Records at their new times, and those that have none, or one outside of `within`."""
    fmt = Format("json", pa.schema([]), _COLUMN, node.unit, node.zone, time_format=node.format)
    chunk, ts, failed, dead = _told(node, fmt, chunk)
    failed = {row: why.replace("time_unit=", "unit=") for row, why in failed.items()}
    for row in np.flatnonzero((ts < within[0]) | (ts >= within[1])).tolist():
        bounds = " and ".join(timestamp(at).isoformat() for at in within)
        failed.setdefault(
            row, f"its time lies outside of the settings earliest and latest: {bounds}"
        )
    ts = ts[all_but(len(chunk), failed)]
    chunk, untimed = without(node.name, chunk, failed)
    due = None if complete else _due(chunk, ts, node.behind)
    return replace(chunk, ts=ts, due=due), [*dead, *untimed]


def note_latest(reached: dict[str, Reached], node: nodes.At, chunk: Chunk, future: int) -> None:
    """Say how far the times come that a step gives; one too far ahead of the clock says nothing."""
    trusted = chunk.ts[chunk.ts <= future]
    if len(trusted):
        told = reached.setdefault(node.name, Reached())
        told.top = max(told.top, int(trusted.max()))


def _due(chunk: Chunk, ts: Int64, behind: int) -> Int64 | None:
    """When each record counts; None if that is their time for all of them."""
    came = chunk.ts if chunk.due is None else chunk.due
    due = np.maximum(ts, came - behind)
    return None if bool((due == ts).all()) else due


def _told(
    node: nodes.At, fmt: Format, chunk: Chunk
) -> tuple[Chunk, Int64, dict[int, str], list[DeadLetter]]:
    """The times that the expression or the function says, and the records on which it fails."""
    if node.expr is not None:
        chunk, column, dead = computed(node, node.expr, chunk)
        return chunk, *event_time(fmt, column), dead
    found, raised = _call_at(node, chunk)
    chunk, dead = without(node.name, chunk, raised)
    return chunk, *times_of(fmt, found), dead


def _call_at(node: nodes.At, chunk: Chunk) -> tuple[list[Any], dict[int, str]]:
    """What a user's function gives for each record, and why it failed for some."""
    assert node.fn is not None
    found: list[Any] = []
    failed: dict[int, str] = {}
    for index, row in enumerate(chunk.table.to_pylist()):
        try:
            found.append(node.fn(row))
        except BaseException as error:  # a user's function may raise anything
            failed[index] = describe(error)
    return found, failed

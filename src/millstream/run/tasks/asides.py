"""What becomes of pieces that an overload policy keeps from the steps after their source, in tasks.

A dropped piece is counted, not read: its records have no time and move no watermark. A diverted one
is read as any other, and its times count as if nothing had happened; only its records go elsewhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millstream.graph import nodes
from millstream.io.formats import Format
from millstream.io.kafka.consuming import Stretch
from millstream.io.kafka.decoding import count_records
from millstream.io.readers import Split, count_split
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.overload import Shed
from millstream.run.tasks.reading import count_spooled, spool_extent
from millstream.run.tasks.splits import Aside, RateSplit, Readable, SpoolSplit
from millstream.run.tasks.takeover import drop_messages, has_messages

if TYPE_CHECKING:
    from millstream.run.tasks.task import Task


def set_aside(task: Task, source: nodes.Source, aside: Aside) -> None:
    """Count a piece, or push its records to the stream they are diverted to."""
    begun, piece = time.perf_counter(), aside.piece
    if aside.to is not None:
        rows = _divert(task, source, piece, aside.to)
    elif has_messages(piece):
        rows = drop_messages(task, source, piece)
    else:
        rows = count(task.plan.formats[source.name], piece)
        task.ledger(source.name).update({"offered": rows, "dropped": rows})
        task.entrance.watch(source).reached.taken.dropped.add(rows)
    figure = "shed" if aside.to is None else "overflow"
    task.ledger(source.name)[figure] += rows
    if isinstance(piece, Stretch) and piece.lost:
        task.ledger(source.name)["lost"] += piece.lost
    if rows:
        whose = None if has_messages(piece) else piece.source  # a message is in no place
        task.control.shed.append(Shed(source.name, rows, aside.to, whose, *_extent(piece)))
    task.control.shedding += time.perf_counter() - begun


def count(fmt: Format, piece: Readable) -> int:
    """How many records a piece has, as exactly as if it were read."""
    match piece:
        case Split():
            return count_split(fmt, piece)
        case Stretch():
            return count_records(fmt, piece)
        case RateSplit():
            return piece.end - piece.start
        case SpoolSplit():
            return count_spooled(fmt, piece)


def _divert(task: Task, source: nodes.Source, piece: Readable, stream: str) -> int:
    rows = 0
    for read in task.pieces(source, piece):
        chunk = task.entrance.take_in(source, piece, read, "diverted")
        task.count(stream, len(chunk), 0)
        task.push(stream, chunk)
        rows += len(chunk)
    return rows


def _extent(piece: Readable) -> tuple[int, int]:
    """The positions where a piece begins and ends."""
    match piece:
        case Split():
            base = piece.file << OFFSET_BITS
            return base + piece.start, base + max(piece.start, piece.end)
        case Stretch():
            base = (piece.file << OFFSET_BITS) - piece.base
            return base + piece.start, base + piece.end
        case RateSplit():
            return piece.start, piece.end
        case SpoolSplit():
            return spool_extent(piece)

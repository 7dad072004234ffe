"""Messages of agents in a task: what one of level 0 has given where the records are, as its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

import pyarrow as pa

from millstream.errors import RunError
from millstream.graph import nodes
from millstream.operators.protocol import Operator, Partial
from millstream.ops.chunks import decode_block, with_column
from millstream.ops.times.progress import BEGIN, Reached, raise_all
from millstream.ops.times.shares import Lot
from millstream.run.messages.message import (
    MESSAGES,
    Block,
    Head,
    Part,
    decode_records,
    only_counted,
    unpack,
)
from millstream.run.tasks.splits import AnySplit, SpoolSplit
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from millstream.run.tasks.task import Task


def has_messages(split: AnySplit) -> TypeGuard[SpoolSplit]:
    """Whether a piece of input is what agents sent."""
    return isinstance(split, SpoolSplit) and split.name.endswith(f".{MESSAGES}")


def take_over(task: Task, source: nodes.Source, split: SpoolSplit) -> None:
    """Messages of agents: what a task of this level has given where the records are."""
    begun, rows = time.perf_counter(), 0
    for head, blocks in _messages(task, source, split):
        _take_message(task, source, head, blocks)
        rows += head.weight
        _note_way(task.control.reached[source.name].taken.kept, head)
    task.control.rows_in += rows
    before, seconds = task.control.read.get(source.name, (0, 0.0))
    task.control.read[source.name] = (before + rows, seconds + time.perf_counter() - begun)


def drop_messages(task: Task, source: nodes.Source, split: SpoolSplit) -> int:
    """The same of messages whose records are dropped: how many, and how far their agents are."""
    rows = 0
    for head, _ in _messages(task, source, split):
        _take_message(task, source, only_counted(head), [])
        rows += head.rows
        _note_way(task.control.reached[source.name].taken.dropped, head)
    return rows


def _note_way(lot: Lot, head: Head) -> None:
    """Records of a message count at the latest time in it: the others are not told."""
    lot.add(head.rows, *(() if head.top is None else (head.top, head.top)))


def _messages(
    task: Task, source: nodes.Source, split: SpoolSplit
) -> Iterator[tuple[Head, list[bytes]]]:
    """Messages of some pieces, and how far they say that agents have come."""
    spool = open_storage(split.spool)
    reached = task.control.reached.setdefault(source.name, Reached())
    raise_all(reached.latest, dict(split.reached))
    for piece in (split, *split.more):
        for head, blocks in unpack(spool.read(piece.name)):
            yield head, blocks
            reached.top = max(reached.top, BEGIN if head.top is None else head.top)


def _take_message(task: Task, source: nodes.Source, head: Head, blocks: list[bytes]) -> None:
    for step, counts in head.ledger.items():
        task.ledger(step).update(counts)
    task.control.dead.extend(head.letters())
    for part in head.parts:
        _note_sent(task, part, (source.name, part.agent))
    sinks = {one.name for one in task.plan.sinks()}
    for block, data in zip(head.blocks, blocks, strict=True):
        operator = task.plan.operators.get(block.to)
        if not block.table and block.to in sinks:
            chunk = decode_records(data, block.src)
            task.sunk.setdefault(block.to, []).append(chunk)
        if not block.table or operator is None:  # it may be gone since the message was made
            continue
        table = decode_block(data)
        if block.shards != task.batch.shards:
            table = _dealt_anew(task, operator, block, table, head)
        inlet = task.inlet(operator.steps[0])
        if isinstance(inlet, Partial):
            table = inlet.take_partial(table)
        if len(table):
            task.onward.arrived.append((block.to, block.table, table))


def _note_sent(task: Task, part: Part, sender: tuple[str, str]) -> None:
    """Tell windows whose records are in their rows, and how many of each pane."""
    panes = {step: dict(counts) for step, counts in part.panes.items()}
    concerned = panes.keys() | part.late.keys()
    for one in task.plan.operators.values():
        inlet = task.inlet(one.steps[0]) if concerned & {*one.steps} else None
        if isinstance(inlet, Partial):
            inlet.note_sent(panes, part.late, sender)


def _dealt_anew(
    task: Task, operator: Operator, block: Block, rows: pa.Table, head: Head
) -> pa.Table:
    """Rows that were made for another number of shards."""
    how = operator.stored().get(operator.name, {}).get(block.table)
    shards = None if how is None else how.shards(rows, task.batch.shards)
    if shards is None:
        raise RunError(
            f"message {head.number} of {head.agent!r} was made for {block.shards} shards, "
            f"and its rows for {operator.name!r} cannot be dealt to {task.batch.shards}; "
            "change the shards back, and again when agents have nothing left to send"
        )
    return with_column(rows, "shard", shards)

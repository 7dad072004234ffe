"""Several messages as one: what a relay does on the way to the root."""

from __future__ import annotations

from collections import Counter

import msgspec
import pyarrow as pa

from millstream.operators.protocol import Shipping
from millstream.ops.chunks import concat, decode_block, encode_block
from millstream.plan.stages import Plan
from millstream.run.messages.message import COMPRESSION, Block, Head, Message, Part
from millstream.state.manifests import SourceState


def combined(plan: Plan, source: str, messages: list[Message], after: SourceState) -> Message:
    """Several messages as one: rows merged, accounts added up, everybody's part kept."""
    parts: dict[str, Part] = {}
    ledger: dict[str, Counter[str]] = {}
    tables: dict[Block, list[pa.Table]] = {}  # by what they have in common
    for head, blocks in messages:
        for part in head.parts:
            parts[part.sender] = _joined(parts.get(part.sender), part)
        for step, counts in head.ledger.items():
            ledger.setdefault(step, Counter()).update(counts)
        for block, data in zip(head.blocks, blocks, strict=True):
            alike = msgspec.structs.replace(block, rows=0)
            tables.setdefault(alike, []).append(decode_block(data))
    made: list[Block] = []
    packed: list[bytes] = []
    for alike, several in tables.items():
        rows = _merged(plan, alike, several)
        made.append(msgspec.structs.replace(alike, rows=len(rows)))
        packed.append(encode_block(rows, COMPRESSION))
    heads = [head for head, _ in messages]
    whole = Head(
        agent="",
        life=0,
        number=0,
        source=source,
        rows=sum(head.rows for head in heads),
        seconds=sum(head.seconds for head in heads),
        top=max((head.top for head in heads if head.top is not None), default=None),
        ledger={step: dict(counts) for step, counts in ledger.items()},
        dead=[letter for head in heads for letter in head.dead],
        blocks=made,
        ended=after.ended,
        of=list(parts.values()),
        senders={head.sender: head.number for head in heads},
        after={source: after},
    )
    return whole, packed


def _joined(before: Part | None, now: Part) -> Part:
    """What one agent has in two messages that follow each other."""
    if before is None:
        return now
    late = Counter(before.late)
    late.update(now.late)
    panes: dict[str, Counter[int]] = {}
    for part in (before, now):
        for step, counts in part.panes.items():
            panes.setdefault(step, Counter()).update(dict(counts))
    return msgspec.structs.replace(
        now,
        first=before.first,
        late=dict(late),
        panes={step: list(one.items()) for step, one in panes.items()},
    )


def _merged(plan: Plan, block: Block, several: list[pa.Table]) -> pa.Table:
    """Rows of several as those of one task would be: states of the same pane and key are one."""
    rows = concat(several)
    operator = plan.operators.get(block.to)
    if not isinstance(operator, Shipping) or len(several) == 1:
        return rows
    return operator.merged(block.table, rows)

"""A message in parts, one for each tree: rows by their shards, accounts with the rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa

from millstream.ops.chunks import numbers
from millstream.run.messages.message import Block, Head, Message


def parted(rows: pa.Table, trees: int) -> list[pa.Table]:
    """Rows by the tree their shard belongs to."""
    if trees == 1:
        return [rows]
    tree = numbers(rows, "shard") % trees
    return [rows.filter(pa.array(tree == one)) for one in range(trees)]


def in_trees(
    head: Head,
    parts: list[tuple[list[Block], list[bytes]]],
    panes: dict[str, dict[tuple[int, int], int]],
) -> list[Message]:
    """The control part with the rows of every tree.

    Accounts go with the rows: records that windows took are offered and aggregated in the tree that
    brings them, all else in the first. So at every commit the ledger has what is there, no more.
    """
    made: list[Message] = []
    rest = {step: Counter(counts) for step, counts in head.ledger.items()}
    for tree in reversed(range(len(parts))):
        mine = {
            step: [(pane, n) for (where, pane), n in counts.items() if where == tree]
            for step, counts in panes.items()
        }
        blocks, data = parts[tree]
        changed: dict[str, Any] = {"tree": tree, "blocks": blocks, "panes": mine}
        if tree:
            took = {step: sum(n for _, n in counts) for step, counts in mine.items()}
            for step, n in took.items():
                rest[step].subtract({"offered": n, "aggregated": n})
            account = {step: {"offered": n, "aggregated": n} for step, n in took.items() if n}
            changed |= {"ledger": account, "rows": 0, "seconds": 0.0, "dead": [], "late": {}}
            changed |= {"after": {}}
        else:
            changed |= {"ledger": {step: dict(counts) for step, counts in rest.items()}}
        made.append((msgspec.structs.replace(head, **changed), data))
    return made[::-1]

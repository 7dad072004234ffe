"""Records of several small files as one piece, for programs that are costly to begin.

A program of lines is a process that is started for every piece of the input, and a piece never
reaches beyond its file. Whoever says that his program does not care where files begin gets pieces
that do (`gathers`), as with Hadoop's CombineTextInputFormat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from millstream.graph import nodes
from millstream.ops.chunks import Chunk, concat

_ENOUGH = 8 * 1024 * 1024  # bytes: what a chunk of a large file has


class Together:
    """Chunks that wait for others, by the step that takes them and the source they are of."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], list[Chunk]] = {}

    def add(self, step: nodes.Node, chunk: Chunk) -> Chunk | None:
        """One chunk more; gives all of them as one once they are enough."""
        several = self._waiting.setdefault((step.name, chunk.src), [])
        several.append(chunk)
        if sum(one.table.nbytes for one in several) < _ENOUGH:
            return None
        del self._waiting[step.name, chunk.src]
        return _as_one(several)

    def rest(self) -> Iterator[tuple[str, Chunk]]:
        """What still waits, and the step it waits for."""
        waiting, self._waiting = self._waiting, {}
        for (step, _), several in waiting.items():
            yield step, _as_one(several)


def may_gather(step: nodes.Node, chunk: Chunk) -> bool:
    """Whether records of several files may go through a step together."""
    called: Any = None
    match step:
        case nodes.Pairs():
            called = step.job
        case nodes.MapBatches():
            called = step.fn
    plain = chunk.weight is None and chunk.window is None and chunk.revision is None
    return plain and bool(getattr(called, "gathers", False))


def _as_one(chunks: list[Chunk]) -> Chunk:
    """Records of one source, one after the other."""
    if len(chunks) == 1:
        return chunks[0]
    due = None
    if any(one.due is not None for one in chunks):
        due = np.concatenate([one.ts if one.due is None else one.due for one in chunks])
    return replace(
        chunks[0],
        table=concat([one.table for one in chunks]),
        ts=np.concatenate([one.ts for one in chunks]),
        pos=np.concatenate([one.pos for one in chunks]),
        due=due,
    )

"""Pieces of a spool, one by one, however they are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millstream.run.tasks.splits import AnySplit, SpoolSplit


def pieces(splits: Iterable[AnySplit]) -> list[SpoolSplit]:
    """Every piece for itself, with its own rows."""
    found = []
    for split in splits:
        assert isinstance(split, SpoolSplit)
        rows = split.rows - sum(piece.rows for piece in split.more)
        found += [replace(split, rows=rows, more=()), *split.more]
    return found

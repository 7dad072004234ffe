"""Slates that are not flushed yet: where they are named, and where they lie.

Between two flushes of an updater its changed slates are segments of a table of their own, in memory
and nowhere else (`warm.py`); the events that made them are in the checkpoint, as its log. Whoever
reads all slates takes both tables, the flushed one first; whoever finds that those in memory are
gone has the flushed ones, and the log.
"""

from __future__ import annotations

from millstream.state import warm
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import Storage

UNFLUSHED = "unflushed"  # the table of slates in memory
LOG = ("log", "log of timers", "log of alarms")  # what was applied since the last flush
WHEN, BATCH = "flushed", "flushed_batch"  # of the last flush, in the memos of a manifest

Tables = dict[str, dict[str, list[Segment]]]


def has_unflushed(tables: Tables) -> bool:
    """Whether some slates of an updater are in memory alone."""
    return any(tables.get(UNFLUSHED, {}).values())


def is_ahead_of_flush(tables: Tables) -> bool:
    """Whether something was applied that the flushed slates do not show."""
    return any(any(tables.get(table, {}).values()) for table in (UNFLUSHED, *LOG))


def both(tables: Tables, table: str) -> dict[str, list[Segment]]:
    """All segments of slates by shard, the oldest first."""
    flushed, newer = tables.get(table, {}), tables.get(UNFLUSHED, {})
    if not newer:
        return flushed
    return {
        shard: [*flushed.get(shard, []), *newer.get(shard, [])]
        for shard in flushed.keys() | newer.keys()
    }


def in_memory(state: Storage, tables: Tables, files: dict[str, SegmentFile]) -> bool:
    """Whether all that is in memory alone is there for this process, which keeps the state warm."""
    return all(
        warm.has(state, one.file, files[one.file].size)
        for segments in tables.get(UNFLUSHED, {}).values()
        for one in segments
    )

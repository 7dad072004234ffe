"""How the rows of stored tables lie, so that they can be dealt to another number of shards.

Every operator says it of its tables (`Operator.stored`), and a checkpoint keeps what was said with
the description of its program. So whoever deals rows anew (`run/resharding.py`) needs neither the
program nor to know what operators there are. Only where keys lie where a user's function says is
the program needed, for the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.ops.chunks import concat, numbers
from millstream.ops.keys.hashing import hash_keys, key_arrays
from millstream.ops.keys.partitioning import Shards
from millstream.state.bags import Order, added_up
from millstream.state.tables import newest
from millstream.state.traces import in_order

Placing = Callable[[pa.Table, int], Shards]  # rows, shards -> the shard of every row
FUNCTION = "function"  # where a user's function says
AGAIN = "again"  # nowhere: what is stored only saves work, and is computed again without it


@dataclass(frozen=True)
class Filed:
    """How the rows of one table lie."""

    lies: str  # in LIES: how the segments of a shard become one
    by: str  # the column whose smallest and largest value a segment is known by
    dealt: str  # in DEALT: from what the shard of a row follows
    order: tuple[Order, ...] = ()  # of the rows of a key, in a bag
    function: Placing | None = None  # the same, if it is a user's

    def told(self) -> list[Any]:
        """The same as a checkpoint keeps it."""
        return [self.lies, self.by, self.dealt, [astuple(one) for one in self.order]]

    def together(self, segments: list[pa.Table]) -> pa.Table | None:
        """Segments as one, those of each shard from the oldest to the newest."""
        return LIES[self.lies](segments, self)

    def shards(self, rows: pa.Table, shards: int) -> Shards | None:
        """The shard of every row; None if only the program can say it."""
        place = self.function if self.dealt == FUNCTION else DEALT[self.dealt]
        return None if place is None else place(rows, shards)


def sure(found: Shards, bad: dict[int, str]) -> Shards:
    """What a user's partition says of keys that are stored: of all of them."""
    if bad:
        raise CheckpointError(
            f"{next(iter(bad.values()))}; it is stored, so partition= must say where it belongs"
        )
    return found


Tables = dict[str, dict[str, Filed]]  # by the owner of a table, and its name


def filed(told: Any) -> Tables | None:
    """What a checkpoint keeps of this; None if that is nothing this version knows."""
    try:
        tables = {
            owner: {
                table: Filed(lies, by, dealt, tuple(Order(*one) for one in order))
                for table, (lies, by, dealt, order) in several.items()
            }
            for owner, several in told.items()
        }
    except (AttributeError, TypeError, ValueError):
        return None
    every = [one for several in tables.values() for one in several.values()]
    known = all(one.lies in LIES and one.dealt in (*DEALT, FUNCTION, AGAIN) for one in every)
    return tables if known else None


# -- which segments make one ----------------------------------------------------------------------


def _in_spans(segments: list[pa.Table], how: Filed) -> pa.Table:
    """All rows, in order of what segments are known by."""
    rows = concat(segments)
    return rows.take(pa.array(np.argsort(numbers(rows, how.by), kind="stable")))


LIES: dict[str, Callable[[list[pa.Table], Filed], pa.Table | None]] = {
    "spans": _in_spans,
    "newest": lambda segments, how: newest(segments),  # with tombstones: others look for them
    "trace": lambda segments, how: in_order(concat(segments)),
    "bag": lambda segments, how: added_up(concat(segments), how.order),
}


# -- where a row belongs --------------------------------------------------------------------------


def _modulo(numbers: np.ndarray[Any, Any], shards: int) -> Shards:
    found: Shards = (numbers % numbers.dtype.type(shards)).astype(np.int32)
    return found


def key_columns(rows: pa.Table) -> tuple[str, ...]:
    """The columns of a stored row that are its key, in order."""
    names = (name for name in rows.column_names if name.startswith("key."))
    return tuple(sorted(names, key=lambda name: int(name.removeprefix("key."))))


def _by_key(rows: pa.Table, shards: int) -> Shards:
    names = key_columns(rows)
    if not names:
        return _first(rows, shards)
    return _modulo(hash_keys(key_arrays(rows, names)) >> np.uint64(1), shards)


def _by_half(rows: pa.Table, shards: int) -> Shards:
    return _modulo(numbers(rows, "hash") >> np.uint64(1), shards)


def _by_match(rows: pa.Table, shards: int) -> Shards:
    """Rows of a join: by their key, and those without one by themselves."""
    null = numbers(rows, "null").astype(np.bool_)
    spread = np.where(null, numbers(rows, "who").astype(np.uint64), numbers(rows, "hash"))
    return _modulo(spread, shards)


def _first(rows: pa.Table, shards: int) -> Shards:
    return np.zeros(len(rows), np.int32)


DEALT: dict[str, Placing] = {
    "key": _by_key,  # the hash of its key columns, as it stands in the place of results
    "half": _by_half,  # the same, stored as `hash`
    "hash": lambda rows, shards: _modulo(numbers(rows, "hash"), shards),
    "group": lambda rows, shards: _modulo(numbers(rows, "group").view(np.uint64), shards),
    "match": _by_match,
    "name": lambda rows, shards: _modulo(numbers(rows, "name"), shards),  # the place of a result
    "first": _first,  # all in the first shard
}

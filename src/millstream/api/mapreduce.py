"""MapReduce jobs: classes with `map`, `reduce`, and if they can `combine` and `uncombine`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millstream.ops.codec import decode, decode_key, encode
from millstream.ops.holding import ObjectKernel, StateError
from millstream.ops.jobs import Window
from millstream.ops.records import describe, shown


class MapReduce:
    """A job over a stream. Subclass it; only `reduce` is required.

    `map` gets key, value and time of a record: for text its offset and the line; for the output of
    another job its key and value; after `key_by` the key and the record; otherwise None and the
    record as a dict. Keys and values are numbers, strings, booleans, None, dates, times, bytes, and
    sets, tuples, lists or dicts of them; they may differ from pair to pair.
    """

    def map(self, key: Any, value: Any, ts: Any) -> Iterable[tuple[Any, Any]]:
        """Pairs for one record."""
        yield key, value

    def combine(self, key: Any, values: list[Any]) -> Any:
        """Several values of a key as one; it may run any number of times, also never."""
        raise NotImplementedError

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        """What is left of a combined value without another: the inverse of `combine`."""
        raise NotImplementedError

    def reduce(self, key: Any, values: list[Any], window: Window) -> Iterable[tuple[Any, Any]]:
        """Pairs for one key and window; without `combine`, values are in the order of time."""
        raise NotImplementedError

    def can(self, method: str) -> bool:
        """Whether a subclass gives this method."""
        return getattr(type(self), method) is not getattr(MapReduce, method)


def combiner(job: MapReduce, name: str) -> ObjectKernel:
    """A job's `combine` as states of (packed key, value): the key travels along for the user."""

    def zero() -> Any:
        return None

    def add(state: Any, row: dict[str, bytes]) -> Any:
        value = decode(row["value"])
        if state is None:
            return [row["key"], value]
        return [row["key"], combined(row["key"], [state[1], value])]

    def combine(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return [left[0], combined(left[0], [left[1], right[1]])]

    def combined(key: bytes, values: list[Any]) -> Any:
        return combine_or_tell(name, job.combine, decode_key(key), values)

    def uncombine(total: Any, expired: Any) -> Any:
        return [total[0], job.uncombine(decode_key(total[0]), total[1], expired[1])]

    def finish(state: Any) -> Any:
        return state[1]

    inverse = uncombine if job.can("uncombine") else None
    return ObjectKernel(f"{name}.combine", zero, add, combine, finish, inverse, bare=finish)


def combine_or_tell(
    name: str, combine: Callable[[Any, list[Any]], Any], key: Any, values: list[Any]
) -> Any:
    """Several values as one, or an error that is of the key and not of one of its values."""
    try:
        return combine(key, values)
    except BaseException as error:  # a user's function may raise anything
        told = f"combine({shown(key)[:200]}, {shown(values)[:200]})"
        raise StateError(f"{name}.{told} raised {describe(error)}") from error


def pack_pairs(pairs: Iterable[tuple[Any, Any]] | None) -> list[dict[str, bytes]]:
    """What `map` gave as rows of packed keys and values."""
    rows = []
    for pair in pairs or ():
        key, value = pair
        rows.append({"key": encode(key), "value": encode(value)})
    return rows

"""MapReduce jobs: classes with `map`, `reduce`, and if they can `combine` and `uncombine`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.ops.aggregates.holding import ObjectKernel, StateError, never
from millstream.ops.codec import Keys, decode_key
from millstream.ops.records import describe, shown
from millstream.ops.windows.jobs import Window


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
    key_of = Keys()

    def gather(key: bytes, values: list[Any]) -> Any:
        return [key, values[0] if len(values) == 1 else combined(key, values)]

    def combine(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return [left[0], combined(left[0], [left[1], right[1]])]

    def combined(packed: bytes, values: list[Any]) -> Any:
        try:
            return job.combine(key_of[packed], values)
        except BaseException as error:  # a user's function may raise anything
            raise untold(name, packed, values, error) from error

    def uncombine(total: Any, expired: Any) -> Any:
        return [total[0], job.uncombine(key_of[total[0]], total[1], expired[1])]

    def finish(state: Any) -> Any:
        return state[1]

    inverse = uncombine if job.can("uncombine") else None
    return ObjectKernel(
        f"{name}.combine", nothing, never, combine, finish, inverse, bare=finish, gather=gather
    )


def nothing() -> None:
    """The state of a key without values."""


def untold(name: str, packed: bytes, values: list[Any], error: BaseException) -> StateError:
    """What a `combine` raised: it is of the key, and not of one of its values."""
    told = f"combine({shown(decode_key(packed))[:200]}, {shown(values)[:200]})"
    return StateError(f"{name}.{told} raised {describe(error)}")

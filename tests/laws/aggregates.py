"""Every built-in, and sample aggregates of users: what the laws are tried on."""

from __future__ import annotations

import random
from typing import Any

import millstream as ms


class Average(ms.Aggregate):
    """Numbers, with an inverse; states are tuples that come back as lists."""

    def zero(self) -> Any:
        return (0, 0.0)

    def add(self, state: Any, value: Any) -> Any:
        return (state[0] + 1, state[1] + value)

    def combine(self, left: Any, right: Any) -> Any:
        return (left[0] + right[0], left[1] + right[1])

    def uncombine(self, total: Any, expired: Any) -> Any:
        return (total[0] - expired[0], total[1] - expired[1])

    def result(self, state: Any) -> Any:
        return state[1] / state[0] if state[0] else None


class Histogram(ms.Aggregate):
    """Whole records, with an inverse, in place."""

    def zero(self) -> dict[str, int]:
        return {}

    def add(self, state: dict[str, int], record: dict[str, Any]) -> dict[str, int]:
        kind = str(record["s"])
        state[kind] = state.get(kind, 0) + 1
        return state

    def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        for kind, number in right.items():
            left[kind] = left.get(kind, 0) + number
        return left

    def uncombine(self, total: dict[str, int], expired: dict[str, int]) -> dict[str, int]:
        for kind, number in expired.items():
            total[kind] -= number
            if not total[kind]:
                del total[kind]
        return total

    def result(self, state: dict[str, int]) -> list[str]:
        return sorted(f"{kind}={number}" for kind, number in state.items())


class Widest(ms.Aggregate):
    """The range of values, with combine only."""

    def zero(self) -> list[float]:
        return []

    def add(self, state: list[float], value: float) -> list[float]:
        return [min([*state, value]), max([*state, value])]

    def combine(self, left: list[float], right: list[float]) -> list[float]:
        return [min(left + right), max(left + right)] if left + right else []

    def result(self, state: list[float]) -> float | None:
        return state[1] - state[0] if state else None


class Longest(ms.Aggregate):
    """Without combine."""

    def zero(self) -> str:
        return ""

    def add(self, state: str, value: str) -> str:
        return max(state, value, key=lambda text: (len(text), text))


WITH_INVERSE: dict[str, Any] = {
    "n": ms.count(),
    "n_x": ms.count("x"),
    "sum": ms.sum("x"),
    "whole": ms.sum("i"),
    "mean": ms.mean("x"),
    "var": ms.var("x"),
    "std": ms.std("x"),
    "top": ms.top_k("s", 2),
    "top_i": ms.top_k("i", 3),
    "top_by": ms.top_k("s", 2, by="x"),
    "top_by_i": ms.top_k("s", 2, by="i"),
    "distinct": ms.distinct("s"),
    "distinct_x": ms.distinct("x"),
    "average": Average("x"),
    "histogram": Histogram(),
}
EVERY: dict[str, Any] = {
    **WITH_INVERSE,
    "min": ms.min("x"),
    "max": ms.max("s"),
    "first": ms.first("s"),
    "last": ms.last("x"),
    "all": ms.collect("i"),
    "about": ms.distinct("i", approx=True),
    "median": ms.quantile("x", 0.5),
    "quantiles": ms.quantile("i", [0, 0.3, 1]),
    "widest": Widest("x"),
    "longest": Longest("s"),
}


def value(chance: random.Random) -> float | None:
    """Numbers of mixed sizes, and nulls."""
    return None if chance.random() < 0.1 else chance.choice([0.0, 1.5, -2.25, 1e3, 0.1, 7.0])


def record(chance: random.Random) -> dict[str, Any]:
    """What the aggregates above look at."""
    return {
        "s": chance.choice(["a", "b", "cc", "ä", "", None]),
        "i": chance.choice([1, 2, 3, None]),
        "x": value(chance),
    }

"""Rows that come, change and go, and what a reader makes of the changes a sink gets."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import millstream as ms

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
SCHEMA = "ts timestamp, id long, here boolean, g string, h long, v long, x double, s string"


def source(flow: ms.Flow, schema: str = SCHEMA, lateness: str = "1h") -> ms.Stream:
    made = ms.Generator(tuple, time="ts", lateness=lateness, schema=schema)
    return flow.source(made, name="in")


def objects(flow: ms.Flow) -> ms.Stream:
    """Rows that are there as long as the latest record of their object says so."""
    return source(flow).changes(key="id").where("here")


def records(rng: random.Random, count: int, ids: int = 12) -> list[Row]:
    """Records of objects, out of order; no two have the same time."""
    return [
        {
            "ts": START + timedelta(seconds=max(0, nth // 2 - rng.randrange(4)), microseconds=nth),
            "id": rng.randrange(ids),
            "here": rng.random() < 0.7,
            "g": rng.choice(["a", "b", "c"]),
            "h": rng.choice([1, 2, None]),
            "v": rng.choice([None, 1, 2, 3, 40]),
            "x": rng.choice([None, 0.1, 0.2, 0.3, 1e16, -1e16, 2.5, 1e-9]),
            "s": rng.choice([None, "p", "q", "r"]),
        }
        for nth in range(count)
    ]


def present(taken: list[Row]) -> list[Row]:
    """The rows that are there after some records, in the order of time and place."""
    latest: dict[int, Row] = {}
    for row in taken:
        if row["id"] not in latest or row["ts"] >= latest[row["id"]]["ts"]:
            latest[row["id"]] = row
    return sorted((row for row in latest.values() if row["here"]), key=lambda row: row["ts"])


class Table:
    """What changes come to, by a key; every change must fit what was there."""

    def __init__(self, *key: str) -> None:
        self.key, self.rows, self.taken = key, {}, 0

    def read(self, output: list[Row]) -> list[Row]:
        for row in output[self.taken :]:
            key = tuple(row[name] for name in self.key)
            assert (key in self.rows) == (row["op"] != "+"), row
            mine = {name: value for name, value in row.items() if name != "op"}
            if row["op"] == "u":
                assert not same(self.rows[key], mine), row
            if row["op"] == "-":
                assert same(self.rows.pop(key), mine), row
            else:
                self.rows[key] = mine
        self.taken = len(output)
        return list(self.rows.values())


class Bag:
    """What changes come to, where rows have no key."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.taken = 0

    def read(self, output: list[Row]) -> Counter[str]:
        for row in output[self.taken :]:
            one = as_text(row)
            if row["op"] == "-":
                assert self.rows[one] > 0, row
                self.rows[one] -= 1
            else:
                assert row["op"] == "+", row
                self.rows[one] += 1
        self.taken = len(output)
        return +self.rows


def as_text(row: Row) -> str:
    """A row as a bag counts it."""
    return repr(sorted((name, value) for name, value in row.items() if name != "op"))


def same(one: Any, other: Any) -> bool:
    """Equal values, NaN being equal to itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def close(one: Any, other: Any) -> bool:
    """The same but for the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float | int):
        return same(one, float(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return same(one, other)

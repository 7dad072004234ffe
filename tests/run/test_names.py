"""Columns, keys and aggregates may have any name: none of ours stands in their way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
NAMES = (
    *("values", "failed", "columns", "self", "aggs", "key", "value", "pane", "shard", "ts", "src"),
    *("pos", "sign", "size", "until", "number", "count", "hash", "check", "gone", "window", "name"),
    *("state", "rest", "half", "base", "__ts", "__src", "__pos", "row.x", "key.0", "value.x"),
    *("state.count().n", "_", "answer", "peak", "n", "revision", "final", "op", "with space", "é"),
)
WINDOWS = {
    "tumbling": ms.tumbling("10s"),
    "sliding": ms.sliding("16s", "2s"),
    "session": ms.session("3s"),
    "landmark": ms.landmark("10s"),
    "rows": ms.count_window(3),
}


class Longest(ms.Aggregate):
    """A state of its own kind, without an inverse."""

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return max(state, value)

    def combine(self, left: int, right: int) -> int:
        return max(left, right)


class Total(ms.Aggregate):
    """From kept values."""

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return state + value


KINDS = (ms.sum, ms.collect, Longest, Total)


def results(keys: list[str], answers: list[str], window: Any, emit: str) -> list[dict[str, Any]]:
    """All keys together, and every answer of a column that has the name of the answer."""
    flow = ms.Flow("names")
    options: dict[str, Any] = {"every_rows": 4} if emit == "early" else {}
    records = flow.source(ms.Generator(tuple, time="time", lateness="2s"), name="in")
    keyed = records.key_by(*keys).window(window, emit=emit, **options)
    aggs = {name: KINDS[at % len(KINDS)](name) for at, name in enumerate(answers)}
    keyed.agg(**aggs).sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp(), parallelism=2) as driver:
        for batch in range(3):
            rows = [
                {
                    "time": START + timedelta(seconds=5 * batch + i),
                    **dict.fromkeys(keys, i % 2),
                    **dict.fromkeys(answers, i),
                }
                for i in range(4)
            ]
            driver.push("in", rows).step()
        driver.end()
        assert driver.dead == []
        return driver.output("out")


@pytest.mark.parametrize(
    ("window", "emit"),
    variants(
        [("tumbling", "early"), ("tumbling", "delta"), *((one, "final") for one in WINDOWS)], 4
    ),
)
def test_results_do_not_depend_on_names(window: str, emit: str) -> None:
    taken = {"early": {"revision", "final"}, "delta": {"op"}}.get(emit, set())
    names = [name for name in NAMES if name not in taken]
    for keys, answers in ((names[::2], names[1::2]), (names[1::2], names[::2])):
        told = [f"k{at}" for at in range(len(keys))], [f"a{at}" for at in range(len(answers))]
        plain = results(*told, WINDOWS[window], emit)
        new = dict(zip((*told[0], *told[1]), (*keys, *answers), strict=True))
        assert plain
        expected = [{new.get(name, name): value for name, value in row.items()} for row in plain]
        assert results(keys, answers, WINDOWS[window], emit) == expected


def test_records_keep_columns_of_any_name() -> None:
    flow = ms.Flow("rows")
    records = flow.source(ms.Generator(tuple), name="in")
    mapped = records.map(lambda row: {name: value + 1 for name, value in row.items()})
    mapped.sink(ms.Memory(), name="mapped")
    records.sink(ms.Memory(), name="as it is")
    with Driver(flow, now=START.timestamp(), parallelism=2) as driver:
        driver.push("in", [dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 2)]).end()
        assert driver.output("mapped") == [dict.fromkeys(NAMES, 2), dict.fromkeys(NAMES, 3)]
        assert driver.output("as it is") == [dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 2)]

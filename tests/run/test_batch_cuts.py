"""Functions without a schema: which records share a batch changes no result and no dead letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver

START = datetime(2024, 1, 1, tzinfo=UTC)
VALUES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 2.5, float("inf")]),
    st.sampled_from(["", "a", "1", "2024-01-01T00:00:00Z"]),
    st.booleans(),
    st.none(),
    st.sampled_from([2**53 + 1, 2**63, 2**70]),
    st.sampled_from([Decimal("1.10"), Decimal("2.5"), date(2024, 1, 1), START, b"x"]),
    st.sampled_from([[1], ["a"], [1, "a"], {"x": 1}, {"y": "b"}, {"x": "c"}, []]),
)
Step = Callable[[ms.Stream], ms.Stream]


def by_key(stream: ms.Stream) -> ms.Stream:
    window = stream.key_by("v").window(ms.tumbling("4s"))
    return window.agg(n=ms.count(), all=ms.collect("w"), least=ms.min("w"), last=ms.last("w"))


def counted(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"key": event.key, "n": slate["n"], "v": event.value.get("w")}


STEPS: dict[str, Step] = {
    "as it is": lambda stream: stream,
    "where": lambda stream: stream.where("v > 1"),
    "where a column is there": lambda stream: stream.where("w IS NOT NULL OR v = 1"),
    "select": lambda stream: stream.select("v * 2 AS twice", "w"),
    "with_column": lambda stream: stream.with_column("more", "concat(v, w)"),
    "at": lambda stream: stream.at("v", behind="100000d"),
    "at a function": lambda stream: stream.at(lambda row: row["v"], behind="100000d"),
    "map": lambda stream: stream.map(lambda row: {"v": row["v"], "x": row.get("w")}),
    "process": lambda stream: stream.process(lambda event, ctx: event.value),
    "windows": by_key,
    "filtered keys": lambda stream: by_key(stream).where("v > 1"),
    "update": lambda stream: stream.key_by("v").update(counted, name="counted"),
    "distinct": lambda stream: stream.distinct("v"),
    "sum": lambda s: s.key_by().window(ms.tumbling("4s")).agg(t=ms.sum("v"), m=ms.mean("w")),
}


def told(value: Any) -> str:
    """A value with the types of all that is in it; numbers that are equal are one key."""
    if isinstance(value, dict):
        return repr(sorted((name, told(one)) for name, one in value.items() if one is not None))
    if isinstance(value, list):
        return repr([told(one) for one in value])
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{type(value).__name__} {value!r}"


def answers(
    step: Step, rows: list[dict[str, Any]], batch: int, parallelism: int
) -> tuple[Counter[str], Counter[tuple[str, ...]]]:
    flow = ms.Flow("cuts")
    source = flow.source(ms.Generator(tuple, time="ts"), name="in")
    given = source.map(lambda row: {name: v for name, v in rows[row["at"]].items() if name != "no"})
    step(given).sink(ms.Memory(), name="out")
    times = [{"ts": START + timedelta(seconds=at), "at": at} for at in range(len(rows))]
    start = START.timestamp()
    with Driver(flow, now=start, parallelism=parallelism, dead_letter_limit=1) as driver:
        for first in range(0, len(times), batch):
            driver.push("in", times[first : first + batch]).step()
        driver.end()
        found = Counter(map(told, driver.output("out")))
        dead = Counter((one["operator"], one["error"]) for one in driver.dead)
        for account in driver.ledger.values():
            ways = ("aggregated", "dead", "late", "diverted", "dropped")
            assert account["offered"] == sum(account[way] for way in ways)
    return found, dead


ROWS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"v": VALUES}, optional={"w": VALUES}),
        st.fixed_dictionaries({"v": st.integers(0, 3), "w": st.integers(0, 3)}),
    ),
    min_size=1,
    max_size=10,
)


def check_cuts(name: str, rows: list[dict[str, Any]], batch: int, parallelism: int) -> None:
    whole = answers(STEPS[name], rows, len(rows), 1)
    assert answers(STEPS[name], rows, batch, parallelism) == whole


@settings(max_examples=8)
@given(st.sampled_from(list(STEPS)), ROWS, st.integers(1, 5), st.sampled_from([1, 3]))
def test_batches_decide_nothing(
    name: str, rows: list[dict[str, Any]], batch: int, parallelism: int
) -> None:
    check_cuts(name, rows, batch, parallelism)


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=150)
@given(ROWS, st.integers(1, 5), st.sampled_from([1, 3]))
def test_batches_decide_nothing_about_many(
    name: str, rows: list[dict[str, Any]], batch: int, parallelism: int
) -> None:
    check_cuts(name, rows, batch, parallelism)

"""Sessions, landmarks and windows over rows or bytes against brute force, however input is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.variants import variants

BEGIN = datetime(1969, 12, 31, 23, 58, tzinfo=UTC)  # across the epoch
MICRO = timedelta(microseconds=1)
LONG = pytest.mark.long
Row = dict[str, Any]


class Sorted(ms.Aggregate):
    """A user's aggregate with a state per pane."""

    def zero(self) -> list[int]:
        return []

    def add(self, state: list[int], value: int) -> list[int]:
        return [*state, value]

    def combine(self, left: list[int], right: list[int]) -> list[int]:
        return left + right

    def result(self, state: list[int]) -> list[int]:
        return sorted(state)


class Total(ms.MapReduce):
    """A job with combine."""

    def map(self, key: Any, value: Row, ts: datetime) -> Any:
        yield value["k"], value["v"]

    def combine(self, key: str, values: list[int]) -> int:
        return sum(values)

    def reduce(self, key: str, values: list[int], window: ms.Window) -> Any:
        yield key, sum(values)


def records(seed: int) -> list[Row]:
    rng = random.Random(seed)
    rows, at = [], 0.0
    for _ in range(240):
        at += rng.choice([0, 0, 1, 1, 2, 7])
        rows.append(
            {
                "ts": BEGIN + timedelta(seconds=at),
                "k": rng.choice("abc"),
                "v": rng.randint(0, 9),
                "text": "é" * rng.randint(0, 5),
            }
        )
    return rows


def sessions(rows: list[Row], gap: timedelta) -> list[tuple[Any, Any, list[Row]]]:
    found: list[list[Row]] = []
    for row in rows:
        if found and row["ts"] - found[-1][-1]["ts"] < gap:
            found[-1].append(row)
        else:
            found.append([row])
    return [(s[0]["ts"], s[-1]["ts"] + gap, s) for s in found]


def landmarks(rows: list[Row], slide: timedelta) -> list[tuple[Any, Any, list[Row]]]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    ends = sorted({epoch + ((r["ts"] - epoch) // slide + 1) * slide for r in rows})
    return [(None, end, [r for r in rows if r["ts"] < end]) for end in ends]


def numbered(
    rows: list[Row], size: int, slide: int, weight: Callable[[Row], int]
) -> list[tuple[Any, Any, list[Row]]]:
    places, total = [], 0
    for row in rows:
        places.append(total)
        total += weight(row)
    windows = []
    for start in range(0, total, slide):
        held = [r for r, p in zip(rows, places, strict=True) if start <= p < start + size]
        if held:
            windows.append((held[0]["ts"], held[-1]["ts"] + MICRO, held))
    return windows


def in_order(windows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(windows, key=lambda w: (w[0], w[2], w[3]))


def size(row: Row) -> int:
    return 8 + len(row["k"]) + 8 + len(row["text"].encode())


KINDS: dict[str, tuple[Any, Callable[[list[Row]], list[tuple[Any, Any, list[Row]]]]]] = {
    "session": (ms.session("4s"), lambda rows: sessions(rows, timedelta(seconds=4))),
    "landmark": (ms.landmark("10s"), lambda rows: landmarks(rows, timedelta(seconds=10))),
    "count": (ms.count_window(10, 3), lambda rows: numbered(rows, 10, 3, lambda r: 1)),
    "count with gaps": (ms.count_window(3, 7), lambda rows: numbered(rows, 3, 7, lambda r: 1)),
    "bytes": (ms.bytes_window(100, 40), lambda rows: numbered(rows, 100, 40, size)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("parallelism", "cut"),
    variants([(3, 30), (1, 240), (2, 20), (1, 13), (2, 6)]),
)
def test_against_brute_force(kind: str, parallelism: int, cut: int) -> None:
    window, expected = KINDS[kind]
    rows = records(len(kind))
    flow = ms.Flow("kinds")
    files = ms.Files(
        "x",
        schema="ts timestamp, k string, v bigint, text string",
        time="ts",
        lateness="5s",
        follow=True,
    )
    stream = flow.source(files, name="in")
    aggs = {
        "n": ms.count(),
        "total": ms.sum("v"),
        "high": ms.max("v"),
        "first": ms.first("v"),
        "last": ms.last("v"),
        "all": ms.collect("v"),
        "sorted": Sorted("v"),
    }
    stream.key_by("k").window(window).agg(**aggs).sink(ms.Memory(), name="keyed")
    stream.key_by().window(window).agg(n=ms.count(), total=ms.sum("v")).sink(
        ms.Memory(), name="stream"
    )
    stream.key_by("k").window(window).reduce(
        lambda key, values, window: {"values": [v["v"] for v in values]}
    ).sink(ms.Memory(), name="reduced")
    if kind != "bytes":  # there the pair is the record
        stream.map_reduce(Total(), window).sink(ms.Memory(), name="job")
    with Driver(flow, parallelism=parallelism) as driver:
        for start in range(0, len(rows), cut):
            driver.push("in", rows[start : start + cut]).step()
            if start % 4 == 0:
                driver.restart()
        driver.end()
        out = {name: driver.output(name) for name in driver._sinks}
        ledger = driver.ledger
    want = [
        (key, start, end, [r["v"] for r in held])
        for key in "abc"
        for start, end, held in expected([r for r in rows if r["k"] == key])
    ]
    found = [(r["k"], r["window_start"], r["window_end"], r["all"]) for r in out["keyed"]]
    assert in_order(found) == in_order(want)
    for row in out["keyed"]:
        values = row["all"]
        assert (row["n"], row["total"], row["high"]) == (len(values), sum(values), max(values))
        assert (row["first"], row["last"], row["sorted"]) == (values[0], values[-1], sorted(values))
    reduced = [(r["k"], r["window_start"], r["window_end"], r["values"]) for r in out["reduced"]]
    assert in_order(reduced) == in_order(want)
    whole = [(end, len(held), sum(r["v"] for r in held)) for _, end, held in expected(rows)]
    stream_found = [(r["window_end"], r["n"], r["total"]) for r in out["stream"]]
    assert sorted(stream_found) == sorted(whole)
    if kind != "bytes":
        jobs = [(r["key"], r["window_end"], r["value"]) for r in out["job"]]
        assert sorted(jobs) == sorted((k, end, sum(v)) for k, _, end, v in want)
    ends = [row["window_end"] for row in out["keyed"]]
    assert ends == sorted(ends) or kind in ("count", "count with gaps", "bytes", "session")
    for account in ledger.values():
        ways = ("aggregated", "dead", "late", "diverted", "dropped")
        assert account["offered"] == sum(account[way] for way in ways)


@pytest.mark.parametrize(
    ("window", "before"),
    [
        (ms.count_window(4), None),
        (ms.count_window(5, 2), ms.tumbling("10s")),
        (ms.count_window(4), ms.session("4s")),
        (ms.bytes_window(90), ms.tumbling("10s")),
    ],
)
@pytest.mark.parametrize("cuts", [(240, 239, 50, 20), pytest.param((7, 1), marks=LONG)])
def test_unfilled_windows_at_the_end_are_late_for_nobody(
    window: Any, before: Any, cuts: tuple[int, ...]
) -> None:
    """However much of the input came in the last batch: a window further down has them all."""
    rows = records(5)
    for row in rows[30:]:  # some keys get nothing for long, while time goes on
        row["k"] = "c"

    def build() -> ms.Flow:
        flow = ms.Flow("unfilled")
        source = ms.Generator(list, time="ts", lateness="2s")
        stream = flow.source(source, name="in")
        if before is not None:
            stream = stream.key_by("k").window(before).agg(v=ms.sum("v"))
        counted = stream.where("v <> 3").key_by("k").window(window).agg(total=ms.sum("v"))
        minute = counted.key_by("k").window(ms.tumbling("10s"))
        minute.agg(n=ms.count(), total=ms.sum("total")).sink(ms.Memory(), name="out")
        counted.key_by("k").window(ms.session("3s")).agg(n=ms.count()).sink(
            ms.Memory(), name="visits"
        )
        return flow

    expected = reference(build(), {"in": rows})
    for cut in cuts:
        with Driver(build(), parallelism=1 + cut % 3) as driver:
            for start in range(0, len(rows), cut):
                driver.push("in", rows[start : start + cut]).step()
            driver.end()
            for sink in ("out", "visits"):
                assert in_order_of_rows(driver.output(sink)) == in_order_of_rows(expected[sink])
            assert not any(account.get("late", 0) for account in driver.ledger.values())


def in_order_of_rows(rows: list[Row]) -> list[str]:
    return sorted(" ".join(f"{name}={row[name]}" for name in sorted(row)) for row in rows)

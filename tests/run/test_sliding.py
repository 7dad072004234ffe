"""What is kept from batch to batch gives what the reference gives: late, sparse, cut, restarted."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.operators.windows import sliding
from millstream.run import faults
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same
from tests.differential.flows import Spread, Texts, Words
from tests.variants import variants

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
QUICK = settings(max_examples=4, derandomize=True)
LONG = settings(max_examples=1_500)
WINDOWS = [(8, 1), (12, 1), (9, 3), (10, 2), (20, 4), (24, 1), (30, 2), (11, 7)]


class Largest(ms.MapReduce):
    """The largest value of a key, with combine only."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield value["k"], value["v"]

    def combine(self, key: Any, values: list[Any]) -> Any:
        return max(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, max(values)


AGGREGATES: dict[str, dict[str, Any]] = {
    "extremes": {"low": ms.min("v"), "high": ms.max("x"), "text": ms.max("s")},
    "edges": {"first": ms.first("v"), "last": ms.last("s")},
    "mixed": {"high": ms.max("v"), "total": ms.sum("v"), "n": ms.count()},
    "users": {"spread": Spread("v"), "texts": Texts()},
    "tallies": {"top": ms.top_k("s", 2), "low": ms.min("v")},
    "running": {"total": ms.sum("v"), "n": ms.count(), "kinds": ms.distinct("s")},
}
JOBS = {"Largest": Largest, "Words": Words}
LIKE_THEM = ("edges", "mixed", "tallies", "Words")


def build(jobs: list[tuple[str, tuple[int, int]]], lateness: int) -> ms.Flow:
    flow = ms.Flow("sliding")
    files = ms.Files(
        "x",
        schema="ts timestamp, k bigint, k2 string, v bigint, x double, s string",
        time="ts",
        lateness=timedelta(seconds=lateness) if lateness else "0s",
        follow=True,
    )
    source = flow.source(files, name="in")
    for number, (what, (size, slide)) in enumerate(jobs):
        window = ms.sliding(timedelta(seconds=size), timedelta(seconds=slide))
        if what in JOBS:
            stream = source.map_reduce(JOBS[what](), window=window)
        else:
            stream = source.key_by("k").window(window).agg(**AGGREGATES[what])
        stream.sink(ms.Memory(), name=f"out{number}")
    return flow


@st.composite
def live(draw: Any) -> list[list[dict[str, Any]]]:
    """Batches of a stream that moves on by about a second each, with some disorder and silence."""
    now, keys, out = 0, draw(st.integers(1, 4)), []
    for _ in range(draw(st.integers(8, 40))):
        now += draw(st.sampled_from([0, 0, 1, 1, 1, 1, 2, 3, 9, 40]))
        rows = []
        for _ in range(draw(st.integers(0, 4))):
            back = draw(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 15]))
            rows.append(
                {
                    "ts": BEGIN + timedelta(seconds=max(0, now - back), milliseconds=len(rows)),
                    "k": draw(st.integers(1, keys)),
                    "k2": draw(st.sampled_from("ab")),
                    "v": draw(st.integers(-9, 9)),
                    "x": draw(st.sampled_from([0.5, -1.25, 3.0, float("nan"), None])),
                    "s": draw(st.sampled_from(["a", "b", "c", None])),
                }
            )
        out.append(rows)
    return out


runs = st.tuples(
    st.lists(
        st.tuples(st.sampled_from(sorted({**AGGREGATES, **JOBS})), st.sampled_from(WINDOWS)),
        min_size=1,
        max_size=3,
    ),
    live(),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 2, 4]),
    st.dictionaries(st.integers(1, 39), st.sampled_from([1, 2, 3]), max_size=4),
)


def drive(
    flow: ms.Flow, batches: list[list[dict[str, Any]]], parallelism: int, stops: dict[int, int]
) -> tuple[dict[str, Any], Counter[str]]:
    """Run a flow; before some batches go on from the checkpoint with another parallelism."""
    out: dict[str, Any] = {}
    used: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="millstream-") as place:
        driver = Driver(flow, parallelism=parallelism, checkpoint=place)
        for number, rows in enumerate(batches):
            if number in stops:
                take(driver, out)
                driver.close()
                driver = Driver(flow, parallelism=stops[number], checkpoint=place)
            driver.push("in", rows).step()
            used.update(driver.engine.manifest.strategies.values())
        driver.end()
        take(driver, out)
        driver.close()
    return out, used


def check(
    jobs: list[tuple[str, tuple[int, int]]],
    batches: list[list[dict[str, Any]]],
    lateness: int,
    parallelism: int,
    stops: dict[int, int],
) -> Counter[str]:
    expected = reference(build(jobs, lateness), batches=[{"in": rows} for rows in batches if rows])
    found, used = drive(build(jobs, lateness), batches, parallelism, stops)
    assert found.keys() == expected.keys()
    for sink, rows in expected.items():
        assert_same(found[sink], rows, scale=1.0, what=sink)
    return used


@pytest.fixture(autouse=True)
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """These streams are too small to gain anything; here what is kept is used all the same."""
    monkeypatch.setattr(sliding, "_GAIN", 0)
    monkeypatch.setattr(sliding, "_GAIN_STACKS", 0)


@QUICK
@given(runs)
def test_live_batches_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(runs)
def test_many_live_batches_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


def steady(count: int) -> list[list[dict[str, Any]]]:
    """A record of each of 6 keys a second, but keys 5 and 6 pause for long."""
    return [
        [
            {
                "ts": BEGIN + timedelta(seconds=i, milliseconds=k),
                "k": k,
                "k2": "a",
                "v": (i * 7919 + k * 31) % 101,
                "x": None,
                "s": None,
            }
            for k in range(1, 7)
            if k < 5 or i % 36 < 12
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize(
    "what", variants(("running", "Largest", "users", "extremes", *LIKE_THEM), 4)
)
def test_live_batches_slide_over_what_is_kept(what: str) -> None:
    used = check([(what, (12, 1))], steady(42), 0, 2, {17: 1, 38: 3})
    kept = "running values" if what == "running" else "kept stacks"
    assert used[kept] > 30
    assert set(used) == {"blocks", kept}


@pytest.mark.parametrize("back", variants([12, 1, 5]))
def test_a_late_record_reaches_what_is_kept(back: int) -> None:
    """It comes alone, so that no window leaves with it; then shards move between tasks."""
    batches = steady(46)
    for at in (25, 33, 41):
        late = dict(batches[at - back][2], v=1000, x=1000.0)
        batches[at:at] = [[late]]
    jobs = [(what, (16, 1)) for what in ("running", "extremes", "Largest")]
    check(jobs, batches, 0, 4, {27: 1, 30: 4, 36: 1, 44: 2})


class Crash(BaseException):
    """The driver is gone at this very point."""


@pytest.mark.parametrize(
    "point",
    [
        "after-manifest",
        pytest.param("tasks-done", marks=pytest.mark.long),
        pytest.param("before-manifest", marks=pytest.mark.long),
    ],
)
def test_a_crash_at_any_point_repeats_and_loses_nothing(point: str) -> None:
    jobs = [*((what, (16, 1)) for what in ("mixed", "running", "Largest")), ("extremes", (9, 3))]
    batches = steady(40)
    out: dict[str, Any] = {}
    crashes = {11, 17, 18, 30, 33, 37}  # the stacks flip about every 16 batches

    def fatal(here: str, batch: int) -> None:
        if here == point and batch in crashes:
            crashes.remove(batch)
            raise Crash

    with tempfile.TemporaryDirectory() as place, patch.object(faults, "crash_point", fatal):
        driver = Driver(build(jobs, 0), parallelism=2, checkpoint=place)
        for number, rows in enumerate(batches):
            driver.push("in", rows)
            try:
                driver.step()
            except Crash:
                take(driver, out)
                driver.close()
                driver = Driver(build(jobs, 0), parallelism=1 + number % 3, checkpoint=place)
                if driver.engine.manifest.batch < number:
                    driver.push("in", rows).step()
        driver.end()
        take(driver, out)
        driver.close()
    assert not crashes
    expected = reference(build(jobs, 0), batches=[{"in": rows} for rows in batches])
    for sink, rows in expected.items():
        assert_same(out[sink], rows, scale=1.0, what=sink)


def take(driver: Driver, out: dict[str, Any]) -> None:
    """Remember what the sinks of a driver got."""
    for sink in driver._sinks:
        out.setdefault(sink, []).extend(driver.output(sink))


@pytest.mark.parametrize("what", ["extremes", "running"])
def test_a_task_without_keys_in_the_window_may_slide_by_more_than_one(what: str) -> None:
    """One key keeps the window going; the others come back after a pause, in other shards."""
    batches = steady(30)
    for at in range(12, 30):  # only key 1, so that other tasks keep nothing of the last window
        batches[at] = [row for row in batches[at] if row["k"] == 1]
    one, *others = steady(31)[30]
    moved = [dict(one, ts=one["ts"] + timedelta(seconds=14))]  # closes windows the others are in
    later = [dict(one, ts=one["ts"] + timedelta(seconds=15))]
    check([(what, (9, 1))], [*batches, [*others, *moved], later], 0, 4, {31: 1})

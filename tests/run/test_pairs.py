"""What `map` gives is kept as it was when it was given, and `combine` gets many values at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

START = datetime(2024, 1, 1, tzinfo=UTC)


def run(job: Any, values: list[Any], window: Any = None) -> tuple[list[Any], list[Any]]:
    """The pairs a job gives for records {"v": ...} a second apart, in two batches; dead letters."""
    flow = ms.Flow("pairs")
    stream = flow.source(ms.Generator(tuple, time="ts"), name="in")
    stream.map_reduce(job, window).sink(ms.Memory(), name="out")
    half = len(values) // 2
    rows = [{"ts": START + timedelta(seconds=n), "v": v} for n, v in enumerate(values)]
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("in", rows[:half]).step()
        driver.push("in", rows[half:]).end()
        return [(row["key"], row["value"]) for row in driver.output("out")], driver.dead


class Listing(ms.MapReduce):
    """All values of a key, as they came."""

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
        yield key, values


def test_what_is_changed_after_it_was_given_is_as_it_was() -> None:
    class Growing(Listing):
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            so_far: list[int] = []
            for number in range(3):
                so_far.append(number)
                yield "all", so_far

    found, _ = run(Growing(), [1, 2])
    assert found == [("all", [[0], [0, 1], [0, 1, 2]] * 2)]


@pytest.mark.parametrize("bad", ["\ud800", object(), 1j])
@pytest.mark.parametrize("place", ["key", "value"])
def test_what_cannot_be_stored_takes_all_pairs_of_its_record(bad: Any, place: str) -> None:
    class Some(Listing):
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            yield "a", value["v"]
            if value["v"] == 2:
                yield (bad, 0) if place == "key" else ("a", bad)

    found, dead = run(Some(), [1, 2, 3, 4])
    assert found == [("a", [1, 3, 4])]
    assert [letter["operator"] for letter in dead] == ["Some.map"]
    assert "cannot be stored" in dead[0]["error"]
    assert '"v":2' in dead[0]["raw"]


def test_a_map_that_fails_late_gives_nothing() -> None:
    class Late(Listing):
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            yield "a", value["v"]
            yield "b", 10 // value["v"]

    found, dead = run(Late(), [1, 0, 2, 5])
    assert sorted(found) == [("a", [1, 2, 5]), ("b", [10, 5, 2])]
    assert [letter["error"] for letter in dead] == [
        "ZeroDivisionError: integer division or modulo by zero"
    ]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.0, True, "x", None, b"x", (1, 2), {"a": 1}, 2**70, START],
        [True, False, None, True],
        [1, 2, 3, None],
        [1.0, -0.0, 2.5, 1e300],
        ["a", "b", None, "c"],
        [b"a", b"b"],
        [2**64, 1, 2, 3],
        [None, None],
    ],
)
def test_values_arrive_as_they_were(values: list[Any]) -> None:
    class Told(Listing):
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            yield "all", values[value["v"]]

        def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
            yield key, [f"{type(one).__name__} {one!r}" for one in values]

    found, _ = run(Told(), list(range(len(values))))
    wanted = [list(one) if isinstance(one, tuple) else one for one in values]
    told = [f"{type(one).__name__} {one!r}" for one in wanted]
    assert found == [("all", told)]


@pytest.mark.parametrize("window", [None, ms.sliding("20s", "1s")])
def test_combine_gets_many_values_at_once(window: Any) -> None:
    class Counting(ms.MapReduce):
        calls = 0

        def map(self, key: Any, value: Any, ts: Any) -> Any:
            for number in range(50):
                yield "all", number

        def combine(self, key: Any, values: list[int]) -> int:
            type(self).calls += 1
            return sum(values)

        def reduce(self, key: Any, values: list[int], window: ms.Window) -> Any:
            yield key, sum(values)

    found, _ = run(Counting(), list(range(20)), window)
    assert max(value for _, value in found) == 20 * 50 * 49 // 2
    assert Counting.calls < (10 if window is None else 150)


def test_times_are_there_for_those_who_look() -> None:
    class Timed(Listing):
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            yield "all", (ts - value["ts"], ts)

    found, _ = run(Timed(), [1, 2])
    assert found == [("all", [[timedelta(0), START], [timedelta(0), START + timedelta(seconds=1)]])]

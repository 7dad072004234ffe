"""What a test of a flow can see and do by hand: time, lateness, dead letters, the ledger."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.api import frames
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)
NOW = START.timestamp()


def at(seconds: float, **columns: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=seconds), **columns}


def micros(seconds: float) -> int:
    return int((NOW + seconds) * 1e6)


def source(flow: ms.Flow, name: str = "in", **options: Any) -> ms.Stream:
    return flow.source(
        ms.Generator(tuple, **{"time": "ts", "lateness": "2s", **options}), name=name
    )


def counting(size: str = "10s", **options: Any) -> ms.Flow:
    flow = ms.Flow("counting")
    result = source(flow, **options).key_by().window(ms.tumbling(size)).agg(n=ms.count())
    result.sink(ms.Memory(), name="out")
    result.late().sink(ms.Memory(), name="late")
    return flow


def numbers(driver: Driver, sink: str = "out") -> list[tuple[float, int]]:
    """Results as (second the window ends at, n)."""
    rows = driver.output(sink)
    return [((row["window_end"] - START).total_seconds(), row["n"]) for row in rows]


def test_a_window_leaves_when_the_watermark_passes_its_end() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1), at(11.9)]).step()
        assert numbers(driver) == []
        assert driver.watermarks == {"agg": micros(9.9)}
        driver.push("in", [at(12)]).step()
        assert numbers(driver) == [(10, 1)]
        driver.end()
        assert numbers(driver) == [(10, 1), (20, 2)]


def test_a_record_is_late_only_when_its_window_has_left() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1), at(12)]).step()
        driver.push("in", [at(9, who="late"), at(10, who="in time")]).step()
        driver.end()
        assert [row["who"] for row in driver.output("late")] == ["late"]
        assert numbers(driver) == [(10, 1), (20, 2)]
        assert driver.ledger["agg"]["late"] == 1
        assert driver.ledger["agg"]["aggregated"] == 3


def test_late_is_what_lies_too_far_before_what_precedes_it_whatever_the_batches() -> None:
    with Driver(counting(lateness="0s"), now=NOW) as driver:
        driver.push("in", [at(100), at(1)]).step()
        assert driver.output("late") == [at(1)]
        driver.end()
        assert numbers(driver) == [(110, 1)]
    with Driver(counting(lateness="99s"), now=NOW) as driver:
        driver.push("in", [at(100), at(1)]).end()
        assert numbers(driver) == [(10, 1), (110, 1)]
        assert driver.output("late") == []


def test_a_record_in_a_gap_is_dropped_and_never_late() -> None:
    flow = ms.Flow("gaps")
    result = source(flow).key_by().window(ms.hopping("1s", "10s")).agg(n=ms.count())
    result.sink(ms.Memory(), name="out")
    result.late().sink(ms.Memory(), name="late")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0), at(5), at(40)]).step()
        driver.push("in", [at(5), at(0)]).step()
        assert driver.ledger["agg"]["dropped"] == 2
        assert driver.ledger["agg"]["late"] == 1
        assert len(driver.output("late")) == 1


def test_an_idle_source_does_not_hold_back_the_other() -> None:
    flow = ms.Flow("two")
    both = source(flow, "left").union(source(flow, "right"))
    both.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("left", [at(1)]).push("right", [at(2)]).step()
        driver.push("left", [at(50)]).step()
        assert numbers(driver) == []
        driver.advance("31s")
        driver.push("left", [at(51)]).step()
        assert numbers(driver) == [(10, 2)]


def test_a_source_that_never_spoke_holds_back_until_the_idle_timeout() -> None:
    flow = ms.Flow("two")
    both = source(flow, "left").union(source(flow, "right"))
    both.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("left", [at(1), at(50)]).step()
        assert numbers(driver) == []
        driver.advance("29s").step()
        assert numbers(driver) == []
        driver.advance("20s")
        driver.push("left", [at(60)]).step()
        assert numbers(driver) == [(10, 1)]


def test_a_silent_participant_does_not_hold_back_the_others() -> None:
    with Driver(counting(participant="who"), now=NOW) as driver:
        driver.push("in", [at(1, who="a"), at(1, who="b"), at(50, who="a")]).step()
        assert numbers(driver) == []
        driver.advance("31s")
        driver.push("in", [at(51, who="a")]).step()
        assert numbers(driver) == [(10, 2)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_records_of_participants_that_are_too_many_are_dead_letters(parallelism: int) -> None:
    flow = counting(participant="who")
    with Driver(flow, now=NOW, max_participants=3, parallelism=parallelism) as driver:
        driver.push("in", [at(1, who=who) for who in "abc"]).step()
        driver.push("in", [at(2, who="a"), at(2, who="e")])
        driver.push("in", [at(2, who="d"), at(2, who="b")]).step()
        assert [json.loads(letter["raw"])["who"] for letter in driver.dead] == ["e", "d"]
        assert (
            "participant='who' has more different values than max_participants=3. Name a column"
        ) in driver.dead[0]["error"]
        assert driver.engine.manifest.sources["in"].latest.keys() == set("abc")
        account = driver.ledger["in"]
        assert (account["offered"], account["aggregated"], account["dead"]) == (7, 5, 2)
        driver.end()
        assert numbers(driver) == [(10, 5)]


def test_two_tasks_together_see_too_many_participants() -> None:
    """The first by position take part, whichever task read them; some may be declared."""
    for declared in ((), ("d",)):
        flow = counting(participant="who", participants=declared)
        with Driver(flow, now=NOW, max_participants=3, parallelism=2) as driver:
            driver.push("in", [at(1, who="a"), at(1, who="b")])
            driver.push("in", [at(1, who="c"), at(1, who="d")]).step()
            known = driver.engine.manifest.sources["in"].latest.keys()
            assert known == ({"a", "b", "d"} if declared else {"a", "b", "c"})
            assert len(driver.dead) == 1


def test_a_time_far_ahead_of_the_clock_does_not_move_the_watermark() -> None:
    with Driver(counting(max_future_skew="1h"), now=NOW) as driver:
        driver.push("in", [at(1), at(7 * 86_400)]).step()
        assert driver.watermarks == {"agg": micros(1 - 2)}
        driver.push("in", [at(2)]).step()
        driver.end()
        assert numbers(driver) == [(10, 2), (7 * 86_400 + 10, 1)]
        assert driver.output("late") == []


def test_times_far_ahead_of_the_clock_are_counted() -> None:
    with Driver(counting(max_future_skew="1h"), now=NOW) as driver:
        driver.push("in", [at(1), at(3_600), at(3_601), at(7 * 86_400)]).step()
        assert driver.ledger["in"]["future"] == 2
        driver.push("in", [at(2), at(86_400)]).step()
        assert driver.ledger["in"]["future"] == 3
        account = driver.ledger["in"]
        assert (account["offered"], account["aggregated"]) == (6, 6)  # kept, and not set aside


def test_the_clock_closes_windows_of_arrival_time() -> None:
    flow = ms.Flow("arrival")
    stream = flow.source(ms.Generator(tuple), name="in")
    stream.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW + 3) as driver:
        driver.push("in", [{"v": 1}]).step()
        assert numbers(driver) == []
        assert not driver.step()
        driver.advance("7s")
        assert driver.step()
        assert numbers(driver) == [(10, 1)]
        driver.push("in", [{"v": 1}, {"v": 2}]).step()
        driver.advance("10s").step()
        assert numbers(driver) == [(10, 1), (20, 2)]


def test_by_arrival_nothing_is_late_also_if_the_clock_stands_still() -> None:
    """The engine's clock never does, so what is pushed then has come later than what it closed."""
    flow = ms.Flow("arrival")
    numbers = flow.source(ms.Generator(tuple, schema="k string, v bigint"), name="in")
    numbers.distinct("v").sink(ms.Memory(), name="once")
    numbers.key_by("k").update(
        lambda event, slate, ctx: slate.update(n=slate.get("n", 0) + 1), name="counts"
    )
    with Driver(flow, now=1000.0) as driver:
        for v in range(6):
            driver.push("in", [{"k": "a", "v": v}]).step()
            if v == 3:
                driver.restart()
        driver.end()
        assert [row["v"] for row in driver.output("once")] == [*range(6)]
        assert driver.slates("counts") == {"a": {"n": 6}}
        assert not any(account["late"] for account in driver.ledger.values())


def test_a_source_is_over_when_all_that_was_pushed_is_taken() -> None:
    """What an overload policy left waiting was late: windows had left as if nothing more came."""
    flow = ms.Flow("shed")
    policy = ms.drop(keep="oldest", when=64 * 20, until=1)
    spec = ms.Generator(tuple, time="ts", lateness="1000s", schema="ts bigint", overload=policy)
    numbers = flow.source(spec, name="in")
    numbers.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, batch_rows=10) as driver:
        for first in range(50, -1, -10):
            driver.push("in", [{"ts": NOW + first + n} for n in range(10)])
        driver.end()
        account, counted = driver.ledger["in"], driver.ledger["agg"]
        assert account["offered"] == 60 and account["dropped"] > 0
        assert account["aggregated"] > 10 and counted["late"] == 0
        assert sum(row["n"] for row in driver.output("out")) == account["aggregated"]


def test_results_of_a_window_reach_the_next_window() -> None:
    flow = ms.Flow("chain")
    counts = source(flow).key_by("k").window(ms.tumbling("1s")).agg(n=ms.count())
    total = counts.key_by().window(ms.tumbling("10s")).agg(n=ms.sum("n"), most=ms.max("n"))
    total.sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0, k="a"), at(0.5, k="a"), at(9.99, k="b"), at(11, k="a")]).step()
        assert numbers(driver) == []
        driver.push("in", [at(12, k="a")]).step()
        assert numbers(driver) == [(10, 3)]
        assert driver.output()[0]["most"] == 2


def test_a_record_on_which_a_function_fails_is_a_dead_letter() -> None:
    def inverse(row: dict[str, Any]) -> dict[str, Any]:
        return {"v": 1 / row["v"]}

    flow = ms.Flow("dead")
    source(flow).map(inverse).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0, v=2), at(1, v=0), at(2, v=4)]).end()
        assert [row["v"] for row in driver.output()] == [0.5, 0.25]
        (letter,) = driver.dead
        assert letter["operator"] == "map"
        assert letter["error"] == "ZeroDivisionError: division by zero"
        assert letter["source"] == "in"
        assert letter["offset"] == 1
        assert driver.ledger["map"]["dead"] == 1


def test_null_keys_are_dead_letters_or_a_key_of_their_own() -> None:
    rows = [at(0, k="a"), at(1, k=None)]
    for nulls, keys in (("dead", ["a"]), ("keep", ["a", None])):
        flow = ms.Flow("nulls")
        keyed = source(flow).key_by("k", nulls=nulls).window(ms.tumbling("10s"))
        keyed.agg(n=ms.count()).sink(ms.Memory(), name="out")
        with Driver(flow, now=NOW) as driver:
            driver.push("in", rows).end()
            assert sorted((row["k"] for row in driver.output()), key=str) == sorted(keys, key=str)
            assert len(driver.dead) == 2 - len(keys)


class Totals(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield key, value["v"]

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


def test_null_keys_of_a_mapreduce_job_follow_key_by() -> None:
    for nulls, dead in (("dead", 1), ("keep", 0)):
        flow = ms.Flow("nulls")
        keyed = source(flow).key_by("k", nulls=nulls)
        keyed.map_reduce(Totals(), ms.tumbling("10s")).sink(ms.Memory(), name="out")
        with Driver(flow, now=NOW) as driver:
            driver.push("in", [at(0, k="a", v=1), at(1, k=None, v=2)]).end()
            assert len(driver.output()) == 2 - dead
            assert len(driver.dead) == dead


def test_a_null_key_is_one_key_whatever_the_type_of_its_chunk() -> None:
    flow = ms.Flow("nulls")
    keyed = source(flow).key_by("k", nulls="keep").window(ms.tumbling("10s"))
    keyed.agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW, parallelism=4) as driver:
        driver.push("in", [at(0, k=None)]).step()
        driver.push("in", [at(0, k=None), at(0, k=5)]).step()
        driver.end()
        assert sorted((str(row["k"]), row["n"]) for row in driver.output()) == [
            ("5", 1),
            ("None", 2),
        ]


def test_a_whole_number_is_one_key_in_a_column_of_any_number_type() -> None:
    flow = ms.Flow("numbers")
    keyed = source(flow).key_by("k").window(ms.tumbling("10s"))
    keyed.agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW, parallelism=4) as driver:
        driver.push("in", [at(0, k=1)]).step()
        driver.push("in", [at(0, k=1), at(0, k=2.5)]).step()
        driver.end()
        assert sorted((row["k"], row["n"]) for row in driver.output()) == [(1, 2), (2.5, 1)]


def test_keys_of_types_that_cannot_meet_are_keys_of_their_own() -> None:
    flow = ms.Flow("mixed")
    keyed = source(flow).key_by("k").window(ms.tumbling("10s"))
    keyed.agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW, parallelism=2) as driver:
        driver.push("in", [at(0, k=1)]).step()
        driver.push("in", [at(0, k="1")]).step()
        driver.push("in", [at(0, k=1.0)]).step()
        driver.end()
        found = [(row["k"], row["n"]) for row in driver.output()]
    assert sorted(found, key=str) == [("1", 1), (1, 2)]


def test_lists_and_structs_are_keys() -> None:
    flow = ms.Flow("nested")
    keyed = source(flow).key_by("k").window(ms.tumbling("10s"))
    keyed.agg(n=ms.count(), all=ms.collect("v")).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW, parallelism=2) as driver:
        driver.push("in", [at(0, k=[2, 1], v=1), at(1, k=[1], v=2)]).step()
        driver.push("in", [at(2, k=[2, 1], v=3)]).step()
        driver.end()
        found = sorted((row["k"], row["n"], row["all"]) for row in driver.output())
        assert found == [([1], 1, [2]), ([2, 1], 2, [1, 3])]


def test_a_reduce_over_everything_without_keys() -> None:
    flow = ms.Flow("everything")
    source(flow).key_by().reduce(lambda key, rows, window: len(rows)).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0), at(1)]).end()
        assert driver.output() == [{"value": 2}]


def test_sorted_gives_keys_in_their_own_order() -> None:
    class Same(Totals):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["k"], 1

    for keys in (["bb", "a", "ccc", "b", "ab"], [1, -1, 300, -300, 5]):
        flow = ms.Flow("sorted")
        stream = source(flow).map_reduce(Same(), ms.tumbling("10s"), sorted=True)
        stream.sink(ms.Memory(), name="out")
        with Driver(flow, now=NOW, parallelism=2) as driver:
            driver.push("in", [at(0, k=key) for key in keys]).end()
            assert [row["key"] for row in driver.output()] == sorted(keys)  # type: ignore[type-var]


def test_late_pairs_of_a_mapreduce_job_can_be_read() -> None:
    flow = ms.Flow("late")
    result = source(flow).key_by("k").map_reduce(Totals(), ms.tumbling("10s"))
    result.sink(ms.Memory(), name="out")
    result.late().sink(ms.Memory(), name="late")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0, k="a", v=1), at(30, k="a", v=1)]).step()
        driver.push("in", [at(0, k="b", v=7)]).end()
        assert driver.output("late") == [{"key": '"b"', "value": "7"}]


def test_a_user_aggregate_without_column_and_combine_gets_records() -> None:
    class Widest(ms.Aggregate):
        def zero(self) -> float:
            return 0.0

        def add(self, state: float, record: dict[str, Any]) -> float:
            return max(state, record["high"] - record["low"])

    flow = ms.Flow("records")
    keyed = source(flow).key_by().window(ms.tumbling("10s"))
    keyed.agg(n=ms.count(), widest=Widest()).sink(ms.Memory(), name="out")
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0, low=1.0, high=4.0), at(1, low=2.0, high=2.5)]).end()
        assert driver.output()[0]["widest"] == 3.0


def balanced(driver: Driver) -> bool:
    ways = ("aggregated", "dead", "late", "diverted", "dropped")
    return all(a["offered"] == sum(a[way] for way in ways) for a in driver.ledger.values())


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_the_ledger_balances_at_every_commit(parallelism: int) -> None:
    def some(row: dict[str, Any]) -> dict[str, Any] | None:
        if row["v"] % 5 == 0:
            raise ValueError("no fives")
        return row if row["v"] % 3 else None

    flow = ms.Flow("ledger")
    records = source(flow, lateness="15s")
    keyed = records.map(some).where("v > 1").key_by("k").window(ms.hopping("3s", "5s"))
    result = keyed.agg(n=ms.count())
    result.sink(ms.Memory(), name="out")
    result.late().sink(ms.Memory(), name="late")
    with Driver(flow, now=NOW, parallelism=parallelism) as driver:
        for batch in range(5):
            rows = [
                at((batch * 7 + i * 13) % 40, k=None if i % 7 == 0 else i % 3, v=i)
                for i in range(20)
            ]
            driver.push("in", rows[:8]).push("in", rows[8:]).step()
            assert balanced(driver)
            assert driver.ledger["in"]["offered"] == 20 * (batch + 1)
        driver.end()
        assert balanced(driver)
        account = driver.ledger["agg"]
        assert account["late"] == len(driver.output("late"))
        assert all(account[way] > 0 for way in ("aggregated", "dead", "late", "dropped"))
        assert len(driver.dead) == sum(a["dead"] for a in driver.ledger.values())


def test_a_restart_goes_on_where_it_was() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1)]).step()
        driver.push("in", [at(2)])  # not taken in yet: gone with the crash
        driver.restart()
        driver.push("in", [at(3), at(20)]).step()
        assert numbers(driver) == [(10, 2)]
        assert driver.restart().state("agg") != []
        driver.end()
        assert numbers(driver) == [(10, 2), (30, 1)]


def test_state_is_dropped_when_its_windows_have_left() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1), at(2)]).step()
        assert len(driver.state("agg")) == 1
        driver.push("in", [at(30)]).step()
        assert [row["pane"] for row in driver.state("agg")] == [micros(30) // 10_000_000]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.push("other", [{}]), "there is no source 'other'"),
        (lambda d: d.output("other"), "there is no sink 'other'"),
    ],
)
def test_wrong_names_are_refused(call: Callable[[Driver], Any], message: str) -> None:
    with Driver(counting(), now=NOW) as driver, pytest.raises(ms.ConfigError, match=message):
        call(driver)


def test_a_key_that_is_too_long_for_windows_is_a_dead_letter() -> None:
    flow = ms.Flow("long")
    records = source(flow)
    records.key_by("k").window(ms.sliding("10s", "1s")).agg(n=ms.count()).sink(ms.Memory())
    long: dict[str, Any] = {"a": "x" * 2_000, "b": ["x" * 600, "y" * 600]}
    with Driver(flow, now=NOW) as driver:
        driver.push("in", [at(0, k="short"), at(1, k=long["a"])]).step()
        driver.push("in", [at(2, k=long["b"])]).end()
        assert {row["k"] for row in driver.output()} == {"short"}
        errors = [letter["error"] for letter in driver.dead]
    assert errors[0] == "the key has 2,000 bytes, more than max_key=1,024"
    assert "more than max_key=1,024" in errors[1] and len(errors) == 2


def test_errors_show_one_frame_of_ours_at_most(tmp_path: Path) -> None:
    flow = counting(schema="ts timestamp")
    (tmp_path / "in.csv").write_text("ts,x\n2026-01-05 09:30:00,1\n")
    naive = ms.Flow("naive")
    naive.source(ms.Files(tmp_path / "in.csv", time="ts")).sink(ms.Memory())

    def push() -> None:
        with Driver(flow, now=NOW) as driver:
            driver.push("nowhere", [at(1)])

    for wrong in (push, lambda: run_in_process(naive, tmp_path / "ck")):
        with pytest.raises(ms.MillstreamError) as caught:
            wrong()
        shown = traceback.extract_tb(caught.value.__traceback__)
        assert sum(one.filename.startswith(frames._HERE) for one in shown) <= 1

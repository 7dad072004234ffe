"""Windows that leave before they are complete: CMR's policies (4.5), fidelity, and what is late."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.ops.times.fidelity import joined, standings
from millstream.ops.times.progress import BEGIN, END, Horizon, SourceProgress
from millstream.testing import Driver
from millstream.testing.reference.closing import reference_evicting
from tests.variants import variants

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
START = NOON.timestamp() + 3600


def source(flow: ms.Flow, people: str = "ABC", **options: Any) -> ms.Stream:
    files = ms.Files(
        "nowhere",
        schema="ts timestamp, k string, who string, v bigint",
        time="ts",
        follow=True,
        participant="who",
        participants=tuple(people),
        **{"lateness": "0s", "idle_timeout": None, **options},
    )
    return flow.source(files, name="in")


def tumbling(close: ms.ClosingPolicy | None, **options: Any) -> ms.Flow:
    flow = ms.Flow("evicting")
    windows = source(flow, **options).key_by("k").window(ms.tumbling("5s"), close=close)
    windows.agg(n=ms.count()).sink(ms.Memory())
    return flow


def record(who: str, second: float, k: str = "x") -> dict[str, Any]:
    return {"ts": NOON + timedelta(seconds=second), "k": k, "who": who, "v": 1}


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Of every row: the second its window ends, its count and its figures."""
    return [
        (
            (row["window_end"] - NOON).total_seconds(),
            row["n"],
            round(row["fidelity"], 4),
            row["participants"],
            row["closed_by"],
        )
        for row in rows
    ]


# A is 25 % through [10, 15), B 85 % through [5, 10), C has failed 63 % through [0, 5): figure 4.4.
FIGURE = [("A", 1), ("A", 11.25), ("B", 2), ("B", 9.25), ("C", 3.15)]


def drive(driver: Driver, *moments: float) -> list[tuple[Any, ...]]:
    """What leaves when the clock is moved by so many seconds each time."""
    before = len(driver.output())
    for seconds in moments:
        driver.now += seconds
        while driver.step():
            pass
    return told(driver.output()[before:])


def test_a_window_leaves_when_nobody_works_on_it_any_more() -> None:
    with Driver(tumbling(ms.evict(failure_after="5s")), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 4) == []
        driver.push("in", [record("A", 11.5), record("B", 9.3)])  # they go on, C does not
        assert drive(driver, 1) == [(5, 3, round((1 + 1 + 0.63) / 3, 4), "3/3", "failure")]
        assert drive(driver, 3) == []  # B is still in the next one
        driver.push("in", [record("B", 10)])
        driver.step()  # B has passed it, C is still gone
        assert drive(driver, 0) == [(10, 2, 0.6667, "2/3", "failure")]


def test_a_window_leaves_after_its_time_and_the_next_gets_the_same_time() -> None:
    with Driver(tumbling(ms.evict(timeout="60s")), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 59) == []
        assert drive(driver, 1) == [(5, 3, 0.8767, "3/3", "timeout")]
        assert drive(driver, 59) == []
        assert drive(driver, 1) == [(10, 1, round((1 + 0.85 + 0) / 3, 4), "2/3", "timeout")]
        assert drive(driver, 60) == [(15, 1, round(0.25 / 3, 4), "1/3", "timeout")]


def test_windows_leave_once_enough_of_them_has_come() -> None:
    with Driver(tumbling(ms.evict(fidelity=0.6)), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 0) == [
            (5, 3, 0.8767, "3/3", "fidelity"),
            (10, 1, 0.6167, "2/3", "fidelity"),
        ]


def test_what_is_complete_leaves_whatever_the_policy_says() -> None:
    with Driver(tumbling(ms.evict(timeout="1h")), now=START) as driver:
        driver.push("in", [record(who, second) for who in "ABC" for second in (1, 6)]).step()
        assert told(driver.output()) == [(5, 3, 1.0, "3/3", "watermark")]
        driver.end()
        assert told(driver.output())[1:] == [(10, 3, 1.0, "3/3", "watermark")]


def test_records_for_an_evicted_window_are_late_by_participant_and_never_merged() -> None:
    flow = ms.Flow("evicting")
    agg = source(flow).key_by("k").window(ms.tumbling("5s"), close=ms.evict(timeout="10s"))
    counted = agg.agg(n=ms.count())
    counted.sink(ms.Memory(), name="out")
    counted.late().sink(ms.Memory(), name="late")
    with Driver(flow, now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        driver.advance("10s").step()
        late = [record("C", 4), record("C", 4.5), record("B", 9.5), record("C", 7)]
        driver.push("in", late).end()
        assert [row["n"] for row in driver.output("out")] == [3, 3, 1]
        assert driver.engine.manifest.late == {"agg": {"C": 2}}
        assert [row["who"] for row in driver.output("late")] == ["C", "C"]
        assert driver.ledger["agg"]["late"] == 2
        assert driver.ledger["agg"]["offered"] == 9 == driver.ledger["agg"]["aggregated"] + 2


def test_figures_without_a_policy() -> None:
    flow = ms.Flow("watermark")
    window = source(flow).key_by("k").window(ms.tumbling("5s"), fidelity=True)
    window.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow, now=START) as driver:
        driver.push("in", [record(who, second) for who in "ABC" for second in (1, 6)]).step()
        assert told(driver.output()) == [(5, 3, 1.0, "3/3", "watermark")]


def test_who_is_idle_does_not_hold_a_window_but_is_missing_in_it() -> None:
    with Driver(
        tumbling(ms.watermark() | ms.evict(timeout="1h"), idle_timeout="30s"), now=START
    ) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        driver.advance("20s").push("in", [record("A", 11.5), record("B", 9.3)]).step()
        assert drive(driver, 11) == [(5, 3, 0.8767, "3/3", "watermark")]


def test_a_downtime_is_nobodys_silence() -> None:
    policy = ms.evict(failure_after="5s") | ms.evict(timeout="60s")
    with Driver(tumbling(policy), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        driver.advance("2h").restart()
        assert drive(driver, 4) == []
        assert [one[-1] for one in drive(driver, 1)] == ["failure"] * 3


class Minutes(ms.ClosingPolicy):
    """A policy as users write it: at most so many participants may be missing."""

    def __init__(self, missing: int) -> None:
        self.missing = missing

    def closes(self, window: ms.OpenWindow) -> str | None:
        assert window.start is not None and window.end - window.start == timedelta(seconds=5)
        gone = [one.name for one in window.participants if not one.done]
        return f"without {','.join(gone)}" if len(gone) <= self.missing else None


def test_a_policy_of_ones_own() -> None:
    with Driver(tumbling(Minutes(1)), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 0) == [(5, 3, 0.8767, "3/3", "without C")]


class Broken(ms.ClosingPolicy):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def closes(self, window: ms.OpenWindow) -> str | None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit("no idea")])
def test_a_policy_that_fails_is_named(error: BaseException) -> None:
    with Driver(tumbling(Broken(error)), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        says = rf"agg: its closing policy .*{type(error).__name__}: no idea"
        with pytest.raises(RunError, match=says):
            driver.step()


def test_combinations() -> None:
    both = ms.evict(timeout="10s") & ms.evict(fidelity=0.5)
    assert str(both | ms.watermark()) == "evict(timeout=10s) & evict(fidelity=0.5) | watermark()"
    with Driver(tumbling(both), now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 9) == []
        assert drive(driver, 1) == [(5, 3, 0.8767, "3/3", "timeout+fidelity")]
        driver.push("in", [record("A", 100)])  # [5, 10) is at 62 %, [10, 15) at 33 %
        assert drive(driver, 30) == [(10, 1, 0.6167, "2/3", "timeout+fidelity")]


def test_what_there_is_so_far_can_be_evicted_too() -> None:
    flow = ms.Flow("landmark")
    window = source(flow).key_by("k").window(ms.landmark("5s"), close=ms.evict(timeout="10s"))
    window.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow, now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 10) == [(5, 3, 0.8767, "3/3", "timeout")]
        assert drive(driver, 10) == [(10, 4, 0.6167, "2/3", "timeout")]


def test_functions_have_the_figures_too() -> None:
    flow = ms.Flow("reduce")
    window = source(flow).key_by("k").window(ms.tumbling("5s"), close=ms.evict(timeout="10s"))
    window.reduce(lambda key, rows, window: {"n": len(rows)}).sink(ms.Memory())
    with Driver(flow, now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 10) == [(5, 3, 0.8767, "3/3", "timeout")]


def test_windows_over_windows_inherit_what_these_stand_on() -> None:
    flow = ms.Flow("nested")
    small = source(flow).key_by("k").window(ms.tumbling("5s"), close=ms.evict(timeout="10s"))
    results = small.agg(n=ms.count())
    results.where("n > 0").key_by("k").window(ms.tumbling("10s")).agg(n=ms.sum("n")).sink(
        ms.Memory()
    )
    with Driver(flow, now=START) as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        assert drive(driver, 10) == []
        # [0, 5) stood on 87.67 %, [5, 10) on 61.67 %; of [10, 20) nothing has come yet
        share = round(((1 + 1 + 0.63) / 3 + (1 + 0.85) / 3) / 2, 4)
        assert drive(driver, 10) == [(10, 4, share, "1/1", "watermark")]


def test_a_window_inherits_only_what_is_still_there() -> None:
    flow = ms.Flow("nested")
    small = source(flow).key_by("k").window(ms.tumbling("5s"), close=ms.evict(timeout="10s"))
    results = small.agg(n=ms.count())
    over = results.select("k", "n").key_by("k").window(ms.tumbling("10s")).agg(n=ms.sum("n"))
    own = results.key_by("k").window(ms.tumbling("10s")).agg(fidelity=ms.min("fidelity"))
    assert not over.node.fidelity and not own.node.fidelity


@pytest.mark.parametrize(
    ("window", "options", "said"),
    [
        (ms.session("5s"), {"close": ms.evict(timeout="1s")}, "ends with its last record"),
        (ms.count_window(5), {"fidelity": True}, "ends with a number of records"),
        (ms.tumbling("5s"), {"close": "60s"}, "expected a policy like"),
    ],
    ids=str,
)
def test_what_cannot_be(window: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        source(ms.Flow("x")).key_by("k").window(window, **options)


@pytest.mark.parametrize("given", [{}, {"fidelity": 0}, {"fidelity": 1.5}, {"fidelity": True}])
def test_an_eviction_says_when(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"evict\("):
        ms.evict(**given)


def test_names_are_taken() -> None:
    window = source(ms.Flow("x")).key_by("k").window(ms.tumbling("5s"), fidelity=True)
    with pytest.raises(ConfigError, match="fidelity"):
        window.agg(fidelity=ms.count())


# -- against the definition -----------------------------------------------------------------------

POLICIES = {
    "timeout": ms.evict(timeout="7s"),
    "fidelity": ms.evict(fidelity=0.7),
    "failure": ms.evict(failure_after="6s"),
    "any": ms.evict(timeout="15s", fidelity=0.95, failure_after="8s"),
    "both": ms.evict(timeout="4s") & ms.evict(fidelity=0.5),
}
WINDOWS = {
    "tumbling": (ms.tumbling("5s"), 1),
    "sliding": (ms.sliding("6s", "2s"), 3),
    "hopping": (ms.hopping("2s", "5s"), 2),
}


def random_steps(rng: random.Random, count: int) -> list[tuple[float, list[dict[str, Any]]]]:
    """Participants that go on at their own pace, fall silent and come back, a little jumbled."""
    at, now, steps = {who: rng.uniform(0, 4) for who in "ABC"}, START, []
    away = dict.fromkeys("ABC", 0)
    for _ in range(count):
        rows = []
        for who in "ABC":
            if away[who]:
                away[who] -= 1
                continue
            away[who] = rng.choice([0] * 8 + [6])
            for _ in range(rng.randint(0, 3)):
                at[who] += rng.choice([0.1, 0.5, 1.5, 9])
                second = round(at[who] - rng.choice([0, 0, 0.4, 2]), 1)
                rows.append(record(who, max(0.0, second), rng.choice("xy")))
        now += rng.choice([0.5, 1, 3])
        steps.append((now, rows))
    return steps


def as_set(rows: list[dict[str, Any]]) -> list[str]:
    exact = [{**row, "fidelity": round(row["fidelity"], 9)} for row in rows]
    return sorted(str(sorted((n, str(v)) for n, v in row.items())) for row in exact)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("policy", POLICIES)
def test_random_steps_against_the_reference(policy: str, kind: str) -> None:
    compare(policy, kind, WINDOWS[kind][1], 12, f"{policy} {kind}")


@pytest.mark.long
@pytest.mark.parametrize("number", range(200))
def test_many_random_steps_against_the_reference(number: int) -> None:
    rng = random.Random(number)
    policy, kind = rng.choice(list(POLICIES)), rng.choice(list(WINDOWS))
    compare(policy, kind, rng.randint(1, 4), 40, f"{policy} {kind} {number}")


def compare(policy: str, kind: str, parallelism: int, count: int, seed: str) -> None:
    """What leaves at every step, and who was late, is what the definition says."""
    flow = ms.Flow("random")
    stream = source(flow, lateness="1s")
    windows = stream.key_by("k").window(WINDOWS[kind][0], close=POLICIES[policy])
    first = windows.agg(n=ms.count()).named("first")
    first.sink(ms.Memory(), name="one")
    second = first.key_by("k").window(ms.tumbling("10s"), close=ms.evict(timeout="20s"))
    second.agg(n=ms.sum("n")).named("second").sink(ms.Memory(), name="two")
    for number in range(10):  # until something is evicted
        steps = random_steps(random.Random(f"{seed} {number}"), count)
        expected, late = reference_evicting(flow, steps, START)
        left = [row["closed_by"] for step in expected for row in step["first"]]
        if set(left) - {"watermark"}:
            break
    else:
        pytest.fail(f"{seed}: nothing was ever evicted")
    with Driver(flow, now=START, parallelism=parallelism) as driver:
        seen = {"one": 0, "two": 0}
        for number, (now, rows) in enumerate(steps):
            driver.now = now
            driver.push("in", rows).step()
            for sink, step in (("one", "first"), ("two", "second")):
                came = driver.output(sink)[seen[sink] :]
                seen[sink] += len(came)
                assert as_set(came) == as_set(expected[number][step]), (seed, number, step)
        found = driver.engine.manifest.late.get("first", {})
        assert found == late["first"]
        assert sum(found.values()) == driver.ledger["first"]["late"]


# -- looked at before they leave ------------------------------------------------------------------


def stepped(flow: ms.Flow, steps: Any, parallelism: int) -> tuple[list[Any], dict[str, Any]]:
    """What leaves at every step and at the end, and who was late."""
    with Driver(flow, now=START, parallelism=parallelism) as driver:
        each, seen = [], 0
        for now, rows in steps:
            driver.now = now
            driver.push("in", rows).step()
            each.append(driver.output()[seen:])
            seen += len(each[-1])
        driver.end()
        return [*each, driver.output()[seen:]], driver.engine.manifest.late


@pytest.mark.parametrize("emit", variants(["delta", "early"]))
@pytest.mark.parametrize("policy", POLICIES)
def test_windows_that_are_looked_at_leave_as_if_they_were_not(policy: str, emit: str) -> None:
    compare_looks(policy, random.Random(policy).choice(list(WINDOWS)), emit, 2, 15, policy)


@pytest.mark.long
@pytest.mark.parametrize("number", range(60))
def test_many_windows_that_are_looked_at(number: int) -> None:
    rng = random.Random(number)
    chosen = [rng.choice(list(of)) for of in (POLICIES, WINDOWS, ("early", "delta"))]
    compare_looks(*chosen, rng.randint(1, 4), 40, f"looked at {number}")


def compare_looks(
    policy: str, kind: str, emit: str, parallelism: int, count: int, seed: str
) -> None:
    def flow(**options: Any) -> ms.Flow:
        made = ms.Flow("looked")
        keyed = source(made, lateness="1s").key_by("k")
        windows = keyed.window(WINDOWS[kind][0], close=POLICIES[policy], **options)
        windows.agg(n=ms.count()).named("first").sink(ms.Memory())
        return made

    steps = random_steps(random.Random(seed), count)
    expected, late = stepped(flow(), steps, parallelism)
    options = {"every_rows": 3} if emit == "early" else {}
    found, also_late = stepped(flow(emit=emit, **options), steps, parallelism)
    assert also_late == late, seed
    table: dict[Any, Any] = {}
    for number, (rows, wanted) in enumerate(zip(found, expected, strict=True)):
        assert all(0 <= row["fidelity"] <= 1 for row in rows)
        if emit == "early":
            final = [row for row in rows if row.pop("final")]
            assert all(row["closed_by"] for row in final)
            for row in final:
                row.pop("revision")
            assert as_set(final) == as_set(wanted), (seed, number)
            continue
        for row in sorted(rows, key=lambda one: one["op"] != "-"):
            key = (row["k"], row["window_end"])
            if row.pop("op") == "-":
                assert table.pop(key) == row
            else:
                table[key] = row
        left = [row for row in table.values() if row["closed_by"] is not None]
        so_far = [row for step in expected[: number + 1] for row in step]
        assert as_set(left) == as_set(so_far), (seed, number)


# -- who takes part -------------------------------------------------------------------------------


def test_files_that_go_on_take_part_and_so_do_those_that_wait() -> None:
    horizon = Horizon(unread=50, files={0: 100, 3: 80}, heard={0: 7, 3: 9})
    found = standings(["in"], {"in": SourceProgress(10, horizon=horizon)}, {})
    assert [(one.who, one.at, one.passed, one.heard) for one in found] == [
        (0, 100, 90, 7),
        (3, 80, 70, 9),
        ("files that wait", 50, 40, 0),
    ]


def test_a_source_without_participants_is_one() -> None:
    by_arrival = SourceProgress(0, horizon=Horizon(clock=5))
    ended = SourceProgress(None, ended=True)
    nothing = SourceProgress(3)
    found = standings(["a", "b", "c", "w"], {"a": by_arrival, "b": ended, "c": nothing}, {"w": 9})
    assert [(one.source, one.at) for one in found] == [("a", 5), ("b", END), ("c", BEGIN), ("w", 9)]


def test_very_many_ranges_of_panes_are_joined_where_they_are_nearest() -> None:
    ranges = [(at * 10, at * 10) for at in range(1001)]
    ranges[500] = (4991, 5000)
    found = joined(ranges)
    assert len(found) == 1000 and (4990, 5000) in found


def test_a_policy_that_hangs_is_given_up_and_named() -> None:
    never = threading.Event()

    class Asks(ms.ClosingPolicy):
        def closes(self, window: ms.OpenWindow) -> str | None:
            never.wait(60)
            return None

        def __repr__(self) -> str:
            return "Asks()"

    with Driver(tumbling(Asks()), now=START, function_timeout="1s") as driver:
        driver.push("in", [record(*one) for one in FIGURE]).step()
        with pytest.raises(RunError, match=r"its closing policy Asks\(\) hangs"):
            driver.step()
        never.set()


def test_a_record_at_the_very_start_of_a_window_is_one_of_it() -> None:
    """CMR, 4.5: progress is how far into the window somebody is, here not at all; but it is there.

    By hand: A is 2.5 s into [0, 5), which is 50 %, B at its start, C not there: 0.5 / 3.
    """
    with Driver(tumbling(ms.evict(timeout="1s")), now=START) as driver:
        driver.push("in", [record("A", 0), record("A", 2.5), record("B", 0)]).step()
        driver.advance("2s").step()
        driver.step()
        assert told(driver.output()) == [(5.0, 3, 0.1667, "2/3", "timeout")]

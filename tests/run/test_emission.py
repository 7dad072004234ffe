"""Early results are refined until final; deltas always add up to the final answer."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.api.windows import WHOLE
from millstream.errors import ConfigError
from millstream.testing import Driver, reference
from tests.variants import variants

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
WINDOWS = {"tumbling": ms.tumbling("10s"), "sliding": ms.sliding("10s", "5s")}


def records(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "ts": BEGIN + timedelta(seconds=i * 0.5 + rng.uniform(0, 4.5)),
            "k": rng.choice("ab"),
            "v": rng.randint(0, 9),
        }
        for i in range(200)
    ]


def source(flow: ms.Flow) -> ms.Stream:
    files = ms.Files(
        "nowhere", schema="ts timestamp, k string, v bigint", time="ts", lateness="5s", follow=True
    )
    return flow.source(files, name="in")


def drive(
    flow: ms.Flow, seed: int, parallelism: int, cut: int = 8, most: int = 200
) -> dict[str, list[dict[str, Any]]]:
    rows = records(seed)[:most]
    with Driver(flow, parallelism=parallelism) as driver:
        for number, start in enumerate(range(0, len(rows), cut)):
            driver.push("in", rows[start : start + cut]).step()
            driver.advance("4s")
            if number % 4 == 0:
                driver.restart()
        driver.end()
        return {name: driver.output(name) for name in driver._sinks}


def by_window(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {(row["k"], row["window_start"]): row for row in rows}


@pytest.mark.parametrize(
    ("kind", "parallelism", "when"),
    variants(
        [
            ("tumbling", 3, {"every": "30s"}),
            ("sliding", 1, {"every_rows": 20}),
            ("tumbling", 3, {"every_event": "5s"}),
            ("sliding", 1, {"every": "30s"}),
            ("tumbling", 3, {"every_rows": 20}),
            ("sliding", 1, {"every_event": "5s"}),
        ],
        4,
    ),
)
def test_early_results_are_refined_until_final(
    kind: str, parallelism: int, when: dict[str, Any]
) -> None:
    flow = ms.Flow("early")
    keyed = source(flow).key_by("k")
    aggs = {"n": ms.count(), "total": ms.sum("v"), "all": ms.collect("v")}
    keyed.window(WINDOWS[kind]).agg(**aggs).sink(ms.Memory(), name="final")
    early = keyed.window(WINDOWS[kind], emit="early", **when)
    early.agg(**aggs).sink(ms.Memory(), name="early")
    early.reduce(lambda key, rows, window: {"n": len(rows)}).sink(ms.Memory(), name="reduced")
    out = drive(flow, 3, parallelism, most=120)
    final = by_window(out["final"])
    for sink in ("early", "reduced"):
        last: dict[Any, dict[str, Any]] = {}
        for row in out[sink]:
            name = (row["k"], row["window_start"])
            before = last.get(name)
            assert row["revision"] == (before["revision"] + 1 if before else 0)
            assert not (before and before["final"])
            last[name] = row
        assert last.keys() == final.keys()
        assert all(row["final"] and row["n"] == final[name]["n"] for name, row in last.items())
        assert any(not row["final"] for row in out[sink])
    assert {n: r["all"] for n, r in by_window(out["early"]).items()} == {
        n: r["all"] for n, r in final.items()
    }


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("seed", variants([1, 2, 0, 3]))
def test_deltas_add_up_here_and_further_down(kind: str, seed: int) -> None:
    flow = ms.Flow("deltas")
    keyed = source(flow).key_by("k")
    aggs = {"n": ms.count(), "total": ms.sum("v")}
    totals = {"n": ms.sum("n"), "mean": ms.mean("total"), "windows": ms.count()}
    final = keyed.window(WINDOWS[kind]).agg(**aggs)
    delta = keyed.window(WINDOWS[kind], emit="delta").agg(**aggs)
    for name, stream in (("final", final), ("delta", delta)):
        stream.sink(ms.Memory(), name=name)
        below = stream.map(lambda row: row | {"total": row["total"] * 2})
        below.key_by().window(ms.tumbling("20s")).agg(**totals).sink(
            ms.Memory(), name=f"{name} totals"
        )
    out = drive(flow, seed, 1 + seed % 3, most=120)
    current: dict[Any, Any] = {}
    for row in out["delta"]:
        name = (row["k"], row["window_start"])
        assert (row["op"] == "+") == (name not in current)
        current[name] = (row["n"], row["total"])
    assert current == {n: (r["n"], r["total"]) for n, r in by_window(out["final"]).items()}
    assert "u" in {row["op"] for row in out["delta"]}
    assert out["delta totals"] == out["final totals"]


def test_a_wall_clock_period_fires_without_new_records() -> None:
    flow = ms.Flow("quiet")
    early = source(flow).key_by("k").window(ms.tumbling("1h"), emit="early", every="10s")
    early.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", records(0)[:5]).step()
        assert driver.output() == []
        assert not driver.step()
        driver.advance("11s")
        assert driver.step()
        assert sum(row["n"] for row in driver.output()) == 5
        driver.advance("11s")
        assert not driver.step()  # nothing changed: nothing to say


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"emit": "often"}, 'use "final", "early" or "delta"'),
        ({"emit": "early"}, "say when"),
        ({"emit": "final", "every": "1s"}, 'go with emit="early"'),
        ({"emit": "early", "every_rows": 0}, "whole number from 1"),
        ({"emit": "early", "every": "soon"}, "is not a duration"),
    ],
)
def test_mistakes_are_explained(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        source(ms.Flow("x")).key_by("k").window(ms.tumbling("1m"), **options)


@pytest.mark.parametrize(
    ("keys", "aggs", "says"),
    [(("op",), {"n": ms.count()}, "key 'op'"), ((), {"n": ms.count("op")}, r"n=count\(op\)")],
)
def test_the_mark_of_a_change_is_not_for_windows(keys: Any, aggs: Any, says: str) -> None:
    flow = ms.Flow("x")
    delta = source(flow).key_by("k").window(ms.tumbling("1m"), emit="delta").agg(n=ms.count())
    delta.key_by(*keys).window(ms.tumbling("5m")).agg(**aggs).sink(ms.Memory())
    with pytest.raises(ConfigError, match=says):
        Driver(flow)


def test_a_column_of_ones_own_may_be_called_op() -> None:
    flow = ms.Flow("own")
    delta = source(flow).key_by("k").window(ms.tumbling("5s"), emit="delta").agg(n=ms.count())
    own = delta.map(lambda row: {"op": f"{row['n'] % 2}", "n": row["n"]})
    own.key_by("op").window(ms.tumbling("1h")).agg(n=ms.sum("n")).sink(ms.Memory(), name="out")
    expected = reference(flow, {"in": records(1)})["out"]
    assert shown(drive(flow, 1, 2, cut=20)["out"]) == shown(expected)


class Path(ms.Aggregate):
    """The order of values, without combine."""

    def zero(self) -> str:
        return ""

    def add(self, state: str, value: Any) -> str:
        return f"{state}>{value}"


class Highest(ms.Aggregate):
    """With combine, and no inverse."""

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return max(state, value)

    def combine(self, left: int, right: int) -> int:
        return max(left, right)


def test_every_aggregate_over_changes_is_that_of_the_final_results() -> None:
    flow = ms.Flow("all")
    keyed = source(flow).key_by("k")
    exact = {"a": 1e16, "b": 0.1}
    delta = keyed.window(ms.tumbling("3s"), emit="delta").agg(n=ms.count(), v=ms.max("v"))
    scaled = delta.map(lambda row: row | {"x": exact[row["k"]] * row["n"], "d": row["window_end"]})
    aggs = {
        "sum": ms.sum("x"),
        "mean": ms.mean("x"),
        "std": ms.std("n"),
        "var": ms.var("n"),
        "low": ms.min("x"),
        "high": ms.max("d"),
        "first": ms.first("n"),
        "last": ms.last("n"),
        "all": ms.collect("n"),
        "top": ms.top_k("v", 2),
        "most": ms.top_k("v", 2, by="x"),
        "kinds": ms.distinct("v"),
        "about": ms.distinct("v", approx=True),
        "middle": ms.quantile("n", [0.1, 0.5]),
        "path": Path("n"),
        "highest": Highest("n"),
    }
    for name, window in {**WINDOWS, **KINDS}.items():
        if name != "bytes":
            scaled.key_by("k").window(window).agg(**aggs).sink(ms.Memory(), name=f"over {name}")
    expected = reference(flow, {"in": records(2)[:120]})
    found = drive(flow, 2, 2, cut=11, most=120)
    for name in found:
        assert len(found[name]) > 3
        for column in aggs:
            given = [(r["k"], r["window_start"], r["window_end"], r[column]) for r in found[name]]
            want = [(r["k"], r["window_start"], r["window_end"], r[column]) for r in expected[name]]
            assert sorted(map(_text, given)) == sorted(map(_text, want)), (name, column)


class Picky(Highest):
    """Fails on some values."""

    def add(self, state: int, value: int) -> int:
        if value == 3:
            raise ValueError("three is refused")
        return super().add(state, value)


def test_values_an_aggregate_over_changes_fails_on_are_dead_letters() -> None:
    flow = ms.Flow("picky")
    delta = source(flow).key_by("k").window(ms.tumbling("3s"), emit="delta").agg(n=ms.count())
    delta.key_by().window(ms.tumbling("1h")).agg(all=ms.collect("n"), p=Picky("n")).sink(
        ms.Memory(), name="out"
    )
    delta.sink(ms.Memory(), name="changes")
    with Driver(flow, dead_letter_limit=1.0) as driver:
        driver.push("in", records(1)[:60]).end()
        (row,) = driver.output("out")
        given = [one["n"] for one in driver.output("changes")]
        assert 3 in given and sorted(row["all"]) == sorted(n for n in given if n != 3)
        assert len(driver.dead) == given.count(3)
        assert "three is refused" in driver.dead[0]["error"]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value)


def test_a_window_whose_results_are_all_taken_back_has_none() -> None:
    flow = ms.Flow("none")
    few = source(flow).key_by("k").window(ms.tumbling("2s"), emit="delta")
    alone = few.reduce(lambda key, rows, window: {"n": 1} if len(rows) < 2 else None)
    alone.key_by("k").window(ms.tumbling("4s")).agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        for second in (1, 5, 1.5, 20):
            row = {"ts": BEGIN + timedelta(seconds=second), "k": "a", "v": 1}
            driver.push("in", [row]).step()
        driver.end()
        assert [(r["window_end"].second, r["n"]) for r in driver.output()] == [(8, 1), (24, 1)]


def test_a_result_that_is_no_more_is_taken_back() -> None:
    flow = ms.Flow("gone")
    files = ms.Files("x", schema="ts bigint, day date", time="ts", lateness="30s", follow=True)
    keyed = flow.source(files, name="in").key_by("day")
    few = keyed.window(ms.tumbling("10s"), emit="delta").reduce(
        lambda key, rows, window: {"n": len(rows)} if len(rows) < 2 else None
    )
    few.sink(ms.Memory(), name="changes")
    few.key_by().window(ms.tumbling("1m")).agg(n=ms.sum("n"), windows=ms.count()).sink(
        ms.Memory(), name="minute"
    )
    day = datetime(2024, 1, 1, tzinfo=UTC).date()
    with Driver(flow) as driver:
        for second in (1, 12, 2, 90):
            driver.push("in", [{"ts": second, "day": day}]).step()
            driver.restart()
        driver.end()
        changes = [(row["op"], row["n"]) for row in driver.output("changes")]
        minutes = [(row["n"], row["windows"]) for row in driver.output("minute")]
    assert changes == [("+", 1), ("-", 1), ("+", 1), ("+", 1)]
    assert minutes == [(1, 1), (1, 1)]


def test_updates_of_keys_that_are_stored_as_text() -> None:
    flow = ms.Flow("dates")
    files = ms.Files("x", schema="ts bigint, day date", time="ts", lateness="30s", follow=True)
    counted = (
        flow.source(files, name="in")
        .key_by("day")
        .window(ms.tumbling("10s"), emit="delta")
        .agg(n=ms.count())
    )
    counted.sink(ms.Memory(), name="changes")
    counted.key_by().window(ms.tumbling("1m")).agg(n=ms.sum("n")).sink(ms.Memory(), name="minute")
    day = datetime(2024, 1, 1, tzinfo=UTC).date()
    with Driver(flow) as driver:
        for second in (1, 12, 2, 90):
            driver.push("in", [{"ts": second, "day": day}]).step()
        driver.end()
        assert [row["op"] for row in driver.output("changes")] == ["+", "u", "+", "+"]
        assert [row["n"] for row in driver.output("minute")] == [3, 1]


# -- sessions, landmarks, windows over rows and bytes ----------------------------------------------

KINDS = {
    "session": ms.session("3s"),
    "landmark": ms.landmark("4s"),
    "count": ms.count_window(7),
    "count overlapping": ms.count_window(9, 4),
    "count with gaps": ms.count_window(6, 8),
    "bytes": ms.bytes_window(120, 60),
}
AGGS = {"n": ms.count(), "total": ms.sum("v"), "all": ms.collect("v"), "high": ms.max("v")}


class Total(ms.MapReduce):
    """A job with combine."""

    def map(self, key: Any, value: dict[str, Any], ts: datetime) -> Any:
        yield value["k"], value["v"]

    def combine(self, key: str, values: list[int]) -> int:
        return sum(values)

    def reduce(self, key: str, values: list[int], window: ms.Window) -> Any:
        yield key, sum(values)


def three_ways(flow: ms.Flow, kind: str, **emit: Any) -> None:
    windowed = source(flow).key_by("k").window(KINDS[kind], **emit)
    windowed.agg(**AGGS).sink(ms.Memory(), name="with agg")
    windowed.reduce(lambda key, rows, window: {"path": [r["v"] for r in rows]}).sink(
        ms.Memory(), name="with reduce"
    )
    if kind != "bytes":  # there the packed pair is the record
        windowed.map_reduce(Total()).sink(ms.Memory(), name="with map_reduce")


def shown(rows: list[dict[str, Any]], *without: str) -> list[str]:
    plain = ({n: v for n, v in row.items() if n not in without} for row in rows)
    return sorted(" ".join(f"{name}={row[name]}" for name in sorted(row)) for row in plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seed", "when"),
    variants([(0, {"every": "15s"}), (1, {"every_rows": 20}), (2, {"every_event": "5s"})]),
)
def test_early_results_of_other_kinds(kind: str, seed: int, when: dict[str, Any]) -> None:
    flow = ms.Flow("early")
    three_ways(flow, kind, emit="early", **when)
    expected = reference(flow, {"in": records(seed)[:72]})
    for name, rows in drive(flow, seed, 1 + seed, cut=9, most=72).items():
        last = [row for row in rows if row["final"]]
        assert shown(last, "revision") == shown(expected[name])
        assert any(not row["final"] for row in rows)
        key = "key" if name == "with map_reduce" else "k"
        for row in [row for row in rows if not row["final"]]:
            assert [one for one in last if _refines(kind, key, one, row)], row
        _check_revisions(kind, key, rows)


def _refines(kind: str, key: str, final: dict[str, Any], early: dict[str, Any]) -> bool:
    """Whether an early result became this one."""
    same = final[key] == early[key] and final["revision"] > early["revision"]
    if kind == "landmark":
        return bool(same and final["window_end"] == early["window_end"])
    if kind == "session":  # it grew, and may have been joined with others
        starts_in = final["window_start"] <= early["window_start"]
        return bool(same and starts_in and early["window_end"] <= final["window_end"])
    return bool(same and final["window_start"] == early["window_start"])


def _check_revisions(kind: str, key: str, rows: list[dict[str, Any]]) -> None:
    if kind == "session":
        return
    seen: dict[Any, list[int]] = {}
    for row in rows:
        at = row["window_end"] if kind == "landmark" else row["window_start"]
        seen.setdefault((row[key], at), []).append(row["revision"])
    for revisions in seen.values():
        assert revisions == list(range(len(revisions)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", variants([0, 1]))
def test_changes_of_other_kinds_add_up(kind: str, seed: int) -> None:
    flow = ms.Flow("deltas")
    three_ways(flow, kind, emit="delta")
    expected = reference(flow, {"in": records(seed)[:90]})
    for name, rows in drive(flow, seed, 1 + seed, cut=10, most=90).items():
        key = "key" if name == "with map_reduce" else "k"
        current: dict[Any, list[str]] = {}
        for row in rows:
            held = current.setdefault((row[key], row["window_start"], row["window_end"]), [])
            (plain,) = shown([row], "op")
            if row["op"] == "-":
                held.remove(plain)  # it is equal to a row that was given before
            elif row["op"] == "u":
                assert len(held) == 1 and held != [plain]
                held[:] = [plain]
            else:
                held.append(plain)
        assert sorted(row for held in current.values() for row in held) == shown(expected[name])
        ops = {row["op"] for row in rows}
        if kind == "landmark":
            assert ops == {"+", "u"}
        else:
            assert ops >= {"+", "-"} and ("u" not in ops or kind == "session")


def test_sessions_that_a_late_record_joins_are_taken_back() -> None:
    flow = ms.Flow("visits")
    visits = source(flow).key_by("k").window(ms.session("2s"), emit="delta").agg(n=ms.count())
    visits.sink(ms.Memory())
    with Driver(flow) as driver:
        for second in (0, 3, 6, 1.5, 1.2, 20):
            row = {"ts": BEGIN + timedelta(seconds=second), "k": "a", "v": 1}
            driver.push("in", [row]).step()
            driver.restart()
        driver.end()
        found = [
            (r["op"], r["n"], r["window_start"].second, r["window_end"].second)
            for r in driver.output()
        ]
    assert found == [
        ("+", 1, 0, 2),
        ("+", 1, 3, 5),
        ("-", 1, 0, 2),  # 1.5 joins them
        ("-", 1, 3, 5),
        ("+", 3, 0, 5),
        ("u", 4, 0, 5),  # 1.2 is in it already
        ("+", 1, 6, 8),
        ("+", 1, 20, 22),
    ]


def test_a_late_record_moves_the_windows_over_records_after_it() -> None:
    flow = ms.Flow("rows")
    pairs = source(flow).key_by("k").window(ms.count_window(2), emit="delta").agg(v=ms.collect("v"))
    pairs.sink(ms.Memory())
    with Driver(flow) as driver:
        for second in (1, 2, 3, 4, 0):
            row = {"ts": BEGIN + timedelta(seconds=second), "k": "a", "v": second}
            driver.push("in", [row]).step()
            driver.restart()
        driver.end()
        found = [(r["op"], r["v"]) for r in driver.output()]
    assert found == [
        ("+", [1, 2]),
        ("+", [0, 1]),  # in the order of time
        ("-", [1, 2]),
        ("+", [2, 3]),
        ("+", [4]),
    ]


def test_over_the_whole_input_a_result_leaves_once() -> None:
    with pytest.raises(ConfigError, match=r"ms\.landmark"):
        source(ms.Flow("x")).key_by("k").window(WHOLE, emit="delta")


def test_what_was_taken_back_is_forgotten_when_segments_are_merged() -> None:
    flow = ms.Flow("often")
    files = ms.Files("x", schema="ts bigint, v bigint", time="ts", lateness="1h", follow=True)
    counted = flow.source(files, name="in").key_by().window(ms.tumbling("1s"), emit="delta")
    counts = counted.agg(n=ms.count())
    hours = counts.key_by().window(ms.tumbling("1h")).agg(n=ms.sum("n"), most=ms.max("n"))
    hours.named("hours").sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [{"ts": second, "v": 0} for second in range(11)]).step()
        for _ in range(60):  # each changes ten results
            driver.push("in", [{"ts": second, "v": 0} for second in range(10)]).step()
        kept = [row for row in driver.state("hours") if "weight" in row]
        assert 10 <= len(kept) < 300  # of 1,210 that came
        driver.end()
        assert [(row["n"], row["most"]) for row in driver.output()] == [(611, 61)]

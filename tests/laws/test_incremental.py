"""Results do not depend on how windows are computed, nor on how the input was cut or ordered."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.ops.chunks import Chunk, concat, decode_block, encode_block
from millstream.ops.times.spans import NOTHING_CLOSED, Span
from millstream.ops.windows.closing import close
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import merge_panes, prepare
from millstream.ops.windows.results import results
from millstream.ops.windows.running import PRESENCE, advance, can_run, disagreement, recompute
from millstream.testing import Driver
from millstream.testing.laws import alike
from millstream.testing.reference import aggregate
from tests.laws.aggregates import EVERY, WITH_INVERSE, record

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, k string, s string, i bigint, x double"
FIELDS = pa.schema([("k", pa.string()), ("s", pa.string()), ("i", pa.int64()), ("x", pa.float64())])
WINDOWS = {
    "tumbling": ms.tumbling("4s"),
    "sliding": ms.sliding("10s", "1s"),
    "hopping": ms.hopping("3s", "5s"),
    "session": ms.session("3s"),
    "landmark": ms.landmark("5s"),
    "count": ms.count_window(5, 2),
    "bytes": ms.bytes_window(100, 60),
}
seeds = st.integers(0, 2**32)


def stamped(chance: random.Random, count: int, panes: int) -> list[dict[str, Any]]:
    """Records of a few keys, each at a time of its own."""
    times = sorted(chance.sample(range(panes * 10), min(count, panes * 10)))
    return [{"ts": ts, "k": chance.choice("ab"), **record(chance)} for ts in times]


def family_of(aggs: dict[str, Any], size: int, step: int) -> Family:
    measures = tuple(agg.measure(name) for name, agg in aggs.items())
    job = WindowJob("job", ("k",), Span(size * 10, step * 10, unit=10), measures)
    return Family("all", (job,), (PRESENCE,))


def pieces(
    family: Family, rows: list[dict[str, Any]], chance: random.Random
) -> tuple[pa.Table | None, pa.Table | None]:
    """Rows cut anywhere, reduced piece by piece, the pieces in any order."""
    cuts = sorted(chance.sample(range(len(rows) + 1), min(3, len(rows))))
    panes, values = [], []
    for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = rows[low:high]
        table = pa.Table.from_pylist([{n: row[n] for n in FIELDS.names} for row in part], FIELDS)
        ts = np.array([row["ts"] for row in part], np.int64)
        chunk = Chunk(table, ts, np.arange(low, high), 0)
        prepared = prepare(family, chunk, {"job": NOTHING_CLOSED}, 4)
        assert not prepared.accounts["job"].dead
        if prepared.panes is not None:  # None if all are in the gaps between windows
            panes.append(prepared.panes)
            values.append(prepared.values)
    if not panes:
        return None, None
    chance.shuffle(panes)
    chance.shuffle(values)
    kept = concat(values) if family.holds else None
    return merge_panes(family, concat(panes)), kept


def check_splits(seed: int) -> None:
    """Any split, any order: what every window has by the definition of its aggregates."""
    chance = random.Random(seed)
    size, step = chance.choice([(4, 1), (12, 1), (9, 3), (5, 5), (2, 3), (7, 4)])
    rows = stamped(chance, chance.randint(1, 40), 30)
    family = family_of(EVERY, size, step)
    (job,) = family.jobs
    out, _, dead, _ = close(job, *pieces(family, rows, chance), NOTHING_CLOSED, 2**61, 0)
    assert not dead
    found = {
        (row["k"], end + 1): row for row, end in zip(out.table.to_pylist(), out.ts, strict=True)
    }
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        start = row["ts"] // (step * 10) * step * 10
        while start > row["ts"] - size * 10:
            groups.setdefault((row["k"], start + size * 10), []).append(row)
            start -= step * 10
    assert found.keys() == groups.keys()
    for at, inside in groups.items():
        for name, agg in EVERY.items():
            shown = [{n: row[n] for n in FIELDS.names} for row in inside]
            expected = aggregate(agg, shown)
            assert alike(found[at][name], expected, 1e-9, 1e3), (at, name, found[at][name])


def check_running(seed: int) -> None:
    """Windows that move by panes in and panes out have what recomputed windows have."""
    chance = random.Random(seed)
    size, step = chance.choice([(8, 1), (20, 1), (12, 3), (16, 2)])
    names = chance.sample(list(WITH_INVERSE), chance.randint(1, 4))
    rows = stamped(chance, chance.randint(1, 120), 60)
    family = family_of({name: WITH_INVERSE[name] for name in names}, size, step)
    (job,) = family.jobs
    assert can_run(job)
    panes, _ = pieces(family, rows, chance)
    assert panes is not None
    first = int(job.span.align_down(np.array([rows[0]["ts"] // 10 + 1]))[0])
    at, running = first, recompute(job, panes, first)
    while at < 60 + size:
        until = at + step * chance.randint(1, 6)
        running = decode_block(encode_block(running))  # as after a restart
        pane = np.asarray(panes.column("pane"))
        near = panes.filter(pa.array((pane >= at - size) & (pane < until)))
        advanced = advance(job, running, near, None, at, until)
        again, *_ = close(job, panes, None, at, until, 0)
        if advanced.sure:
            moved, _ = results(job, 0, advanced.found, advanced.answers)
            assert disagreement(job, moved, again, panes, "") is None
            running = advanced.running
        else:
            running = recompute(job, panes, until)
        at = until


def run(
    window: Any, batches: list[list[dict[str, Any]]], restarts: set[int]
) -> list[dict[str, Any]]:
    flow = ms.Flow("laws")
    source = ms.Files("x", schema=SCHEMA, time="ts", lateness="4s", follow=True)
    keyed = flow.source(source, name="in").key_by("k")
    (keyed.window(window) if window is not None else keyed).agg(**EVERY).sink(ms.Memory())
    with Driver(flow, debug=True) as driver:
        for number, batch in enumerate(batches):
            driver.push("in", batch)
            driver.step()
            if number in restarts:
                driver.restart()
        driver.end()
        assert not driver.dead
        assert sum(account.get("late", 0) for account in driver.ledger.values()) == 0
        return sorted(
            driver.output(), key=lambda row: (row["k"], str(row.get("window_end")), row["n"])
        )


def check_driver(seed: int, kind: str) -> None:
    """Batches, disorder within lateness and restarts do not show in the results."""
    chance = random.Random(seed)
    rows = stamped(chance, chance.randint(1, 60), 4)
    for row in rows:  # a second is one unit of time
        row["ts"] = BEGIN + timedelta(seconds=row["ts"])
    late = sorted(rows, key=lambda row: row["ts"] + timedelta(seconds=chance.uniform(0, 3.9)))
    cuts = sorted({0, len(late), *(chance.randint(0, len(late)) for _ in range(4))})
    batches = [late[low:high] for low, high in itertools.pairwise(cuts)]
    restarts = {number for number in range(len(batches)) if chance.random() < 0.4}
    found, expected = run(WINDOWS[kind], batches, restarts), run(WINDOWS[kind], [rows], set())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert alike(one, other, 1e-9, 1e3), (one, other)


@settings(max_examples=10, derandomize=True)
@given(seeds)
def test_any_split_and_any_order(seed: int) -> None:
    check_splits(seed)


@settings(max_examples=10, derandomize=True)
@given(seeds)
@example(1330610608)  # equal values: all that is left of the deviation is rounding
def test_running_values_are_what_recomputing_gives(seed: int) -> None:
    check_running(seed)


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=2, derandomize=True)
@given(seeds)
def test_disorder_and_restarts_do_not_show(kind: str, seed: int) -> None:
    check_driver(seed, kind)


@pytest.mark.long
@settings(max_examples=5_000)
@given(seeds)
def test_any_split_and_any_order_at_length(seed: int) -> None:
    check_splits(seed)


@pytest.mark.long
@settings(max_examples=5_000)
@given(seeds)
def test_running_values_are_what_recomputing_gives_at_length(seed: int) -> None:
    check_running(seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=150)
@given(seeds)
def test_disorder_and_restarts_do_not_show_at_length(kind: str, seed: int) -> None:
    check_driver(seed, kind)


# -- MapReduce -----------------------------------------------------------------------------------


class Words(ms.MapReduce):
    """Counts per word, with an inverse."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield value["s"], 1
        yield ("all", value["k"]), 1

    def combine(self, key: Any, values: list[Any]) -> Any:
        return sum(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield str(key), sum(values)


class WordsBack(Words):
    """The same with an inverse."""

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        return total - expired


class WordsWrong(Words):
    """An inverse that is none."""

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        return total - expired + 1


def count_words(job: ms.MapReduce, **options: Any) -> tuple[list[dict[str, Any]], set[str]]:
    chance = random.Random(5)
    flow = ms.Flow("words")
    source = ms.Files("x", schema=SCHEMA, time="ts", lateness="1s", follow=True)
    stream = flow.source(source, name="in")
    stream.map_reduce(job, ms.sliding("15s", "1s")).named("words").sink(ms.Memory())
    ways = set()
    with Driver(flow, **options) as driver:
        for second in range(70):
            when = BEGIN + timedelta(seconds=second)
            quiet = 30 <= second < 55  # some keys go away and come back
            texts = ["a"] if quiet else ["a", "b", "c", "d", "e"]
            rows = [{"ts": when, "k": "k", "s": chance.choice(texts)} for _ in range(4)]
            driver.push("in", rows)
            driver.step()
            ways.add(driver.engine.manifest.strategies.get("words", ""))
            if second in (22, 40):
                driver.restart()
        driver.end()
        rows = sorted(driver.output(), key=lambda row: (row["window_end"], row["key"]))
        return rows, ways


def test_map_reduce_slides_by_uncombine() -> None:
    expected, before = count_words(Words())
    found, ways = count_words(WordsBack(), debug=True)
    assert found == expected
    assert "running values" in ways
    assert "running values" not in before


def test_a_wrong_uncombine_of_a_job_is_found_while_running() -> None:
    with pytest.raises(ms.RunError, match=r"words: words\.combine, key .* recomputed from panes"):
        count_words(WordsWrong(), debug=True)


def test_an_uncombine_can_be_added_to_a_checkpoint(tmp_path: Path) -> None:
    """Panes from before do not say how many records they hold: running values wait for new ones."""
    later = type("Words", (WordsBack,), {})  # the same job, some versions later

    def run_both(second_job: ms.MapReduce, checkpoint: Path) -> tuple[list[Any], set[str]]:
        chance, rows, ways = random.Random(5), [], set()
        for job, seconds in ((Words(), range(25)), (second_job, range(25, 60))):
            flow = ms.Flow("words")
            source = ms.Files("x", schema=SCHEMA, time="ts", lateness="1s", follow=True)
            words = flow.source(source, name="in").map_reduce(job, ms.sliding("15s", "1s"))
            words.named("words").sink(ms.Memory())
            with Driver(flow, checkpoint=checkpoint, debug=True) as driver:
                for second in seconds:
                    when = BEGIN + timedelta(seconds=second)
                    driver.push("in", [{"ts": when, "k": "k", "s": chance.choice("abc")}])
                    driver.step()
                    ways.add(driver.engine.manifest.strategies.get("words", ""))
                rows += driver.output()
        return sorted((row["window_end"], row["key"], row["value"]) for row in rows), ways

    expected, _ = run_both(Words(), tmp_path / "without")
    found, ways = run_both(later(), tmp_path / "added")
    assert found == expected
    assert "running values" in ways


# -- debug mode ----------------------------------------------------------------------------------


class Forgetful(ms.Aggregate):
    """A sum whose inverse does nothing."""

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return state + value

    def combine(self, left: int, right: int) -> int:
        return left + right

    def uncombine(self, total: int, expired: int) -> int:
        return total


def slide_over(agg: Any, **options: Any) -> list[dict[str, Any]]:
    flow = ms.Flow("debug")
    source = ms.Files("x", schema=SCHEMA, time="ts", lateness="0s", follow=True)
    keyed = flow.source(source, name="in").key_by("k").window(ms.sliding("20s", "1s"))
    keyed.agg(good=ms.sum("i"), bad=agg).named("stats").sink(ms.Memory())
    with Driver(flow, **options) as driver:
        for second in range(60):
            driver.push("in", [{"ts": BEGIN + timedelta(seconds=second), "k": "kay", "i": 1}])
            driver.step()
        return driver.output()


def test_debug_finds_an_uncombine_that_is_no_inverse() -> None:
    with pytest.raises(ms.RunError) as error:
        slide_over(Forgetful("i"), debug=True)
    for part in ("stats", "bad=Forgetful(i)", "'kay'", "is 21", "it is 20", "check_aggregate"):
        assert part in str(error.value)


def test_without_debug_it_goes_unnoticed() -> None:
    assert slide_over(Forgetful("i"))[-1]["bad"] != 20


def test_debug_is_silent_about_what_is_right() -> None:
    assert slide_over(ms.mean("i"), debug=True)[-1]["bad"] == 1.0

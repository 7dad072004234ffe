"""Aggregates of groups that rows come to and go from, after every batch; by their definition."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.state.bags import KeyedBag
from millstream.testing import Driver
from millstream.testing.reference.aggregates import aggregate
from tests.operators.changing import START, Row, Table, close, objects, present, records, source
from tests.variants import variants


class Product(ms.Aggregate):
    """Has an inverse."""

    def zero(self) -> Any:
        return [0, 1]

    def add(self, state: Any, value: Any) -> Any:
        return [state[0] + 1, state[1] * (value + 1)]

    def combine(self, left: Any, right: Any) -> Any:
        return [left[0] + right[0], left[1] * right[1]]

    def uncombine(self, total: Any, expired: Any) -> Any:
        return [total[0] - expired[0], total[1] // expired[1]]

    def result(self, state: Any) -> Any:
        return state[1]


class Longest(ms.Aggregate):
    """Has none."""

    def zero(self) -> Any:
        return ""

    def add(self, state: Any, value: Any) -> Any:
        return max(state, value)

    def combine(self, left: Any, right: Any) -> Any:
        return max(left, right)


class Rows(ms.Aggregate):
    """Takes whole records, and cannot even be combined."""

    def zero(self) -> Any:
        return []

    def add(self, state: Any, value: Any) -> Any:
        return [*state, value["id"]]


AGGS: dict[str, Any] = {
    "n": ms.count(),
    "nv": ms.count("v"),
    "sum": ms.sum("v"),
    "total": ms.sum("x"),
    "mean": ms.mean("x"),
    "var": ms.var("v"),
    "std": ms.std("x"),
    "least": ms.min("x"),
    "most": ms.max("v"),
    "text": ms.max("s"),
    "first": ms.first("id"),
    "last": ms.last("v"),
    "kinds": ms.distinct("s"),
    "top": ms.top_k("s", 2),
    "heavy": ms.top_k("s", 2, by="v"),
    "median": ms.quantile("x", 0.5),
    "quarters": ms.quantile("v", [0.25, 0.75]),
    "all": ms.collect("v"),
    "product": Product("v"),
    "longest": Longest("s"),
    "rows": Rows(),
}


def expected(rows: list[Row], *key: str) -> dict[Any, Row]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in key), []).append(row)
    return {
        key: {name: aggregate(agg, mine) for name, agg in AGGS.items()}
        for key, mine in groups.items()
    }


def check(found: list[Row], wanted: dict[Any, Row], *key: str) -> None:
    assert {tuple(row[name] for name in key) for row in found} == set(wanted)
    for row in found:
        for name, value in wanted[tuple(row[one] for one in key)].items():
            assert close(row[name], value), (key, name, row[name], value)


def drive(flow: ms.Flow, rows: list[Row], rng: random.Random, parallelism: int, place: Any) -> Any:
    """Some batches, begun anew now and then; after each what was taken so far."""
    taken = 0
    with Driver(flow, parallelism=parallelism, checkpoint=place, shards=4) as driver:
        while taken < len(rows):
            size = rng.choice([1, 3, 20])
            driver.push("in", rows[taken : taken + size]).step()
            taken += size
            if rng.random() < 0.3:
                driver.restart()
            yield driver, rows[:taken]


@pytest.mark.parametrize("seed", variants(range(12)))
def test_every_aggregate_after_every_batch(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("groups")
    objects(flow).key_by("g").agg(**AGGS).sink(ms.Memory(), name="out")
    table = Table("g")
    for driver, taken in drive(flow, records(rng, 80), rng, 1 + seed % 3, tmp_path):
        check(table.read(driver.output("out")), expected(present(taken), "g"), "g")


def test_two_keys_of_which_one_is_null(tmp_path: Any) -> None:
    rng = random.Random(9)
    flow = ms.Flow("two keys")
    keyed = objects(flow).key_by("g", "h", nulls="keep")
    keyed.agg(**AGGS).sink(ms.Memory(), name="out")
    table = Table("g", "h")
    for driver, taken in drive(flow, records(rng, 60), rng, 2, tmp_path):
        check(table.read(driver.output("out")), expected(present(taken), "g", "h"), "g", "h")


@pytest.mark.parametrize("seed", variants(range(3)))
def test_records_that_nothing_takes_back(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("appended")
    source(flow).key_by("g").agg(emit="delta", **AGGS).sink(ms.Memory(), name="out")
    table = Table("g")
    for driver, taken in drive(flow, records(rng, 60), rng, 1 + seed, tmp_path):
        in_order = sorted(taken, key=lambda row: row["ts"])
        check(table.read(driver.output("out")), expected(in_order, "g"), "g")


@pytest.mark.parametrize("changing", [True, False])
def test_one_group_of_everything_is_there_without_rows_too(changing: bool, tmp_path: Any) -> None:
    rng = random.Random(4)
    flow = ms.Flow("one")
    rows = records(rng, 30, ids=1)
    stream = objects(flow) if changing else source(flow)
    stream.key_by().agg(emit="delta", **AGGS).sink(ms.Memory(), name="out")
    table = Table()
    empty = 0
    for driver, taken in drive(flow, rows, rng, 2, tmp_path):
        there = present(taken) if changing else sorted(taken, key=lambda row: row["ts"])
        (found,) = table.read(driver.output("out"))
        empty += not there
        if there:
            check([found], expected(there))
        else:
            assert (found["n"], found["sum"], found["most"], found["kinds"]) == (0, None, None, 0)
            assert found["all"] == [] and found["first"] is None and found["product"] == 1
    assert empty or not changing


def test_without_a_key_and_without_rows_there_is_a_row(tmp_path: Any) -> None:
    flow = ms.Flow("empty")
    source(flow).where("v > 100").key_by().agg(emit="delta", **AGGS).sink(ms.Memory(), name="out")
    with Driver(flow, parallelism=3, checkpoint=tmp_path) as driver:
        driver.push("in", records(random.Random(1), 3)).step()
        driver.push("in", records(random.Random(1), 3)).step()
        (row,) = driver.output("out")
    assert (row["op"], row["n"], row["sum"], row["least"], row["top"]) == ("+", 0, None, None, [])


def test_a_group_that_begins_and_ceases_to_qualify() -> None:
    """HAVING is a filter behind: the third figure of the paper, in the words of its text."""
    flow = ms.Flow("makes")
    counts = source(flow, "ts timestamp, id long, make string, here boolean").changes(key="id")
    counts.where("here").key_by("make").agg(n=ms.count("id")).where("n > 2").sink(
        ms.Memory(), name="out"
    )
    first = {"A": [1, 3, 5], "B": [2, 4, 6, 8], "C": [7], "D": [10]}
    with Driver(flow, parallelism=2) as driver:
        driver.push("in", [car(id_, make) for make, ids in first.items() for id_ in ids]).step()
        assert changes(driver.output("out")) == {("+", "A", 3), ("+", "B", 4)}
        later = [car(1, "A", False), car(8, "B", False), car(9, "C"), car(11, "C")]
        driver.push("in", later).step()
        found = changes(driver.output("out")[2:])
    assert found == {("-", "A", 3), ("+", "C", 3), ("u", "B", 3)}


def car(number: int, make: str, here: bool = True) -> Row:
    return {"ts": START, "id": number, "make": make, "here": here}


def changes(rows: list[Row]) -> set[tuple[Any, ...]]:
    return {(row["op"], row["make"], row["n"]) for row in rows}


def test_sums_of_floats_leave_no_trace() -> None:
    flow = ms.Flow("floats")
    stream = source(flow, "ts timestamp, id long, x double").changes(key="id").where("x < 2e16")
    stream.key_by().agg(sum=ms.sum("x"), mean=ms.mean("x"), var=ms.var("x")).sink(
        ms.Memory(), name="out"
    )
    with Driver(flow) as driver:
        for nth, values in enumerate([[0.1, 0.2, 1e16], [0.1, 0.2, 3e16], [0.1, 0.2, math.inf]]):
            when = START + timedelta(seconds=nth)
            rows = [{"ts": when, "id": id_, "x": x} for id_, x in enumerate(values)]
            driver.push("in", rows).step()
        table = driver.output("out")[-1]
    assert table["sum"] == math.fsum([0.1, 0.2]) and table["mean"] == math.fsum([0.1, 0.2]) / 2
    assert table["var"] == float((Fraction(0.2) - Fraction(0.1)) ** 2 / 2)  # rounded once


def test_nan_and_infinity_can_be_taken_back() -> None:
    flow = ms.Flow("strange")
    stream = source(flow, "ts timestamp, id long, x double, here boolean").changes(key="id")
    stream.where("here").key_by().agg(sum=ms.sum("x"), most=ms.max("x")).sink(
        ms.Memory(), name="out"
    )
    values = [1.5, math.inf, -math.inf, math.nan]
    found = []
    with Driver(flow) as driver:
        for nth, here in enumerate([True, False]):
            order = values if here else values[::-1][:3]
            for step, x in enumerate(order):
                when = START + timedelta(seconds=10 * nth + step)
                row = {"ts": when, "id": values.index(x), "x": x, "here": here}
                driver.push("in", [row]).step()
                found.append(tuple(driver.output("out")[-1][name] for name in ("sum", "most")))
    expected = [(1.5, 1.5), (math.inf, math.inf), (math.nan, math.inf), (math.nan, math.nan)]
    expected += [(math.nan, math.inf), (math.inf, math.inf), (1.5, 1.5)]
    assert all(map(close, map(list, found), map(list, expected)))


def test_a_result_that_fails_takes_its_group_back() -> None:
    class Picky(ms.Aggregate):
        def zero(self) -> Any:
            return 0

        def add(self, state: Any, value: Any) -> Any:
            return state + value

        def combine(self, left: Any, right: Any) -> Any:
            return left + right

        def uncombine(self, total: Any, expired: Any) -> Any:
            return total - expired

        def result(self, state: Any) -> Any:
            if state == 3:
                raise ValueError("three is refused")
            return state

    flow = ms.Flow("picky")
    stream = source(flow, "ts timestamp, id long, v long").changes(key="id")
    stream.key_by().agg(v=Picky("v")).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for nth, value in enumerate([1, 3, 3, 4]):
            row = {"ts": START + timedelta(seconds=nth), "id": 1, "v": value}
            driver.push("in", [row]).step()
        found = [(row["op"], row["v"]) for row in driver.output("out")]
        assert found == [("+", 1), ("-", 1), ("+", 4)]
        assert "three is refused" in driver.dead[0]["error"]


def test_a_row_without_a_key_is_one_dead_letter() -> None:
    flow = ms.Flow("nobody")
    objects(flow).key_by("h").agg(n=ms.count()).sink(ms.Memory(), name="out")
    rows = records(random.Random(3), 2, ids=1)
    with Driver(flow) as driver:
        driver.push("in", [{**rows[0], "h": None, "here": True}]).step()
        driver.push("in", [{**rows[1], "h": 1, "here": True}]).step()
        assert [(row["op"], row["h"], row["n"]) for row in driver.output("out")] == [("+", 1, 1)]
        assert [letter["operator"] for letter in driver.dead] == ["agg"]


def counted_reads(monkeypatch: Any) -> list[int]:
    """How many stored rows are read, each time a bag is asked."""
    looked: list[int] = []
    first = KeyedBag.first

    def counted(self: KeyedBag, *arguments: Any) -> Any:
        before = self.looked_at
        found = first(self, *arguments)
        looked.append(self.looked_at - before)
        return found

    monkeypatch.setattr(KeyedBag, "first", counted)
    return looked


@pytest.mark.parametrize("named", ["v", "x", "s"])
def test_a_minimum_reads_what_decides_not_what_is_stored(named: str, monkeypatch: Any) -> None:
    """Twenty changes among four thousand stored values: rows read are counted."""
    looked = counted_reads(monkeypatch)
    flow = ms.Flow("many")
    schema = "ts timestamp, id long, g long, v long, x double, s string"
    stream = source(flow, schema).changes(key="id")
    stream.key_by("g").agg(least=ms.min(named), most=ms.max(named)).sink(ms.Memory(), name="out")

    def row(number: int, value: int, second: int) -> Row:
        when = START + timedelta(seconds=second)
        told = {"v": value, "x": value / 2, "s": f"{value:05}"}
        return {"ts": when, "id": number, "g": number % 4, **told}

    rng = random.Random(1)
    now = {number: rng.randrange(10_000) for number in range(4000)}
    table = Table("g")
    with Driver(flow, shards=2) as driver:
        driver.push("in", [row(number, value, 0) for number, value in now.items()]).step()
        for second in range(1, 6):
            least = sorted(now, key=lambda one: now[one])[:10]
            changed = {number: rng.randrange(10_000) for number in (*least, *range(10))}
            now |= changed
            looked.clear()
            driver.push("in", [row(one, value, second) for one, value in changed.items()]).step()
            assert 0 < sum(looked) < 400
            for found in table.read(driver.output("out")):
                mine = [row(0, v, 0)[named] for one, v in now.items() if one % 4 == found["g"]]
                assert (found["least"], found["most"]) == (min(mine), max(mine))


def test_left_out_emit_follows_the_input() -> None:
    flow = ms.Flow("emit")
    final = source(flow).key_by("g").agg(n=ms.count())
    assert type(final.node).__name__ == "Windowed"
    delta = source_of(flow).changes(key="id").key_by("g").agg(n=ms.count())
    assert type(delta.node).__name__ == "Grouped"
    assert type(delta.key_by().agg(n=ms.count()).node).__name__ == "Grouped"
    assert type(delta.key_by().agg(n=ms.count(), emit="final").node).__name__ == "Windowed"
    column = delta.key_by("g").agg(emit=ms.sum("n"))
    assert [name for name, _ in column.node.aggs] == ["emit"]  # type: ignore[attr-defined]


def source_of(flow: ms.Flow) -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, id long, g string"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda s: s.key_by("g").agg(n=ms.count(), emit="early"), "early results go with a window"),
        (lambda s: s.key_by("g", partition=len).agg(n=ms.count()), "partition"),
        (lambda s: s.key_by("g").agg(op=ms.count()), "already a column"),
        (lambda s: s.key_by("g").agg(), "at least one"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ms.ConfigError, match=words):
        wrong(objects(ms.Flow("wrong")))


@pytest.mark.parametrize(
    ("aggs", "words"),
    [
        ({"n": ms.sum("w")}, "there is no column 'w'"),
        ({"n": ms.sum("s")}, "needs numbers"),
    ],
)
def test_columns_are_looked_for_before_the_start(aggs: Any, words: str) -> None:
    flow = ms.Flow("columns")
    objects(flow).key_by("g").agg(**aggs).sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match=words):
        Driver(flow)


def test_groups_of_changes_cannot_come_later(tmp_path: Any) -> None:
    """What came before is not there to be counted, and would be taken away nevertheless."""

    def program(counts: bool) -> ms.Flow:
        flow = ms.Flow("later")
        stream = objects(flow)
        stream.sink(ms.Memory(), name="rows")
        if counts:
            stream.key_by("g").agg(n=ms.count()).sink(ms.Memory(), name="out")
        return flow

    with Driver(program(False), checkpoint=tmp_path) as driver:
        driver.push("in", records(random.Random(1), 5)).step()
        with pytest.raises(ms.MillstreamError, match="only see that they go"):
            driver.replace(program(True))
    with pytest.raises(ms.CheckpointError, match="only see that they go"):
        Driver(program(True), checkpoint=tmp_path)


KEPT: dict[str, Any] = {
    "n": ms.count(),
    "sum": ms.sum("v"),
    "mean": ms.mean("v"),
    "least": ms.min("v"),
    "most": ms.max("x"),
    "kinds": ms.distinct("s"),
    "median": ms.quantile("v", 0.5),
    "spread": ms.var("v"),
}
DUCKDB = """
    SELECT g, count(*), sum(v), avg(v), min(v), max(x), count(DISTINCT s), quantile_cont(v, 0.5),
           var_samp(v)
    FROM (SELECT * FROM rows QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts DESC) = 1)
    WHERE here GROUP BY g HAVING count(*) > 1
"""


@settings(max_examples=6)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 39), max_size=6),
    parallelism=st.integers(1, 4),
    restarts=st.sets(st.integers(0, 6)),
)
def test_whatever_the_batches_it_is_what_duckdb_says(
    seed: int, cuts: list[int], parallelism: int, restarts: set[int]
) -> None:
    """After every batch, with any cuts, parallelism and restarts."""
    rows = records(random.Random(seed), 40, ids=8)
    flow = ms.Flow("property")
    counts = objects(flow).key_by("g").agg(**KEPT)
    counts.where("n > 1").sink(ms.Memory(), name="out")
    bounds = [0, *sorted(set(cuts)), 40]
    table = Table("g")
    with Driver(flow, parallelism=parallelism) as driver, duckdb.connect() as database:
        for nth, (low, high) in enumerate(pairwise(bounds)):
            driver.push("in", rows[low:high]).step()
            if nth in restarts:
                driver.restart()
            database.register("rows", pa.Table.from_pylist(rows[:high], KINDS))
            expected = {one[0]: list(one[1:]) for one in database.sql(DUCKDB).fetchall()}
            found = {
                row["g"]: [row[name] for name in KEPT] for row in table.read(driver.output("out"))
            }
            assert found.keys() == expected.keys()
            assert all(close(_floats(found[g]), _floats(expected[g])) for g in found)


KINDS = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("id", pa.int64()),
        ("here", pa.bool_()),
        ("g", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
    ]
)


def _floats(values: list[Any]) -> list[Any]:
    return [None if value is None else float(value) for value in values]


def test_a_count_of_values_reads_those_that_came_or_went(monkeypatch: Any) -> None:
    looked = counted_reads(monkeypatch)
    flow = ms.Flow("values")
    stream = source(flow, "ts timestamp, id long, v long").changes(key="id")
    stream.key_by().agg(kinds=ms.distinct("v")).sink(ms.Memory(), name="out")
    now = {number: number % 1500 for number in range(3000)}
    with Driver(flow, shards=1) as driver:
        rows = [{"ts": START, "id": number, "v": value} for number, value in now.items()]
        driver.push("in", rows).step()
        looked.clear()
        changed = {number: 5000 + number % 7 for number in range(0, 3000, 300)}
        now |= changed
        later = START + timedelta(seconds=1)
        rows = [{"ts": later, "id": number, "v": value} for number, value in changed.items()]
        driver.push("in", rows).step()
        assert driver.output("out")[-1]["kinds"] == len(set(now.values()))
    assert sum(looked) < 100


def test_decimals_are_ordered_as_numbers_in_all_batches() -> None:
    flow = ms.Flow("prices")
    schema = "id long, price decimal(8, 2)"
    rows = flow.source(ms.Generator(tuple, schema=schema), name="rows").changes(key="id")
    rows.key_by().agg(emit="delta", low=ms.min("price"), high=ms.max("price")).sink(
        ms.Memory(), name="out"
    )
    latest: dict[int, Decimal | None] = {}
    moves: list[tuple[int, str | None]] = [
        (1, "2.00"), (2, "2.50"), (3, "-0.01"), (3, "10.00"), (4, "9.00"), (3, None), (4, None),
    ]  # fmt: skip
    with Driver(flow) as driver:
        for number, text in moves:
            latest[number] = None if text is None else Decimal(text)
            driver.push("rows", [{"id": number, "price": latest[number]}]).step()
            known = [one for one in latest.values() if one is not None]
            found = driver.output("out")[-1]
            assert (found["low"], found["high"]) == (min(known), max(known))

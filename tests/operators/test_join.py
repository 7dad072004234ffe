"""Joins after every batch; the oracle is DuckDB over the rows that each side has then."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.run.planning import plan_flow
from millstream.state.traces import Trace
from millstream.testing import Driver, run_in_process
from millstream.testing.reference import reference_after
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
SQL = {
    "inner": "SELECT l.id, r.id AS rid, k, v, w FROM l JOIN r USING (k)",
    "left": "SELECT l.id, r.id AS rid, k, v, w FROM l LEFT JOIN r USING (k)",
    "right": "SELECT l.id, r.id AS rid, k, v, w FROM l RIGHT JOIN r USING (k)",
    "full": "SELECT l.id, r.id AS rid, k, v, w FROM l FULL JOIN r USING (k)",
    "semi": "SELECT id, k, v FROM l SEMI JOIN r USING (k)",
    "anti": "SELECT id, k, v FROM l ANTI JOIN r USING (k)",
}


def records(rng: random.Random, count: int, value: str, changing: bool) -> list[Row]:
    """Records of few objects with few keys, out of order by less than the lateness.

    Those that are no changes are each of an object of its own.
    """
    return [
        {
            "ts": START + timedelta(seconds=max(0, i - rng.randrange(10))),
            "id": rng.randrange(8) if changing else i,
            "k": rng.choice([None, 1, 2, 3, 4]),
            value: rng.randrange(4),
            "live": rng.random() < 0.7,
        }
        for i in range(count)
    ]


def side(flow: ms.Flow, name: str, value: str, changing: bool) -> ms.Stream:
    schema = f"ts timestamp, id long, k long, {value} long, live boolean"
    source = flow.source(ms.Generator(tuple, time="ts", lateness="20s", schema=schema), name=name)
    objects = source.changes(key="id") if changing else source
    return objects.where("live").select("id", "k", value)


class Table:
    """What one side has: its records, or the latest of every object."""

    def __init__(self, changing: bool) -> None:
        self.changing = changing
        self.rows: dict[Any, Row] = {}

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            if not self.changing:
                self.rows[len(self.rows)] = row
            elif row["id"] not in self.rows or row["ts"] >= self.rows[row["id"]]["ts"]:
                self.rows[row["id"]] = row

    def now(self) -> list[Row]:
        return [row for row in self.rows.values() if row["live"]]


def by_duckdb(sql: str, left: list[Row], right: list[Row]) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, value, rows in (("l", "v", left), ("r", "w", right)):
            connection.execute(f"CREATE TABLE {name} (id BIGINT, k BIGINT, {value} BIGINT)")
            if rows:
                given = [(row["id"], row["k"], row[value]) for row in rows]
                connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", given)
        return sorted(connection.execute(sql).fetchall(), key=repr)


def integrated(rows: list[Row], columns: tuple[str, ...], key: tuple[str, ...]) -> Any:
    """The rows that changes come to; each must fit what was given before."""
    table: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        mine = table.setdefault(tuple(row[name] for name in key), [])
        value = tuple(row[name] for name in columns)
        op = row.get("op", "+")
        if op == "+":
            mine.append(value)
        elif op == "-":
            mine.remove(value)
        else:
            assert len(mine) == 1, (row, mine)
            mine[:] = [value]
    return sorted((value for mine in table.values() for value in mine), key=repr)


@pytest.mark.parametrize("seed", variants([1, 2, 3]))
@pytest.mark.parametrize("how", list(SQL))
def test_the_rows_after_every_batch(how: str, seed: int, tmp_path: Any) -> None:
    rng = random.Random(f"{how} {seed}")
    changing = [(True, True), (False, True), (True, False), (False, False)][seed]
    flow = ms.Flow("joined")
    left, right = side(flow, "left", "v", changing[0]), side(flow, "right", "w", changing[1])
    joined = left.join(right, on="k", how=how, suffix="_r")
    joined.sink(ms.Memory(), name="out")
    one_side = how in ("semi", "anti")
    columns = ("id", "k", "v") if one_side else ("id", "id_r", "k", "v", "w")
    key = ("id",) if one_side else ("id", "id_r")
    given = {
        "left": records(rng, 40, "v", changing[0]),
        "right": records(rng, 40, "w", changing[1]),
    }
    tables = {"left": Table(changing[0]), "right": Table(changing[1])}
    with Driver(flow, parallelism=1 + seed % 3, checkpoint=tmp_path) as driver:
        while any(given.values()):
            for name, rows in given.items():
                size = rng.choice([0, 1, 5, 15])
                driver.push(name, rows[:size])
                tables[name].add(rows[:size])
                given[name] = rows[size:]
            driver.step()
            if rng.random() < 0.2:
                driver.restart()
            if how == "semi" and not any(changing):  # right records wait for the watermark
                if any(given.values()):
                    continue
                driver.end()
            found = integrated(driver.output("out"), columns, key)
            expected = by_duckdb(SQL[how], tables["left"].now(), tables["right"].now())
            assert found == expected


def keyed(flow: ms.Flow, name: str, *columns: str) -> ms.Stream:
    schema = ", ".join(["ts timestamp", *(f"{column} long" for column in columns)])
    return flow.source(ms.Generator(tuple, time="ts", lateness="20s", schema=schema), name=name)


def at(second: int, **values: Any) -> Row:
    return {"ts": START + timedelta(seconds=second), **values}


@pytest.mark.parametrize("seed", variants(range(3)))
def test_chains_and_a_stream_with_itself_give_what_the_reference_gives(
    seed: int, tmp_path: Any
) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("chain")
    nodes = keyed(flow, "nodes", "n", "up").changes(key="n")
    plain = keyed(flow, "plain", "up", "z")
    twice = nodes.join(nodes, on=[("up", "n")], how="left", suffix="_of_up").named("twice")
    twice.select("n", "up_of_up AS top").sink(ms.Memory(), name="tops")
    chain = twice.join(plain, on="up", how="full").join(plain, on="z", how="semi")
    chain.select("n", "z", "up").distinct().sink(ms.Memory(), name="chain")
    batches = [
        {
            "nodes": [
                at(3 * i, n=rng.randrange(5), up=rng.choice([None, *range(5)])) for _ in range(3)
            ],
            "plain": [at(3 * i, up=rng.randrange(5), z=rng.randrange(3)) for _ in range(2)],
        }
        for i in range(5)
    ]
    expected = reference_after(flow, batches)
    with Driver(flow, parallelism=1 + seed, checkpoint=tmp_path) as driver:
        for given, answer in zip(batches, expected, strict=True):
            for name, rows in given.items():
                driver.push(name, rows)
            driver.step()
            driver.restart()
            found = integrated(driver.output("tops"), ("n", "top"), ("n",))
            assert found == sorted(((r["n"], r["top"]) for r in answer["tops"]), key=repr)
            names = ("n", "z", "up")
            found = integrated(driver.output("chain"), names, names)
            rows = {tuple(row[name] for name in names) for row in answer["chain"]}
            assert found == sorted(rows, key=repr)


def test_a_small_change_reads_the_rows_it_meets(tmp_path: Any) -> None:
    flow = ms.Flow("cost")
    left, right = keyed(flow, "left", "k", "v").changes(key="v"), keyed(flow, "right", "k", "w")
    left.join(right, on="k", how="full").sink(ms.Memory(), name="out")
    read: list[int] = []
    with Driver(flow, checkpoint=tmp_path) as driver:
        for start in range(0, 4000, 1000):
            driver.push("left", [at(0, k=n // 2, v=n) for n in range(start, start + 1000)])
            driver.push("right", [at(0, k=n // 2, w=n) for n in range(start, start + 1000)]).step()
        with pytest.MonkeyPatch.context() as patch:
            find = Trace.rows_of

            def counting(*args: Any) -> Any:
                rows = find(*args)
                read.append(0 if rows is None else len(rows))
                return rows

            patch.setattr(Trace, "rows_of", counting)
            driver.push("left", [at(1, k=7, v=9000)]).push("right", [at(1, k=8, w=9001)]).step()
        assert sum(read) == 4  # two rows on either side


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on": "k", "how": "outer"}, "how='outer'"),
        ({"on": 3}, "expected a column"),
        ({"on": ["k", "k"]}, "named twice"),
        ({"on": [("k",)]}, "expected a column"),
        ({"on": "k", "suffix": 3}, "suffix"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_written(options: Any, told: str) -> None:
    flow = ms.Flow("wrong")
    with pytest.raises(ms.ConfigError, match=told):
        keyed(flow, "a", "k").join(keyed(flow, "b", "k"), **options)


def refused(left: str, right: str, told: str, **options: Any) -> None:
    flow = ms.Flow("wrong")
    sides = [
        flow.source(ms.Generator(tuple, time="ts", schema=f"ts timestamp, {columns}"))
        for columns in (left, right)
    ]
    sides[0].join(sides[1], **options).sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match=told):
        Driver(flow)


def test_columns_are_checked_when_the_flow_starts() -> None:
    refused("k long", "k long", "suffix= is empty", on="k", suffix="")
    refused("k long, ts_right long", "k long", "'ts_right' is there", on="k")
    refused("k long", "m long", "no column 'k'", on="k")
    refused("k long", "k string", "no rows would match", on="k")


def test_rows_of_a_function_without_a_schema() -> None:
    flow = ms.Flow("unknown")
    made = keyed(flow, "a", "k").map(lambda row: {"k": row["k"], "x": 1})
    other = keyed(flow, "b", "k", "y").select("k", "y")
    made.join(other, on="k").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("a", [at(0, k=1)]).push("b", [at(0, k=1, y=2)]).step()
        assert driver.output("out") == [{"k": 1, "x": 1, "y": 2}]
    other.join(made, on="k", how="left").sink(ms.Memory(), name="padded")
    with pytest.raises(ms.ConfigError, match="schema="):
        Driver(flow)


def test_a_join_that_comes_later_takes_nothing_back_that_it_did_not_give(tmp_path: Any) -> None:
    def program(joins: bool) -> ms.Flow:
        flow = ms.Flow("later")
        left = keyed(flow, "left", "k", "v").changes(key="v")
        right = keyed(flow, "right", "k", "w").changes(key="w")
        left.sink(ms.Memory(), name="left rows")
        right.sink(ms.Memory(), name="right rows")
        if joins:
            left.join(right, on="k", how="full").sink(ms.Memory(), name="out")
        return flow

    with Driver(program(False), checkpoint=tmp_path) as driver:
        driver.push("left", [at(0, k=1, v=1)]).push("right", [at(0, k=1, w=1)]).step()
        driver.replace(program(True))
        driver.push("left", [at(1, k=2, v=1)]).push("right", [at(1, k=3, w=1)]).step()
        found = [(row["op"], row["k"]) for row in driver.output("out")]
    assert sorted(found) == [("+", 2), ("+", 3)]


def test_time_goes_on_with_the_slower_side() -> None:
    """Windows over a join of records: a pair has the later time, and none comes too late."""
    flow = ms.Flow("windows")
    pairs = keyed(flow, "a", "k").join(keyed(flow, "b", "k"), on="k")
    pairs.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("a", [at(1, k=1), at(100, k=2)]).step()
        driver.push("b", [at(5, k=1), at(12, k=1)]).step()
        assert driver.output("out") == []
        driver.end()
        found = [(row["window_start"].second, row["n"]) for row in driver.output("out")]
        assert found == [(0, 1), (10, 1)]
        assert not any(account["late"] for account in driver.ledger.values())


def test_a_whole_number_and_a_double_are_compared_as_doubles() -> None:
    flow = ms.Flow("numbers")
    left = flow.source(ms.Generator(tuple, schema="id long"), name="left")
    right = flow.source(ms.Generator(tuple, schema="x double"), name="right")
    left.join(right, on=[("id", "x")], how="semi").sink(ms.Memory(), name="out")
    numbers = [3, 2**53 + 1, 2**63 - 1, 2**60]
    with Driver(flow) as driver:
        driver.push("left", [{"id": one} for one in numbers])
        driver.push("right", [{"x": 3.0}, {"x": 2.0**53}, {"x": 2.0**63}]).end()
        found = [row["id"] for row in driver.output("out")]
    assert sorted(found) == [
        one for one in sorted(numbers) if float(one) in (3.0, 2.0**53, 2.0**63)
    ]


@pytest.mark.parametrize("kind", ["int", "long", "double", "decimal(12, 4)", "decimal(38, 20)"])
@pytest.mark.parametrize("declared", [True, False])
def test_decimals_equal_numbers_of_other_types(kind: str, declared: bool) -> None:
    flow = ms.Flow("prices")
    left = flow.source(ms.Generator(tuple, schema="id long, m decimal(8, 2)"), name="left")
    right = flow.source(ms.Generator(tuple, schema=f"n {kind}"), name="right")
    if not declared:
        right = right.map(lambda row: row)
    left.join(right, on=[("m", "n")], how="semi").select("id").sink(ms.Memory(), name="out")
    make = Decimal if kind.startswith("decimal") else float if kind == "double" else int
    texts = ["2", "2.5", "7"] if make is not int else ["2", "7"]
    rows = [{"id": 1, "m": "2.00"}, {"id": 2, "m": "2.50"}, {"id": 3, "m": "-0.01"}]
    with Driver(flow, parallelism=2) as driver:
        driver.push("left", [row | {"m": Decimal(row["m"])} for row in rows])
        driver.push("right", [{"n": make(text)} for text in texts]).step()
        driver.end()
        found = sorted(row["id"] for row in driver.output("out"))
    assert found == ([1] if make is int else [1, 2])


def test_decimals_that_differ_in_their_last_digits_are_not_equal() -> None:
    flow = ms.Flow("digits")
    kinds = {"left": "decimal(38, 18)", "right": "decimal(38, 10)"}
    left, right = (
        flow.source(ms.Generator(tuple, schema=f"d {kind}"), name=name)
        for name, kind in kinds.items()
    )
    left.join(right, on="d", how="semi").sink(ms.Memory(), name="out")
    texts = ["1234567890123456789.012345678912345678", "1234567890123456789.0123456789"]
    with Driver(flow) as driver:
        driver.push("left", [{"d": Decimal(text)} for text in texts])
        driver.push("right", [{"d": Decimal(texts[1])}]).end()
        assert [row["d"] for row in driver.output("out")] == [Decimal(texts[1])]


@pytest.mark.parametrize("how", ["left", "semi", "anti"])
def test_windows_behind_a_join_count_what_is_there_in_the_end(how: str) -> None:
    """A match that comes and goes: each time rows are given again, and each time taken back."""
    flow = ms.Flow("again")
    left = keyed(flow, "left", "k", "v")
    schema = "ts timestamp, k long, here boolean"
    right = flow.source(ms.Generator(tuple, time="ts", lateness="20s", schema=schema), name="right")
    there = right.changes(key="k").where("here").select("k", "1 AS one")
    joined = left.join(there, on="k", how=how)
    joined.key_by("k").window(ms.tumbling("1h")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    rng = random.Random(how)
    expected = {}
    with Driver(flow) as driver:
        driver.push("left", [at(0, k=n, v=n) for n in range(12)]).step()
        for second in range(1, 8):
            some = rng.sample(range(12), 6)
            rows = [at(second, k=n, here=rng.random() < 0.5) for n in some]
            expected.update({row["k"]: row["here"] for row in rows})
            driver.push("right", rows).step()
        driver.end()
        found = {row["k"]: row["n"] for row in driver.output("out")}
    shown = {"left": lambda here: True, "semi": lambda here: here, "anti": lambda here: not here}
    assert found == {n: 1 for n in range(12) if shown[how](expected.get(n, False))}


def test_only_columns_that_are_wanted_are_read(tmp_path: Any) -> None:
    """Also if a name is on both sides, of which only one is wanted."""
    rows = [at(n, k=n, x=n, y=-n) for n in range(5)]
    for name in ("left", "right"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    flow = ms.Flow("pruned")
    left, right = (
        flow.source(ms.Files(tmp_path / f"{name}.parquet", time="ts"), name=name)
        for name in ("left", "right")
    )
    left.join(right, on="k").select("k", "x_right").sink(ms.Jsonl(tmp_path / "out"))
    plan = plan_flow(flow, tmp_path / "ck")
    assert plan.formats["left"].columns == ("ts", "k")
    assert plan.formats["right"].columns == ("ts", "k", "x")
    run_in_process(flow, tmp_path / "ck")
    files = (tmp_path / "out").glob("part-*")
    lines = [line for path in files for line in path.read_text().splitlines()]
    found = sorted(json.loads(line)["x_right"] for line in lines)
    assert found == [0, 1, 2, 3, 4]
    flow.picture(tmp_path / "plan.svg")
    assert "join on k" in (tmp_path / "plan.svg").read_text()

"""What a tagger keeps if steps behind it take only some rows: those, and nothing else in the end.

The oracle of the rows is a dict of the latest record by object; of what is kept, the rule of M³: a
table of the objects that satisfy the predicate.
"""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.operators.tagger import Tagger
from millstream.plan.planner import RULES, sketch
from millstream.plan.rules.push_predicates import push_predicates
from millstream.state.segments import read_segments
from millstream.state.storage import open_storage
from millstream.testing import Driver
from tests.operators.test_changes import START, Row, integrated, latest, records, source
from tests.stored import content_of, manifests_in
from tests.variants import variants


def kept(checkpoint: Path, step: str = "changes") -> list[Row]:
    """All rows that are stored of a tagger, those that say that an object is no more too."""
    manifest = content_of(manifests_in(checkpoint / "manifests")[-1])
    shards = manifest.segments.get(step, {}).get("rows", {}).values()
    root = open_storage(checkpoint).within("state")
    tables = [
        table
        for segments in shards
        for table in read_segments(root, list(segments), manifest.files, "expires")
    ]
    return pa.concat_tables(tables, promote_options="permissive").to_pylist() if tables else []


def at(second: int, key: int, price: int, place: str = "a") -> Row:
    return {
        "ts": START + timedelta(seconds=second), "id": key, "price": price, "place": place
    }  # fmt: skip


def test_an_object_that_never_qualifies_is_not_stored(tmp_path: Path) -> None:
    flow = ms.Flow("cars")
    source(flow).changes(key="id").where("price > 50").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", [at(second, second, 40) for second in range(60)]).step()
        waiting = kept(tmp_path)
        assert len(waiting) == 21, "what an earlier record could still undo: 20 s of lateness"
        assert {row["row.price"] for row in waiting} == {None}, "of which nothing else is stored"
        driver.push("in", [at(1000 + second, second, 40) for second in range(60)]).step()
        driver.push("in", [at(2000, 3, 55), at(3000, 99, 1)]).step()
        rows = [row for row in kept(tmp_path) if not row["back"]]
        assert [row["row.id"] for row in rows] == [3]
        assert [row["op"] for row in driver.output("out")] == ["+"]


def test_an_object_that_no_longer_qualifies_is_forgotten(tmp_path: Path) -> None:
    flow = ms.Flow("cars")
    source(flow).changes(key="id").where("price > 50").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", [at(0, key, 60) for key in range(40)]).step()
        assert len(kept(tmp_path)) == 40
        for second in range(100, 800, 100):  # as time passes, segments are merged and dropped
            driver.push("in", [at(second, key, 10) for key in range(40)]).step()
        driver.push("in", [at(900, 99, 1)]).step()
        assert all(row["gone"] or row["back"] for row in kept(tmp_path))
        assert len(kept(tmp_path)) <= 41
        assert [row["op"] for row in driver.output("out")] == ["+"] * 40 + ["-"] * 40


def test_rows_of_the_last_seconds_are_forgotten_with_them(tmp_path: Path) -> None:
    flow = ms.Flow("recent")
    source(flow).changes(key="id").last("5s").sink(ms.Memory(), name="out")
    assert "keeps: only rows of the last 5s" in flow.explain()
    with Driver(flow, checkpoint=tmp_path) as driver:
        for second in range(0, 1000, 10):
            driver.push("in", [at(second, second, 1)]).step()
        stored = kept(tmp_path)
        table = integrated(driver.output("out"), "id")
    now = START + timedelta(seconds=990 - 20)
    assert set(table) == {
        s for s in range(0, 1000, 10) if at(s, s, 1)["ts"] > now - timedelta(seconds=5)
    }
    assert {row["row.id"] for row in stored} >= set(table)
    assert len(stored) < 40, "of a hundred objects those of the last minutes, until segments go"


def test_an_older_record_does_not_bring_back_what_did_not_qualify(tmp_path: Path) -> None:
    flow = ms.Flow("order")
    source(flow).changes(key="id").where("price > 50").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", [at(10, 1, 40)]).step()
        driver.push("in", [at(5, 1, 60)]).step()  # not late: within 20 s
        assert driver.output("out") == []
        driver.push("in", [at(12, 1, 70)]).step()
        assert [(row["op"], row["price"]) for row in driver.output("out")] == [("+", 70)]


@pytest.mark.parametrize("seed", variants(range(6), 2))
def test_rows_are_those_of_the_latest_records(seed: int, tmp_path: Path) -> None:
    """Several filters, one behind a select, one over time: after every batch, after restarts."""
    rng = random.Random(seed)
    rows = records(rng, 80)
    flow = ms.Flow("ways")
    objects = source(flow).changes(key="id")
    objects.where("price > 6").sink(ms.Memory(), name="dear")
    objects.select("id", "price", "place").where("place = 'b'").sink(ms.Memory(), name="there")
    objects.where("price < 2").where("10 / price > 5").sink(ms.Memory(), name="cheap")
    assert "where (price > 6) or (place = 'b') or (price < 2 and 10 / price > 5)" in flow.explain()
    taken: list[Row] = []
    with Driver(flow, parallelism=1 + seed % 3, checkpoint=tmp_path) as driver:
        while len(taken) < len(rows):
            size = rng.randrange(1, 20)
            driver.push("in", rows[len(taken) : len(taken) + size]).step()
            taken = rows[: len(taken) + size]
            if rng.random() < 0.3:
                driver.restart()
            now = latest(taken)
            for name, wants in (
                ("dear", lambda row: row["price"] > 6),
                ("cheap", lambda row: row["price"] == 1),
            ):
                expected = {key: row for key, row in now.items() if wants(row)}
                assert integrated(driver.output(name), "id") == expected
            there = {row["id"] for row in now.values() if row["place"] == "b"}
            assert set(integrated(driver.output("there"), "id")) == there
        assert {letter["operator"] for letter in driver.dead} <= {"where_4"}


def test_what_is_not_pushed() -> None:
    def only(build: Any) -> Any:
        flow = ms.Flow("pushed")
        build(source(flow).changes(key="id"), flow)
        (step,) = (one for one in sketch("pushed", flow.nodes).operators.values()
                   if isinstance(one, Tagger))  # fmt: skip
        return step.only, step.within

    def whole(rows: ms.Stream, flow: ms.Flow) -> None:
        rows.where("price > 1").sink(ms.Memory(), name="a")
        rows.sink(ms.Memory(), name="b")

    def python(rows: ms.Stream, flow: ms.Flow) -> None:
        flow.function("odd", lambda value: value % 2 == 1, returns="boolean")
        rows.named("t")
        flow.sql("SELECT id FROM t WHERE odd(price)").sink(ms.Memory(), name="a")

    def computed(rows: ms.Stream, flow: ms.Flow) -> None:
        rows.select("id", "price + 1 AS price").where("price > 1").sink(ms.Memory(), name="a")

    for build in (whole, python, computed):
        assert only(build) == ((), None), build.__name__


def test_the_same_without_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a flow that kept all objects is gone on with, with the same answer."""
    rows = records(random.Random(3), 60)

    def build() -> ms.Flow:
        flow = ms.Flow("both")
        source(flow).changes(key="id").where("price > 5").sink(ms.Memory(), name="out")
        return flow

    with monkeypatch.context() as before:
        rules = tuple(rule for rule in RULES if rule is not push_predicates)
        before.setattr("millstream.plan.planner.RULES", rules)
        with Driver(build(), checkpoint=tmp_path) as driver:
            driver.push("in", rows[:30]).step()
            first = driver.output("out")
    with Driver(build(), checkpoint=tmp_path) as driver:
        driver.push("in", rows[30:]).step()
        found = integrated([*first, *driver.output("out")], "id")
    assert found == {key: row for key, row in latest(rows).items() if row["price"] > 5}

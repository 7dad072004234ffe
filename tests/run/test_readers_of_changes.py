"""Programs that change: whoever works on changes is told only of rows that it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

Build = Callable[[ms.Stream], object]
SCHEMA = "id bigint, k string, v bigint"


def program(build: Build) -> ms.Flow:
    flow = ms.Flow("tables")
    build(flow.source(ms.Generator(tuple, schema=SCHEMA), name="in"))
    return flow


def memory(stream: ms.Stream, name: str) -> ms.Stream:
    return stream.sink(ms.Memory(), name=name)


def and_out(build: Build) -> Build:
    """What there is in every program, and something over the same changes."""

    def both(rows: ms.Stream) -> None:
        table = rows.changes(key="id").named("objects")
        memory(table, "all")
        build(table)

    return both


def test_a_filter_over_changes_stays() -> None:
    """Group a has one row less than was counted; without the filter it would lose that, too."""

    def groups(condition: str | None) -> Build:
        def over(table: ms.Stream) -> None:
            table = table if condition is None else table.where(condition)
            memory(table.key_by("k").agg(n=ms.count()).named("groups"), "out")

        return and_out(over)

    with Driver(program(groups("v > 50"))) as driver:
        driver.push("in", [{"id": 1, "k": "a", "v": 1}, {"id": 2, "k": "a", "v": 60}]).step()
        for condition in (None, "v > 60"):
            with pytest.raises(ms.MillstreamError, match=r"'groups'.* where v > 50, objects, now "):
                driver.replace(program(groups(condition)))
        driver.replace(program(groups("v > 50")))
        driver.push("in", [{"id": 1, "k": "b", "v": 1}]).step()
        assert driver.output("out") == [{"k": "a", "n": 1, "op": "+"}]


ADDED: dict[str, Build] = {
    "a sink": lambda table: memory(table, "out"),
    "a sink behind steps": lambda table: memory(table.where("v > 1").select("k"), "out"),
    "distinct": lambda table: memory(table.distinct("k"), "out"),
    "top": lambda table: memory(table.key_by("k").top(1, by="v"), "out"),
    "last": lambda table: memory(table.last("1h"), "out"),
    "updater": lambda table: table.key_by("k").update(lambda e, s, c: None, name="out"),
}


@pytest.mark.parametrize("added", ADDED)
def test_who_works_on_changes_did_so_from_the_start(added: str, tmp_path: Path) -> None:
    with Driver(program(and_out(lambda _: None)), checkpoint=tmp_path) as driver:
        driver.push("in", [{"id": 1, "k": "a", "v": 1}]).step()
        with pytest.raises(ms.MillstreamError, match="is new and works on changes of 'objects'"):
            driver.replace(program(and_out(ADDED[added])))
    with pytest.raises(ms.MillstreamError, match="is new and works on changes of 'objects'"):
        Driver(program(and_out(ADDED[added])), checkpoint=tmp_path)


def test_what_begins_together_may_be_added() -> None:
    def later(rows: ms.Stream) -> None:
        and_out(lambda _: None)(rows)
        table = rows.changes(key="id").named("objects from now on")
        memory(table.where("v > 0").key_by("k").agg(n=ms.count()), "out")

    with Driver(program(and_out(lambda _: None))) as driver:
        driver.push("in", [{"id": n, "k": "a", "v": 1} for n in range(3)]).step()
        driver.replace(program(later))
        driver.push("in", [{"id": n, "k": "a", "v": 2} for n in range(2)]).step()
        driver.push("in", [{"id": 1, "k": "b", "v": 2}]).step()
        told: list[dict[str, Any]] = driver.output("out")
    assert [(row["op"], row["k"], row["n"]) for row in told] == [
        ("+", "a", 2),
        ("u", "a", 1),
        ("+", "b", 1),
    ]


def test_steps_over_records_and_functions_may_change() -> None:
    def steps(condition: str, add: int) -> Build:
        def over(rows: ms.Stream) -> None:
            table = rows.where(condition).changes(key="id")
            memory(table.map(lambda row: {**row, "v": row["v"] + add}), "out")

        return over

    with Driver(program(steps("v > 0", 1))) as driver:
        driver.push("in", [{"id": 1, "k": "a", "v": 1}]).step()
        driver.replace(program(steps("v > 5", 2)))
        driver.push("in", [{"id": 1, "k": "a", "v": 2}, {"id": 1, "k": "a", "v": 8}]).step()
        assert [(row["op"], row["v"]) for row in driver.output("out")] == [("+", 2), ("u", 10)]

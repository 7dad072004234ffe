"""A union of streams with different columns has all of them, null where a stream has none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(seconds: int, **columns: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=seconds), **columns}


def both(flow: ms.Flow, left: str = "x:long", right: str = "y:string") -> ms.Stream:
    streams = [
        flow.source(ms.Generator(tuple, time="ts", schema=f"ts timestamp, {column}"), name=name)
        for name, column in (("left", left.replace(":", " ")), ("right", right.replace(":", " ")))
    ]
    return streams[0].union(*streams[1:])


def outputs(flow: ms.Flow, *sinks: str, parallelism: int = 1) -> list[list[dict[str, Any]]]:
    with Driver(flow, now=START.timestamp(), parallelism=parallelism) as driver:
        driver.push("left", [at(0, x=1)]).step()
        driver.push("right", [at(1, y="a")]).step()
        driver.push("left", [at(2, x=2)]).push("right", [at(3, y="b")]).end()
        assert driver.dead == []
        return [driver.output(sink) for sink in sinks]


def test_every_record_has_all_columns() -> None:
    flow = ms.Flow("union")
    union = both(flow)
    union.sink(ms.Memory(), name="rows")
    union.select("y", "x + 1 AS more").sink(ms.Memory(), name="selected")
    union.map(lambda row: {"both": (row["x"] or 0, row["y"] or "")[0]}).sink(
        ms.Memory(), name="mapped"
    )
    rows, selected, mapped = outputs(flow, "rows", "selected", "mapped")
    pairs = [(1, None), (None, "a"), (2, None), (None, "b")]
    assert [(row["x"], row["y"]) for row in rows] == pairs
    assert [(row["more"], row["y"]) for row in selected] == [
        (None if x is None else x + 1, y) for x, y in pairs
    ]
    assert [row["both"] for row in mapped] == [1, 0, 2, 0]


def test_windows_over_a_union_see_all_columns() -> None:
    flow = ms.Flow("windows")
    windows = both(flow).key_by("y", nulls="keep").window(ms.tumbling("1h"))
    windows.agg(total=ms.sum("x"), n=ms.count()).sink(ms.Memory(), name="out")
    (out,) = outputs(flow, "out", parallelism=2)
    found = {row["y"]: (row["total"], row["n"]) for row in out}
    assert found == {None: (3, 2), "a": (None, 1), "b": (None, 1)}


def test_a_function_whose_columns_are_not_known_gets_those_of_others() -> None:
    flow = ms.Flow("functions")
    left = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, x long"), name="left")
    right = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, y string"))
    made = right.map(lambda row: {"y": row["y"]})
    made.union(left).sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("generator", [at(0, y="a")]).end()
        assert driver.output("out") == [{"y": "a", "ts": None, "x": None}]


def test_columns_of_two_types_are_refused_before_the_run() -> None:
    flow = ms.Flow("conflict")
    both(flow, "x:long", "x:string").sink(ms.Memory())
    with pytest.raises(ms.ConfigError) as caught:
        Driver(flow)
    told = str(caught.value)
    assert "union: column 'x' is int64 in 'left' and string in 'right'" in told
    assert "CAST(x AS ...)" in told


def test_numbers_of_two_types_are_numbers() -> None:
    flow = ms.Flow("numbers")
    union = both(flow, "x:long", "x:double")
    union.key_by().window(ms.tumbling("1h")).agg(total=ms.sum("x")).sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("left", [at(0, x=1)]).push("right", [at(0, x=0.5)]).end()
        assert [row["total"] for row in driver.output("out")] == [1.5]


# -- names -----------------------------------------------------------------------------------------


def test_a_name_that_was_found_gives_way_to_one_that_was_given() -> None:
    flow = ms.Flow("names")
    union = both(flow)
    after = union.where("x > 1")
    union.sink(ms.Memory(), name="union")
    after.sink(ms.Memory(), name="where")
    union.select("x").named("memory").sink(ms.Memory())
    assert [node.name for node in flow.nodes] == [
        *("left", "right", "union_2", "where_2", "union", "where", "memory", "memory_2"),
    ]
    assert (union.name, after.name) == ("union_2", "where_2")
    (rows,) = outputs(flow, "union")
    assert len(rows) == 4


def test_a_name_that_was_given_does_not_give_way() -> None:
    flow = ms.Flow("names")
    both(flow).named("union").sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="already has a step named 'union'"):
        flow.stream("union")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stream_with_itself_comes_twice(parallelism: int) -> None:
    flow = ms.Flow("itself")
    one = flow.source(
        ms.Generator(tuple, time="ts", schema="ts timestamp, k string, x long"), name="in"
    )
    twice = one.union(one.where("x > 0"), one.where("x > 0"))  # equal steps become one, too
    twice.sink(ms.Memory(), name="rows")
    windows = twice.key_by("k").window(ms.tumbling("10s"))
    windows.agg(n=ms.count(), s=ms.sum("x")).sink(ms.Memory(), name="windows")
    windows = twice.key_by("k").window(ms.tumbling("10s"), emit="delta")
    windows.agg(n=ms.count()).sink(ms.Memory(), name="changes")
    twice.key_by("k").update(lambda event, slate, ctx: slate.update(n=slate.get("n", 0) + 1))
    records = [at(1, k="a", x=1), at(2, k="a", x=0), at(3, k="b", x=5)]
    with Driver(flow, now=START.timestamp(), parallelism=parallelism) as driver:
        for record in records:
            driver.push("in", [record]).step()
        driver.end()
        assert sorted(row["x"] for row in driver.output("rows")) == [0, 1, 1, 1, 5, 5, 5]
        found = {row["k"]: (row["n"], row["s"]) for row in driver.output("windows")}
        assert found == {"a": (4, 3), "b": (3, 15)}
        last = {row["k"]: row["n"] for row in driver.output("changes")}
        assert last == {"a": 4, "b": 3}
        assert {key: slate["n"] for key, slate in driver.slates("update").items()} == {
            "a": 4,
            "b": 3,
        }
    assert {r["k"]: r["n"] for r in reference(flow, {"in": records})["windows"]} == {"a": 4, "b": 3}

"""A user's partition decides where keys lie, and changes no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

RECORDS = [{"ts": at, "user": f"{'ab'[at % 2]}{at % 5}", "n": at} for at in range(60)]


def first_letter(key: str) -> int:
    return {"a": 1, "b": -2}[key[0]]


def source(flow: ms.Flow) -> ms.Stream:
    return flow.source(
        ms.Generator(list, schema="ts bigint, user string, n bigint", time="ts", lateness="0s"),
        name="in",
    )


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + event.value["n"]


def run(build: Any, **options: Any) -> tuple[list[Any], Driver]:
    flow = ms.Flow("partition")
    build(source(flow))
    driver = Driver(flow, **options)
    for start in range(0, len(RECORDS), 13):
        driver.push("in", RECORDS[start : start + 13]).step()
    driver.end()
    return sorted(map(repr, driver.output())), driver


def shards(driver: Driver) -> set[str]:
    stored = driver.engine.manifest.segments
    return {
        s for tables in stored.values() for t in tables.values() for s, rows in t.items() if rows
    }


def windows(partition: Any) -> Any:
    def build(stream: ms.Stream) -> None:
        keyed = stream.key_by("user", partition=partition)
        keyed.window(ms.sliding("20s", "10s")).agg(n=ms.sum("n")).sink(ms.Memory())

    return build


def job(partition: Any) -> Any:
    def build(stream: ms.Stream) -> None:
        program = ms.job(
            map=lambda key, value: [(value["user"], value["n"])],
            reduce=lambda key, values: [(key, sum(values))],
        )
        stream.key_by(partition=partition).map_reduce(program, ms.tumbling("10s")).sink(ms.Memory())

    return build


@pytest.mark.parametrize("build", [windows, job])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_results_are_the_same_and_keys_lie_where_it_says(build: Any, parallelism: int) -> None:
    want, driver = run(build(None))
    driver.close()
    flow = ms.Flow("partition")
    build(first_letter)(source(flow))
    with Driver(flow, parallelism=parallelism, shards=8) as driver:
        for start in range(0, len(RECORDS), 13):
            driver.push("in", RECORDS[start : start + 13]).step()
            assert shards(driver) <= {"1", "6"}  # -2 modulo 8
        driver.end()
        assert sorted(map(repr, driver.output())) == want


@pytest.mark.parametrize("merge", [None, lambda a, b: {"n": a["n"] + b["n"]}])
def test_slates_lie_where_it_says_and_are_found(merge: Any, tmp_path: Path) -> None:
    def build(stream: ms.Stream) -> None:
        stream.key_by("user", partition=first_letter).update(count, merge=merge)

    flow = ms.Flow("partition")
    build(source(flow))
    with Driver(flow, checkpoint=tmp_path, parallelism=2, shards=8) as driver:
        driver.push("in", RECORDS[:30]).step()
        driver.restart()
        driver.push("in", RECORDS[30:]).end()
        assert shards(driver) == {"1", "6"}
        want: dict[str, int] = {}
        for record in RECORDS:
            want[record["user"]] = want.get(record["user"], 0) + record["n"]
        assert {key: slate["n"] for key, slate in driver.slates("count").items()} == want
        found = ms.slates(tmp_path, "count")
        assert {key: found.get(key)["n"] for key in want} == want
        assert found.get("c1") is None


def test_a_key_without_a_partition_is_a_dead_letter() -> None:
    flow = ms.Flow("partition")
    stream = source(flow)
    windows(first_letter)(stream)
    stream.key_by("user", partition=first_letter).update(count)
    with Driver(flow, dead_letter_limit=1.0) as driver:
        driver.push("in", [*RECORDS[:5], {"ts": 4, "user": "zz", "n": 100}]).end()
        said = "partition of key 'zz': KeyError: 'z'"
        assert [said in one["error"] for one in driver.dead] == [True, True]
        assert "zz" not in driver.slates("count")
        assert sum(slate["n"] for slate in driver.slates("count").values()) == 10


def test_mistakes_are_refused_when_the_flow_is_built() -> None:
    stream = source(ms.Flow("partition"))
    with pytest.raises(ms.ConfigError, match="expected a function"):
        stream.key_by("user", partition=3)  # type: ignore[arg-type]
    with pytest.raises(ms.ConfigError, match=r"cannot be called with \(key\)"):
        stream.key_by("user", partition=lambda key, shards: 0)  # type: ignore[arg-type,misc]
    keyed = stream.key_by("user", partition=first_letter)
    with pytest.raises(ms.ConfigError, match='use emit="final"'):
        keyed.window(ms.tumbling("1s"), emit="delta")
    with pytest.raises(ms.ConfigError, match="give all of them the same function"):
        keyed.union(stream.key_by("user")).update(count)

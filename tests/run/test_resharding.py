"""Another number of shards changes no result, whatever is stored and whenever it is killed."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.run.resharding import reshard
from millstream.serve.changes import changes
from millstream.serve.following import Follower
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Output
from millstream.testing import Driver
from tests.differential.comparing import assert_same, magnitude
from tests.differential.flows import (
    Input,
    Recipe,
    inputs,
    recipes,
    recipes_of_changes,
    recipes_of_kinds,
)
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
NOW = START.timestamp() + 1e6
Row = dict[str, Any]
Stops = dict[int, int]  # batch -> shards from then on

# -- a flow with all that stores anything ----------------------------------------------------------


def total(event: Any, slate: Row, ctx: Any) -> Iterator[Row]:
    """Keeps a sum, sets a timer, and lets slates expire."""
    slate["n"] = slate.get("n", 0) + event.value["v"]
    ctx.timer(after="7s")
    ctx.timer(after="3s", clock="wall")
    yield {"k": event.key, "n": slate["n"]}


def rest(event: Any, slate: Row, ctx: Any) -> Row:
    return {"k": event.key, "rest": slate.get("n", 0)}


def spread(event: Any, slate: Row, ctx: Any) -> Iterator[Row]:
    slate["seen"] = slate.get("seen", 0) + 1
    if event.value["v"] > 0 and slate["seen"] < 6:
        ctx.publish("rings", f"{event.key}{slate['seen']}", {"v": event.value["v"] - 1})
    yield {"k": event.key, "seen": slate["seen"]}


def parted(key: Any) -> int:
    return -7 if key is None else 3 + sum(map(ord, str(key)))


class Words(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield (value["k"], value["v"] % 3), 1

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


def everything() -> ms.Flow:
    flow = ms.Flow("everything")

    def source(name: str) -> ms.Stream:
        schema = "ts timestamp, id long, k string, v long"
        return flow.source(ms.Generator(tuple, time="ts", lateness="6s", schema=schema), name=name)

    left, right = source("left"), source("right")
    objects = left.changes(key="id").where("v > 1").select("id", "k", "v")
    many: dict[str, ms.Stream] = {
        "running": left.key_by("k").window(ms.sliding("20s", "1s")).agg(t=ms.sum("v")),
        "stacks": left.key_by("k").window(ms.sliding("20s", "1s")).agg(t=ms.max("v")),
        "deltas": left.key_by("k", "v").window(ms.tumbling("9s"), emit="delta").agg(n=ms.count()),
        "sessions": right.key_by("k").window(ms.session("2s")).agg(vs=ms.collect("v")),
        "counted": right.key_by("k").window(ms.count_window(5, 2)).agg(t=ms.sum("v")),
        "stream": right.key_by("k").window(ms.count_window(7, 3, over="stream")).agg(n=ms.count()),
        "sofar": left.key_by("k").window(ms.landmark("5s")).agg(t=ms.sum("v")),
        "all": left.key_by().window(ms.tumbling("5s"), emit="delta").agg(n=ms.count()),
        "distinct": left.distinct("k", "v"),
        "objects": objects,
        "groups": objects.key_by("k").agg(n=ms.count(), low=ms.min("v"), t=ms.sum("v")),
        "values": objects.key_by("k").agg(kinds=ms.distinct("v"), first=ms.first("v")),
        "joined": objects.join(right.select("id", "k", "v AS w"), on="id", how="full"),
        "pairs": left.select("id", "v").join(right.select("id", "v AS w"), on="id"),
        "top": objects.key_by("k").top(2, by="v ASC", rank="nth"),
        "last": objects.last("9s"),
        "asof": left.join(right, on="k", how="asof"),
        "near": left.join(right, on="k", how="full", within="3s"),
        "common": left.select("k", "v").intersect(right.select("k", "v")),
        "total": left.key_by("k").update(total, name="total", ttl="9s", on_timer=rest),
        "parted": left.key_by("k", partition=parted)
        .window(ms.sliding("20s", "1s"))
        .agg(t=ms.sum("v"), m=ms.max("v")),
        "placed": right.key_by("k", partition=parted).update(total, name="placed", on_timer=rest),
        "whole": left.map_reduce(Words(), sorted=True),
        "words": left.key_by(partition=parted).map_reduce(Words(), ms.tumbling("9s")),
    }
    rings = flow.stream("rings")
    many["spread"] = (
        right.key_by("k")
        .union(rings.key_by("key"))
        .update(spread, name="spread", publishes=["rings"])
    )
    for name, stream in many.items():
        stream.sink(ms.Memory(), name=f"{name} out")
    return flow


def records(seed: int, batches: int = 5) -> list[dict[str, list[Row]]]:
    rng = random.Random(seed)

    def one(number: int) -> Row:
        at = START + timedelta(seconds=max(0, number * 4 + rng.uniform(-5, 4)))
        return {
            "ts": at,
            "id": rng.randrange(9),
            "k": rng.choice(["a", "b", "c", "d", "e", "f"]),
            "v": rng.randrange(5),
        }

    return [
        {side: [one(number) for _ in range(12)] for side in ("left", "right")}
        for number in range(batches)
    ]


def drive(
    flow: ms.Flow, given: list[dict[str, list[Row]]], parallelism: int, stops: Stops, shards: int
) -> list[dict[str, list[Row]]]:
    """What every sink got in every batch."""
    out: list[dict[str, list[Row]]] = []
    with Driver(flow, parallelism=parallelism, shards=shards, now=NOW) as driver:
        known = dict.fromkeys(driver._sinks, 0)
        for number, batch in enumerate([*given, None]):
            if number in stops:
                driver.reshard(stops[number])
                assert driver.engine.footing.shards == stops[number]
            if batch is None:
                driver.end()
            else:
                for source, rows in batch.items():
                    driver.push(source, rows)
                driver.step()
            out.append({sink: driver.output(sink)[known[sink] :] for sink in known})
            known = {sink: len(driver.output(sink)) for sink in known}
    return out


def in_ranges(rows: list[Row]) -> list[Any]:
    """The keys of results that are sorted over all files."""
    return [row["key"] for row in rows]


def bag(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


SEEDS = variants(range(1, 30))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operator_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    rng = random.Random(seed)
    given = records(seed)
    expected = drive(everything(), given, 1, {}, 8)
    stops = {at: rng.choice([1, 3, 5, 12, 24, 64]) for at in rng.sample(range(1, 6), 2)}
    found = drive(everything(), given, rng.choice([1, 2, 3]), stops, 8)
    for number, (was, now) in enumerate(zip(expected, found, strict=True)):
        for sink in was:
            assert bag(now[sink]) == bag(was[sink]), f"{sink}, batch {number}, {stops}"
    assert in_ranges(found[-1]["whole out"]) == in_ranges(expected[-1]["whole out"])
    assert all(any(batch[sink] for batch in expected) for sink in expected[0])


# -- random flows ----------------------------------------------------------------------------------

SETTINGS = settings(max_examples=4, derandomize=True)
stops_of_runs = st.dictionaries(
    st.integers(1, 4), st.sampled_from([1, 2, 7, 20]), min_size=1, max_size=2
)


def random_run(recipe: Recipe, given: Input, parallelism: int, stops: Stops) -> dict[str, Any]:
    out: dict[str, Any] = {}
    with Driver(
        recipe.build(), parallelism=parallelism, shards=5, now=2e9, dead_letter_limit=1.0
    ) as driver:
        for number, pieces in enumerate(given.batches):
            if number in stops:
                driver.reshard(stops[number])
            for source, rows in pieces:
                driver.push(source, rows)
            driver.step()
        driver.end()
        out = {sink: driver.output(sink) for sink in driver._sinks}
    return out


def check_random(recipe: Recipe, given: Input, parallelism: int, stops: Stops) -> None:
    expected = random_run(recipe, given, parallelism, {})
    found = random_run(recipe, given, parallelism, stops)
    for sink, rows in expected.items():
        assert_same(found[sink], rows, scale=magnitude(given.flat()), what=sink)


def runs_of(some: Any) -> Any:
    return st.tuples(some(sources=1), inputs(1, least=3), st.sampled_from([1, 3]), stops_of_runs)


@SETTINGS
@given(runs_of(recipes))
def test_random_flows_give_the_same(run: Any) -> None:
    check_random(*run)


@SETTINGS
@given(runs_of(recipes_of_kinds))
def test_other_kinds_of_windows_give_the_same(run: Any) -> None:
    check_random(*run)


@SETTINGS
@given(runs_of(recipes_of_changes))
def test_early_results_and_changes_are_the_same(run: Any) -> None:
    check_random(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=1_000)
@given(runs_of(recipes) | runs_of(recipes_of_kinds) | runs_of(recipes_of_changes))
def test_many_random_flows_give_the_same(run: Any) -> None:
    check_random(*run)


# -- one checkpoint --------------------------------------------------------------------------------


def sums() -> ms.Flow:
    flow = ms.Flow("sums")
    source = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
    source.key_by("k").update(add, name="sums", order="arrival").sink(ms.Memory())
    source.key_by("k").window(ms.tumbling("1h")).agg(n=ms.count()).sink(ms.Memory())
    return flow


def add(event: Any, slate: Row, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + event.value["n"]


def pushed(driver: Driver, start: int) -> Driver:
    rows = [{"ts": START + timedelta(seconds=start), "k": f"k{i}", "n": i} for i in range(40)]
    driver.push("in", rows).push("in", [{**rows[0], "k": 42}]).step()
    return driver


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with Driver(sums(), checkpoint=tmp_path / "ck", shards=8) as driver:
        pushed(pushed(driver, 0), 10)
    return tmp_path / "ck"


def slates(path: Path, starts: int) -> dict[Any, Any]:
    with Driver(sums(), checkpoint=path) as driver:
        pushed(driver, starts)
        return driver.slates("sums")


@pytest.mark.parametrize("point", ["shards-dealt", "before-manifest", "after-manifest"])
def test_killed_at_any_point_it_is_done_or_not_begun(stopped: Path, point: str) -> None:
    untouched = stopped.with_name("untouched")
    shutil.copytree(stopped, untouched)
    code = f"from millstream.run.resharding import reshard; reshard({str(stopped)!r}, 3)"
    place = str(Path(ms.__file__).parents[1])
    env = {"PYTHONPATH": place, "MILLSTREAM_CRASH_AT": f"{point}:0+", "PATH": ""}
    killed = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert killed.returncode == -9
    with Driver(sums(), checkpoint=stopped) as driver:
        assert driver.engine.footing.shards == (3 if point == "after-manifest" else 8)
        leftovers = set(driver.engine.checkpoint.state.walk())
        assert leftovers >= driver.engine.manifest.files.keys()
    reshard(stopped, 3)
    assert Checkpoint(stopped).read_program()["shards"] == 3  # type: ignore[index]
    assert slates(stopped, 20) == slates(untouched, 20)


def test_slates_are_read_by_key_and_none_has_changed(stopped: Path) -> None:
    before = Follower(stopped).current
    done = reshard(stopped, 5)
    assert (done.before, done.now, done.batch) == (8, 5, before.batch + 1)
    now = Follower(stopped).current
    for key in (*(f"k{i}" for i in range(40)), 42):
        assert now.get("sums", key) == before.get("sums", key) is not None, key
    about = now.updater("sums")
    assert not list(changes(before, now, about))
    with Driver(sums(), checkpoint=stopped) as driver:
        driver.push("in", [{"ts": START + timedelta(seconds=30), "k": "k7", "n": 1}]).step()
        driver.push("in", [{"ts": START + timedelta(seconds=31), "k": "k7", "n": 1}]).step()
    assert [one.text for one in changes(before, Follower(stopped).current, about)] == ["k7"]


def test_one_can_go_back_to_before(stopped: Path) -> None:
    before = Follower(stopped).current
    reshard(stopped, 5)
    (stopped / "manifests" / f"{before.batch + 1:08d}.json").unlink()
    (stopped / "published").unlink()
    with Driver(sums(), checkpoint=stopped) as driver:
        assert driver.engine.footing.shards == 8
        assert driver.slates("sums")["k3"] == {"n": 6}


def test_a_running_flow_is_refused(stopped: Path) -> None:
    with (
        Driver(sums(), checkpoint=stopped),
        pytest.raises(ms.CheckpointError, match="stop that run first: shards are changed while"),
    ):
        reshard(stopped, 3)


def test_a_damaged_checkpoint_is_refused_and_left_alone(stopped: Path) -> None:
    batch = Follower(stopped).current.batch
    file = max((stopped / "state" / "sums" / "slates").iterdir())
    file.write_bytes(file.read_bytes()[:-9] + b"123456789")
    with pytest.raises(ms.CheckpointError, match="is damaged"):
        reshard(stopped, 3)
    assert Checkpoint(stopped).latest().batch == batch  # type: ignore[union-attr]
    assert not list((stopped / "state").rglob(f"{batch + 1:08d}-*"))


def test_what_an_older_version_has_stored_is_refused_with_a_way_out(stopped: Path) -> None:
    place = Checkpoint(stopped)
    program = place.read_program() or {}
    del program["stored"]
    place.write_program(program)
    with pytest.raises(ms.CheckpointError, match="start the flow once with this one, stop it"):
        reshard(stopped, 3)
    with Driver(sums(), checkpoint=stopped):
        pass
    assert reshard(stopped, 3).rows == {"sums": 41, "in by k": 82}


def test_a_batch_that_was_not_published_is_refused(stopped: Path) -> None:
    place = Checkpoint(stopped)
    place.lock()
    latest = place.latest()
    assert latest is not None
    outputs = [Output("memory", "x", None, 1)]
    place.commit(msgspec.structs.replace(latest, batch=latest.batch + 1, outputs=outputs))
    place.close()
    with pytest.raises(ms.CheckpointError, match="not all of its results are where they belong"):
        reshard(stopped, 3)


def test_partitions_need_the_program_and_the_same_function(tmp_path: Path) -> None:
    def flow(partition: Any) -> ms.Flow:
        flow = ms.Flow("parted")
        source = flow.source(ms.Generator(tuple, time="ts", lateness="0s"), name="in")
        source.key_by("k", partition=partition).update(add, name="sums", order="arrival").sink(
            ms.Memory()
        )
        return flow

    with Driver(flow(parted), checkpoint=tmp_path) as driver:
        pushed(driver, 0)
        driver.reshard(3)
        assert driver.slates("sums")[42] == {"n": 0}
    with pytest.raises(ms.CheckpointError, match=r"key_by\(partition=\)\); name the file"):
        reshard(tmp_path, 5)
    with (
        Driver(flow(lambda key: parted(key) + 1), checkpoint=tmp_path) as driver,
        pytest.raises(ms.CheckpointError, match="partition= gives others; the state is left"),
    ):
        driver.reshard(5)


def test_nothing_is_done_twice_and_nothing_stored_is_just_noted(tmp_path: Path) -> None:
    with Driver(sums(), checkpoint=tmp_path, shards=8):
        pass
    assert reshard(tmp_path, 4).batch == -1
    epoch = Checkpoint(tmp_path).read_program()["epoch"]  # type: ignore[index]
    assert reshard(tmp_path, 4).before == 4
    assert Checkpoint(tmp_path).read_program()["epoch"] == epoch  # type: ignore[index]
    with pytest.raises(ms.CheckpointError, match="has 4 shards"):
        Driver(sums(), checkpoint=tmp_path, shards=8)
    with pytest.raises(ms.ConfigError, match="expected a number from 1"):
        reshard(tmp_path, 0)
    with pytest.raises(ms.CheckpointError, match="there is no checkpoint"):
        reshard(tmp_path / "none", 4)

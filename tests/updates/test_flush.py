"""Slates that are flushed at an interval: kept in memory, logged, made again, read as they are."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import CheckpointError, ConfigError
from millstream.operators.updates import group
from millstream.run import faults
from millstream.run.resharding import reshard
from millstream.serve.changes import changes
from millstream.serve.following import Follower
from millstream.state import segments, warm
from millstream.state.doctor import examine
from millstream.state.manifests import read_manifest
from millstream.state.unflushed import LOG, UNFLUSHED
from millstream.state.warm import ALONE, Warm
from millstream.testing import Driver

Rows = list[dict[str, Any]]


def remember(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
    if event.value["v"] == 13:
        raise ValueError("unlucky")
    if event.value["v"] % 29 == 0:
        ctx.delete()
        return None
    slate["n"] = slate.get("n", 0) + 1
    slate["last"] = [*slate.get("last", [])[-3:], event.value["v"]]
    if slate["n"] % 3 == 0:
        ctx.timer(after="2s")
    if slate["n"] % 5 == 0:
        ctx.timer(after="1s", clock="wall")
    return {"k": event.key, "n": slate["n"], "sum": sum(slate["last"])}


def fired(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
    slate["timers"] = slate.get("timers", 0) + 1
    return {"k": event.key, "n": -slate["timers"], "sum": 0}


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"n": one.get("n", 0) + other.get("n", 0)}


def flow(flush: str = "batch") -> ms.Flow:
    """An updater with timers of both clocks, deletions and failures; one with ttl; a merged one."""
    flow = ms.Flow("flushed")
    source = ms.Generator(tuple, time="ts", time_unit="s", lateness="1s")
    keyed = flow.source(source, name="in").key_by("k")
    options: dict[str, Any] = {"flush": flush}
    told = keyed.update(remember, on_timer=fired, name="told", **options)
    told.sink(ms.Memory(), name="out")
    keyed.update(count, name="short", ttl="2s", order="arrival", **options)
    keyed.update(count, name="merged", merge=added, **options)
    return flow


UPDATERS = ("told", "short", "merged")


def batches(seed: int, count: int) -> list[Rows]:
    rng = random.Random(seed)
    return [
        [
            {"ts": 1_000.0 + at + rng.random(), "k": f"k{rng.randrange(7)}", "v": rng.randrange(99)}
            for _ in range(rng.randrange(1, 20))
        ]
        for at in range(count)
    ]


def answers(driver: Driver) -> dict[str, Any]:
    driver.end()
    slates = {name: driver.slates(name) for name in UPDATERS}
    driver.engine.bring_out(driver._executor)  # as at the end of a run
    assert slates == {name: driver.slates(name) for name in UPDATERS}
    assert not any(unflushed(driver, name) for name in UPDATERS)
    dead = sorted(str(one) for one in driver.dead)
    told = sorted(map(str, driver.output("out")))
    return {**slates, "out": told, "dead": dead, "ledger": driver.ledger}


def pushed(driver: Driver, rows: Rows) -> None:
    driver.advance("1s").push("in", rows)
    driver.step()


def unflushed(driver: Driver, updater: str = "told") -> int:
    tables = driver.engine.manifest.segments.get(updater, {})
    return sum(map(len, tables.get(UNFLUSHED, {}).values()))


OPTIONS: dict[str, Any] = {"now": 1_000.0, "dead_letter_limit": 1.0}


def at_every_batch(given: list[Rows]) -> dict[str, Any]:
    with Driver(flow(), warm=0, **OPTIONS) as driver:
        for rows in given:
            pushed(driver, rows)
        return answers(driver)


EVENTS = st.lists(
    st.sampled_from(["", "restart", "lost", "some", "moves", "full", "again"]),
    min_size=9,
    max_size=9,
)


CASES = {
    "seed": st.integers(0, 2**16),
    "happens": EVENTS,
    "flush": st.sampled_from(["2s", "4s", "1h"]),
    "parallelism": st.integers(1, 3),
}


@settings(max_examples=2)
@given(**CASES)
def test_answers_do_not_depend_on_when_slates_are_flushed(**case: Any) -> None:
    check(**case)


@pytest.mark.long
@settings(max_examples=150)
@given(**CASES)
def test_answers_never_depend_on_when_slates_are_flushed(**case: Any) -> None:
    check(**case)


def check(seed: int, happens: list[str], flush: str, parallelism: int) -> None:
    """The same answers as with a flush in every batch, whatever happens to what is in memory."""
    given_rows = batches(seed, len(happens))
    with Driver(flow(flush), parallelism=parallelism, **OPTIONS) as driver:
        for rows, what in zip(given_rows, happens, strict=True):
            kept = driver.engine.keep_warm().kept
            assert kept is not None
            match what:
                case "restart":
                    driver.restart()
                case "lost":
                    kept.prune()
                case "some":
                    kept.prune(kept._files.walk()[::2])
                case "moves":
                    driver.engine.pace.parallelism = parallelism % 3 + 1
                case "full":
                    small = Warm(kept.place, 3_000)
                    driver.engine.keep_warm().kept = small
                case "again":
                    segments._open.cache_clear()
            pushed(driver, rows)
        found = answers(driver)
    assert found == at_every_batch(given_rows)


def test_between_flushes_the_checkpoint_gets_events_and_no_slates() -> None:
    with Driver(flow("3s"), **OPTIONS) as driver:
        seen = []
        for rows in batches(5, 9):
            pushed(driver, rows)
            tables = driver.engine.manifest.segments["told"]
            log = sum(map(len, (one for kind in LOG for one in tables.get(kind, {}).values())))
            assert bool(unflushed(driver)) == bool(log)
            files = driver.engine.manifest.files
            seen.append((bool(log), {one for one in files if one.startswith("told/slates/")}))
        assert [kept for kept, _ in seen].count(False) >= 2
        for (_, before), (kept, now) in pairwise(seen):
            assert (now == before) == kept


def test_a_version_that_knows_no_flush_refuses_slates_that_are_not_flushed(tmp_path: Path) -> None:
    """Format 4 is what was written before; it comes back as soon as all is flushed."""
    formats = []
    with Driver(flow("3s"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        for rows in batches(5, 9):
            pushed(driver, rows)
            engine = driver.engine
            written = read_manifest(engine.checkpoint.manifests, engine.manifest.batch)
            kept = any(one.startswith(ALONE) for one in written.files)
            formats.append((written.format, kept))
        answers(driver)
        assert driver.engine.manifest.format == 4
    assert set(formats) == {(4, False), (5, True)}


def test_what_changed_no_slate_is_not_left_in_a_log() -> None:
    """Only a failure since the last flush: nothing is in memory, and the log goes all the same."""
    failing = ms.Flow("failing")
    source = ms.Generator(tuple, time="ts", time_unit="s", lateness="1s")
    keyed = failing.source(source, name="in").key_by("k")
    keyed.update(remember, on_timer=fired, name="told", flush="1h")
    with Driver(failing, **OPTIONS) as driver:
        pushed(driver, [{"ts": 1_000.0, "k": "a", "v": 13}])
        pushed(driver, [{"ts": 1_005.0, "k": "b", "v": 14}])
        manifest = driver.engine.manifest
        assert any(manifest.segments["told"].get(kind) for kind in LOG) and not unflushed(driver)
        assert manifest.format == 5
        driver.engine.bring_out(driver._executor)
        assert driver.engine.manifest.format == 4


def test_a_flow_that_rests_flushes_when_it_is_time() -> None:
    with Driver(flow("5s"), **OPTIONS) as driver:
        pushed(driver, batches(1, 1)[0])
        assert unflushed(driver, "short")
        driver.advance("3s")
        driver.step()
        assert unflushed(driver, "short")
        driver.advance("5s")
        assert driver.step()
        assert not unflushed(driver, "short")


def test_a_log_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_LOGGED", 3)
    with Driver(flow("1h"), **OPTIONS) as driver:
        kept = []
        for number in range(8):
            pushed(driver, [{"ts": 1_000.0 + number, "k": "a", "v": 1}])
            kept.append(unflushed(driver, "short"))
    assert list(map(bool, kept)) == [True, True, True, False, True, True, True, False]


def test_plans_say_when_slates_are_flushed() -> None:
    flow = ms.Flow("plans")
    source = flow.source(ms.Generator(tuple, schema="k string"), name="in").key_by("k")
    source.update(count, name="alone", flush="10s")
    loop = flow.stream("loop").key_by("key")
    source.union(loop).update(count, name="round", publishes="loop", flush="10s")
    told = flow.explain()
    assert "slates are flushed every 10s, their events every batch" in told
    assert "slates are flushed with every batch, because it is in a cycle" in told


def test_the_last_batch_of_a_run_flushes() -> None:
    with Driver(flow("1h"), **OPTIONS) as driver:
        pushed(driver, batches(1, 1)[0])
        slates = driver.slates("short")
        driver.engine.bring_out(driver._executor)
        assert not any(unflushed(driver, name) for name in UPDATERS)
        assert driver.slates("short") == slates


def test_without_a_place_in_memory_every_batch_flushes() -> None:
    with Driver(flow("1h"), warm=0, **OPTIONS) as driver:
        pushed(driver, batches(1, 1)[0])
        assert not unflushed(driver, "short")


def test_a_program_that_flushes_with_every_batch_from_now_on(tmp_path: Path) -> None:
    given_rows = batches(3, 4)
    with Driver(flow("1h"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        for rows in given_rows[:2]:
            pushed(driver, rows)
    with Driver(flow(), checkpoint=tmp_path / "ck", **(OPTIONS | {"now": 1_002.0})) as driver:
        for rows in given_rows[2:]:
            pushed(driver, rows)
            assert not any(unflushed(driver, name) for name in UPDATERS)
        found = answers(driver)
    expected = at_every_batch(given_rows)
    assert {name: found[name] for name in UPDATERS} == {name: expected[name] for name in UPDATERS}


# -- crashes --------------------------------------------------------------------------------------


class Crash(BaseException):
    """The end of a process, as far as the engine can tell."""


@pytest.mark.parametrize("point", ["before-manifest", "after-manifest"])
def test_a_crash_anywhere_loses_nothing(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given_rows = batches(11, 7)
    with Driver(flow("3s"), parallelism=2, **OPTIONS) as driver:
        for number, rows in enumerate(given_rows):
            crashing = {"at": (point, number) if number in (2, 3, 5) else None}

            def crash(at: str, batch: int, crashing: dict[str, Any] = crashing) -> None:
                if crashing["at"] is not None and at == crashing["at"][0]:
                    crashing["at"] = None
                    raise Crash

            monkeypatch.setattr(faults, "crash_point", crash)
            driver.advance("1s").push("in", rows)
            committed = driver.engine.manifest.batch
            try:
                driver.step()
            except Crash:
                driver.restart()
                if driver.engine.manifest.batch == committed:
                    driver.push("in", rows).step()
        found = answers(driver)
    expected = at_every_batch(given_rows)
    if point == "before-manifest":
        assert {k: v for k, v in found.items() if k != "out"} == {
            k: v for k, v in expected.items() if k != "out"
        }
    assert {name: found[name] for name in UPDATERS} == {name: expected[name] for name in UPDATERS}


def test_forgetting_the_log_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: they do if lost slates are not made again."""
    from millstream.operators.updates.flushing import Log

    monkeypatch.setattr(Log, "since_flush", lambda self, shards: [])
    given_rows = batches(2, 4)
    with Driver(flow("1h"), **OPTIONS) as driver:
        for rows in given_rows:
            pushed(driver, rows)
            driver.restart()
        found = answers(driver)
    assert found["merged"] != at_every_batch(given_rows)["merged"]


# -- readers --------------------------------------------------------------------------------------


def test_readers_on_this_machine_see_every_batch(tmp_path: Path) -> None:
    with Driver(flow("1h"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        warm_here = dict(warm._of)
        for rows in batches(4, 3):
            pushed(driver, rows)
            warm._of.clear()  # as in another process
            follower = Follower(tmp_path / "ck")
            about = follower.current.updater("merged")
            assert follower.current.batch_of(about) == driver.engine.manifest.batch
            found = {one.key: one.slate for one in follower.current.page("merged").slates}
            warm._of.update(warm_here)
            assert found == driver.slates("merged")


def test_readers_elsewhere_see_the_last_flush_and_are_told(tmp_path: Path) -> None:
    with Driver(flow("4s"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        flushed: dict[Any, Any] = {}
        batch, told = -1, []
        follower = None
        for rows in batches(6, 10):
            pushed(driver, rows)
            if not unflushed(driver, "merged"):
                flushed, batch = driver.slates("merged"), driver.engine.manifest.batch
            elsewhere = Path(driver.engine.keep_warm().kept.place)  # type: ignore[union-attr]
            hidden = elsewhere.rename(elsewhere.with_name("hidden"))
            before = dict(warm._of)
            warm._of.clear()
            try:
                follower = follower or Follower(tmp_path / "ck")
                old = follower.current
                follower.advance()
                new, about = follower.current, follower.current.updater("merged")
                assert {one.key: one.slate for one in new.page("merged").slates} == flushed
                assert new.batch_of(about) == batch
                told += [one.text for one in changes(old, new, about)]
            finally:
                hidden.rename(elsewhere)
                warm._of.update(before)
        assert set(told) >= set(flushed)


def test_what_others_make_of_slates_that_are_not_flushed(tmp_path: Path) -> None:
    with Driver(flow("1h"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        pushed(driver, batches(1, 1)[0])
    report, well = examine(tmp_path / "ck")
    assert well, report
    with pytest.raises(CheckpointError, match=r"not flushed.*start the flow once, stop it"):
        reshard(tmp_path / "ck", 3)


def test_a_driver_stops_before_it_deals_shards_anew(tmp_path: Path) -> None:
    with Driver(flow("1h"), checkpoint=tmp_path / "ck", **OPTIONS) as driver:
        pushed(driver, batches(1, 1)[0])
        slates = driver.slates("merged")
        assert driver.reshard(3).slates("merged") == slates


def test_flush_says_what_it_expects() -> None:
    keyed = ms.Flow("f").source(ms.Generator(tuple), name="in").key_by("k")
    with pytest.raises(ConfigError, match="flush"):
        keyed.update(count, flush="often")
    with pytest.raises(ConfigError, match="flush"):
        keyed.update(count, flush="0s")

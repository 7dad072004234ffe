"""Only time in which somebody could have been heard counts as silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millstream as ms
from millstream.run.batches.attending import Attention
from millstream.run.tasks.splits import AnySplit
from millstream.testing import Driver
from millstream.testing.driver import Pushed
from tests.run.test_file_times import SECOND, Followed, records

NOW = 1_800_000_000.0


def at(seconds: int, who: str) -> dict[str, Any]:
    return {"ts": int(NOW) + seconds, "who": who}


def counting() -> ms.Flow:
    flow = ms.Flow("counting")
    source = ms.Generator(
        tuple,
        time="ts",
        schema="ts bigint, who string",
        lateness="0s",
        participant="who",
        idle_timeout="10s",
        max_future_skew="1d",
    )
    counts = flow.source(source, name="in").key_by().window(ms.tumbling("10s")).agg(n=ms.count())
    counts.sink(ms.Memory(), name="out")
    return flow


def numbers(driver: Driver) -> list[int]:
    return [row["n"] for row in driver.output("out")]


def live(driver: Driver, seconds: int) -> None:
    """Time passes, and the process runs."""
    for _ in range(seconds):
        driver.advance("1s")
        driver.engine.outlook.sign()


def test_nobody_is_idle_for_the_time_the_driver_was_suspended() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1, "a"), at(2, "b")]).step()
        live(driver, 5)
        driver.advance("1h")  # it was stopped, or its clock was set
        driver.push("in", [at(3600, "a")]).step()  # what b sent meanwhile is not received yet
        assert numbers(driver) == []
        driver.push("in", [at(5, "b"), at(3600, "b")]).step()
        assert numbers(driver) == [3]
        assert driver.ledger["agg"]["late"] == 0


def test_who_stays_silent_after_that_is_idle_after_its_timeout() -> None:
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1, "a"), at(2, "b")]).step()
        live(driver, 5)
        driver.advance("1h").step()
        live(driver, 9)
        driver.push("in", [at(3600, "a")]).step()
        assert numbers(driver) == []
        live(driver, 2)
        driver.push("in", [at(3601, "a")]).step()
        assert numbers(driver) == [2]


def test_who_was_suspended_is_found_out_before_signs_come_again() -> None:
    attention = Attention()
    attention.check(100 * SECOND)
    attention.check(200 * SECOND)
    assert attention.since == 0  # nobody gives signs: the clock is a test's
    attention.sign(200 * SECOND)
    attention.sign(203 * SECOND)
    assert attention.since == 0
    attention.check(207 * SECOND)
    assert attention.since == 207 * SECOND


def test_nobody_is_idle_of_whom_records_wait(monkeypatch: Any) -> None:
    """What b sent waits for longer than b may be silent, behind what batches have room for."""

    def first(self: Pushed, rows: int, size: int, parts: int) -> list[AnySplit]:
        return self._cut(1)

    monkeypatch.setattr(Pushed, "take", first)
    with Driver(counting(), now=NOW) as driver:
        driver.push("in", [at(1, "a"), at(2, "b")]).step()
        for second in (20, 40, 60):
            driver.push("in", [at(second, "a")])
        driver.push("in", [at(5, "b"), at(60, "b")])
        for _ in range(3):
            driver.advance("20s").step()
            assert numbers(driver) == []
        driver.step()
        assert numbers(driver) == [3, 1, 1]
        assert driver.ledger["agg"]["late"] == 0
        driver.advance("11s").push("in", [at(75, "a")]).step()  # b is idle: nothing of it waits
        assert numbers(driver) == [3, 1, 1, 2]


def test_a_file_is_not_idle_for_the_time_nobody_listened(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s", follow=True, idle_timeout="10s")
    (tmp_path / "in" / "a").write_bytes(records(0, 10))
    (tmp_path / "in" / "b").write_bytes(records(0, 20))
    kept.step()
    assert kept.holds() == {"a": 9, "b": 19}
    kept.now += 3600 * SECOND
    assert len(kept.tracker.horizon(kept.now, since=kept.now).files) == 2
    kept.now += 11 * SECOND
    assert kept.holds() == {"b": 19}

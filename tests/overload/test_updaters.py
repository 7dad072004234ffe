"""Updaters under overload: what is due and was not applied is too much."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.overload.support import shed_of


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def flow_of(policy: ms.Overload) -> ms.Flow:
    """Events of a fast source wait for a slow one, and are due all at once when it comes."""
    flow = ms.Flow("due")
    spec = {"time": "ts", "schema": "ts bigint, k string", "idle_timeout": None}
    fast = flow.source(ms.Generator(tuple, **spec), name="fast")
    slow = flow.source(ms.Generator(tuple, **spec), name="slow")
    both = fast.union(slow).key_by("k")
    both.update(count, name="counts", overload=policy)
    if policy.stream is not None:
        flow.stream(policy.stream).sink(ms.Memory())
    return flow


def events(low: int, high: int) -> list[dict[str, Any]]:
    return [{"ts": 1_000 + n, "k": f"k{n % 3}"} for n in range(low, high)]


def driven(policy: ms.Overload, checkpoint: Any, restarts: bool = False) -> Driver:
    """Two hundred events are due where a batch applies ten; then fifty more come."""
    driver = Driver(flow_of(policy), batch_rows=10, now=2_000, checkpoint=checkpoint)
    driver.push("fast", events(0, 200)).step()
    driver.push("slow", [{"ts": 5_000, "k": "late"}]).step()
    for n in range(200, 250, 10):
        driver.push("fast", events(n, n + 10)).step()
        if restarts:
            driver.restart()
    return driver


def totals(driver: Driver) -> tuple[int, int, int]:
    """Applied, dropped, diverted; the books balance."""
    account = driver.ledger["counts"]
    assert sum(slate["n"] for slate in driver.slates("counts").values()) == account["aggregated"]
    return account["aggregated"], account["dropped"], account["diverted"]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_comes_is_dropped_and_what_waits_is_applied(tmp_path: Any, restarts: bool) -> None:
    with driven(ms.drop(when=1), tmp_path, restarts) as driver:
        driver.end()
        applied, dropped, _ = totals(driver)
        assert applied + dropped == 251 and dropped >= 40
    told = shed_of(tmp_path)
    assert sum(one["dropped"] for one in told) == dropped
    assert {one["step"] for one in told} == {"counts"}
    assert all(low <= high for low, high in (one["keys"] for one in told))


def test_the_oldest_that_wait_are_dropped_for_newer_ones(tmp_path: Any) -> None:
    with driven(ms.drop("newest", when=1, until=0.5), tmp_path) as driver:
        driver.end()
        applied, dropped, _ = totals(driver)
        assert applied + dropped == 251 and dropped >= 50
        assert driver.slates("counts")["late"] == {"n": 1}
    assert sum(one["dropped"] for one in shed_of(tmp_path)) == dropped


def test_what_comes_goes_another_way(tmp_path: Any) -> None:
    with driven(ms.divert("more", when=1), tmp_path) as driver:
        driver.end()
        applied, _, diverted = totals(driver)
        assert applied + diverted == 251 and diverted >= 40
        assert len(driver.output()) == diverted == driver.ledger["more"]["offered"]
        slates = driver.slates("counts")
        rest = Counter(row["k"] for row in driver.output())
        whole = reference(
            flow_of(ms.throttle()),
            {"fast": events(0, 250), "slow": [{"ts": 5_000, "k": "late"}]},
        )
        for key, slate in whole.slates["counts"].items():
            assert slate["n"] == slates[key]["n"] + rest[key]


def test_sources_wait_while_an_updater_throttles_them(tmp_path: Any) -> None:
    with driven(ms.throttle(when=1), tmp_path) as driver:
        held = driver.engine.trackers["fast"].pending()
        assert held >= 40 * 64  # they were pushed, and not taken
        driver.end()
        assert totals(driver) == (251, 0, 0)

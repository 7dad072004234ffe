"""What was dropped or diverted is missing in the figure of the windows it would have been in."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.ops.times.shares import Lot, Shares, Spell, Taken
from millstream.testing import Driver

WINDOW = 50  # microseconds; a record every microsecond


def flow(policy: Any) -> ms.Flow:
    """Windows over what is kept, over what is diverted, and over both."""
    made = ms.Flow("shed")
    ticks = ms.Generator(
        tuple, time="ts", time_unit="us", schema="ts bigint, k bigint", lateness="0s",
        overload=policy,
    )  # fmt: skip
    paths = {"kept": made.source(ticks, name="ticks")}
    if policy.stream is not None:
        paths["over"] = made.stream(policy.stream)
        paths["all"] = paths["kept"].union(paths["over"])
    for name, stream in paths.items():
        windows = stream.key_by("k").window(ms.tumbling(f"{WINDOW}us"), fidelity=True)
        windows.agg(n=ms.count()).sink(ms.Memory(), name=name)
    return made


def records(count: int, start: int = 0) -> list[dict[str, int]]:
    return [{"ts": at, "k": at % 3} for at in range(start, start + count)]


def figures(driver: Driver, sink: str = "kept") -> dict[int, tuple[int, float]]:
    """By the start of each window: how many records are in its results, and what these say."""
    found: dict[int, tuple[int, float]] = {}
    for row in driver.output(sink):
        start = int(row["window_start"].timestamp() * 1e6 + 0.5)
        assert row["participants"] == "1/1" and row["closed_by"] == "watermark"
        count, said = found.get(start, (0, row["fidelity"]))
        assert said == row["fidelity"]  # of all keys of a window alike
        found[start] = (count + row["n"], said)
    return found


@pytest.mark.parametrize("keep", ["newest", "oldest"])
@pytest.mark.parametrize("diverts", [False, True])
def test_the_figure_is_the_share_that_was_counted(keep: str, diverts: bool) -> None:
    """Records at an even pace, in bursts and with restarts; each window is counted by hand."""
    seed = random.Random(7)
    when = 64 * 40
    policy = ms.divert("overflow", keep=keep, when=when) if diverts else ms.drop(keep, when=when)
    with Driver(flow(policy), batch_rows=10, now=0.0) as driver:
        at = 0
        for _ in range(9):
            count = seed.choice([5, 10, 60, 120])
            for first in range(at, at + count, 5):  # what is pushed at once is shed as a whole
                driver.push("ticks", records(min(5, at + count - first), first))
            at += count
            for _ in range(seed.randrange(1, 4)):
                driver.step()
            if seed.random() < 0.2:
                driver.restart()
        driver.end()
        account = driver.ledger["ticks"]
        shed = account["diverted" if diverts else "dropped"]
        assert account["offered"] == account["aggregated"] + shed == at
        assert shed > at / 5
        found = {
            name: figures(driver, name)
            for name in (["kept", "over", "all"] if diverts else ["kept"])
        }
    offered = Counter(one["ts"] // WINDOW * WINDOW for one in records(at))
    for name, windows in found.items():
        assert windows
        for start, (count, said) in windows.items():
            true = count / offered[start]
            assert abs(said - true) <= 2.5 / offered[start], (name, start, true, said)
    assert any(said < 0.9 for _, said in found["kept"].values())
    if diverts:
        assert {said for _, said in found["all"].values()} == {1.0}


def test_what_is_dropped_at_the_very_end_is_missing_too() -> None:
    with Driver(flow(ms.drop("oldest", when=64)), batch_rows=10) as driver:
        for first in range(0, 50, 5):
            driver.push("ticks", records(5, first))
        driver.step()
        driver.end()
        dropped = driver.ledger["ticks"]["dropped"]
        assert dropped > 0
        assert figures(driver) == {0: (50 - dropped, (50 - dropped) / 50)}


def test_a_window_in_which_nothing_was_dropped_is_complete() -> None:
    with Driver(flow(ms.drop(when=64 * 40)), batch_rows=10) as driver:
        driver.push("ticks", records(120))
        driver.end()
        assert figures(driver) == {0: (50, 1.0), 50: (50, 1.0), 100: (20, 1.0)}


def test_a_history_is_bounded_and_coarser_the_older_it_is() -> None:
    shares = Shares(oldest=False)
    for at in range(0, 1_000_000, 1000):
        taken = Taken(kept=Lot(10, at + 900, at + 999), dropped=Lot(90))
        shares = shares.after(at - 1 if at else None, taken)
    assert len(shares.spells) <= 128
    assert sum(one.kept for one in shares.spells) == 10_000
    assert sum(one.dropped for one in shares.spells) == 90_000
    for start, end, off in (
        (998_000, 1_000_000, 0.001),
        (500_000, 600_000, 0.01),
        (0, 10**6, 0.001),
    ):
        assert abs(shares.of(start, end, 999_999, ["kept"]) - 0.1) < off


def test_records_before_the_first_that_was_read_count_with_it() -> None:
    shares = Shares(oldest=False).after(None, Taken(Lot(1, 70, 79), Lot(), Lot(3)))
    assert shares.spells == (Spell(70, 70, dropped=3), Spell(70, 79, kept=1))
    assert shares.of(0, 100, 79, ["kept"]) == 0.25
    assert shares.of(0, 70, 79, ["kept"]) == 1.0  # nobody knows of any

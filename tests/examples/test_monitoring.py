"""Monitoring (HOP, 4.2): alerts against the paper's words, computed sample by sample."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.cli.loading import load_module
from millstream.testing import Driver

EXAMPLE = Path(__file__).parents[2] / "examples" / "monitoring.py"
START = datetime(2026, 1, 5, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=250)
STEPS = 4 * 142  # more than the 120 s that the others are looked at for
BEGINS = 4 * 130


def samples(hosts: list[str], thrashes: str) -> list[dict[str, Any]]:
    """Figures of every host; one begins to swap."""
    rng = random.Random(42)
    return [
        {
            "agent": host,
            "ts": START + step * STEP + timedelta(milliseconds=rng.randrange(100)),
            "host": host,
            "cpu": rng.choice([5.0, 10.0, 15.0, 40.0]),
            "swapped_in": 0,
            "swapped_out": 25_000_000 if host == thrashes and step >= BEGINS else 0,
        }
        for step in range(STEPS)
        for host in hosts
    ]


def load(one: dict[str, Any]) -> float:
    return one["cpu"] + 4 * (one["swapped_in"] + one["swapped_out"]) / 1e6


def alerts_by_definition(given: list[dict[str, Any]]) -> dict[str, datetime]:
    """The end of the first window with ten tentative alerts, per host."""
    at = np.array([(one["ts"] - START) / STEP for one in given])
    who, loads = np.array([one["host"] for one in given]), np.array([load(one) for one in given])
    tentative: dict[str, list[int]] = {}
    first: dict[str, datetime] = {}
    for end in range(1, STEPS):
        for host in np.unique(who).tolist():
            last = loads[(who == host) & (at >= end - 4 * 20) & (at < end)]
            others = loads[(who != host) & (at >= end - 4 * 120) & (at < end)]
            if last.mean() > others.mean() + 2 * others.std():
                tentative.setdefault(host, []).append(end)
                within = [one for one in tentative[host] if one > end - 4 * 30]
                if len(within) >= 10:
                    first.setdefault(host, START + end * STEP)
    return first


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("HOST", "PORT", "OUT"):
        monkeypatch.delenv(name, raising=False)
    return load_module(EXAMPLE)


def test_the_alert_is_that_of_the_definition(monitoring: Any) -> None:
    given = samples(list(monitoring.RACK_OF), monitoring.THRASHES)
    expected = alerts_by_definition(given)
    assert set(expected) == {monitoring.THRASHES}
    with Driver(monitoring.flow, now=START.timestamp()) as driver:
        for begin in range(0, len(given), 8 * 142):
            driver.push("stats", given[begin : begin + 8 * 142]).step()
        told = driver.output("told")
        account = driver.ledger["hosts over 120 s"]
    began = [(row["host"], row["since"]) for row in told if row["op"] == "+"]
    assert began == list(expected.items())
    assert all(row["since"] == expected[row["host"]] for row in told)
    assert account["offered"] == account["aggregated"] == len(given)

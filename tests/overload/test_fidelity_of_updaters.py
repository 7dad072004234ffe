"""What an updater drops or diverts is missing in the figure of the windows after it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

WINDOW = 25  # microseconds; an event every microsecond
START = 1_000_000


def pass_on(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"k": event.key}


def flow_of(policy: ms.Overload) -> ms.Flow:
    """Events of a fast source wait for a slow one, and are due all at once when it comes."""
    flow = ms.Flow("due")
    spec: dict[str, Any] = {"time": "ts", "time_unit": "us", "schema": "ts bigint, k string"}
    fast, slow = (
        flow.source(ms.Generator(tuple, idle_timeout=None, lateness="0s", **spec), name=name)
        for name in ("fast", "slow")
    )
    paths = {"kept": fast.union(slow).key_by("k").update(pass_on, name="up", overload=policy)}
    if policy.stream is not None:
        paths["over"] = flow.stream(policy.stream)
        paths["all"] = paths["kept"].union(paths["over"])
    for name, stream in paths.items():
        windows = stream.key_by().window(ms.tumbling(f"{WINDOW}us"), fidelity=True)
        windows.agg(n=ms.count()).sink(ms.Memory(), name=name)
    return flow


def events(low: int, high: int) -> list[dict[str, Any]]:
    return [{"ts": START + n, "k": f"k{n % 3}"} for n in range(low, high)]


@pytest.mark.parametrize(
    ("policy", "restarts"),
    [
        (ms.drop(when=1), False),
        (ms.drop("newest", when=1), False),
        (ms.divert("more", when=1), True),
    ],
    ids=["drop", "drop newest", "divert"],
)
def test_the_figure_is_the_share_that_was_applied(policy: ms.Overload, restarts: bool) -> None:
    """A hundred events are due where a batch applies ten; then a hundred more come."""
    with Driver(flow_of(policy), batch_rows=10, now=2.0, parallelism=2) as driver:
        driver.push("fast", events(0, 100)).step()
        driver.push("slow", [{"ts": START + 200, "k": "last"}]).step()
        for n in range(100, 200, 20):
            driver.push("fast", events(n, n + 20)).step()
            if restarts:
                driver.restart()
        driver.end()
        account = driver.ledger["up"]
        shed = account["dropped"] + account["diverted"]
        assert account["offered"] == account["aggregated"] + shed == 201 and shed > 20
        found = {
            name: {row["window_start"]: row for row in driver.output(name)}
            for name in (["kept", "over", "all"] if policy.stream else ["kept"])
        }
    offered = Counter((START + n) // WINDOW * WINDOW for n in range(201))
    for name, windows in found.items():
        for start, row in windows.items():
            whole = offered[round(start.timestamp() * 1e6)]
            # What is given for the last event of a window is in the next one.
            assert abs(row["fidelity"] - row["n"] / whole) <= 3.5 / min(WINDOW, whole), (name, row)
    assert any(row["fidelity"] < 0.9 for row in found["kept"].values())
    if policy.stream:
        assert {row["fidelity"] for row in found["all"].values()} == {1.0}


def test_where_nothing_was_dropped_nothing_is_missing() -> None:
    with Driver(flow_of(ms.drop())) as driver:
        driver.push("fast", events(0, 120)).push("slow", events(120, 121)).end()
        assert {row["fidelity"] for row in driver.output("kept")} == {1.0}

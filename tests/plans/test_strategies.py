"""What plans say about strategies is what the engine does."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.operators.windows import sliding
from millstream.plan.figures import read_figures
from millstream.plan.planner import sketch
from millstream.plan.strategies import choose, used_strategy
from millstream.testing import Driver
from tests.plans.test_explain import Median, Product, Sliding, Top, WordCount
from tests.run.test_running_values import Kinds
from tests.variants import variants

AGGREGATES: dict[str, Any] = {
    "count": ms.count(),
    "sum": ms.sum("v"),
    "mean": ms.mean("v"),
    "var": ms.var("v"),
    "std": ms.std("v"),
    "min": ms.min("v"),
    "max": ms.max("v"),
    "first": ms.first("v"),
    "last": ms.last("v"),
    "top_k": ms.top_k("v", 2),
    "distinct": ms.distinct("v"),
    "about distinct": ms.distinct("v", approx=True),
    "quantile": ms.quantile("v", 0.5),
    "about quantile": ms.quantile("v", 0.5, approx=True),
    "collect": ms.collect("v"),
    "own": Product("v"),
    "own with inverse": Kinds("v"),
    "own without combine": Median("v"),
}
JOBS = {"combine": WordCount(), "uncombine": Sliding(), "neither": Top()}
# What live batches slide by, and what the first batch, which has no window before it, does.
RUNNING = ("count", "sum", "mean", "var", "std", "top_k", "distinct", "own with inverse")
HELD = ("quantile", "collect", "own without combine")


def flow_of(what: str, window: Any) -> ms.Flow:
    flow = ms.Flow("strategies")
    files = ms.Files("x", schema="ts timestamp, k bigint, v bigint", time="ts", lateness="0s")
    source = flow.source(files, name="in")
    if what in JOBS:
        stream = source.map(lambda row: {"value": "a b"}).map_reduce(JOBS[what], window)
    else:
        stream = source.key_by("k").window(window).agg(answer=AGGREGATES[what])
    stream.named("windows").sink(ms.Memory())
    return flow


def expected(what: str, panes: int) -> set[str]:
    """The strategies of live batches, and of the first one."""
    if what in HELD or what == "neither":
        return {"kept values"}
    objects = what in (*JOBS, "own", "own with inverse") or what.startswith("about")
    plain = "two stacks" if objects else "blocks"
    if what in ("top_k", "distinct"):
        plain = "running tallies"
    if panes < 8:
        return {plain}
    running = what in RUNNING or what == "uncombine"
    return {plain, "running values" if running else "kept stacks"}


@pytest.mark.parametrize("panes", variants([12, 4]))
@pytest.mark.parametrize("what", [*AGGREGATES, *JOBS])
def test_the_engine_does_what_the_plan_says(
    what: str, panes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(sliding, "_GAIN", 0)
    monkeypatch.setattr(sliding, "_GAIN_STACKS", 0)
    flow = flow_of(what, ms.sliding(f"{panes}s", "1s"))
    plan = sketch("strategies", flow.nodes)
    (node,) = plan.windowed()
    job = plan.jobs[node.name]
    used = set()
    with Driver(flow, checkpoint=tmp_path / "ck") as driver:
        for second in range(panes + 4):
            ts = f"2026-01-05T09:00:{second:02d}Z"
            rows = [{"ts": ts, "k": n % 2, "v": n % 3 + 1} for n in range(4)]
            driver.push("in", rows).step()
            figures = read_figures(plan, tmp_path / "ck")
            assert figures is not None
            used.add(used_strategy(figures, job))
    used.discard(None)  # the first batches, in which no window leaves
    assert used == expected(what, panes)
    assert used == set(choose(node, job).name.split(", else "))

"""Claim: windows of minimum and maximum cost at most twice what windows of sum and count cost.

A sum can be taken away again when a trade leaves a window, a minimum cannot; the peer is therefore
millstream itself with sums. Both run in one process and one Spark session, in turns, and are
compared by the time of their batches. All answers are compared with DuckDB.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import trades
from benchmarks.common import (
    Truth,
    goal,
    markdown,
    module,
    plot,
    side,
    spark_context,
    steady,
    workspace,
)

SLIDE = 1
SIZES = (60, 600)
WAYS = {"sum": ("s", "n"), "minmax": ("lo", "hi")}
LIMIT = 600.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both kinds at all sizes."""
    amount = (100_000, 120, 4) if quick else (2_000_000, 1200, 8)
    with workspace("minmax") as work:
        data = trades.make(work / "in", *amount)
        measured = side(module("minmax", data, work, 1 if quick else 3), LIMIT)
        if "timed_out" in measured:
            raise RuntimeError(f"not done after {LIMIT:.0f} s")
        truth, agree = Truth(data, SLIDE), True
        for size in SIZES:
            measured["sizes"][str(size)]["rows"] = truth.window(size)
            for way, values in WAYS.items():
                for place in sorted(work.glob(f"{way}-{size}-*")):
                    found = truth.compare(
                        f"""select epoch_us(window_start) st, symbol, {", ".join(values)}
                        from '{place}/*.parquet'""",
                        values,
                    )
                    agree &= found["agree"]
    figures = {"trades": amount[0], **measured, "agree": agree}
    print(f"  answers agree: {agree}")
    figures["goals"] = _goals(figures)
    _plot(figures, quick)
    return figures


def _goals(figures: dict[str, Any]) -> list[Any]:
    goals = []
    for size, one in figures["sizes"].items():
        for name, what in (("total", "all batches"), ("steady", "steady batch")):
            ours, peer = one["minmax"][name], one["sum"][name]
            print(f"  {size} s, {what}: min/max {ours:.3f} s, sum/count {peer:.3f} s")
            times = round(ours / peer, 3)
            text = f"min/max beside sum/count, {size} s every {SLIDE} s, {what}"
            goals.append(goal(text, "at most 2 times", times, times <= 2))
    return goals


def _plot(figures: dict[str, Any], quick: bool) -> None:
    with plot("minmax", quick) as (axis,):
        for shift, (way, label) in enumerate((("sum", "sum, count"), ("minmax", "min, max"))):
            values = [one[way]["total"] for one in figures["sizes"].values()]
            axis.bar([n + 0.38 * shift for n in range(len(values))], values, 0.36, label=label)
        axis.set_xticks([n + 0.19 for n in range(len(SIZES))], [f"{s} s every 1 s" for s in SIZES])
        axis.set(ylabel="seconds, all batches")


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for size, one in figures["sizes"].items():
        total, batch = ([one[w][n] for w in WAYS] for n in ("total", "steady"))
        rows.append([f"{size} s", *total, total[1] / total[0], *batch, batch[1] / batch[0]])
    head = ["window", "sum, s", "min/max, s", "times"]
    head += ["sum, steady batch, s", "min/max, steady batch, s", "times"]
    return markdown(head, rows)


def measure(data: Path, work: Path, rounds: int) -> dict[str, Any]:
    """The best of some rounds for every kind and size."""
    context = spark_context()
    _once(data, work / "warm", "sum", 10)
    found: dict[str, Any] = {}
    for size in SIZES:
        runs: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS:
                runs[way].append(_once(data, work / f"{way}-{size}-{number}", way, size))
        found[str(size)] = {
            way: {
                "total": round(min(map(sum, all_batches)), 4),
                "steady": min(map(steady, all_batches)),
            }
            for way, all_batches in runs.items()
        }
    context.stop()
    return {"sizes": found}


def _once(data: Path, out: Path, way: str, size: int) -> list[float]:
    import millstream as ms

    aggs: dict[str, Any] = {"s": ms.sum("price"), "n": ms.count()}
    if way == "minmax":
        aggs = {"lo": ms.min("price"), "hi": ms.max("price")}
    batches: dict[int, float] = {}
    flow = ms.Flow(out.name)
    source = ms.Files(data, time="ts", lateness="1s", max_files_per_batch=1)
    (
        flow.source(source, name="trades")
        .key_by("symbol")
        .window(ms.sliding(f"{size}s", f"{SLIDE}s"))
        .agg(**aggs)
        .sink(ms.Parquet(out))
    )
    flow.run(
        checkpoint=out.parent / "checkpoints" / out.name,
        on_progress=lambda p: batches.update({p.batch: p.batch_seconds}),
    )
    return list(batches.values())


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))

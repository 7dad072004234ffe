"""Claim: one live batch costs the same however many panes its windows have.

2,000 keys are stored. A batch brings 1,000 records of 200 keys and closes one slide of 1 s, which
gives 2,000 results, in windows of 10 to 3,600 panes. This is the cost of the engine alone, with its
state and commits on disk: batches are driven by `millstream.testing.Driver`, in this process and
without Spark. Beside sums, which have running values, stands the maximum, which has no inverse and
goes on from kept stacks.
The results of every tenth batch are compared with NumPy's. Goals are about processor time, which
other work on the machine changes little.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import goal, markdown, module, plot, side

KEYS = 2_000
TOUCHED = 200  # keys a batch; they take turns, so that all are in every window of 10 panes
RECORDS = 1_000  # a batch
PANES = (10, 60, 600, 3600)
START = 1_700_000_000
BEHIND = 50  # slides filled in at once before the first live batch, to get there in time
LIMIT = 600.0
BUDGET = 60.0  # seconds of live batches for each kind and size
GROWTH = {"sum": 1.5, "max": 2.0}  # the most a batch may grow from the fewest panes to the most


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both kinds at all sizes, each in a process of its own."""
    panes, batches, warm = (PANES[:3], 20, 5) if quick else (PANES, 300, 20)
    figures: dict[str, Any] = {
        "keys": KEYS,
        "records": RECORDS,
        "touched": TOUCHED,
        "sum": {},
        "max": {},
        "agree": True,
    }
    for count in panes:
        for way in ("sum", "max"):
            found = side(module("live", way, count, batches, warm), LIMIT)
            figures[way][str(count)] = found
            if "timed_out" in found:
                print(f"  {count:5} panes, {way}: not done after {LIMIT:.0f} s", flush=True)
                continue
            figures["agree"] &= found["agree"]
            print(
                f"  {count:5} panes, {way}: median {found['median'] * 1e3:7.1f} ms, mean "
                f"{found['mean'] * 1e3:7.1f} ms, p95 {found['p95'] * 1e3:7.1f} ms, processor "
                f"{found['cpu_median'] * 1e3:5.1f} and {found['cpu_mean'] * 1e3:5.1f} ms of "
                f"{found['batches']} batches, {found['strategy']}; answers agree: {found['agree']}",
                flush=True,
            )
    figures["goals"] = _goals(figures)
    _plot(figures, quick)
    return figures


def _goals(figures: dict[str, Any]) -> list[Any]:
    goals = []
    for way, most in GROWTH.items():
        found = figures[way]
        small, large = min(found, key=int), max(found, key=int)
        for name in ("cpu_median", "cpu_mean"):
            what = name.removeprefix("cpu_")
            text = f"{what} processor time of a live batch of {way}, {large} panes beside {small}"
            wanted = f"at most {most} times"
            if any("timed_out" in found[n] for n in (small, large)):
                goals.append(goal(text, wanted, None, False))
                continue
            grown = round(found[large][name] / found[small][name], 3)
            goals.append(goal(text, wanted, grown, grown <= most))
    return goals


def _plot(figures: dict[str, Any], quick: bool) -> None:
    with plot("live", quick) as (axis,):
        for way, label in (("sum", "sum (running values)"), ("max", "max (kept stacks)")):
            done = {int(n): one for n, one in figures[way].items() if "median" in one}
            if done:
                axis.plot(
                    list(done), [one["median"] * 1e3 for one in done.values()], "o-", label=label
                )
        axis.set(xscale="log", xlabel="panes a window", ylabel="milliseconds, median live batch")
        axis.set_ylim(bottom=0)


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for count in figures["sum"]:
        row: list[Any] = [count]
        for way in ("sum", "max"):
            one = figures[way][count]
            row += [one[n] * 1e3 if n in one else None for n in _SHOWN]
        rows.append(row)
    names = [f"{way}, {said}, ms" for way in ("sum", "max") for said in _SHOWN.values()]
    return markdown(["panes", *names], rows)


_SHOWN = {
    "median": "median",
    "p95": "p95",
    "cpu_median": "processor, median",
    "cpu_mean": "processor, mean",
}


class Readings:
    """Seeded records, a slide at a time, and what a window over them should give."""

    def __init__(self, slides: int) -> None:
        rng = np.random.default_rng(0)
        self.values = rng.random((slides, RECORDS)).round(6)

    def keys(self, slide: int) -> np.ndarray[Any, Any]:
        """The key of every record of a slide."""
        return (slide * TOUCHED + np.arange(RECORDS) % TOUCHED) % KEYS

    def records(self, slide: int, count: int) -> list[dict[str, Any]]:
        """The first records of a slide, spread over its second."""
        at = (START + slide) * 1000 + np.arange(count) * 1000 // RECORDS
        columns = (at.tolist(), self.keys(slide)[:count].tolist(), self.values[slide].tolist())
        return [{"ts": t, "key": k, "value": v} for t, k, v in zip(*columns, strict=False)]

    def window(self, way: str, last: int, panes: int, filled: int) -> dict[int, float]:
        """The answer for every key in the window that ends with a slide."""
        out: dict[int, float] = {}
        totals = np.zeros(KEYS) if way == "sum" else np.full(KEYS, -np.inf)
        seen = np.zeros(KEYS, np.bool_)
        for slide in range(max(0, last - panes + 1), last + 1):
            count = TOUCHED if slide < filled else RECORDS
            keys = self.keys(slide)[:count]
            (np.add if way == "sum" else np.maximum).at(totals, keys, self.values[slide, :count])
            seen[keys] = True
        out.update({int(k): float(totals[k]) for k in np.flatnonzero(seen)})
        return out


def measure(way: str, panes: int, batches: int, warm: int) -> dict[str, Any]:
    """Fill the windows, then time live batches one by one."""
    import millstream as ms
    from millstream.testing import Driver

    flow = ms.Flow("live")
    source = ms.Files("unused", time="ts", time_unit="ms", lateness="0s")
    aggs = {"value": ms.sum("value") if way == "sum" else ms.max("value")}
    (
        flow.source(source, name="readings")
        .key_by("key")
        .window(ms.sliding(f"{panes}s", "1s"))
        .agg(**aggs)
        .sink(ms.Memory(), name="results")
    )
    filled = panes + 1
    readings = Readings(filled + warm + batches + 1)
    times: list[float] = []
    cpu: list[float] = []
    agree, checked = True, 0
    with Driver(flow) as driver:
        memory = driver._sinks["results"]  # emptied as we go: millions of rows otherwise
        for begin in range(0, filled, BEHIND):
            for slide in range(begin, min(begin + BEHIND, filled)):
                # One record for each key in turn is enough to fill a pane.
                driver.push("readings", readings.records(slide, TOUCHED))
            driver.step()
            memory.tables.clear()
        begun = time.perf_counter()
        for number in range(warm + batches):
            slide = filled + number
            driver.push("readings", readings.records(slide, RECORDS))
            driver.now += 1
            before, worked = time.perf_counter(), time.process_time()
            driver.step()
            if number >= warm:
                times.append(time.perf_counter() - before)
                cpu.append(time.process_time() - worked)
            # Nothing may be late, so a batch closes the window that ended with the slide before.
            rows = driver.output("results")
            wanted = readings.window(way, slide - 1, panes, filled) if number % 10 == 0 else {}
            if wanted:
                given = {row["key"]: row["value"] for row in rows if _ends(row) == START + slide}
                checked += 1
                agree &= given.keys() == wanted.keys() and all(
                    abs(given[key] - value) <= 1e-9 * abs(value) for key, value in wanted.items()
                )
            memory.tables.clear()
            if time.perf_counter() - begun > BUDGET and len(times) >= 5:
                break
        strategy = " ".join(driver.engine.manifest.strategies.values())
    return {
        "median": round(statistics.median(times), 5),
        "mean": round(statistics.fmean(times), 5),
        "p95": round(float(np.percentile(times, 95)), 5),
        "cpu_median": round(statistics.median(cpu), 5),
        "cpu_mean": round(statistics.fmean(cpu), 5),
        "batches": len(times),
        "batches_checked": checked,
        "strategy": strategy,
        "agree": agree and checked > 0,
    }


def _ends(row: dict[str, Any]) -> int:
    return int(row["window_end"].timestamp())


if __name__ == "__main__":
    kind, size, number, first = sys.argv[1], *map(int, sys.argv[2:5])
    print(json.dumps(measure(kind, size, number, first)))

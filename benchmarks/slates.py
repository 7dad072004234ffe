"""Claim: what a batch costs follows the keys it touches, not the slates that are stored.

A flow is filled with one slate per user, then runs batches that touch 50,000 users each, chosen
evenly from all. Beside the flow with 5 million stored slates stands the same with a tenth of them.
The memory of the driver and of Spark's Python workers is watched all the while: all of it, and
their own without mapped files, which are the state itself and can be dropped at any time.
Afterwards single slates are read from the checkpoint. All slates are compared with counts made by
NumPy.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import events
from benchmarks.common import goal, markdown, module, side, workspace

TOUCHED = 50_000
GROWTH = 2.0  # the most a batch may grow when ten times as many slates are stored
MEMORY = 2_000  # MB for driver and workers
FILL = 200_000  # slates a batch while filling
READS = 2_000
LIMIT = 1500.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure with few and with many slates stored, each in a process of its own."""
    stored, touched, batches = (
        ((20_000, 200_000), 5_000, 5) if quick else ((500_000, 5_000_000), TOUCHED, 15)
    )
    figures: dict[str, Any] = {"touched": touched, "batches": batches, "agree": True, "stored": {}}
    for count in stored:
        with workspace("slates") as work:
            expected = _make(work / "in", count, touched, batches)
            found = side(module("slates", count, batches, work), LIMIT)
            if "timed_out" in found:
                raise RuntimeError(f"{count:,} slates: not done after {LIMIT:.0f} s")
            agree = _compare(work / "checkpoint", expected)
        figures["agree"] &= agree
        figures["stored"][str(count)] = found
        print(
            f"  {count:9,} stored: batch of {touched:,} keys median {found['median']:.3f} s, mean "
            f"{found['mean']:.3f} s, longest {found['longest']:.3f} s; peak {found['python_mb']:,} "
            f"MB Python ({found['own_mb']:,} its own), {found['java_mb']:,} MB Java; read "
            f"{found['read_us']:.0f} us; answers agree: {agree}",
            flush=True,
        )
    figures["goals"] = _goals(figures)
    return figures


def _make(directory: Path, stored: int, touched: int, batches: int) -> np.ndarray:
    """Files that make every slate once, then files that touch some; gives the count of each."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    counts = np.ones(stored, np.int64)
    number = 0
    for begin in range(0, stored, FILL):
        chosen = np.arange(begin, min(begin + FILL, stored))
        events.write(directory / f"events-{number:05d}.parquet", number, chosen, rng)
        number += 1
    for _ in range(batches):
        chosen = rng.choice(stored, touched, replace=False)
        counts[chosen] += 1
        events.write(directory / f"events-{number:05d}.parquet", number, chosen, rng)
        number += 1
    return counts


def _compare(checkpoint: Path, expected: np.ndarray) -> bool:
    import millstream as ms

    found = np.zeros(len(expected), np.int64)
    for key, slate in ms.slates(checkpoint, "counts"):
        found[int(key.removeprefix("user-"))] += slate["n"]
    return bool(np.array_equal(found, expected))


def _goals(figures: dict[str, Any]) -> list[Any]:
    few, many = (figures["stored"][key] for key in sorted(figures["stored"], key=int))
    goals = []
    for name in ("median", "mean"):
        times = round(many[name] / few[name], 2)
        what = f"{name} batch with ten times as many slates stored"
        goals.append(goal(what, f"at most {GROWTH:g} times", times, times <= GROWTH))
    met = many["own_mb"] <= MEMORY
    what = "peak memory of driver and workers without mapped files, with most slates, MB"
    goals.append(goal(what, f"at most {MEMORY:,}", many["own_mb"], met))
    return goals


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = [
        [
            f"{int(count):,}",
            one["median"],
            one["mean"],
            one["longest"],
            one["python_mb"],
            one["own_mb"],
            one["java_mb"],
            one["read_us"],
        ]
        for count, one in figures["stored"].items()
    ]
    head = [
        "slates stored",
        f"batch of {figures['touched']:,} keys, median, s",
        "mean, s",
        "longest, s",
        "driver and workers, MB",
        "without mapped files, MB",
        "Java, MB",
        "one read, µs",
    ]
    return markdown(head, rows)


# -- the side -------------------------------------------------------------------------------------


class Watch:
    """The most memory this process and all it started had at a time, Python and Java apart."""

    def __init__(self) -> None:
        self.python = self.own = self.java = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        import psutil

        mine = psutil.Process()
        while not self._done.wait(0.1):
            python = own = java = 0
            for process in (mine, *mine.children(recursive=True)):
                try:
                    memory, name = process.memory_info(), process.name()
                except psutil.NoSuchProcess:
                    continue
                if "java" in name:
                    java += memory.rss
                else:
                    python += memory.rss
                    own += memory.rss - memory.shared
            self.python, self.java = max(self.python, python), max(self.java, java)
            self.own = max(self.own, own)

    def stop(self) -> dict[str, int]:
        """The peaks, in MB."""
        self._done.set()
        self._thread.join()
        peaks = {"python_mb": self.python, "own_mb": self.own, "java_mb": self.java}
        return {name: size // 1_000_000 for name, size in peaks.items()}


def measure(stored: int, batches: int, work: Path) -> dict[str, Any]:
    """Fill, touch, read."""
    import millstream as ms

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        slate["total"] = slate.get("total", 0) + event.value["amount"]

    watch = Watch()
    seconds: dict[int, float] = {}  # records so far -> seconds of the batch that reached it
    flow = ms.Flow("slates")
    source = ms.Files(work / "in", time="ts", lateness="0s", max_files_per_batch=1)
    updated = flow.source(source, name="events").key_by("user")
    updated.update(count, name="counts", order="arrival")
    flow.run(
        checkpoint=work / "checkpoint",
        batch_rows=FILL,
        batch_seconds=60.0,  # so that a file stays one batch
        on_progress=lambda p: seconds.setdefault(p.rows, p.batch_seconds),
    )
    peaks = watch.stop()
    touching = [spent for rows, spent in seconds.items() if rows > stored][1:]
    if len(touching) != batches - 1:
        raise RuntimeError(f"{len(touching) + 1} batches instead of {batches}: {seconds}")
    slates = ms.slates(work / "checkpoint", "counts")
    rng = np.random.default_rng(1)
    keys = [f"user-{n}" for n in rng.integers(0, stored, READS)]
    slates.get(keys[0])
    times = []
    for key in keys:
        begun = time.perf_counter()
        assert slates.get(key)["n"] >= 1
        times.append(time.perf_counter() - begun)
    return {
        "median": round(statistics.median(touching), 4),
        "mean": round(statistics.mean(touching), 4),
        "longest": round(max(touching), 4),
        "touching": [round(s, 4) for s in touching],
        "filled_per_second": round(
            stored / sum(spent for rows, spent in seconds.items() if rows <= stored)
        ),
        "read_us": round(statistics.median(times) * 1e6, 1),
        "read_p99_us": round(float(np.quantile(times, 0.99)) * 1e6, 1),
        **peaks,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))

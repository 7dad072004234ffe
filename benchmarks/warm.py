"""Claim: a steady batch reads nothing from the checkpoint, and is faster for it.

A steady batch of slates is 200,000 events over 100,000 keys; one of sliding windows is as many
events over 2,000 keys, in windows of 60 s that slide by 2 s. Each runs with warm state and without
(`warm=0`), in turns, on a checkpoint in a directory and on one in a server of S3's protocol on the
same machine. Bytes are counted where they are read: in the storage, in every process. Answers of
both are compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import events
from benchmarks.common import goal, markdown, module, side, workspace

FASTER = 1.5
LIMIT = 900.0
KEYS = {"slates": 100_000, "windows": 2_000}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every pair in turns."""
    count, files, turns = (20_000, 4, 1) if quick else (200_000, 5, 2)
    figures: dict[str, Any] = {"events": count, "agree": True, "pairs": {}}
    with workspace("warm") as work, Store() as store:
        for what, keys in KEYS.items():
            data = events.make(work / what, 2 * count, keys if not quick else keys // 10, files)
            for where in ("directory", "object store") if store.url else ("directory",):
                sides: dict[str, list[dict[str, Any]]] = {"warm": [], "cold": []}
                for turn in range(1 if "store" in where else turns):
                    for way, found in sides.items():
                        place = store.place(f"{what}-{way}-{turn}") if "store" in where else work
                        name = place if "store" in where else f"{work}/{what}-{way}-{turn}"
                        out = work / f"{what}-{way}-{turn}-{where[:1]}"
                        found.append(side(module("warm", what, way, data, name, out, files), LIMIT))
                pair = _together(sides)
                figures["agree"] &= pair.pop("agree")
                figures["pairs"][f"{what}, {where}"] = pair
                print(f"  {what}, {where}: {pair}", flush=True)
    figures["goals"] = _goals(figures)
    return figures


def _together(sides: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    pair: dict[str, Any] = {}
    for way, found in sides.items():
        if any("timed_out" in one for one in found):
            raise RuntimeError(f"{way}: not done after {LIMIT:.0f} s")
        pair[way] = round(statistics.median(s for one in found for s in one["batches"]), 3)
        pair[f"{way}_cpu"] = round(statistics.median(one["cpu"] for one in found), 3)
        pair[f"{way}_read"] = round(statistics.mean(b for one in found for b in one["read"]))
    pair["rows"] = round(statistics.mean(r for one in sides["warm"] for r in one["rows"]))
    pair["written"] = round(statistics.mean(b for one in sides["warm"] for b in one["written"]))
    pair["agree"] = len({one["answers"] for found in sides.values() for one in found}) == 1
    return pair


def _goals(figures: dict[str, Any]) -> list[Any]:
    goals = []
    for name, pair in figures["pairs"].items():
        faster = round(pair["cold"] / pair["warm"], 2)
        what = f"{name}: steady batch with warm state beside one without"
        goals.append(goal(what, f"{FASTER} times as fast", faster, faster >= FASTER))
        read = pair["warm_read"]
        what = f"{name}: bytes a steady batch reads from the checkpoint"
        goals.append(goal(what, "0", read, read == 0))
    return goals


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    head = [
        "steady batch",
        "events",
        "warm, s",
        "cold, s",
        "warm, processor s",
        "cold, processor s",
        "read warm, bytes",
        "read cold, bytes",
        "written, bytes",
    ]
    names = ("rows", "warm", "cold", "warm_cpu", "cold_cpu", "warm_read", "cold_read", "written")
    return markdown(
        head, [[what, *(pair[name] for name in names)] for what, pair in figures["pairs"].items()]
    )


class Store:
    """A server of S3's protocol on this machine, if what it needs is there."""

    url = ""

    def __enter__(self) -> Store:
        if all(importlib.util.find_spec(name) for name in ("moto", "flask_cors", "obstore")):
            from tests.services import S3

            self._server = S3()
            self.url = self._server.url
            os.environ.update(self._server.environment)
        else:
            print("  object store: not measured, moto and obstore are not here", flush=True)
        return self

    def place(self, name: str) -> str:
        """A bucket of its own."""
        self._server.make_bucket(name)
        return f"s3://{name}"

    def __exit__(self, *exc: object) -> None:
        if self.url:
            self._server.stop()


# -- the side -------------------------------------------------------------------------------------


def measure(
    what: str, way: str, data: Path, checkpoint: str, out: Path, files: int
) -> dict[str, Any]:
    """One flow over all files, half a file a batch; those of the second half are steady."""
    import psutil

    import millstream as ms

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        slate["total"] = slate.get("total", 0) + event.value["amount"]

    os.environ["MILLSTREAM_CACHE"] = f"{out}-cache"
    flow = ms.Flow("warm")
    source = ms.Files(data, time="ts", lateness="0s", max_files_per_batch=1)
    keyed = flow.source(source, name="events").key_by("user")
    if what == "slates":
        keyed.update(count, name="counts", order="arrival")
    else:
        windows = keyed.window(ms.sliding("60s", "2s"))
        windows.agg(n=ms.count(), s=ms.sum("amount"), top=ms.max("amount")).sink(ms.Parquet(out))
    seen: list[Any] = []
    cpu: list[float] = []

    def note(progress: Any) -> None:
        if not seen or progress.batch > seen[-1].batch:
            seen.append(progress)
            cpu.append(_cpu(psutil.Process()))

    flow.run(
        checkpoint=checkpoint,
        batch_rows=10_000_000,
        batch_seconds=600.0,  # so that batches do not shrink on a busy machine
        on_progress=note,
        **({"warm": 0} if way == "cold" else {}),
    )
    first = len(seen) // 2
    steady = seen[first:-1]  # the last one may have but what is still open
    spent = [after - before for before, after in zip(cpu[first - 1 :], cpu[first:-1], strict=False)]
    rows = [one.rows - seen[at].rows for at, one in enumerate(steady, first - 1)]
    return {
        "rows": rows,
        "batches": [round(one.batch_seconds, 4) for one in steady],
        "cpu": round(statistics.median(spent), 4),
        "read": [one.state_read for one in steady],
        "written": [one.state_written for one in steady],
        "answers": _answers(what, checkpoint, out),
    }


def _cpu(mine: Any) -> float:
    """Processor seconds of the driver, of Java and of all workers so far."""
    total = 0.0
    for process in (mine, *mine.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _answers(what: str, checkpoint: str, out: Path) -> str:
    """A digest of all slates, or of all windows."""
    import millstream as ms

    if what == "slates":
        found = sorted(
            (key, slate["n"], slate["total"]) for key, slate in ms.slates(checkpoint, "counts")
        )
        return hashlib.sha256(repr(found).encode()).hexdigest()
    import duckdb

    rows = duckdb.sql(f"select * from '{out}/*.parquet' order by all")
    return hashlib.sha256(repr(rows.fetchall()).encode()).hexdigest()


if __name__ == "__main__":
    begun = time.time()
    chosen, how, where, state, results, number = sys.argv[1:]
    print(json.dumps(measure(chosen, how, Path(where), state, Path(results), int(number))))

"""Claim: a steady batch reads nothing from the checkpoint, and is faster for it.

A steady batch of slates is 200,000 events over 100,000 keys; one of sliding windows is as many
events over 2,000 keys, in windows of 60 s that slide by 2 s. Each runs with warm state and without
(`warm=0`), on a checkpoint in a directory and on one in a server of S3's protocol on the same
machine, each of whose requests waits 20 ms on its way, as those to a real store do. Bytes are
counted where they are read: in the storage, in every process. Answers of both are compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import events
from benchmarks.common import goal, markdown, module, side, workspace
from benchmarks.distance import Distant

FASTER = 1.5
LIMIT = 120.0
KEYS = {"slates": 100_000, "windows": 2_000}
BATCHES = 9
STEADY = 3  # from this batch on
AWAY = 0.02  # seconds that a request to the object store waits


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every pair, one after the other."""
    count, less = (20_000, 10) if quick else (200_000, 1)
    figures: dict[str, Any] = {"events": count, "agree": True, "pairs": {}}
    with workspace("warm") as work, Store() as store:
        for what, keys in KEYS.items():
            data = events.make(work / what, BATCHES * count, keys // less, 1, seconds=10 * BATCHES)
            for where in ("directory", "object store") if store.url else ("directory",):
                sides: dict[str, dict[str, Any]] = {}
                for way in ("warm", "cold"):
                    name = f"{what}-{way}"
                    out, place = work / f"{name}-{where[:1]}", f"{work}/{name}"
                    if "store" in where:
                        place = store.place(name)
                    sides[way] = side(module("warm", what, way, data, place, out, count), LIMIT)
                pair = _together(sides)
                figures["agree"] &= pair.pop("agree")
                figures["pairs"][f"{what}, {where}"] = pair
                print(f"  {what}, {where}: {pair}", flush=True)
    figures["goals"] = _goals(figures)
    return figures


def _together(sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pair: dict[str, Any] = {}
    for way, found in sides.items():
        if "timed_out" in found:
            raise RuntimeError(f"{way}: not done after {LIMIT:.0f} s")
        pair[way] = round(statistics.median(found["batches"]), 3)
        pair[f"{way}_cpu"] = round(found["cpu"], 3)
        pair[f"{way}_read"] = round(statistics.mean(found["read"]))
    pair["rows"] = round(statistics.mean(sides["warm"]["rows"]))
    pair["written"] = round(statistics.mean(sides["warm"]["written"]))
    pair["agree"] = len({found["answers"] for found in sides.values()}) == 1
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
            self._distant = Distant(self._server.port, AWAY)
            self.url = self._distant.url
            os.environ.update(self._server.environment | {"AWS_ENDPOINT_URL": self.url})
        else:
            print("  object store: not measured, moto and obstore are not here", flush=True)
        return self

    def place(self, name: str) -> str:
        """A bucket of its own."""
        self._server.make_bucket(name)
        return f"s3://{name}"

    def __exit__(self, *exc: object) -> None:
        if self.url:
            self._distant.close()
            self._server.stop()


# -- the side -------------------------------------------------------------------------------------


def measure(
    what: str, way: str, data: Path, checkpoint: str, out: Path, count: int
) -> dict[str, Any]:
    """One flow over one file, of which every batch takes so many events."""
    import psutil

    import millstream as ms

    def tally(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        slate["total"] = slate.get("total", 0) + event.value["amount"]

    os.environ["MILLSTREAM_CACHE"] = f"{out}-cache"
    flow = ms.Flow("warm")
    source = ms.Files(data, time="ts", lateness="0s")
    keyed = flow.source(source, name="events").key_by("user")
    if what == "slates":
        keyed.update(tally, name="counts", order="arrival")
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
        batch_rows=count // (os.cpu_count() or 1),  # of every core
        batch_seconds=600.0,  # so that batches do not shrink on a busy machine
        on_progress=note,
        **({"warm": 0} if way == "cold" else {}),
    )
    steady = seen[STEADY:-1]  # the last one may have but what is still open
    spent = [
        after - before for before, after in zip(cpu[STEADY - 1 :], cpu[STEADY:-1], strict=False)
    ]
    rows = [one.rows - seen[at].rows for at, one in enumerate(steady, STEADY - 1)]
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
    chosen, how, where, state, results, number = sys.argv[1:]
    print(json.dumps(measure(chosen, how, Path(where), state, Path(results), int(number))))

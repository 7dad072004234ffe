"""Claim: fifty small flows on one Spark cost a fraction of fifty flows each by itself.

Every flow follows a directory of its own and counts by key and minute. In every round each of them
gets one small file, and the round is over when all flows have committed it: a batch of each. The
peer is the same flow in a process of its own. Fifty of those do not fit into the memory, so sixteen
run at the same time and share the cores, as fifty would; and two run one after the other, each with
the whole machine to itself. Time is that of a round by the number of its batches, memory the
proportional share (PSS) of the driver, the JVM and all Python workers.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

import millstream as ms
from benchmarks.common import goal, markdown, module, side, workspace

FLOWS, QUICK_FLOWS = 50, 8
AT_ONCE, QUICK_AT_ONCE = 16, 2  # flows in processes of their own, at the same time
ALONE, QUICK_ALONE = 2, 1  # one after the other
ROUNDS, QUICK_ROUNDS = 11, 5
WARM = 3  # rounds that are not counted
RECORDS = 200  # in a file
LIMIT = 300.0
TIMES_LESS = 5


def run(quick: bool = False) -> dict[str, Any]:
    """All together, then some in processes of their own."""
    flows, at_once = (QUICK_FLOWS, QUICK_AT_ONCE) if quick else (FLOWS, AT_ONCE)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with workspace("flows") as work:
        together = side(module("flows", work / "together", flows, rounds, 1), LIMIT)
        alone = [
            side(module("flows", work / f"alone-{number}", 1, rounds, 1), LIMIT)
            for number in range(QUICK_ALONE if quick else ALONE)
        ]
        with ThreadPoolExecutor(at_once) as several:
            crowd = list(
                several.map(
                    lambda number: side(
                        module("flows", work / "crowd" / str(number), 1, rounds, at_once), LIMIT
                    ),
                    range(at_once),
                )
            )
    sides = {
        "together": {name: together[name] for name in _MEASURED},
        "alone": {name: statistics.median(each[name] for each in alone) for name in _MEASURED},
        "crowd": _of_crowd(crowd, rounds - WARM),
    }
    figures: dict[str, Any] = {
        "flows": flows,
        "at_once": at_once,
        "records_of_a_batch": RECORDS,
        **sides,
        "agree": all(each["right"] for each in (together, *alone, *crowd)),
    }
    print(f"  {json.dumps(figures)}", flush=True)
    figures["goals"] = [
        _goal("time per batch", "batch_seconds", figures, "crowd"),
        _goal("memory per flow", "flow_mb", figures, "crowd"),
        _goal("time per batch", "batch_seconds", figures, "alone"),
    ]
    return figures


_MEASURED = ("batch_seconds", "batch_cpu_seconds", "flow_mb")


def _of_crowd(crowd: list[dict[str, Any]], rounds: int) -> dict[str, float]:
    """Flows at the same time: time per batch is that of all their batches by their number."""
    took = max(one["ended"] for one in crowd) - min(one["begun"] for one in crowd)
    return {
        "batch_seconds": round(took / (rounds * len(crowd)), 4),
        "batch_cpu_seconds": statistics.median(one["batch_cpu_seconds"] for one in crowd),
        "flow_mb": statistics.median(one["flow_mb"] for one in crowd),
    }


def _goal(what: str, name: str, figures: dict[str, Any], peer: str) -> Any:
    beside = {"crowd": f"{figures['at_once']} at the same time", "alone": "one with all cores"}
    less = figures[peer][name] / figures["together"][name]
    what = f"{what} beside flows by themselves, {beside[peer]}"
    return goal(what, f"at least {TIMES_LESS} times less", less, less >= TIMES_LESS)


def table(figures: dict[str, Any]) -> str:
    """The figures for the page."""
    names = ("seconds per batch", "processor seconds per batch", "MB per flow")
    rows = [
        [name, *(figures[which][key] for which in ("alone", "crowd", "together"))]
        for name, key in zip(names, _MEASURED, strict=True)
    ]
    crowd = f"{figures['at_once']} at once, each by itself"
    return markdown(["", "one by itself", crowd, f"{figures['flows']} on one Spark"], rows)


# -- one side -------------------------------------------------------------------------------------


def measure(work: Path, flows: int, rounds: int, processes: int) -> dict[str, Any]:
    """Some flows in this process, on one Spark; one flow as everybody would start it.

    With several processes each waits until all are warm.
    """
    made = [_flow(work, number) for number in range(flows)]
    if flows == 1:
        handles = {made[0].name: made[0].start(checkpoint=work / "ck", quiet=True)}
    else:
        handles = dict(ms.start_all(*made, checkpoint=work / "ck", quiet=True))
    seconds: list[float] = []
    try:
        started = begun = 0.0
        for turn in range(rounds):
            if turn == WARM:
                _meet(work, processes)
                started, begun = time.time(), _cpu()
            at = time.perf_counter()
            for number in range(flows):
                _write(work, number, turn)
            while any(one.progress.rows < (turn + 1) * RECORDS for one in handles.values()):
                if broken := [one.error for one in handles.values() if one.error is not None]:
                    raise broken[0]
                time.sleep(0.005)
            seconds.append((time.perf_counter() - at) / flows)
        ended = time.time()
        cpu = (_cpu() - begun) / (rounds - WARM) / flows
        memory = sum(_pss(one) for one in _processes()) / flows
    finally:
        for one in handles.values():
            one.request_stop()
        for one in handles.values():
            one.wait()
    # The windows of the last round are still open.
    right = all(_counted(work, number) == (rounds - 1) * RECORDS for number in range(flows))
    return {
        "batch_seconds": round(statistics.median(seconds[WARM:]), 4),
        "batch_cpu_seconds": round(cpu, 4),
        "flow_mb": round(memory / 1e6, 1),
        "begun": started,
        "ended": ended,
        "right": right,
    }


def _meet(work: Path, processes: int) -> None:
    """Wait for the others."""
    (work / "warm").touch()
    while len(list(work.parent.glob("*/warm"))) < processes:
        time.sleep(0.005)


def _flow(work: Path, number: int) -> ms.Flow:
    flow = ms.Flow(f"flow {number}")
    (work / "in" / str(number)).mkdir(parents=True)
    columns = "ts timestamp, key long, value long"
    place = work / "in" / str(number)
    source = ms.Files(
        place, format="csv", schema=columns, time="ts", participant="key", follow=True
    )
    counts = flow.source(source).key_by("key").window(ms.tumbling("1m"))
    counts.agg(n=ms.count(), total=ms.sum("value")).sink(ms.Jsonl(work / "out" / str(number)))
    return flow


def _write(work: Path, number: int, turn: int) -> None:
    """One more file."""
    lines = [
        f"2026-01-01T{turn // 60:02d}:{turn % 60:02d}:{i * 60 // RECORDS:02d}Z,{i % 10},{i}\n"
        for i in range(RECORDS)
    ]
    place = work / "in" / str(number) / f"{turn:04d}.csv"
    hidden = place.with_name(f".{place.name}")
    hidden.write_text("ts,key,value\n" + "".join(lines))
    hidden.rename(place)


def _counted(work: Path, number: int) -> int:
    """The records in all windows that have left."""
    parts = (work / "out" / str(number)).glob("part-*")
    lines = [line for part in parts for line in part.read_text().splitlines()]
    return sum(json.loads(line)["n"] for line in lines)


def _processes() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _cpu() -> float:
    total = 0.0
    for one in _processes():
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), *map(int, sys.argv[2:]))))

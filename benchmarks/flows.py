"""Claim: fifty small flows on one Spark cost a fraction of fifty flows each by itself.

Every flow follows a directory of its own and counts by key and minute. In every round each of them
gets one small file, and the round is over when all flows have committed it: a batch of each. The
peer is the same flow in a process of its own with the whole machine to itself, one after the other;
fifty of those at once would have to share its cores. Three are measured, and stand for fifty. Time
is that of a round by the number of its batches, memory the proportional share (PSS) of the driver,
the JVM and all Python workers.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import millstream as ms
from benchmarks.common import goal, markdown, module, side, workspace

FLOWS, QUICK_FLOWS = 50, 8
ALONE, QUICK_ALONE = 3, 1  # of these so many are measured by themselves
ROUNDS, QUICK_ROUNDS = 9, 4
WARM = 3  # rounds that are not counted
RECORDS = 200  # in a file
LIMIT = 600.0


def run(quick: bool = False) -> dict[str, Any]:
    """All together, then some alone."""
    flows = QUICK_FLOWS if quick else FLOWS
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with workspace("flows") as work:
        together = side(module("flows", work / "together", flows, rounds), LIMIT)
        alone = [
            side(module("flows", work / f"alone-{number}", 1, rounds), LIMIT)
            for number in range(QUICK_ALONE if quick else ALONE)
        ]
    one = {name: statistics.median(each[name] for each in alone) for name in _MEASURED}
    figures: dict[str, Any] = {
        "flows": flows,
        "records_of_a_batch": RECORDS,
        "together": {name: together[name] for name in _MEASURED},
        "alone": one,
        "agree": together["right"] and all(each["right"] for each in alone),
    }
    told = {name: one[name] / together[name] for name in _MEASURED}
    figures["times_less"] = {name: round(value, 1) for name, value in told.items()}
    print(f"  {json.dumps(figures)}", flush=True)
    figures["goals"] = [
        goal("time per batch", "at least 5 times less", told["batch_seconds"], _five(told, 0)),
        goal("memory per flow", "at least 5 times less", told["flow_mb"], _five(told, 2)),
    ]
    return figures


_MEASURED = ("batch_seconds", "batch_cpu_seconds", "flow_mb")


def _five(told: dict[str, float], which: int) -> bool:
    return told[_MEASURED[which]] >= 5


def table(figures: dict[str, Any]) -> str:
    """The figures for the page."""
    names = ("seconds per batch", "processor seconds per batch", "MB per flow")
    rows = [
        [name, figures["alone"][key], figures["together"][key], figures["times_less"][key]]
        for name, key in zip(names, _MEASURED, strict=True)
    ]
    head = ["", "each by itself", f"{figures['flows']} on one Spark", "times less"]
    return markdown(head, rows)


# -- one side -------------------------------------------------------------------------------------


def measure(work: Path, flows: int, rounds: int) -> dict[str, Any]:
    """Some flows in this process, on one Spark; one flow as everybody would start it."""
    made = [_flow(work, number) for number in range(flows)]
    if flows == 1:
        handles = {made[0].name: made[0].start(checkpoint=work / "ck", quiet=True)}
    else:
        handles = dict(ms.start_all(*made, checkpoint=work / "ck", quiet=True))
    seconds: list[float] = []
    try:
        begun = 0.0
        for turn in range(rounds):
            if turn == WARM:
                begun = _cpu()
            at = time.perf_counter()
            for number in range(flows):
                _write(work, number, turn)
            while any(one.progress.rows < (turn + 1) * RECORDS for one in handles.values()):
                if broken := [one.error for one in handles.values() if one.error is not None]:
                    raise broken[0]
                time.sleep(0.005)
            seconds.append((time.perf_counter() - at) / flows)
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
        "right": right,
    }


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
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

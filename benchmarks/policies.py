"""Claim: the burst of `burst`, by a clock that other programs on the machine cannot slow down.

On a busy machine a latency says more of the other programs than of a policy. So here time is the
processor time that the flow itself takes: the same workflow and the same burst on one core, without
Spark, tasks in the process of the driver, and a writer that writes by that clock and is not on it.
While nothing is to be done the clock goes on by a hundredth of a second. What a policy decides, and
on which figures, is as on Spark. The rate is one at which the burst is more than can be processed.
Memory is only what Hybrid goes by here: that a flow keeps to its budget is for `burst` to show.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import burst
from benchmarks.common import module, side, workspace

BUDGET = 400 << 20
ROUNDS = 3
WARM = 4.0  # seconds before it counts
IDLE = 0.01
LIMIT = 900.0


def run(quick: bool = False) -> dict[str, Any]:
    """All policies in turns."""
    rate, times = (3_000, (3.0, 3.0, 5.0)) if quick else (3_000, (4.0, 10.0, 8.0))
    rounds: dict[str, list[dict[str, Any]]] = {policy: [] for policy in burst.POLICIES}
    for turn in range(1 if quick else ROUNDS):
        for policy in (*burst.POLICIES[turn % 3 :], *burst.POLICIES[: turn % 3]):
            with workspace("policies") as place:
                one = side(module("policies", place, policy, rate, *times), LIMIT)
            rounds[policy].append(one | {"failed": ""})
            told = {name: one[name] for name in ("mean_latency", "recovered", "most_memory")}
            print(f"  {policy:6} {json.dumps(told)}", flush=True)
    found = {"alone": {policy: burst.median_of(all_of) for policy, all_of in rounds.items()}}
    burst.draw(found, times, quick, "policies")
    return {
        "rate": rate,
        "times": times,
        "found": found,
        "agree": all(one["agree"] for one in found["alone"].values()),
        "goals": [one for one in burst.goals(found) if "memory" not in one["what"]],
    }


table = burst.table


# -- one side --------------------------------------------------------------------------------------


class Writer:
    """Appends events by the clock of the flow, ten times as many while the burst lasts."""

    def __init__(self, place: Path, rate: int, times: tuple[float, ...]) -> None:
        self.file = (place / "in" / "events.csv").open("a", buffering=1 << 20)
        self.file.write("at,k,v,p\n")
        self.file.flush()
        self.rate, self.times, self.started, self.written = rate, times, float("inf"), 0
        self.owed, self.last, self.not_counted = 0.0, 0.0, 0.0

    def clock(self) -> float:
        """Processor time of this process without that of writing, and with that of waiting."""
        return 1_790_000_000.0 + time.process_time() - self.not_counted

    def write(self) -> None:
        """All that is due since it last wrote."""
        begun, now = time.process_time(), self.clock()
        since = self.last or now
        low, high = self.started + self.times[0], self.started + self.times[0] + self.times[1]
        inside = max(0.0, min(now, high) - max(since, low))
        self.owed += (now - since + (burst.BURST - 1) * inside) * self.rate
        count = int(self.owed)
        for n in range(count):
            at, number = since + (now - since) * (n + 1) / count, self.written + n
            key = number * 7919 % burst.KEYS
            self.file.write(f"{int(at * 1e6)},{key},{number},{burst.PAYLOAD}\n")
        self.file.flush()
        self.owed, self.last, self.written = self.owed - count, now, self.written + count
        self.not_counted += time.process_time() - begun


def measure(place: Path, policy: str, rate: int, times: tuple[float, ...]) -> dict[str, Any]:
    """One policy, by processor time alone."""
    time.perf_counter = time.process_time  # type: ignore[assignment]  # what tasks measure by
    import millstream as ms
    from millstream.run.engine import Engine
    from millstream.run.executors import InProcess
    from millstream.run.planning import plan_flow
    from millstream.scheduling import policy_of
    from millstream.state.checkpoint import Checkpoint

    (place / "in").mkdir()
    writer, counted = Writer(place, rate, times), burst.Counted(policy_of(policy))
    results: list[tuple[str, float, float, int]] = []

    def told(step: str) -> Any:
        def on_row(row: dict[str, Any]) -> None:
            results.append((step, row["window_end"].timestamp(), writer.clock(), int(row["n"])))

        return on_row

    checkpoint = Checkpoint(place / "ck")
    checkpoint.lock()
    settings = ms.Settings(parallelism=1, scheduler=counted, memory=BUDGET)
    plan = plan_flow(burst.build(place / "in", told))
    engine = Engine(plan, checkpoint, settings, clock=writer.clock)
    engine.open(1)
    executor, samples = InProcess(plan, 1), []

    def go_on(until: float) -> None:
        while writer.clock() < until:
            writer.write()
            if not engine.step(executor):
                writer.not_counted -= IDLE
            much = max(engine.memory.used, burst.resident(os.getpid()))
            samples.append((writer.clock() - writer.started, much))

    go_on(writer.clock() + WARM)
    writer.started = writer.clock()
    go_on(writer.started + sum(times))
    while engine.trackers["events"].pending() and writer.clock() < writer.started + 180:
        engine.step(executor)
    batches = engine.manifest.batch + 1
    engine.close()
    said = {"results": results, "batches": batches}
    said |= {"asked": len(counted.asked), "drawn": len(counted.drawn)}
    known = [(at, much) for at, much in samples if at > -WARM]
    found = burst.figures_of(said, known, writer, times)
    return found | {"agree": burst.agrees(place, results), "budget": BUDGET}


if __name__ == "__main__":
    seconds = tuple(map(float, sys.argv[4:7]))
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), seconds)))

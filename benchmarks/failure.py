"""Claim: a machine that dies costs its share of the data, never the answer, nor its time.

The experiment of the thesis on Continuous MapReduce: sixteen agents, each a process with
a file of its own, and an even query over one window that holds all of it. When half of the records
are in, none to six of the agents are killed. The window leaves when nobody works on it any more.
Agents read at a steady pace, so that the map phase takes long enough to be killed in; the collector
runs the engine in its own process, without Spark. The peer is the same run without a failure, and
the completeness that `fidelity` is compared with is counted from the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, goal, markdown, module, plot, workspace

AGENTS, QUICK_AGENTS = 16, 6
FAILURES, QUICK_FAILURES = (0, 1, 2, 3, 4, 5, 6), (0, 2)
PIECES, QUICK_PIECES = 100, 25
ROWS = 100  # records of a piece
PAUSE = 0.2  # seconds between the pieces of an agent
SILENT = "2s"  # after which an agent has failed
LIMIT = 240.0  # seconds for one run
BEGIN = 1_704_110_400  # noon
SPAN = 3600  # seconds of event time that every file covers


def run(quick: bool = False) -> dict[str, Any]:
    """Kill more and more agents in the middle, and look at what comes out."""
    agents = QUICK_AGENTS if quick else AGENTS
    pieces = QUICK_PIECES if quick else PIECES
    found = []
    for failures in QUICK_FAILURES if quick else FAILURES:
        with workspace("failure") as work:
            one = measure(work, agents, pieces, failures)
        found.append(one)
        told = ", ".join(f"{name} {value}" for name, value in one.items())
        print(f"  {told}", flush=True)
    figures: dict[str, Any] = {"agents": agents, "records": agents * pieces * ROWS, "runs": found}
    slowest = max(one["seconds"] for one in found) / found[0]["seconds"]
    furthest = max(abs(one["fidelity"] - one["completeness"]) for one in found)
    figures["goals"] = [
        goal("completion beside the run without failures", "at most 1.1", slowest, slowest <= 1.1),
        goal(
            "fidelity against completeness, in points",
            "at most 0.5",
            100 * furthest,
            furthest <= 0.005,
        ),
    ]
    figures["agree"] = found[0]["completeness"] == 1.0  # nobody failed: nothing is missing
    _plot(figures, quick)
    return figures


def measure(work: Path, agents: int, pieces: int, failures: int) -> dict[str, Any]:
    """One run in which some of the agents are killed when half of all records are in."""
    for number in range(agents):
        _write(work / "in" / f"{number:02}" / "log.json", pieces * ROWS)
    collector = _process("collect", work, agents, pieces)
    try:
        port = int(_said(collector))
        crowd = _process("agents", work, agents, port)
        try:
            pids = json.loads(_said(crowd))
            total, killed = agents * pieces * ROWS, False
            begun = time.monotonic()
            while collector.poll() is None and time.monotonic() < begun + LIMIT:
                if not killed and _in(work) >= total / 2:
                    for pid in random.Random(failures).sample(pids, failures):
                        os.kill(pid, signal.SIGKILL)
                    killed = True
                time.sleep(0.02)
            if collector.poll() is None:
                raise RuntimeError(f"no answer within {LIMIT} s with {failures} failures")
            found = json.loads(_said(collector))
        finally:
            _end(crowd)
    finally:
        _end(collector)
    counted = found.pop("n")
    return {"failures": failures, **found, "completeness": counted / total}


def _write(path: Path, count: int) -> None:
    """Records that are evenly spread over the window."""
    path.parent.mkdir(parents=True)
    with path.open("w") as out:
        for number in range(count):
            at = BEGIN + SPAN * number / count
            out.write(json.dumps({"ts": at, "k": number % 10}) + "\n")


def _in(work: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((work / "progress").read_text())
    return 0


def _process(*arguments: object) -> subprocess.Popen[str]:
    command = module("failure", *arguments)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _end(process: subprocess.Popen[str]) -> None:
    """With all it has started: agents are in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- in processes of their own --------------------------------------------------------------------


def _flow(work: Path, port: int, agents: int, number: int = 0) -> Any:
    import millstream as ms

    flow = ms.Flow("failure")
    reads = ms.Files(
        work / "in" / f"{number:02}" / "log.json",
        schema="ts double, k bigint",
        time="ts",
        lateness="0s",
    )
    names = [f"node-{one:02}" for one in range(agents)]
    source = ms.Collector(f"127.0.0.1:{port}", reads, agents=names, boundary="200ms")
    stream = flow.source(source, name="in")
    window = stream.key_by().window(ms.tumbling("1h"), close=ms.evict(failure_after=SILENT))
    window.agg(n=ms.count()).sink(ms.Jsonl(work / "out"))
    return flow


def collect(work: Path, agents: int, pieces: int) -> None:
    """The collector: says its port, then what came out and how long that took."""
    import socket

    from millstream.run.batches.engine import Engine
    from millstream.run.planning import plan_flow
    from millstream.run.tasks.executors import InProcess
    from millstream.settings import Settings
    from millstream.state.checkpoint import Checkpoint

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plan = plan_flow(_flow(work, port, agents), work / "checkpoint")
    checkpoint = Checkpoint(work / "checkpoint")
    checkpoint.lock()
    engine = Engine(plan, checkpoint, Settings.from_options({"parallelism": 1}))
    engine.open(1)
    print(port, flush=True)
    executor, begun, rows = InProcess(plan, 1), None, []
    while not rows:
        if not engine.step(executor):
            time.sleep(0.02)
        offered = engine.manifest.ledger.get("in", {}).get("offered", 0)
        if begun is None and len(engine.manifest.sources["in"].latest if offered else {}) == agents:
            begun = time.perf_counter()  # all have begun
        (work / "progress.new").write_text(str(offered))
        (work / "progress.new").rename(work / "progress")
        files = sorted((work / "out").glob("*.jsonl"))
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    seconds = time.perf_counter() - (begun or 0.0)
    (row,) = rows
    told = {name: row[name] for name in ("n", "fidelity", "participants", "closed_by")}
    print(json.dumps({**told, "seconds": round(seconds, 2)}), flush=True)


def agents(work: Path, count: int, port: int) -> None:
    """All agents, each a process that was forked off before anything was connected."""
    from millstream.agent.agent import Agent
    from millstream.agent.sending import Connection

    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            name = f"node-{number:02}"
            flow = _flow(work, port, count, number)
            place = work / "agents" / name
            agent = Agent(flow, Connection(f"127.0.0.1:{port}", None), name, place, rows=ROWS)
            while not agent.done:
                begun = time.monotonic()
                agent.step()
                time.sleep(max(0.0, begun + PAUSE - time.monotonic()))
            os._exit(0)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    for pid in pids:
        os.waitpid(pid, 0)


# -- telling --------------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    head = ["agents killed", "completeness, %", "fidelity, %", "closed by", "seconds"]
    rows = [
        [
            f"{one['failures']} of {figures['agents']}",
            100 * one["completeness"],
            100 * one["fidelity"],
            one["closed_by"],
            one["seconds"],
        ]
        for one in figures["runs"]
    ]
    return markdown(head, rows)


def _plot(figures: dict[str, Any], quick: bool) -> None:
    failures = [one["failures"] for one in figures["runs"]]
    with plot("failure", quick, panels=2) as (left, right):
        left.plot(failures, [one["seconds"] for one in figures["runs"]], marker="o")
        left.set(xlabel="agents killed", ylabel="seconds to the answer", ylim=(0, None))
        for name in ("completeness", "fidelity"):
            shares = [100 * one[name] for one in figures["runs"]]
            right.plot(failures, shares, marker="o", label=name)
        right.set(xlabel="agents killed", ylabel="%", ylim=(0, 105))


if __name__ == "__main__":
    place, numbers = Path(sys.argv[2]), [int(one) for one in sys.argv[3:]]
    {"collect": collect, "agents": agents}[sys.argv[1]](place, *numbers)

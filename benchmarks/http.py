"""Claim: slates are read over HTTP while a flow runs, and neither disturbs the other.

First the flow shows what it can do: a rate source gives more than it can take. Then it gets half of
that, and serves its slates; in turns of some seconds nobody reads, or a process with eight
connections reads single slates, over 1,000 a second. Throughput is compared between the turns of
this one run. At the end a server of its own (`millstream serve`) is killed and started again while
it is read from. No reader may ever see an older version of a slate than before, and in the end all
slates must be what the number of records says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import goal, markdown, module, side, spark_context, workspace

KEYS = 100_000
CONNECTIONS = 8
OFFERED = 1_250  # reads a second
WANTED = 1_000
P99 = 20.0  # ms
LOSS = 10.0  # percent of throughput
LIMIT = 900.0
FLOOD = 5_000_000  # records a second, more than anybody can take


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything in one process, with readers in processes of their own."""
    options = {"turns": 1 if quick else 4, "seconds": 6 if quick else 15}
    with workspace("http") as work:
        figures = side(module("http", "flow", work, json.dumps(options)), LIMIT)
    if "timed_out" in figures:
        raise RuntimeError(f"not done after {LIMIT:.0f} s")
    print(
        f"  capacity {figures['capacity']:,} records/s, given {figures['given']:,}; throughput "
        f"{figures['quiet']:,} without and {figures['read']:,} with readers"
    )
    print(
        f"  {figures['reads_per_second']:,.0f} reads/s, p50 {figures['p50_ms']:.2f} ms, p99 "
        f"{figures['p99_ms']:.2f} ms, longest {figures['longest_ms']:.1f} ms; went back: "
        f"{figures['went_back']}; slates as counted: {figures['counted']}"
    )
    less = round(100 * (1 - figures["read"] / figures["quiet"]), 2)
    figures["agree"] = figures["counted"] and figures["went_back"] == 0
    seen, restart = figures["reads_per_second"], figures["restart"]
    figures["goals"] = [
        goal("reads a second", f"at least {WANTED:,}", seen, seen >= WANTED),
        goal("p99 of a read, ms", f"under {P99:g}", figures["p99_ms"], figures["p99_ms"] < P99),
        goal("throughput lost to readers, %", f"at most {LOSS:g}", less, less <= LOSS),
        goal(
            "older versions seen, also when the server is killed and started again",
            "none",
            float(figures["went_back"]),
            figures["went_back"] == 0 and restart["broken"] > 0 and restart["reads"] > 0,
            f"{restart['reads']:,} reads around {restart['broken']} broken connections",
        ),
    ]
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    given = f"{figures['given']:,} records/s given, {figures['capacity']:,} possible"
    rows = [
        ["nobody reads", figures["quiet"], None, None, None, None],
        [
            "readers",
            figures["read"],
            round(figures["reads_per_second"]),
            figures["p50_ms"],
            figures["p99_ms"],
            figures["longest_ms"],
        ],
    ]
    return markdown([given, "records/s", "reads/s", "p50, ms", "p99, ms", "longest, ms"], rows)


# -- the flow -------------------------------------------------------------------------------------


def _flow(name: str, rate: float) -> Any:
    import millstream as ms

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1

    flow = ms.Flow(name)
    numbers = flow.source(ms.Rate(rate), name="numbers")
    users = numbers.select(f"concat('user-', cast(value % {KEYS} as string)) AS user")
    users.key_by("user").update(count, name="counts", order="arrival")
    return flow


class Run:
    """A flow under way, and when it had committed how many records."""

    def __init__(self, flow: Any, checkpoint: Path, **options: Any) -> None:
        self.commits: list[tuple[float, int]] = []
        self.handle = flow.start(checkpoint, on_progress=self._note, **options)

    def _note(self, progress: Any) -> None:
        if not self.commits or progress.rows > self.commits[-1][1]:
            self.commits.append((time.perf_counter(), progress.rows))

    def wait_rows(self, rows: int, limit: float) -> None:
        """Until so many records are committed."""
        end = time.perf_counter() + limit
        while not self.commits or self.commits[-1][1] < rows:
            if time.perf_counter() > end:
                raise RuntimeError(f"{rows} records were not reached in {limit:.0f} s")
            time.sleep(0.05)

    def throughput(self, begin: float, end: float) -> float:
        """Records a second between the first and the last commit of a span of time."""
        inside = [one for one in self.commits if begin <= one[0] <= end]
        (t0, r0), (t1, r1) = inside[0], inside[-1]
        return (r1 - r0) / (t1 - t0)


def measure(work: Path, turns: int, seconds: float) -> dict[str, Any]:
    """Capacity, then half of it with and without readers, then a server that is killed."""
    context = spark_context()
    flood = Run(_flow("flood", FLOOD), work / "flood")
    flood.wait_rows(1_000_000, 120)
    begin = time.perf_counter()
    time.sleep(2 * seconds)
    capacity = flood.throughput(begin, time.perf_counter())
    flood.handle.stop()
    port = _free_port()
    run = Run(_flow("http", capacity / 2), work / "half", serve=port)
    run.wait_rows(3 * KEYS, 120)
    time.sleep(seconds / 2)
    quiet, read, found = [], [], []
    for turn in range(2 * turns):
        begin = time.perf_counter()
        if turn % 2:
            found.append(_reader(port, seconds, OFFERED).result())
        else:
            time.sleep(seconds)
        (read if turn % 2 else quiet).append(run.throughput(begin, time.perf_counter()))
    restart = _restarted(work / "half", seconds)
    rows = run.handle.stop().rows
    context.stop()
    latencies = np.concatenate([np.array(one["latencies"]) for one in found])
    return {
        "capacity": round(capacity),
        "given": round(capacity / 2),
        "quiet": round(statistics.mean(quiet)),
        "read": round(statistics.mean(read)),
        "turns": {"quiet": [round(q) for q in quiet], "read": [round(r) for r in read]},
        "reads_per_second": round(sum(o["reads"] for o in found) / sum(o["took"] for o in found)),
        "p50_ms": round(float(np.quantile(latencies, 0.5)) * 1e3, 3),
        "p99_ms": round(float(np.quantile(latencies, 0.99)) * 1e3, 3),
        "longest_ms": round(float(latencies.max()) * 1e3, 2),
        "went_back": sum(one["went_back"] for one in (*found, restart)),
        "restart": {"reads": restart["reads"], "broken": restart["broken"]},
        "counted": _counted(work / "half", rows),
    }


def _counted(checkpoint: Path, rows: int) -> bool:
    import millstream as ms

    wanted = {f"user-{n}": {"n": rows // KEYS + (n < rows % KEYS)} for n in range(KEYS)}
    return dict(ms.slates(checkpoint, "counts")) == wanted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _restarted(checkpoint: Path, seconds: float) -> dict[str, Any]:
    """Read from a server that is killed and started again in the middle."""
    port = _free_port()
    start = "from millstream.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(checkpoint), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_open(port)
        reader = _reader(port, seconds, 200)
        time.sleep(seconds / 3)
        server.kill()
        server.wait()
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return reader.result()
    finally:
        server.kill()
        server.wait()


def _wait_open(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


# -- readers --------------------------------------------------------------------------------------


class _reader:
    """A process that reads for some seconds."""

    def __init__(self, port: int, seconds: float, rate: int) -> None:
        command = module("http", "read", port, seconds, rate)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def result(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=LIMIT)
        if self.process.returncode:
            raise RuntimeError("a reader failed")
        found: dict[str, Any] = json.loads(out)
        return found


class Readers:
    """Connections that ask for slates at a steady rate, and remember the versions they saw."""

    def __init__(self, port: int, rate: int) -> None:
        self.port, self.pause = port, CONNECTIONS / rate
        self.newest: dict[str, tuple[int, int]] = {}  # key -> count, batch
        self.latencies: list[float] = []
        self.went_back = self.broken = 0

    async def connection(self, number: int, end: float) -> None:
        """One connection, kept open; when it breaks, another."""
        rng = random.Random(number)
        due = time.perf_counter() + self.pause * number / CONNECTIONS
        while time.perf_counter() < end:
            try:
                streams = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    while due < end:
                        await asyncio.sleep(max(0.0, due - time.perf_counter()))
                        due += self.pause
                        await self._read(*streams, f"user-{rng.randrange(KEYS)}")
                    return
                finally:
                    streams[1].close()
            except (OSError, asyncio.IncompleteReadError):
                self.broken += 1
                await asyncio.sleep(0.1)
                due = max(due, time.perf_counter())

    async def _read(self, reader: Any, writer: Any, key: str) -> None:
        before = self.newest.get(key, (0, 0))
        begun = time.perf_counter()
        request = f"GET /slates/counts/{key} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n"
        writer.write(request.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.split("content-length:")[1].split("\r\n")[0])
        body = await reader.readexactly(size)
        self.latencies.append(time.perf_counter() - begun)
        if not head.startswith("http/1.1 200"):
            raise RuntimeError(f"{key}: {head.splitlines()[0]} {body!r}")
        answer = json.loads(body)
        seen = (answer["slate"]["n"], answer["batch"])
        if seen[0] < before[0] or seen[1] < before[1]:
            self.went_back += 1
        self.newest[key] = max(seen, self.newest.get(key, (0, 0)))


def read(port: int, seconds: float, rate: int) -> dict[str, Any]:
    """Read for some seconds; gives what was seen."""
    readers = Readers(port, rate)

    async def main() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(readers.connection(n, end) for n in range(CONNECTIONS)))

    begun = time.perf_counter()
    asyncio.run(main())
    return {
        "reads": len(readers.latencies),
        "took": time.perf_counter() - begun,
        "latencies": [round(one, 6) for one in readers.latencies],
        "went_back": readers.went_back,
        "broken": readers.broken,
    }


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if sys.argv[1] == "read":
        print(json.dumps(read(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
    else:
        print(json.dumps(measure(Path(sys.argv[2]), **json.loads(sys.argv[3]))))

"""Claim: at a modest rate, from a record's arrival to its result p50 < 0.8 s and p99 < 2 s.

A server on this machine sends 1,000 readings a second over TCP, each with the time it was sent. Two
paths are measured: a record through a map to a function, and the record that completes a window of
100 ms to that window's result.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import markdown

RATE = 1_000


class Server(threading.Thread):
    """Sends `micros,key,value` lines at a steady rate to whoever connects."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self) -> None:
        """Serve one connection for the given time, then close it."""
        connection, _ = self.listener.accept()
        with connection:
            started, sent = time.time(), 0
            while time.time() - started < self.seconds:
                due = int((time.time() - started) * RATE)
                lines = [f"{int(time.time() * 1e6)},k{n % 50},{n}\n" for n in range(sent, due)]
                connection.sendall("".join(lines).encode())
                sent = max(sent, due)
                time.sleep(0.002)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both paths and print the percentiles."""
    import millstream as ms

    seconds, warm_up = (12.0, 5.0) if quick else (40.0, 10.0)
    work = Path(tempfile.mkdtemp(prefix="millstream-latency-"))
    server = Server(seconds)
    server.start()
    records: list[tuple[float, float]] = []
    windows: list[tuple[float, float]] = []
    begun: list[float] = []

    def on_record(row: dict[str, Any]) -> None:
        now = time.time()
        begun[:] = begun or [now]
        records.append((now, now - row["sent"] / 1e6))

    def on_window(row: dict[str, Any]) -> None:
        now = time.time()
        windows.append((now, now - row["window_end"].timestamp()))

    flow = ms.Flow("latency")
    lines = ms.Socket(
        "127.0.0.1",
        server.port,
        format="csv",
        schema="sent bigint, key string, value bigint",
        time="sent",
        time_unit="us",
    )
    readings = flow.source(lines, name="readings")
    readings.map(lambda row: row).sink(ms.Call(on_record), name="records")
    (
        readings.key_by("key")
        .window(ms.tumbling("100ms"))
        .agg(n=ms.count())
        .sink(ms.Call(on_window), name="windows")
    )
    try:
        progress = flow.run(checkpoint=work / "ck")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    start = begun[0] + warm_up
    figures = {
        "rate": RATE,
        "batches": progress.batch + 1,
        "record": _percentiles([late for at, late in records if at > start]),
        "window": _percentiles([late for at, late in windows if at > start]),
    }
    for path in ("record", "window"):
        found = figures[path]
        print(
            f"{path:7} to result: p50 {found['p50']:.3f} s (goal 0.8), p99 {found['p99']:.3f} s "
            f"(goal 2), {found['samples']:,} samples at {RATE:,} records/s"
        )
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    names = ("p50", "p90", "p99", "max")
    rows = [
        [f"{path} to result", *(figures[path][name] for name in names), figures[path]["samples"]]
        for path in ("record", "window")
    ]
    head = [f"{figures['rate']:,} records/s", *(f"{name}, s" for name in names), "samples"]
    return markdown(head, rows)


def _percentiles(values: list[float]) -> dict[str, Any]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "samples": len(values),
        "p50": round(float(p50), 4),
        "p90": round(float(p90), 4),
        "p99": round(float(p99), 4),
        "max": round(max(values), 4),
    }

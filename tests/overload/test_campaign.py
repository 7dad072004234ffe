"""Producers at five times what can be processed, for each policy, on files, sockets and generators.

It prints what was shed, how late the rest was, and what memory it took.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.run.batches.engine import Engine
from millstream.run.batches.ledger import WAYS
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.state.checkpoint import Checkpoint
from tests.overload.producing import (
    CAPACITY,
    PATIENCE,
    POLICIES,
    files,
    generators,
    produced,
    slowly,
    sockets,
)


def memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [files, sockets, generators])
def test_five_times_what_can_be_processed(tmp_path: Path, kind: Any, policy: str) -> None:
    spec, produce = kind(tmp_path, POLICIES[policy])
    flow, kept, more = ms.Flow("campaign"), ms.Memory(), ms.Memory()
    slow = flow.source(spec, name="in").map_batches(slowly)
    slow.sink(kept)
    slow.key_by("k").window(ms.tumbling("1s")).agg(n=ms.count()).sink(ms.Memory())
    if POLICIES[policy].stream is not None:
        flow.stream("more").sink(more)
    checkpoint = Checkpoint(tmp_path / "ck")
    checkpoint.lock()
    settings = ms.Settings(parallelism=1, batch_rows=CAPACITY // 4, batch_seconds=0.5)
    engine = Engine(plan_flow(flow), checkpoint, settings)
    engine.open(1)
    executor, producer = InProcess(engine.plan, 1), threading.Thread(target=produce, daemon=True)
    producer.start()
    latencies: list[float] = []
    before, most, waited = memory(), 0, 0
    try:
        deadline = time.monotonic() + PATIENCE
        while (engine.manifest.ledger.get("in", {}).get("offered", 0)) < produced():
            assert time.monotonic() < deadline, "it does not keep up with what it may shed"
            seen = len(kept.rows)
            if not engine.step(executor):
                time.sleep(0.01)
            now = time.time() * 1000
            latencies += [now - row["ts"] for row in kept.rows[seen:]]
            most, waited = max(most, memory()), max(waited, engine.trackers["in"].pending())
            for account in engine.manifest.ledger.values():
                assert account["offered"] == sum(account[way] for way in WAYS)
    finally:
        engine.close()
        producer.join(10)
    account = engine.manifest.ledger["in"]
    numbers = [row["n"] for row in (*kept.rows, *more.rows)]
    assert len({*numbers}) == len(numbers) == produced() - account["dropped"]
    assert len(kept.rows) == account["aggregated"] and len(more.rows) == account["diverted"]
    assert (account["dropped"] + account["diverted"] > 0) == (policy != "throttle")
    assert most - before < 256 << 20
    p50, p99 = np.percentile(latencies, [50, 99])
    print(
        f"\n{kind.__name__}, {policy}: {produced():,} produced, {len(kept.rows):,} processed, "
        f"{account['dropped'] + account['diverted']:,} shed; latency p50 {p50 / 1000:.2f} s, "
        f"p99 {p99 / 1000:.2f} s; at most {waited / 2**20:.1f} MB waited, "
        f"memory grew by {(most - before) / 2**20:.0f} MB"
    )

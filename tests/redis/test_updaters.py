"""The mirror of a real updater is what the reference says, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import run_in_process
from tests.prepared import Started, start
from tests.variants import variants

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "app.py"
KEYS = ["a", "b c", "ü\0ü", "42", "*?[x]", "", "键", "a:b", '"q"', "\n"]


def write_input(path: Path, count: int, seed: int = 1) -> list[dict[str, Any]]:
    random_ = random.Random(seed)
    rows = [
        {"ts": n, "k": random_.choice(KEYS), "v": random_.choice((1, 2, 5, -1))}
        for n in range(count)
    ]
    path.mkdir(parents=True, exist_ok=True)
    size = -(-count // 4)
    for part in range(4):
        text = "".join(json.dumps(row) + "\n" for row in rows[part * size : (part + 1) * size])
        (path / f"{part}.jsonl").write_text(text)
    return rows


def expected(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `app.count` leaves: -1 removes the slate."""
    slates: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["v"] < 0:
            slates.pop(row["k"], None)
        else:
            slate = slates.setdefault(row["k"], {"n": 0, "sum": 0})
            slate["n"] += 1
            slate["sum"] += row["v"]
            slate["last"] = row["ts"]
    return {json.dumps(k) if k in ("42", '"q"') else k: v for k, v in slates.items()}


def contents(server: Any, head: str = "millstream:counting:counts:") -> dict[str, Any]:
    client = server.client()
    found = {}
    for name in client.scan_iter(count=1000):
        if name.startswith(head.encode()):
            found[name.decode()[len(head) :]] = json.loads(client.get(name))["slate"]
    return found


def run(server: Any, tmp: Path, crash_at: str = "") -> Started:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    env.pop("MILLSTREAM_CRASH_AT", None)
    if crash_at.startswith("piece:"):
        env["CRASH_AT_PIECE"] = crash_at.partition(":")[2]
    elif crash_at:
        env["MILLSTREAM_CRASH_AT"] = crash_at
    command = [str(APP), server.url, str(tmp / "in"), str(tmp / "ck")]
    with open(tmp / "stderr.txt", "ab") as errors:
        return start(*command, cwd=tmp, env=env, stderr=errors)


CRASHES = [
    "before-manifest:1",
    "after-manifest:0",
    "after-manifest:3",
    "published:2",
    "before-garbage:4",
    "piece:1",
    "piece:4",
    "piece:11",
]


@pytest.mark.parametrize(
    "crash_at",
    variants([*CRASHES[::2], *CRASHES[1::2]], 4),
)
def test_killed_around_publishing(server: Any, tmp_path: Path, crash_at: str) -> None:
    rows = write_input(tmp_path / "in", 400)
    killed = run(server, tmp_path, crash_at)
    assert killed.wait(60) == -signal.SIGKILL, (tmp_path / "stderr.txt").read_text()
    assert run(server, tmp_path).wait(60) == 0, (tmp_path / "stderr.txt").read_text()
    assert contents(server) == expected(rows)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_flow_and_redis_killed_at_random(server: Any, tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    rows = write_input(tmp_path / "in", 4000, seed)
    for _ in range(100):
        flow = run(server, tmp_path)
        time.sleep(random_.uniform(0.3, 3))
        if random_.random() < 0.4:
            if random_.random() < 0.5 and flow.poll() is None:
                server.client().save()
            server.kill()
            time.sleep(random_.uniform(0, 0.5))
            server.start()
            time.sleep(random_.uniform(0, 1))
        if flow.poll() == 0:
            break
        flow.kill()
        flow.wait()
    # Redis may have lost something after the flow had ended: the next start makes it whole.
    assert run(server, tmp_path).wait(300) == 0
    assert contents(server) == expected(rows)


def counting(server: Any, tmp: Path, fn: Any, sink: Any = None, **options: Any) -> ms.Flow:
    flow = ms.Flow("counting")
    source = flow.source(
        ms.Files(tmp / "in", schema="ts bigint, k string, v bigint", time="ts", lateness="0s"),
        name="in",
    )
    stream = source.key_by("k").update(fn, name="counts", **options)
    stream.sink(sink or ms.Redis(server.url), name="redis")
    return flow


def count(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    return {"k": event.key, "n": slate["n"]}


OPTIONS = {"batch_rows": 20, "batch_bytes": 1000}


def test_records_it_returns_are_not_taken(server: Any, tmp_path: Path) -> None:
    rows = write_input(tmp_path / "in", 200)
    ledger = run_in_process(counting(server, tmp_path, count), tmp_path / "ck", **OPTIONS)
    assert "redis" not in ledger or not ledger["redis"].get("offered")
    totals = {key: {"n": sum(row["k"] == key for row in rows)} for key in KEYS}
    named = {json.dumps(k) if k in ("42", '"q"') else k: v for k, v in totals.items()}
    assert contents(server) == named


def test_removals_are_mirrored_however_segments_are_merged(server: Any, tmp_path: Path) -> None:
    """A removal may be merged into the oldest segment by the very batch that made it."""
    rows = []
    for number in range(40):
        key = f"key {number}"
        rows += [{"k": key, "v": 1}] * (1 + number % 7)
        rows += [{"k": key, "v": -1}] * (number % 5 > 0)
    rows = [{"ts": at, **row} for at, row in enumerate(rows)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def change(event: Any, slate: Any, ctx: Any) -> None:
        if event.value["v"] < 0:
            ctx.delete()
        slate["n"] = slate.get("n", 0) + 1

    flow = counting(server, tmp_path, change)
    run_in_process(flow, tmp_path / "ck", batch_rows=1, batch_bytes=1, shards=2)
    wanted = {f"key {n}": {"n": 1 + n % 7} for n in range(40) if n % 5 == 0}
    assert contents(server) == wanted


def test_event_time_ttl(server: Any, tmp_path: Path) -> None:
    """At the end of the input only what has not expired by then is left."""
    rows = write_input(tmp_path / "in", 200)
    flow = counting(server, tmp_path, count, ttl="20s")
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    end = rows[-1]["ts"]
    last = {row["k"]: row["ts"] for row in rows}
    alive = {key for key, ts in last.items() if ts + 20 > end}
    found = {json.loads(k) if k in ('"42"', '"\\"q\\""') else k for k in contents(server)}
    assert found == alive and len(alive) < len(KEYS)


def test_wall_clock_ttl(server: Any, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 50)
    flow = counting(server, tmp_path, count, ttl="1h", clock="wall")
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    client = server.client()
    lives = [client.pttl(k) for k in client.scan_iter() if k != b"millstream:counting:counts"]
    assert len(lives) == len(KEYS)
    assert all(3_500_000 < left <= 3_600_000 for left in lives)


def test_a_sink_added_later_gets_everything(server: Any, tmp_path: Path) -> None:
    rows = write_input(tmp_path / "in", 300)
    run_in_process(counting(server, tmp_path, count, ms.Memory()), tmp_path / "ck", **OPTIONS)
    assert contents(server) == {}
    run_in_process(counting(server, tmp_path, count), tmp_path / "ck", **OPTIONS)
    assert sum(slate["n"] for slate in contents(server).values()) == len(rows)


def test_nothing_of_the_password_reaches_disk(locked: Any, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 60)
    flow = counting(locked, tmp_path, count)
    assert locked.password not in flow.explain()
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    assert len(contents(locked)) == len(KEYS)
    assert locked.password not in flow.explain(tmp_path / "ck")
    for path in (tmp_path / "ck").rglob("*"):
        if path.is_file():
            assert locked.password.encode() not in path.read_bytes(), path

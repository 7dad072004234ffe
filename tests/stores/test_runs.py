"""Flows whose inputs, results and checkpoints lie in an object store: exact, whoever is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.commands import app
from millstream.errors import CheckpointError, ConfigError, RunError
from millstream.run.faults import POINTS
from millstream.serve.bulk import slates
from millstream.state.buckets import open_bucket
from millstream.state.doctor import examine
from millstream.state.storage import open_storage
from millstream.testing import Driver, run_in_process
from tests import prepared
from tests.flaky import FATES, FlakyStore
from tests.services import S3
from tests.stores.apps import averages

APP = Path(averages.__file__)
FILES, ROWS = 6, 40


def make_input(root: str) -> list[tuple[int, str, int, int]]:
    """Files of records, one of them with a line that cannot be read; gives the good ones."""
    place, good = open_storage(root).within("in"), []
    for number in range(FILES):
        lines = ["id,key,value,ts"]
        for row in range(ROWS):
            at = number * ROWS + row
            good.append((at, f"k{at % 7}", at * 13 % 101, 1_700_000_000 + at))
            lines.append(",".join(map(str, good[-1])))
        if number == 2:
            lines.append("x,k1,no number,1700000000")
        place.put(f"part-{number}.csv", "\n".join(lines).encode() + b"\n")
    return good


def expected(good: list[tuple[int, str, int, int]]) -> dict[str, Counter[Any]]:
    """The answer by DuckDB."""
    found = duckdb.connect()
    found.execute("CREATE TABLE t (id BIGINT, key TEXT, value BIGINT, ts BIGINT)")
    found.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", good)
    windows = found.sql(
        "SELECT key, ts // 10 * 10, count(*), sum(value)::BIGINT FROM t GROUP BY ALL"
    ).fetchall()
    thirds = found.sql("SELECT id, key FROM t WHERE value % 3 = 0").fetchall()
    counts = found.sql("SELECT key, count(*) FROM t GROUP BY key").fetchall()
    return {"windows": Counter(windows), "thirds": Counter(thirds), "counts": Counter(counts)}


def outputs(root: str) -> dict[str, Counter[Any]]:
    """What readers of the bucket see."""
    out = open_storage(root).within("out")
    found: dict[str, Counter[Any]] = {"windows": Counter(), "thirds": Counter()}
    for name in out.walk():
        if "/." in name:
            continue
        data = out.read(name)
        if name.startswith("windows/"):
            for row in pq.read_table(io.BytesIO(data)).to_pylist():
                start = int(row["window_start"].timestamp())
                found["windows"][row["key"], start, row["n"], row["total"]] += 1
        else:
            for line in data.splitlines():
                found["thirds"][tuple(json.loads(line).values())] += 1
    read = slates(f"{root}/ck", "counts").arrow().to_pylist()
    found["counts"] = Counter((row["key"], row["n"]) for row in read)
    return found


def run(root: str, **environment: str) -> tuple[int, str]:
    """The app to its end: its exit code, and what it said."""
    return prepared.run(str(APP), root, cwd=APP.parent, env={**os.environ, **environment})


def spawn(root: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.Popen(
        [sys.executable, str(APP), root], env=env, text=True, stdout=subprocess.PIPE, stderr=-1
    )


def test_a_flow_in_a_store_gives_what_duckdb_gives(bucket: str) -> None:
    root = f"{bucket}/team/flow"
    want = expected(make_input(root))
    ledger = run_in_process(averages.make_flow(root), f"{root}/ck")
    assert outputs(root) == want
    account = {name: count for name, count in ledger["rows"].items() if count}
    assert account == {"offered": FILES * ROWS + 1, "aggregated": FILES * ROWS, "dead": 1}
    lines, sound = examine(f"{root}/ck")
    assert sound, lines
    assert not [n for n in open_storage(root).walk() if n.startswith("out/") and n.endswith(".tmp")]


def test_the_command_line_reads_from_a_store(bucket: str) -> None:
    root = f"{bucket}/cli"
    make_input(root)
    run_in_process(averages.make_flow(root), f"{root}/ck")
    run = CliRunner()
    got = run.invoke(app, ["slates", "get", "counts", "k3", "--checkpoint", f"{root}/ck"])
    assert got.exit_code == 0 and '"n":34' in got.stdout.replace(" ", ""), got.output
    looked = run.invoke(app, ["doctor", f"{root}/ck"])
    assert looked.exit_code == 0 and "sound" in looked.stdout, looked.output
    absent = run.invoke(app, ["doctor", f"{root}/none"])
    assert isinstance(absent.exception, CheckpointError) and f"{root}/none" in str(absent.exception)
    assert "never-printed" not in got.output + looked.output + absent.output


@pytest.mark.parametrize(
    "points",
    [
        ("before-manifest", "after-manifest", "half-published"),
        pytest.param(POINTS, marks=pytest.mark.long),
    ],
)
def test_killed_at_named_points_nothing_is_lost_or_twice(
    bucket: str, points: tuple[str, ...]
) -> None:
    root = f"{bucket}/killed"
    want = expected(make_input(root))
    for number, point in enumerate(points):
        code, said = run(root, MILLSTREAM_CRASH_AT=f"{point}:{number // 2 + 1}+")
        assert code == -signal.SIGKILL, (point, said)
    code, said = run(root)
    assert code == 0, said
    assert outputs(root) == want
    lines, sound = examine(f"{root}/ck")
    assert sound, lines


@pytest.mark.parametrize(
    "point",
    [
        "before-manifest",
        pytest.param("after-manifest", marks=pytest.mark.long),
        pytest.param("before-garbage", marks=pytest.mark.long),
    ],
)
def test_a_zombie_is_refused_once_its_successor_has_committed(bucket: str, point: str) -> None:
    root = f"{bucket}/{point}"
    want = expected(make_input(root))
    zombie = spawn(root, MILLSTREAM_PAUSE_AT=f"{point}:2")
    try:
        stopped(zombie)
        code, said = run(root)
        assert code == 0, said
        assert outputs(root) == want
        os.kill(zombie.pid, signal.SIGCONT)
        _, said = zombie.communicate(timeout=120)
    finally:
        zombie.kill()
        zombie.wait()
    refused = "taken over by" in said or "no longer belongs to this run" in said
    assert zombie.returncode != 0 and refused, said
    assert outputs(root) == want
    lines, sound = examine(f"{root}/ck")
    assert sound, lines


def stopped(process: subprocess.Popen[str]) -> None:
    """Wait until a process has stopped itself."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def in_memory() -> ms.Flow:
    flow = ms.Flow("two")
    rows = flow.source(ms.Generator(list, time="ts"), name="rows")
    rows.key_by("k").update(averages.count, name="counts").sink(ms.Memory(), name="out")
    return flow


def record(at: int) -> dict[str, Any]:
    return {"k": "a", "ts": 1_700_000_000 + at}


def test_of_two_drivers_the_later_one_goes_on(bucket: str) -> None:
    with Driver(in_memory(), checkpoint=f"{bucket}/two") as first:
        first.push("rows", [record(1)])
        first.step()
        with Driver(in_memory(), checkpoint=f"{bucket}/two") as second:
            first.push("rows", [record(2)])
            with pytest.raises(CheckpointError, match=r"taken over by pid \d+ on host"):
                first.step()
            second.push("rows", [record(3)])
            second.step()
            second.end()
            assert second.slates("counts") == {"a": {"n": 2}}


def test_a_run_that_slept_past_the_retention_cannot_commit_a_batch_that_was_removed(
    bucket: str,
) -> None:
    with Driver(in_memory(), checkpoint=f"{bucket}/slept", retain=2) as old:
        old.push("rows", [record(0)])
        old.step()
        slept = old.engine.manifest.batch + 1
        with Driver(in_memory(), checkpoint=f"{bucket}/slept", retain=2) as new:
            for at in range(1, 22):
                new.push("rows", [record(at)])
                new.step()
            manifests = open_storage(f"{bucket}/slept").within("manifests")
            assert f"{slept:08d}.json" not in manifests.names()
            old.push("rows", [record(99)])
            with pytest.raises(CheckpointError, match="taken over by"):
                old.step()
            assert f"{slept:08d}.json" not in manifests.names()
            new.end()
            assert new.slates("counts") == {"a": {"n": 22}}


# Workers have the environment of their JVM: another test of the process may have started it before.
@pytest.mark.long
def test_new_names_are_followed_and_changed_objects_refused(bucket: str) -> None:
    root = f"{bucket}/follow"
    make_input(root)
    sunk = ms.Memory()
    flow = ms.Flow("follow")
    source = ms.Files(f"{root}/in/*.csv", time="ts", follow=True)
    flow.source(source, name="rows").select("id").sink(sunk)
    inputs = open_storage(root).within("in")
    inputs.delete("part-2.csv")  # the one with a bad line
    handle = flow.start(f"{root}/ck", master="local[1]", interval=0.1)
    try:
        wait(lambda: len(sunk.rows) == (FILES - 1) * ROWS, handle)
        inputs.put("another.csv", b"id,key,value,ts\n1000,k,1,1700000500\n")  # sorts before others
        wait(lambda: any(row["id"] == 1000 for row in sunk.rows), handle)
        inputs.put("another.csv", b"id,key,value,ts\n1001,k,1,1700000500\n1002,k,1,1700000501\n")
        with pytest.raises(RunError, match=r"another\.csv has changed since it was read"):
            handle.wait(60)
    finally:
        if handle.running:
            handle.stop()
    assert len(sunk.rows) == (FILES - 1) * ROWS + 1


def wait(until: Callable[[], bool], handle: Any) -> None:
    deadline = time.monotonic() + 90
    while not until():
        if not handle.running:
            handle.wait(1)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_not_there_is_said_before_anything_runs(bucket: str) -> None:
    flow = averages.make_flow(f"{bucket}/empty")
    with pytest.raises(ConfigError, match=f"no object matches {bucket}/empty/in"):
        run_in_process(flow, f"{bucket}/empty/ck")
    with pytest.raises(ConfigError, match="expected a path of a mounted file system, or a URL"):
        run_in_process(averages.make_flow("ftp://host"), f"{bucket}/ck")


def test_an_answer_that_is_lost_is_asked_for_again(
    bucket: str, server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FlakyStore(server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    open_bucket.cache_clear()
    place = open_storage(f"{bucket}/ck/manifests")
    fates = ["done and unanswered", "passed", "passed", "cut", "cut"]
    monkeypatch.setattr(store, "fate", lambda: fates.pop(0) if fates else "passed")
    place.put_new("00000001.json", b"0123456789")
    assert place.read("00000001.json") == b"0123456789" and not fates
    store.close()
    open_bucket.cache_clear()


@pytest.mark.long
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_store_that_fails_now_and_then_is_asked_again(
    bucket: str, server: S3, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    root = f"{bucket}/flaky"
    want = expected(make_input(root))
    store = FlakyStore(server.url, 15, share)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    open_bucket.cache_clear()
    run_in_process(averages.make_flow(root, max_files_per_batch=2), f"{root}/ck", batch_rows=1000)
    store.close()
    assert set(store.met) >= {"passed", *FATES}, store.met
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    open_bucket.cache_clear()
    assert outputs(root) == want
    lines, sound = examine(f"{root}/ck")
    assert sound, lines

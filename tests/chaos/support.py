"""What the chaos tests share: data with a known answer, processes to kill, outputs to compare."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.prepared import Started, start

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "apps" / "two_jobs.py"
SINKS = ("raw", "first", "second", "late")
T0 = 1_700_000_000_000  # ms
STEP = 20  # ms of event time between records
DISORDER = 15_000  # ms, within the lateness of 20 s
KEYS = 23

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Data:
    """Input files, and the records in them; `late` ones are too late however batches fall."""

    path: Path
    good: list[dict[str, int]]
    late: list[dict[str, int]]


def make_data(path: Path, records: int = 20_000, seed: int = 7) -> Data:
    """CSV and JSON files, half of the records each, out of order within the lateness."""
    random_ = random.Random(seed)
    good = [
        {
            "id": i,
            "key": random_.randrange(KEYS),
            "value": random_.randrange(-1000, 1000),
            "ts": T0 + i * STEP + random_.randrange(DISORDER),
        }
        for i in range(records)
    ]
    late = [{"id": records + i, "key": i % KEYS, "value": i, "ts": T0 + i * 100} for i in range(40)]
    path.mkdir(parents=True)
    for half, name in ((0, "csv"), (1, "jsonl")):
        rows = good[half::2]
        if half == 0:  # in the last tenth, ages behind
            at = len(rows) * 9 // 10
            rows = rows[:at] + late + rows[at:]
        size = -(-len(rows) // 4)
        for number in range(4):
            part = rows[number * size : (number + 1) * size]
            text = _csv(part) if name == "csv" else "".join(json.dumps(r) + "\n" for r in part)
            (path / f"part-{number}.{name}").write_text(text)
    return Data(path, good, late)


def _csv(rows: list[dict[str, int]]) -> str:
    lines = [",".join(str(row[name]) for name in ("id", "key", "value", "ts")) for row in rows]
    return "\n".join(["id,key,value,ts", *lines]) + "\n"


def expected(data: Data) -> dict[str, Rows]:
    """The answer, worked out by DuckDB from the records themselves."""
    connection = duckdb.connect()
    good = pa.Table.from_pylist(data.good)  # found by DuckDB by its name
    every = pa.Table.from_pylist(data.good + data.late)
    connection.register("good", good)
    connection.register("every", every)
    raw = connection.sql("SELECT id, key, value * 2 FROM every WHERE value % 7 = 0").fetchall()
    connection.sql(
        """CREATE TABLE first AS SELECT key, ts // 10000 * 10000 AS start, count(*) AS n,
           sum(value)::BIGINT AS total, min(value) AS low, max(value) AS high,
           arg_max(id, ts) AS latest FROM good GROUP BY ALL"""
    )
    first = connection.sql("SELECT key, start, start + 10000, n, total, low, high FROM first")
    second = connection.sql(
        """SELECT grp, stop - 60000, stop, count(*), sum(n)::BIGINT, sum(total)::BIGINT FROM (
             SELECT key % 5 AS grp, n, total, unnest([
               (start + 9999) // 20000 * 20000 + 20000,
               (start + 9999) // 20000 * 20000 + 40000,
               (start + 9999) // 20000 * 20000 + 60000]) AS stop FROM first
           ) GROUP BY grp, stop"""
    )
    return {
        "raw": Counter(raw),
        "first": Counter(first.fetchall()),
        "second": Counter(second.fetchall()),
        "late": Counter((r["id"], r["key"], r["value"]) for r in data.late),
    }


def outputs(out: Path, *, latest: bool = False) -> dict[str, Rows]:
    """All published rows; with `latest`, the column DuckDB cannot tell ties of is included."""
    found = {name: Counter(_rows(out / name)) for name in SINKS}
    if not latest:
        found["first"] = _without_last(found["first"])
    return found


def _without_last(rows: Rows) -> Rows:
    shorter: Rows = Counter()
    for row, times in rows.items():
        shorter[row[:-1]] += times
    return shorter


def _rows(directory: Path) -> Iterator[tuple[Any, ...]]:
    for path in sorted(directory.glob("part-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            yield tuple(map(_plain, row.values()))
    for path in sorted(directory.glob("part-*.jsonl")):
        for line in path.read_bytes().splitlines():
            yield tuple(map(_plain, json.loads(line).values()))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return round(value.astimezone(UTC).timestamp() * 1000)
    return value


def check_readable(out: Path) -> int:
    """A reader that looks right now sees whole files only; gives how many."""
    seen = 0
    for path in out.glob("*/*"):
        if path.name.startswith("."):
            continue
        assert path.name.startswith("part-"), path
        seen += 1
        if path.suffix == ".parquet":
            assert pq.read_table(path).num_rows > 0
        else:
            data = path.read_bytes()
            assert data.endswith(b"\n"), path
            assert all(json.loads(line) for line in data.splitlines())
    return seen


# -- processes ------------------------------------------------------------------------------------


def spawn(
    data: Path, work: Path, master: str | None = None, crash_at: str | None = None, app: Path = APP
) -> Started:
    """The app as a process of its own; its standard output is read by `wait_for`."""
    work.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("MILLSTREAM_CRASH_AT", None)
    if crash_at is not None:
        env["MILLSTREAM_CRASH_AT"] = crash_at
    command = [str(app), str(data), str(work), *([master] if master else [])]
    with open(work / "stderr.txt", "ab") as errors:
        return start(*command, cwd=work, env=env, stdout=subprocess.PIPE, stderr=errors)


def wait_for(process: Started, word: str) -> str | None:
    """The next line that begins with a word; None if the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    return None


def finish(process: Started, timeout: float = 180) -> int:
    """The exit code; the process is not left behind whatever happens."""
    try:
        process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return process.wait()


def kill(process: Started) -> bool:
    """SIGKILL; whether it was still running."""
    process.kill()
    return finish(process) == -signal.SIGKILL


def descendants(pid: int) -> list[psutil.Process]:
    """Everything a process has started so far."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those still running after so long (a zombie nobody reaped is not running)."""
    deadline = time.monotonic() + seconds
    while True:
        left = [p for p in processes if _runs(p)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

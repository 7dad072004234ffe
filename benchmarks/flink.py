"""PyFlink as a peer: an environment of its own, and the side that runs in it.

`environment()` makes benchmarks/.flink-venv on first use. The rest of this file runs inside it, as
a script, and imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSION = "2.3.0"
VENV = Path(__file__).parent / ".flink-venv"
_INSTALL_SECONDS = 600
_PYTHONS = ((3, 11), (3, 12), (3, 10), (3, 9))  # what this Flink has wheels for, best first


def environment() -> tuple[str | None, str]:
    """The Python with Flink in it, or None and why not."""
    python = VENV / "bin" / "python"
    if (VENV / ".installed").exists() and (VENV / ".installed").read_text() == VERSION:
        return str(python), ""
    base = _suitable_python()
    if base is None:
        return None, "no Python 3.9 to 3.12 found, which Flink needs"
    print(f"  installing apache-flink {VERSION} for {base} (once, some minutes)", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    commands = ([base, "-m", "venv", str(VENV)], [*pip, f"apache-flink=={VERSION}"])
    try:
        for command in commands:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                return None, f"apache-flink {VERSION} cannot be installed: {why}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"apache-flink {VERSION} cannot be installed: {error}"
    (VENV / ".installed").write_text(VERSION)
    return str(python), ""


def _suitable_python() -> str | None:
    names = [f"python{major}.{minor}" for major, minor in _PYTHONS]
    if sys.version_info[:2] in _PYTHONS:
        names.insert(0, sys.executable)
    for name in names:
        found = shutil.which(name)
        if found is None:
            continue
        check = [found, "-c", "import sys, venv; print(sys.version_info[:2])"]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() in map(str, _PYTHONS):
            return found
    return None


def main() -> None:
    """`flink.py CSV OUT SIZE SLIDE` (seconds); SIZE 0 only reads the input."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    csv, out, size, slide = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = env.get_config()
    config.set("parallelism.default", str(os.cpu_count()))
    config.set("table.local-time-zone", "UTC")
    config.set("table.exec.mini-batch.enabled", "true")
    config.set("table.exec.mini-batch.allow-latency", "1 s")
    config.set("table.exec.mini-batch.size", "10000")
    env.execute_sql(
        f"""create table trades (
            ms bigint, symbol string, price double, ts as to_timestamp_ltz(ms, 3),
            watermark for ts as ts - interval '1' second
        ) with ('connector' = 'filesystem', 'path' = '{csv}', 'format' = 'csv')"""
    )
    if size:
        env.execute_sql(
            f"""create table results (st timestamp(3), symbol string, s double, n bigint)
            with ('connector' = 'filesystem', 'path' = '{out}', 'format' = 'csv')"""
        )
        job = f"""insert into results select window_start, symbol, sum(price), count(*)
            from table(hop(table trades, descriptor(ts),
                           interval '{slide}' second, interval '{size}' second(4)))
            group by window_start, window_end, symbol"""
    else:
        env.execute_sql(
            """create table results (ms bigint, symbol string, price double)
            with ('connector' = 'blackhole')"""
        )
        job = "insert into results select ms, symbol, price from trades"
    started = time.perf_counter()
    env.execute_sql(job).wait()
    print(json.dumps({"job": round(time.perf_counter() - started, 2)}))


if __name__ == "__main__":
    main()

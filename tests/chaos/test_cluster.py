"""On a real cluster: a worker and its executor are killed, and the answer is the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from millstream.run.spark.session import check_java
from tests.chaos.support import (
    check_readable,
    expected,
    finish,
    make_data,
    outputs,
    spawn,
    wait_for,
    wait_gone,
)
from tests.services import QUICK, free_port

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


@contextmanager
def daemon(tmp: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's standalone cluster; it and all it started are gone afterwards."""
    home = Path(pyspark.__file__).parent
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_LAUNCHER_OPTS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
    }
    tmp.mkdir(exist_ok=True)
    with open(tmp / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments], env=env, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        family = [psutil.Process(process.pid)] if process.poll() is None else []
        family += [child for one in family for child in one.children(recursive=True)]
        for one in family:
            kill(one)
        process.wait()
        assert not wait_gone(family, 60)


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def wait_for_text(path: Path, text: str, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while text not in path.read_text(errors="replace"):
        assert time.monotonic() < deadline, path.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


def master_arguments(port: int) -> list[str]:
    return [
        "org.apache.spark.deploy.master.Master",
        *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
    ]


def worker_arguments(port: int, place: Path, host: str = "127.0.0.1") -> list[str]:
    return [
        "org.apache.spark.deploy.worker.Worker",
        *("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"),
        *("--work-dir", str(place), f"spark://127.0.0.1:{port}"),
    ]


def test_a_lost_worker_changes_nothing(tmp_path: Path) -> None:
    check_java()
    data = make_data(tmp_path / "data", records=8_000)
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(daemon(tmp_path / "spark", "master", *master_arguments(port)))
        wait_for_text(tmp_path / "spark" / "master.log", "I have been elected leader")
        workers = []
        for name in ("one", "two"):
            arguments = worker_arguments(port, tmp_path / "spark" / name)
            workers.append(stack.enter_context(daemon(tmp_path / "spark", name, *arguments)))
        for name in ("one", "two"):
            log = tmp_path / "spark" / f"{name}.log"
            wait_for_text(log, "Successfully registered with master")
        driver = spawn(data.path, tmp_path / "work", f"spark://127.0.0.1:{port}")
        while (line := wait_for(driver, "batch")) is not None and int(line.split()[1]) < 2:
            pass
        assert line is not None, (tmp_path / "work" / "stderr.txt").read_text()[-3000:]
        victim = psutil.Process(workers[0].pid)
        lost = [victim, *victim.children(recursive=True)]
        assert len(lost) > 1, "the worker has no executor"
        for one in reversed(lost):
            kill(one)
        code = finish(driver, 300)
        assert code == 0, (tmp_path / "work" / "stderr.txt").read_text()[-3000:]
        assert not wait_gone(lost, 60)
    assert check_readable(tmp_path / "work" / "out")
    assert outputs(tmp_path / "work" / "out") == expected(data)
    ours = [p for p in psutil.process_iter(["cmdline"]) if f"127.0.0.1:{port}" in str(p.info)]
    assert not wait_gone(ours, 60)

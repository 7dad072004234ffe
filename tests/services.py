"""Servers that tests start for themselves; where one cannot be started its tests are skipped."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

_MOTO = Path(__file__).with_name("moto_on_disk.py")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for JVMs that live for seconds


def unavailable(why: str) -> NoReturn:
    """Skip a test for want of a server; where all must be there, fail it."""
    if os.environ.get("MILLSTREAM_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{why}, and MILLSTREAM_REQUIRE_SERVICES=1 says that it must be there")
    pytest.skip(why)


def free_port() -> int:
    """A port that nobody has just now, below those that others get who ask for any.

    Such a one may be gone again before a server that takes seconds to start has it.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def create_at_once(create: Callable[[bytes], object]) -> bytes:
    """Eight who create one object at the same time; gives what the one wrote who could."""
    won: list[bytes] = []

    def attempt(mine: bytes) -> None:
        try:
            create(mine)
            won.append(mine)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=attempt, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (only,) = won
    return only


def await_answer(ask: Callable[[], object], process: subprocess.Popen[bytes], what: str) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + 300  # other tests run at the same time
    while True:
        try:
            ask()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                unavailable(f"{what} did not start ({error})")
            time.sleep(0.05)


class S3:
    """A server that speaks S3's protocol; what it holds goes with it, unless a folder is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = [] if folder is None else [str(folder)]
        for last in (False, False, True):  # somebody may take the port before it does
            self.port = free_port()
            self.url = f"http://127.0.0.1:{self.port}"
            try:
                self.start()
                return
            except pytest.fail.Exception:
                if last:
                    raise

    def start(self) -> None:
        alone = [sys.executable, "-I", "-W", "ignore"]  # whatever stands in PYTHONPATH
        self._process = subprocess.Popen(
            [*alone, str(_MOTO), str(self.port), *self._folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await_answer(
            lambda: urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).close(),
            self._process,
            "moto, a server of S3's protocol,",
        )

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-never-printed",
            "AWS_REGION": "us-east-1",
        }

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class PostgreSQL:
    """A server of its own, on a port of this machine; root gives it to nobody, as it demands."""

    def __init__(self, folder: str) -> None:
        self.folder, self.port = folder, free_port()
        initdb, postgres = shutil.which("initdb"), shutil.which("postgres")
        if initdb is None or postgres is None:
            unavailable("there is no PostgreSQL on the PATH (Debian: apt install postgresql)")
        self._as = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(folder, "nobody", "nogroup")
        made = [initdb, "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
        run = subprocess.run(made, capture_output=True, cwd="/", **self._as)
        if run.returncode:
            unavailable(f"initdb failed: {run.stderr.decode()[-300:]}")
        self._server = [postgres, "-D", f"{folder}/data", "-h", "127.0.0.1", "-p", f"{self.port}"]
        self._server += ["-k", "", "-F"]
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._server, stdout=quiet, stderr=quiet, cwd="/", **self._as
        )
        await_answer(self._ask, self._process, "PostgreSQL")

    def _ask(self) -> None:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            raise OSError(str(error)) from None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


class Connect:
    """A server of Spark Connect with two cores, in a process of its own."""

    def __init__(self, folder: str) -> None:
        import pyspark

        self.port = free_port()
        home = os.path.dirname(pyspark.__file__)
        command = [f"{home}/bin/spark-submit", "--master", "local[2]", "--driver-memory", "1g"]
        command += ["--driver-java-options", QUICK]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in {
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.ui.enabled": "false",
        }.items():
            command += ["--conf", f"{name}={value}"]
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LAUNCHER_OPTS": QUICK,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._log = open(f"{folder}/connect.log", "wb")  # noqa: SIM115  as long as the server
        self._process = subprocess.Popen(
            [*command, "spark-internal"],
            env=environment,
            cwd=folder,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        await_answer(
            lambda: socket.create_connection(("127.0.0.1", self.port), 5).close(),
            self._process,
            "a server of Spark Connect",
        )

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

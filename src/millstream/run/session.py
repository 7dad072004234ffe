"""The Spark session: found or started, with the properties this engine needs."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.errors import ConfigError
from millstream.settings import Settings

_PROPERTIES = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # Python workers answer over Unix sockets: a third less time per small job than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.task.maxFailures": "4",
    "spark.locality.wait": "0s",
}
_JAVA = 17


def check_java() -> None:
    """Java 17 or later is there, or one line says what to install."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = f"install Java {_JAVA} or later (Debian: apt-get install openjdk-17-jre-headless)"
    if binary is None or not Path(binary).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java on the PATH"
        raise ConfigError(f"Spark needs Java, and there is {where}; {install} or set JAVA_HOME")
    found = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', found.stderr + found.stdout)
    if match is None:
        raise ConfigError(f"{binary} does not say its version; {install} or set JAVA_HOME")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < _JAVA:
        raise ConfigError(f"Spark needs Java {_JAVA}, {binary} is {major}; {install}")


def open_session(flow: str, settings: Settings) -> tuple[SparkSession, bool]:
    """The session to run in, and whether it was started here (and so is ours to stop)."""
    active = SparkSession.getActiveSession()
    if active is not None and active.sparkContext._jsc is not None:
        return active, False
    check_java()
    # Workers must be this very interpreter with this very package, wherever it was started from.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    package = str(Path(__file__).parents[2])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    builder = SparkSession.builder.appName(f"millstream {flow}").master(_with_retries(settings))
    properties = {
        **_PROPERTIES,
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **settings.spark,
    }
    for name, value in properties.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise ConfigError(_why_not(settings.master, error)) from error
    session.sparkContext.setLogLevel("INFO" if settings.debug else "OFF")
    return session, True


def _with_retries(settings: Settings) -> str:
    """Local mode retries no failed task unless its master says so."""
    match = re.fullmatch(r"local\[([^,\]]+)\]", settings.master)
    if match:
        return f"local[{match[1]},4]"
    return "local[1,4]" if settings.master == "local" else settings.master


def _why_not(master: str, error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"Spark could not start on master {master!r}: {text}; check --master "
        "(local[*], local[4], spark://host:7077, yarn, k8s://...) and that it can be reached"
    )

"""The Spark context: found or started, with the properties this engine needs.

A plain context is enough, since batches are RDD jobs: a SparkSession would load the SQL engine,
which costs as much again as the rest of the start. The JVM moves blocks of bytes and computes
nothing, so the quick compiler is enough for it too: both together halve the time to the first job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from millstream.errors import ConfigError
from millstream.run.spark.allowed import too_little
from millstream.run.spark.archive import archive_options
from millstream.run.spark.processes import kill_session, starting_spark
from millstream.run.spark.remote import is_remote
from millstream.settings import Settings

_LEAST_HEAP = 512  # MB
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
_SCARCE = 4 << 30  # a budget up to which the JVM keeps no more than it needs
# The usual collector lets a heap grow as far as it may and has 50 MB of figures of its own.
_FRUGAL = "-XX:+UseSerialGC -Xms64m -Xmn32m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20"
_PROPERTIES = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.driver.memory": "2g",
    "spark.task.maxFailures": "4",
    "spark.locality.wait": "0s",
}
# With several executors one may be slow. A task that takes three times as long as most of its stage
# is begun once more where a core is idle, and what comes first counts: attempts have names of their
# own, so what the other one leaves behind is nobody's. Not before three seconds: Spark ends the
# Python process of the attempt that lost, the next one takes up to two to begin, and would be
# overtaken again. Who is slow for longer gets no tasks (`run/spark/steering.py`).
_BACKUPS = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "3",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "3s",
}
_JAVA = 17
_CONNECT_SECONDS = 3.0

SENDING = (
    "use an image that has it, or send an environment along: "
    "spark={'spark.archives': 'environment.tar.gz#environment', "
    "'spark.pyspark.python': './environment/bin/python'} (docs/deploying.md)"
)


def check_java_and_master(settings: Settings) -> None:
    """Java is there and the master answers, or one line says what to do; starts nothing."""
    if SparkContext._active_spark_context is not None or is_remote(settings):
        return
    check_java()
    _check_master(settings.master)


def check_java() -> None:
    """Java 17 or later is there, or one line says what to install."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = f"install Java {_JAVA} or later (Debian: apt-get install openjdk-17-jre-headless)"
    if binary is None or not Path(binary).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise ConfigError(f"Spark needs Java, and {where}; {install} or set JAVA_HOME")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', _version_said(binary, install))
    if match is None:
        raise ConfigError(f"{binary} does not say its version; {install} or set JAVA_HOME")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < _JAVA:
        raise ConfigError(
            f"Spark needs Java {_JAVA} or later, and {binary} is Java {major}; {install} and "
            "set JAVA_HOME to it"
        )


def _version_said(binary: str, install: str) -> str:
    """What a Java says of itself, in the file beside it if there is one: asking starts a JVM."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        beside = (Path(binary).resolve().parents[1] / "release").read_text()
        if found := re.search(r'^JAVA_VERSION=("\d[^"]*")', beside, re.MULTILINE):
            return f"version {found[1]}"
    try:
        asked = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{binary} cannot be run ({error.strerror}); {install}") from error
    return asked.stderr + asked.stdout


def open_session(
    flow: str, settings: Settings, scratch: Path | None = None
) -> tuple[SparkContext, bool]:
    """The context to run in, and whether it was started here (and so is ours to stop).

    `scratch`: where Spark keeps blocks on disk; what a killed run left there is removed.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        check_workers(active)
        return active, False
    check_java_and_master(settings)
    _set_environment(settings)
    logging.getLogger("py4j").setLevel(logging.CRITICAL if not settings.debug else logging.INFO)
    conf = _configuration(flow, settings)
    if scratch is not None and _own_scratch(settings, scratch):
        conf.set("spark.local.dir", str(scratch))
    try:
        _launch(conf, settings.debug)
        context = SparkContext(conf=conf)
    except Exception as error:
        raise ConfigError(_why_not(settings.master, error, _said.lines)) from error
    context.setLogLevel("INFO" if settings.debug else "OFF")
    if context._accumulatorServer is not None:  # it would tell that the JVM has hung up
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    _said.shown = True
    return context, True


def has_session() -> bool:
    """Whether this process has a Spark context, of whomever."""
    return SparkContext._active_spark_context is not None


def _own_scratch(settings: Settings, scratch: Path) -> bool:
    """Make the directory for Spark's blocks, for its owner only; False if the user chose one."""
    remove_scratch(scratch)
    chosen = "SPARK_LOCAL_DIRS" in os.environ or "spark.local.dir" in settings.spark
    if chosen or "," in str(scratch):  # Spark takes a comma for the end of a path
        return False
    scratch.mkdir(mode=0o700)
    return True


def remove_scratch(scratch: Path) -> None:
    """Remove what Spark kept on disk; a link there is removed and not followed."""
    if scratch.is_symlink():
        scratch.unlink()
    shutil.rmtree(scratch, ignore_errors=True)


def check_cluster(context: SparkContext) -> None:
    """The workers of a cluster have what this machine has, or it is said how to send it there."""
    if not str(context.master).startswith("local"):
        check_workers(context, SENDING)


def check_workers(context: SparkContext, remedy: str | None = None) -> None:
    """The workers of a context that somebody else made have this package, or it is said how."""
    needed = ["millstream", "pyarrow", "msgspec"]
    remedy = remedy or (
        f"set os.environ['PYSPARK_PYTHON'] = {sys.executable!r} before the Spark context is made, "
        "or let Millstream make it"
    )
    try:  # functions of the standard library, so that they can be loaded in any case
        found = context.parallelize(needed, 1).map(find_spec).map(type).collect()
    except Exception as error:
        if "Cannot run program" in str(error):
            raise ConfigError(
                f"Spark's workers have no {context.pythonExec} to run; {remedy}"
            ) from error
        if "PYTHON_VERSION_MISMATCH" not in str(error) and "version" not in str(error):
            raise
        raise ConfigError(
            f"Spark's workers run {context.pythonExec}, another version of Python than this; "
            f"{remedy}"
        ) from error
    missing = [name for name, kind in zip(needed, found, strict=True) if kind is type(None)]
    if missing:
        raise ConfigError(
            f"Spark's workers run {context.pythonExec}, which does not have {missing[0]!r}; "
            f"{remedy}"
        )


def _parting(record: logging.LogRecord) -> bool:
    """Py4j's own threads may find their connection closed; it logs that through the root logger."""
    return "while sending command" not in record.getMessage()


def close_session(context: SparkContext) -> None:
    """Stop a context that was started here; how its workers part with it is nobody's concern."""
    _said.shown = False
    logging.getLogger().addFilter(_parting)
    _close_accumulators(context)
    try:
        context.stop()
    except Exception:  # its JVM is gone: what is left of it here must not be found by the next run
        SparkContext._active_spark_context = None
        end_java(kill=True)
    _forget_directories(context)


def _close_accumulators(context: SparkContext) -> None:
    """Let go of a server we do not use, aside: it takes most of a second to notice that."""
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    context._accumulatorServer = None  # type: ignore[assignment]
    if isinstance(server.server_address, str):
        Path(server.server_address).unlink(missing_ok=True)
    threading.Thread(target=server.shutdown, name="spark-accumulators", daemon=True).start()


def end_java(*, kill: bool = False, seconds: float = 10) -> None:
    """End the JVM this process started, and with it all Python workers; waits until it is gone.

    `kill`: at once, whatever they do; else it has so many seconds.
    """
    _said.shown = _said.shown and not kill  # workers complain when their JVM is gone
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        for starting in starting_spark() if kill else []:
            kill_session(starting)
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # what the JVM takes for the end of its driver
    if kill:
        kill_session(process.pid)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_session(process.pid)
        process.wait(timeout=10)
    SparkContext._gateway = SparkContext._jvm = None  # the next run starts another


# -- starting -----------------------------------------------------------------------------------


class _Said:
    """What the JVM writes: kept while it starts and ends, shown in between.

    Before and after, those are Spark's words about itself; in between, with its log turned off,
    they are what a user's functions print in the workers.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=1000)
        self.shown = False

    def follow(self, stream: IO[bytes]) -> None:
        """Read to the end, on a thread of its own."""
        threading.Thread(
            target=self._read, args=(stream,), name="spark-output", daemon=True
        ).start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:  # ends with the last process that holds the other end
                text = line.decode("utf-8", "replace")
                if not self.shown or not _shown(text):
                    self.lines.append(text.rstrip())


def _shown(text: str) -> bool:
    """Whether the screen took a text. Nobody may be there to read it, and the JVM must not wait."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, TypeError, ValueError, OSError):  # None, bytes, closed, a broken pipe
        return False
    return True


_said = _Said()


def _launch(conf: SparkConf, debug: bool) -> None:
    """Start the JVM in a session of its own: signals to our process group must not end a batch."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # a JVM is left from an earlier run of this process, or given from outside
    options: dict[str, Any] = {"start_new_session": True}
    if debug:
        gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
    else:
        reading, writing = os.pipe()
        _said.lines.clear()
        _said.follow(os.fdopen(reading, "rb"))
        with os.fdopen(writing, "wb") as pipe:
            options["stderr"] = pipe
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def _forget_directories(context: SparkContext) -> None:
    """A JVM remembers the directories of its first context, and would make them again.

    So would a session that somebody makes in it later, whose settings begin with those of the JVM.
    """
    with contextlib.suppress(Exception):
        utils = getattr(context._jvm, "org.apache.spark.util.Utils$")
        getattr(utils, "MODULE$").clearLocalRootDirs()
        context._jvm.java.lang.System.clearProperty("spark.local.dir")  # type: ignore[union-attr]


def _set_environment(settings: Settings) -> None:
    """Workers must be this very interpreter with this very package, wherever it was started.

    On machines that have neither, the one that was sent there (`spark.archives`).
    """
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings.spark.get("spark.pyspark.python", sys.executable)
    package = str(Path(__file__).parents[3])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JVM_OPTIONS)
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _configuration(flow: str, settings: Settings) -> SparkConf:
    properties = {
        "spark.app.name": f"millstream {flow}",
        "spark.master": _with_retries(settings.master),
        **_PROPERTIES,
        **({} if settings.master.startswith("local") else _BACKUPS),
        **_daemon(settings.master),
        **_sockets(settings.master),
        **_heap(settings),
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **settings.spark,
    }
    given = properties.get("spark.driver.extraJavaOptions", "")
    options = (_JVM_OPTIONS, _frugal(settings, given), archive_options(given), given)
    properties["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    return SparkConf().setAll(list(properties.items()))


def _frugal(settings: Settings, given: str) -> str:
    """With a small budget the JVM gives back what it does not need, unless the user says how."""
    budget, own = settings.memory_bytes, ("GC", "-Xm", "HeapFreeRatio")
    scarce = budget is not None and budget <= _SCARCE and settings.master.startswith("local")
    return _FRUGAL if scarce and not any(word in given for word in own) else ""


def _heap(settings: Settings) -> dict[str, str]:
    """Of a budget the JVM gets a quarter: it moves blocks and keeps none; workers need the rest.

    Spark does not start with less than 450 MB, of which a collector may keep some for itself.
    """
    if settings.memory_bytes is None or not settings.master.startswith("local"):
        return {}
    return {"spark.driver.memory": f"{min(2048, max(_LEAST_HEAP, settings.memory_bytes >> 22))}m"}


def _daemon(master: str) -> dict[str, str]:
    """On one machine workers come from a parent that has imported this package already.

    Elsewhere the package may reach a worker only with its first task.
    """
    local = master.startswith("local")
    return {"spark.python.daemon.module": "millstream.run.spark.daemon"} if local else {}


def _sockets(master: str) -> dict[str, str]:
    """Python workers answer over Unix sockets: a third less time per small job than over TCP.

    Not on YARN: a socket's name has 108 bytes at most, and that of a container's directory more.
    """
    return {"spark.python.unix.domain.socket.enabled": str(master != "yarn").lower()}


def _with_retries(master: str) -> str:
    """Local mode retries no failed task unless its master says so."""
    match = re.fullmatch(r"local\[([^,\]]+)\]", master)
    if match:
        return f"local[{match[1]},4]"
    return "local[1,4]" if master == "local" else master


def _check_master(master: str) -> None:
    """A standalone master that does not answer is found here: Spark itself tries for a minute."""
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise ConfigError(
            "master 'yarn' needs to know where YARN is: set HADOOP_CONF_DIR to the directory with "
            "its yarn-site.xml"
        )
    if not re.match(r"local(\[.+\])?$|(spark|k8s)://.|yarn$", master):
        raise ConfigError(
            f"master {master!r} is not one Spark knows; use local[*], local[4], "
            "spark://host:7077, yarn or k8s://https://host:port"
        )
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            number = int(port)
            socket.create_connection((host, number), timeout=_CONNECT_SECONDS).close()
            return
        except ValueError:
            raise ConfigError(f"master {master!r}: {place!r} is not host:port") from None
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
    raise ConfigError(
        f"Spark master {master} cannot be reached ({'; '.join(failures)}); start it, correct "
        "master= (--master), or leave it out to use this machine"
    )


def _why_not(master: str, error: Exception, said: Iterable[str]) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "JAVA_GATEWAY_EXITED" in text:
        telling = [line for line in said if "rror" in line or "xception" in line] or list(said)
        text = f"Java ended at once: {telling[0] if telling else 'it said nothing'}"
    if (limited := too_little()) is not None:
        return f"Spark could not start: {limited} ({text})"
    return (
        f"Spark could not start on master {master!r}: {text}; check --master "
        "(local[*], local[4], spark://host:7077, yarn, k8s://...) and that it can be reached, "
        "or see all with --debug"
    )

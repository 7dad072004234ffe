"""A Kafka broker of one node for tests, examples and benchmarks, from the jars of Maven Central.

    python scripts/kafka.py start [--port 9092] [--dir DIR]    until it is interrupted
    python scripts/kafka.py fetch                              only the jars

The jars (44 MB) are kept in the cache directory of the user; each is compared with its checksum in
`kafka.jars`. HTTPS_PROXY is honoured, and DEFAULT_ARTIFACT_REPOSITORY names a mirror of Maven
Central, as it does for Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "4.3.1"
CENTRAL = "https://repo1.maven.org/maven2/"
_CLUSTER = "bWlsbHN0cmVhbS10ZXN0cw"  # any 16 bytes
_JVM = ("-Xmx512m", "-Xms64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_TRIES = 3


class Unavailable(RuntimeError):
    """There can be no broker here; the text says why."""


def jars(what: str = "kafka", version: str = VERSION) -> Path:
    """The directory with all jars of a list; those that are missing are fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "millstream" / f"{what}-{version}"
    place.mkdir(parents=True, exist_ok=True)
    wanted = [line.split() for line in (HERE / f"{what}.jars").read_text().splitlines()[1:]]
    missing = [one for one in wanted if not (place / _file(one[0])).exists()]
    with ThreadPoolExecutor(8) as several:
        list(several.map(lambda one: _fetch(place, *one), missing))
    return place


def _file(name: str) -> str:
    _, artifact, version = name.split(":")
    return f"{artifact}-{version}.jar"


def _fetch(place: Path, name: str, checksum: str) -> None:
    group, artifact, version = name.split(":")
    central = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or CENTRAL
    path = f"{group.replace('.', '/')}/{artifact}/{version}/{_file(name)}"
    for again in range(_TRIES):
        try:
            with urllib.request.urlopen(f"{central.rstrip('/')}/{path}", timeout=60) as answer:
                data = answer.read()
            break
        except (OSError, urllib.error.URLError) as error:
            if again == _TRIES - 1:
                raise Unavailable(f"{path} cannot be fetched from Maven Central: {error}") from None
            time.sleep(1)
    if hashlib.sha256(data).hexdigest() != checksum:
        raise Unavailable(f"{path} of Maven Central is not what its list says it should be")
    handle, partial = tempfile.mkstemp(dir=place)
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    os.replace(partial, place / _file(name))  # another process may fetch the same


def free_port() -> int:
    """A port that nobody listens on, below those that others get who ask for any."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Broker:
    """One broker that is its own controller; it can be killed and started again on its data.

    secure: a port for TLS with SASL as well, whose settings must be given.
    """

    def __init__(self, directory: Path, port: int = 0, secure: int = 0, **settings: str) -> None:
        self.directory, self.secure = directory, secure
        self.port, self.settings = port or free_port(), settings
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._java = java()
        self._classpath = f"{jars()}/*"

    @property
    def address(self) -> str:
        """What clients are given."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Broker:
        """Start it, and wait until it answers."""
        if not (self.directory / "data" / "meta.properties").exists():
            self._format()
        log = open(self.directory / "kafka.log", "ab")  # noqa: SIM115
        with log:
            command = self._command("kafka.Kafka", str(self.directory / "server.properties"))
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 300  # beside much else
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Unavailable(f"the broker does not start: {self._last_words()}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it in order."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        self.kill()

    def _listens(self) -> bool:
        """Whether it takes connections; it listens only once it can serve them."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return (
                    b"Kafka Server started" in (self.directory / "kafka.log").read_bytes()[-4000:]
                )
        except OSError:
            return False

    def _last_words(self) -> str:
        lines = (self.directory / "kafka.log").read_text(errors="replace").splitlines()
        told = [line for line in lines if "ERROR" in line or "Exception" in line] or lines
        return told[0] if told else "it says nothing"

    def _format(self) -> None:
        controller = free_port()
        listeners = f"PLAINTEXT://127.0.0.1:{self.port}"
        if self.secure:
            listeners += f",SASL_SSL://127.0.0.1:{self.secure}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",  # test records may have the times of long ago
            "log.retention.check.interval.ms": "1000",
            "log.initial.task.delay.ms": "500",
            "log.segment.delete.delay.ms": "0",
            "log.cleaner.backoff.ms": "200",
            "auto.create.topics.enable": "false",
            "num.io.threads": "2",
            "num.network.threads": "2",
            **self.settings,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(path)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise Unavailable(f"its storage cannot be made: {(done.stderr or done.stdout)[-500:]}")

    def _command(self, *words: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return [self._java, *_JVM, logging, "-cp", self._classpath, *words]


_LOGGING = """rootLogger.level=WARN
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} %p %m (%c{1})%n
logger.started.name=kafka.server.KafkaRaftServer
logger.started.level=INFO
"""


def java() -> str:
    """Where Java is."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found is None:
        raise Unavailable("there is no Java; scripts/java.sh says what to install")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["start", "fetch"])
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--dir", type=Path, default=Path(".millstream/kafka"))
    given = parser.parse_args()
    try:
        if given.what == "fetch":
            print(jars())
            return 0
        broker = Broker(given.dir.resolve(), given.port).start()
    except Unavailable as error:
        print(f"no Kafka broker: {error}", file=sys.stderr)
        return 2
    print(f"a broker listens at {broker.address}; Ctrl-C ends it", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        assert broker.process is not None
        return broker.process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())

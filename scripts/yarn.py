"""YARN for tests: a resource manager and a node manager, from jars of Maven Central and of Spark.

python scripts/yarn.py    until it is interrupted; HADOOP_CONF_DIR=.millstream/yarn/conf finds it
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from hdfs import hadoop, wait_for_end
from kafka import Unavailable, free_port, java

_SERVER = "org.apache.hadoop.yarn.server"
_MAINS = {
    "resources": f"{_SERVER}.resourcemanager.ResourceManager",
    "node": f"{_SERVER}.nodemanager.NodeManager",
}
_JVM = (
    "-Xmx400m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true",
)
_LISTENING = (
    *(f"resourcemanager.{one}address" for one in ("", "scheduler.", "resource-tracker.")),
    *(f"resourcemanager.{one}address" for one in ("admin.", "webapp.")),
    *(f"nodemanager.{one}address" for one in ("", "localizer.", "webapp.")),
)
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
}


class Yarn:
    """A cluster of one node; `conf` is what HADOOP_CONF_DIR has to name.

    As on others, a container that uses more memory than it asked for is ended.
    """

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory, self.conf = directory, directory / "conf"
        self.conf.mkdir(parents=True, exist_ok=True)
        _write(self.conf / "yarn-site.xml", {**self._settings(), **settings})
        _write(self.conf / "capacity-scheduler.xml", _QUEUES)
        _write(self.conf / "core-site.xml", {"fs.defaultFS": "file:///"})
        (directory / "log4j2.properties").write_text(_LOGGING)
        logging = f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
        self._command = [java(), *_JVM, logging, "-cp", f"{self.conf}:{hadoop()}"]
        self.processes: list[subprocess.Popen[bytes]] = []

    def _settings(self) -> dict[str, str]:
        return {
            **{f"yarn.{one}": f"127.0.0.1:{free_port()}" for one in _LISTENING},
            "yarn.nodemanager.local-dirs": str(self.directory / "local"),
            "yarn.nodemanager.log-dirs": str(self.directory / "logs"),
            "yarn.node-attribute.fs-store.root-dir": str(self.directory / "attributes"),
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",  # a JVM reserves more than it uses
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.resourcemanager.am.max-attempts": "1",
        }

    def start(self) -> Yarn:
        """Start both, and wait until the node has been taken in."""
        for name, main in _MAINS.items():
            with open(self.directory / f"{name}.log", "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [*self._command, main], stdout=log, stderr=log, cwd=self.directory
                    )
                )
        deadline = time.monotonic() + 300  # beside much else
        while b"Registered with ResourceManager" not in self._log("node"):
            if any(one.poll() is not None for one in self.processes) or time.monotonic() > deadline:
                self.stop()
                told = self._log("resources")[-500:] + self._log("node")[-500:]
                raise Unavailable(f"it does not start: {told.decode(errors='replace')}")
            time.sleep(0.2)
        return self

    def _log(self, name: str) -> bytes:
        return (self.directory / f"{name}.log").read_bytes()

    def stop(self) -> None:
        """End both, and with the node all that runs there."""
        for one in reversed(self.processes):
            one.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(20)
            one.kill()
            one.wait()


def _write(path: Path, settings: dict[str, str]) -> None:
    properties = (
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>\n{''.join(properties)}</configuration>\n")


_LOGGING = """rootLogger.level=INFO
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} %p %m (%c{1})%n
"""


if __name__ == "__main__":
    cluster = Yarn(Path(".millstream/yarn").resolve()).start()
    print(f"YARN listens; HADOOP_CONF_DIR={cluster.conf} finds it; Ctrl-C ends it", flush=True)
    wait_for_end()
    cluster.stop()

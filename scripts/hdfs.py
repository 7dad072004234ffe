"""HDFS in one process for tests, a name node and a data node: jars of Maven Central and of Spark.

python scripts/hdfs.py    until it is interrupted
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from kafka import Unavailable, free_port, jars, java

_VERSION = "3.5.0"
_OF_SPARK = ("hadoop-client-*", "slf4j-api-*", "log4j-*", "commons-*")
_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


def hadoop() -> str:
    """The class path of Hadoop's servers."""
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    own = sorted(map(str, jars("hadoop", _VERSION).glob("*.jar")))
    theirs = sorted(str(one) for pattern in _OF_SPARK for one in spark.glob(f"{pattern}.jar"))
    return ":".join([*own, *theirs])


class MiniDfs:
    """A cluster of one machine; what it holds goes with it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._command = [java(), "-Xmx400m", "-Djava.net.preferIPv4Stack=true"]
        self._command += ["-cp", hadoop(), _MAIN, "-nomr", "-format"]
        self._command += ["-nnport", str(self.port), "-nnhttpport", "0"]
        self._log = directory / "hdfs.log"

    @property
    def address(self) -> str:
        """The name node."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> MiniDfs:
        """Start it, and wait until it holds a file."""
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self.directory
            )
        deadline = time.monotonic() + 300  # beside much else
        while not self._holds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Unavailable(f"it does not start: {self._log.read_text()[-500:]}")
            time.sleep(0.2)
        return self

    def _holds(self) -> bool:
        """Whether a file can be written: the data node is there only after the name node."""
        import socket

        import hdfs_native

        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            options = hdfs_native.WriteOptions(overwrite=True)
            with hdfs_native.Client(f"hdfs://{self.address}").create("/.probe", options) as out:
                out.write(b"x")
            return True
        except (OSError, RuntimeError):
            return False

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()


def wait_for_end() -> None:
    """Until Ctrl-C, or a signal to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pause()


if __name__ == "__main__":
    cluster = MiniDfs(Path(".millstream/hdfs").resolve()).start()
    print(f"a name node listens at hdfs://{cluster.address}; Ctrl-C ends it", flush=True)
    wait_for_end()
    cluster.stop()

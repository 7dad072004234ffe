"""Processes that begin with their imports done.

A test that starts `millstream` or a small app many times would spend most of its time on imports.
Here one process imports everything once; each process a test asks for is a fork of it, with its
own arguments, directory, environment, standard streams, exit code and end, as if newly started.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

_MODULES = (
    "millstream.cli.commands",
    "millstream.cli.slates",
    "millstream.cli.running",
    "millstream.cli.serving",
    "millstream.run.runner",
    "millstream.run.spark.session",
    "millstream.serve.server",
    "millstream.testing",
    "pydantic",
    "rich.markdown",
    "rich.panel",
    "uvicorn",
)
_POLL_SECONDS = 0.01


class Started:
    """A process, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, ended: int, stdout: IO[str] | None) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._ended = ended  # a pipe that says how it ended

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str | None, None]:
        said = self.stdout.read() if self.stdout is not None else None
        self.wait(timeout)
        return said, None

    def send_signal(self, number: int) -> None:
        # It may end in between: another process waits for it, so nothing keeps its number.
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            said = os.read(self._ended, 32)
            os.close(self._ended)
            assert said, "the process all others are forks of is gone"
            self.returncode = os.waitstatus_to_exitcode(int(said))
        return self.returncode


def start(
    program: str,
    *arguments: str,
    cwd: Path,
    env: dict[str, str],
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | None = None,
) -> Started:
    """Start a program: a path of a Python file, or `millstream`.

    Standard input is empty; `stdout` may be `subprocess.PIPE`.
    """
    global _server
    if _server is None:
        _server = _Server()
    return _server.start(
        {"command": [program, *arguments], "cwd": str(cwd), "env": env}, stdout, stderr
    )


def run(
    program: str, *arguments: str, cwd: Path, env: dict[str, str], timeout: float = 300
) -> tuple[int, str]:
    """Start a program and wait for its end; gives its exit code and what it said on stderr."""
    with tempfile.TemporaryFile("w+") as said:
        started = start(program, *arguments, cwd=cwd, env=env, stdout=said, stderr=said)
        try:
            code = started.wait(timeout)
        finally:
            started.kill()
        said.seek(0)
        return code, said.read()


class _Server:
    """This end of the process that is forked."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # safe to fork
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def start(self, request: dict[str, Any], stdout: Any, stderr: Any) -> Started:
        ended, tell = os.pipe()
        reading = writing = None
        if stdout == subprocess.PIPE:
            reading, writing = os.pipe()
        out = writing if writing is not None else (stdout.fileno() if stdout is not None else 1)
        err = stderr.fileno() if stderr is not None else 2
        message = json.dumps(request).encode()
        socket.send_fds(self.socket, [len(message).to_bytes(4, "big")], [out, err, tell])
        self.socket.sendall(message)
        for mine in (tell, writing):
            if mine is not None:
                os.close(mine)
        pid = int(self.socket.recv(16))
        return Started(pid, ended, open(reading) if reading is not None else None)


_server: _Server | None = None


# -- in the process that is forked ----------------------------------------------------------------


def _serve(control: socket.socket) -> list[str]:
    """Fork whenever asked; comes back in a fork only, with its command."""
    running: dict[int, int] = {}  # pid: the pipe that is told how it ended
    while True:
        if select.select([control], [], [], _POLL_SECONDS if running else None)[0]:
            head, fds, *_ = socket.recv_fds(control, 4, 3)
            if not head:
                os._exit(0)  # the tests are over
            message = b""
            size = int.from_bytes(head, "big")
            while len(message) < size:
                message += control.recv(size - len(message))
            pid = os.fork()
            if pid == 0:
                for tell in running.values():
                    os.close(tell)
                return _become(json.loads(message), control, fds)
            out, err, running[pid] = fds
            os.close(out)
            os.close(err)
            control.sendall(str(pid).encode())
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            tell = running.pop(pid)
            os.write(tell, str(status).encode())
            os.close(tell)


def _become(request: dict[str, Any], control: socket.socket, fds: list[int]) -> list[str]:
    """Make a fork what the request says."""
    control.close()
    out, err, _ = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in fds:
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    command: list[str] = request["command"]
    return command


def _end(main: Callable[[], Any]) -> NoReturn:
    """Call it as the script that pip writes does, and end as an interpreter does.

    But for taking everything apart: that would copy all the pages that forks share.
    """
    try:
        sys.exit(main())
    except SystemExit as end:
        said = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if said is not None and not isinstance(said, int):
        print(said, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(said & 0xFF if isinstance(said, int) else int(said is not None))


def _run(command: list[str]) -> None:
    sys.argv = command
    if command[0] == "millstream":
        from millstream.cli import main

        _end(main)
    import runpy

    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    import gc
    import importlib

    sys.path.pop(0)  # this directory
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # pages of what is imported stay shared
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))

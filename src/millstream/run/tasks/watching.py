"""Watching users' functions in a worker: one that hangs ends its worker, and leaves a note.

Stands around each task on Spark (`run/spark/onspark.py`). A thread looks at the stack of the task
now and then; a call that is still the same one after `function_timeout` is noted in the checkpoint
and the worker ends, whatever the function waits for. Spark tries the task again; the second time is
the last. A call that does not even let other threads run (a regular expression without end) is
ended by faulthandler's own thread.

A task that is tried again writes down each call before it is made: should its worker die (os._exit,
a crash in a library, no memory), the driver can say on which record. That takes several times as
long. So where Spark runs backups of slow tasks, which are second attempts at nothing that failed,
only third ones do.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

import msgspec

from millstream.durations import text
from millstream.errors import RunError
from millstream.run.tasks.calls import Call, calling, calls_functions, described, turn_of
from millstream.state.locations import beside

_call = msgspec.json.Decoder(Call)
NOTES = "tasks"  # in the checkpoint; there only while tasks fail
_TRIES = 2
_LOOKS = 8  # at a call, within the timeout
_HELD = 30.0  # seconds beyond the timeout that code may keep all other threads from running
_HANDLES = 1024  # looked at for connections
_ENDED = 70  # the exit code of a worker that ends itself


@dataclass(frozen=True)
class Attempt:
    """A task of a batch, and how often it was tried before."""

    checkpoint: str
    task: str  # level and partition
    number: int = 0
    timeout: int | None = None  # microseconds
    say: Callable[[str], None] | None = None  # in a process of its own: nobody reads its notes
    noting: int = 1  # the first attempt that writes down calls


class Notes:
    """What attempts leave behind: a small file each, for their owner only, links not followed."""

    def __init__(self, checkpoint: str) -> None:
        self.path = beside(checkpoint) / NOTES

    def open(self, name: str) -> int:
        """A new file to write to, whatever had its name."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700, parents=True)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)

    def read(self, kind: str, task: str = "*") -> list[bytes]:
        """The first line of each note of a kind that says something."""
        found = []
        if self.path.is_dir() and not self.path.is_symlink():
            for path in sorted(self.path.glob(f"{task}.*.{kind}")):
                if path.is_file() and not path.is_symlink():
                    line, end, _ = path.read_bytes()[:100_000].partition(b"\n")
                    found += [line] if end else []
        return found

    def calls(self, kind: str, task: str = "*") -> list[Call]:
        """The calls noted."""
        return [_call.decode(line) for line in self.read(kind, task)]

    def remove(self) -> None:
        """Forget all; a link is removed and not followed."""
        if self.path.is_symlink():
            self.path.unlink()
        elif self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)


def hung(notes: Notes, task: str, timeout: int | None) -> RunError | None:
    """What to say once a function did not return, if one did not."""
    calls = notes.calls("hung", task)
    if not calls and notes.read("stuck", task):
        calls = notes.calls("call", task)  # nobody could look: the last one begun it is
    if not calls:
        return None
    times = "" if len(calls) == 1 else " each time"
    ended = f"its worker was ended{times}. The batch was not committed and nothing is lost"
    return RunError(_hangs(calls[-1], timeout, ended, "function_timeout="))


def _hangs(call: Call, timeout: int | None, ended: str, longer: str) -> str:
    return (
        f"{call.operator!r} hangs: its function had not returned after {text(timeout or 0)} on "
        f"{call.given}, and {ended}: look for a call without a timeout, a lock or an endless loop "
        f"there, or give it longer with {longer}"
    )


@contextmanager
def watched(attempt: Attempt) -> Iterator[None]:
    """Around a task, in the thread that runs it."""
    if attempt.number < attempt.noting:
        with _armed(attempt, None):
            yield
        return
    notes = Notes(attempt.checkpoint)
    if len(notes.read("hung", attempt.task)) >= _TRIES or notes.read("stuck", attempt.task):
        error = hung(notes, attempt.task, attempt.timeout)
        if error is not None:
            raise error
    before = sys.getprofile()
    try:
        crumb = notes.open(f"{attempt.task}.{attempt.number}.call")
        told = notes.open(f"{attempt.task}.{attempt.number}.stuck")
    except OSError:  # no permission, no room: the work meets that too, and says where
        with _armed(attempt, None):
            yield
        return
    with os.fdopen(told, "wb") as stuck:
        sys.setprofile(_noting(crumb))
        try:
            with _armed(attempt, stuck):
                yield
        finally:
            sys.setprofile(before)
            os.ftruncate(crumb, 0)
            os.close(crumb)


def _noting(crumb: int) -> Any:
    """Write down each call of a user's function before it is made."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back if event == "call" else frame if event == "c_call" else None
        if caller is not None and calls_functions(caller.f_code):
            os.pwrite(crumb, msgspec.json.encode(described(caller)) + b"\n", 0)

    return note


# -- the thread that looks ------------------------------------------------------------------------


class Watchdog:
    """Looks at one task at a time; the thread lives as long as the worker."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._attempt: Attempt | None = None
        self._thread = 0
        self._stuck: IO[bytes] | None = None
        self._nowhere = open(os.devnull, "wb")  # noqa: SIM115 - as long as the worker
        threading.Thread(target=self._run, name="millstream-watchdog", daemon=True).start()

    def begin(self, attempt: Attempt, stuck: IO[bytes] | None) -> None:
        """Watch the thread that calls this."""
        with self._news:
            self._attempt, self._thread = attempt, threading.get_ident()
            self._stuck = stuck
            self._arm((attempt.timeout or 0) / 1e6)  # the first call may let no thread run
            self._news.notify()

    def end(self) -> None:
        """The task is done."""
        with self._news:
            self._attempt = None
            faulthandler.cancel_dump_traceback_later()

    def _arm(self, seconds: float) -> None:
        """Let the other thread end the worker, unless it is told again before."""
        given = self._stuck or self._nowhere
        faulthandler.dump_traceback_later(seconds + _HELD, exit=True, file=given)

    def _run(self) -> None:
        try:
            self._look()
        finally:  # without this thread, nobody would tell the other one that all is well
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        same, since = Same(), time.monotonic()
        while True:
            with self._news:
                while self._attempt is None:
                    same = Same()
                    self._news.wait()
                attempt, thread = self._attempt, self._thread
                seconds = (attempt.timeout or 0) / 1e6
                step = min(max(seconds / _LOOKS, 0.02), 15.0)
                # Should this thread not come to run again, another that needs no lock ends it all.
                self._arm(seconds)
            if not same.as_in(sys._current_frames().get(thread)):
                since = time.monotonic()
            elif time.monotonic() - since >= seconds and same.caller is not None:
                self._give_up(attempt, same.caller)
            time.sleep(step)

    def _give_up(self, attempt: Attempt, caller: FrameType) -> None:
        with self._news:
            if self._attempt is not attempt:
                return  # it has returned just now
            if attempt.say is not None:
                ended = "this process ends. What it had begun is read again by the next one"
                attempt.say(_hangs(described(caller), attempt.timeout, ended, "--function-timeout"))
            else:
                with suppress(OSError):
                    leave_note(attempt, described(caller))
            _hang_up()
            os._exit(_ENDED)


def _hang_up() -> None:
    """End all connections, not only our hold on them: a function may have forked the process.

    Otherwise Spark waits for as long as such a child lives, though the worker has ended.
    """
    for handle in range(3, min(os.sysconf("SC_OPEN_MAX"), _HANDLES)):
        with suppress(OSError), socket.socket(fileno=handle) as connection:
            connection.shutdown(socket.SHUT_RDWR)


class Same:
    """Whether a thread is still in the same call of a function."""

    def __init__(self) -> None:
        # Frames are held, so that no other can have their identity.
        self.caller: FrameType | None = None
        self._below: FrameType | None = None
        self._turn: tuple[int, ...] = ()

    def as_in(self, frame: FrameType | None) -> bool:
        """Whether it is the call it was in when asked last; False too if it is in none."""
        found = calling(frame)
        if found is None:
            self.caller = self._below = None
            return False
        caller, below = found
        turn = turn_of(caller)
        same = caller is self.caller and below is self._below and turn == self._turn
        self.caller, self._below, self._turn = caller, below, turn
        return same


def leave_note(attempt: Attempt, call: Call) -> None:
    """Note a call that hangs."""
    note = Notes(attempt.checkpoint).open(f"{attempt.task}.{attempt.number}.hung")
    try:
        os.write(note, msgspec.json.encode(call) + b"\n")
    finally:
        os.close(note)


_watchdogs: dict[int, Watchdog] = {}  # by process: a fork has none of its parent's threads


@contextmanager
def _armed(attempt: Attempt, stuck: IO[bytes] | None) -> Iterator[None]:
    if attempt.timeout is None:
        yield
        return
    pid = os.getpid()
    if pid not in _watchdogs:
        _watchdogs.clear()
        _watchdogs[pid] = Watchdog()
    dog = _watchdogs[pid]
    dog.begin(attempt, stuck)
    try:
        yield
    finally:
        dog.end()

"""A command as a filter of lines: any executable, fed and read through pipes.

One loop feeds it, reads what it gives and listens to what it says on stderr, whichever is ready; so
neither side waits for the other, however much either has. A command that does nothing at all for
too long, or ends with an error, ends the run with its last words.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import IO

from millstream.adapters.lines import Work
from millstream.adapters.places import NOTHING, Brought
from millstream.errors import ConfigError, ProgramError
from millstream.showing import visible_lines

_PIECE = 1 << 16  # bytes given or taken at a time
_WORDS = 2_000  # bytes of stderr that are kept for a message
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_COUNTER = re.compile(rb"reporter:counter:([^,]*),([^,]*),(-?\d+)\s*")
_STATUS = b"reporter:status:"


@dataclass(frozen=True)
class Command:
    """A program with its arguments; it runs in a directory with the files brought along."""

    words: tuple[str, ...]
    brought: Brought = NOTHING
    environment: tuple[tuple[str, str], ...] = ()
    patience: float | None = 600.0  # seconds without a sign of life
    tolerant: bool = False  # how it ends does not matter: it only filters for another

    def __str__(self) -> str:
        return shlex.join(self.words)

    def __call__(self, lines: Iterable[bytes], work: Work) -> Iterator[bytes]:
        """What the command makes of lines."""
        with self.brought.laid_out() as directory:
            environment = {
                **os.environ,
                **work.environment,
                **dict(self.environment),
                "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "mapreduce_job_local_dir": directory,
            }
            launcher = _launcher()
            try:
                process = subprocess.Popen(
                    (*launcher, *self.words),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=directory,
                    env=environment,
                    preexec_fn=None if launcher else _die_with_parent,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProgramError(
                    f"{work.name}: {self} cannot be run: {error.strerror}"
                ) from error
            exchange = _Exchange(process, self.patience)
            try:
                rest = b""
                for piece in exchange.run(lines):
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from whole
                if rest:
                    yield rest
                code = self._ended(process)
            except _Silent:
                raise ProgramError(
                    f"{work.name}: {self} neither read nor wrote anything for "
                    f"{self.patience:g} s and was ended; if it needs longer, let it write "
                    f"reporter:status: lines to stderr, or allow more{exchange.words()}"
                ) from None
            finally:
                _end(process)
        work.counters.update(exchange.counters)
        if code and not self.tolerant:
            raise ProgramError(f"{work.name}: {self} {_how(code)}{exchange.words()}")

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """How it ended; it has closed its output, and may still be busy."""
        try:
            return process.wait(self.patience)
        except subprocess.TimeoutExpired:
            raise _Silent from None


class _Silent(Exception):
    """Nothing was heard of a command for too long."""


@dataclass
class _Exchange:
    """What passes between us and a command."""

    process: subprocess.Popen[bytes]
    patience: float | None
    said: bytes = b""
    counters: dict[tuple[str, str], int] = field(default_factory=dict)
    unfinished: bytes = b""  # a line of stderr that goes on

    def run(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Feed all lines, and give what comes out as it comes."""
        given, taken, said = self.process.stdin, self.process.stdout, self.process.stderr
        assert given is not None and taken is not None and said is not None
        feed, waiting = _pieces(lines), b""
        os.set_blocking(given.fileno(), False)
        with selectors.DefaultSelector() as ready:
            ready.register(given, selectors.EVENT_WRITE)
            ready.register(taken, selectors.EVENT_READ)
            ready.register(said, selectors.EVENT_READ)
            heard = time.monotonic()
            while ready.get_map():
                events = ready.select(self._left(heard))
                if not events:
                    raise _Silent
                heard = time.monotonic()
                for key, _ in events:
                    if key.fileobj is given:
                        waiting = waiting or next(feed, b"")
                        rest = _write(given, waiting) if waiting else None
                        if rest is None:  # all was given, or nobody reads any more
                            ready.unregister(given)
                            _close(given)
                        waiting = rest or b""
                        continue
                    piece = os.read(key.fd, _PIECE)
                    if not piece:
                        ready.unregister(key.fileobj)
                    elif key.fileobj is taken:
                        yield piece
                        heard = time.monotonic()  # whoever takes it may be slow
                    else:
                        self._listen(piece)
        self._listen(b"\n")

    def _left(self, heard: float) -> float | None:
        if self.patience is None:
            return None
        return max(0.0, heard + self.patience - time.monotonic())

    def _listen(self, piece: bytes) -> None:
        """Counters and words on stderr, as Hadoop Streaming understands them."""
        *whole, self.unfinished = (self.unfinished + piece).split(b"\n")
        for line in whole:
            found = _COUNTER.fullmatch(line)
            if found:
                group, name, amount = found[1].decode(), found[2].decode(), int(found[3])
                self.counters[group, name] = self.counters.get((group, name), 0) + amount
            elif line and not line.startswith(_STATUS):
                self.said = (self.said + line + b"\n")[-_WORDS:]

    def words(self) -> str:
        """Its last words on stderr, for a message."""
        said = (self.said + self.unfinished).strip()
        if not said:
            return "; it said nothing on stderr"
        return f"; its last words on stderr:\n{visible_lines(said.decode(errors='replace'))}"


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines with their ends, some at a time."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        if size >= _PIECE:
            yield b"\n".join([*held, b""])
            held, size = [], 0
    if held:
        yield b"\n".join([*held, b""])


def _write(pipe: IO[bytes], waiting: bytes) -> bytes | None:
    """Give what a pipe takes; gives the rest, or None if nobody reads any more."""
    try:
        return waiting[os.write(pipe.fileno(), waiting) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:  # it has seen enough, as `head` does
        return None


def _close(pipe: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind, nor one it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            _close(pipe)


def _how(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


@cache
def _launcher() -> tuple[str, ...]:
    """What lets a command die with the worker that began it, started before it.

    With a function of ours in between, the whole worker would be copied for every command, which
    takes five times as long as the start itself.
    """
    found = shutil.which("setpriv")
    asked = () if found is None else (found, "--pdeathsig", "KILL")
    try:  # others of this name know no such option
        known = asked and subprocess.run((*asked, "true"), capture_output=True).returncode == 0
    except OSError:
        known = False
    return (*asked, "--") if known else ()


def _die_with_parent() -> None:
    """The same without it (Linux only)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def command_of(option: str, text: str, brought: Brought) -> tuple[str, ...]:
    """The words of a command as users write it, found and executable before anything is started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a command: {error}") from None
    if not words:
        raise ConfigError(f"{option}: give a command")
    for sign in ("|", "<", ">", ">>", "&&", "||", ";", "&"):
        if sign in words:
            raise ConfigError(
                f"{option} {text!r}: {sign!r} is for a shell, and commands are run without one; "
                f"write {option} {shlex.quote('sh -c ' + shlex.quote(text))}"
            )
    return (_found(option, words[0], brought), *words[1:])


def _found(option: str, word: str, brought: Brought) -> str:
    """A program brought along, one on the path, or one of the directory we are in."""
    known = dict(brought.files)
    if word.removeprefix("./") in known:
        return _executable(option, word, known[word.removeprefix("./")])
    if os.sep not in word and (found := shutil.which(word)) is not None:
        return found
    if os.path.isfile(word):
        return _executable(option, word, os.path.abspath(word))
    raise ConfigError(
        f"{option}: there is no program {word!r}, neither on the path nor here nor among --file"
    )


def _executable(option: str, word: str, path: str) -> str:
    if not os.access(path, os.X_OK):
        raise ConfigError(
            f"{option}: {word!r} is not executable; do `chmod +x {shlex.quote(path)}`, or name "
            f"what runs it: {option} 'python3 {shlex.quote(path)}'"
        )
    return path

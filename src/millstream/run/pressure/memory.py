"""The memory of a flow: how much its processes have, and how many bytes of rows a batch may take.

Measured is what the system says is resident: the driver, Spark's JVM below it, and Python workers
(those of other machines say it of themselves), and once what lies in memory for all of them: state
that is kept warm, blocks of Spark. Beyond what all of them have with hardly any rows,
memory follows the bytes of rows that a batch works on; by how much is learned from its peak. What
was taken once is seldom given back at once, so it is weighed against the largest of the last
batches, not against the one that was measured.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pyarrow as pa

from millstream.operators.batch import Control
from millstream.state.memory import bytes_held

SHARE = 0.8  # of the memory of the machine or the container, if no budget is given
_PLANNED = 0.5  # of what processes leave of it that batches plan with: windows leave in some only
_CRAMPED = 0.85  # of the budget, which leaves hardly anything
_FIRST = 32 << 20  # bytes of rows a batch may take before anything was measured
_ASSUMED = 16.0  # bytes of memory for a byte of rows before that: those of Python's objects
_DOUBTED = 8.0  # at least so many after the first batch, which need not have worked on all of it
_LEAST = 1 << 20  # and however little memory is left
_SOME = 8 << 20  # from so many on what a batch takes is taken for its rows
_GROWTH = 2.0  # from one batch to the next at most
_RECENT = 12  # batches
_FORGOTTEN = 0.1  # of a peak with every batch as large that took less: the next may be as high
_TIGHT = 0.6  # share of the budget in use from which on tasks give back what they do not need
_EVERY = 0.1  # seconds between two looks while a batch runs
_LOOKING = 0.02  # share of a core that may go there
_TREE = 1.0  # seconds for which the list of processes is good
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The budget of a flow and what it has learned about itself."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0  # bytes at the peak of the last batch
        self.floor: int | None = None  # bytes with hardly any rows
        self._ratio = 0.0  # bytes of memory for a byte of rows
        self._recent: deque[float] = deque(maxlen=_RECENT)  # bytes of rows of the last batches
        self._processes = 0  # that were there when the floor was taken
        self._peak = 0

    @property
    def share(self) -> float:
        """Of the budget in use."""
        return self.used / self.budget

    @property
    def pressure(self) -> float:
        """Of what processes leave of the budget by themselves, the share that rows have taken."""
        floor = min(self.floor or 0, self.budget - 1)
        return max(0, self.used - floor) / (self.budget - floor)

    @property
    def tight(self) -> bool:
        """Whether processes should give back what they do not need.

        Also until it is known what they have without rows.
        """
        return self.share > _TIGHT or self._more

    @property
    def _more(self) -> bool:
        """Whether there are processes that were not there when the floor was taken."""
        return 0 < self._processes < len(_tree[1])

    @property
    def room(self) -> float:
        """Bytes of rows that the next batch may take."""
        if self.floor is None:
            return _FIRST
        left = _PLANNED * (self.budget - self.floor)
        if not self._ratio:
            return max(_LEAST, min(_FIRST, left / _ASSUMED))
        most = max(_FIRST, _GROWTH * max(self._recent))
        return max(_LEAST, min(most, left / self._ratio))

    @property
    def cramped(self) -> str | None:
        """What to say of a budget that the processes use up by themselves."""
        if self.floor is None or self.floor < _CRAMPED * self.budget:
            return None
        return (
            f"memory: Spark and Python take most of the budget of {self.budget / 1e9:.2g} GB by "
            "themselves, so batches are as small as can be, which takes longer; give it more"
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look from time to time while a batch runs."""
        if self.floor is None or self._more:
            self.floor = max(self.look(), self.floor or 0)
            self._processes = len(_tree[1])
        self._peak = 0
        with _watcher.following(self):
            yield

    def seen(self, much: int) -> None:
        """Take in what somebody saw while a batch ran."""
        self._peak = max(self._peak, much)

    def learn(self, size: float, controls: Iterable[Control]) -> None:
        """Take in what a batch took that worked on so many bytes of rows."""
        if size >= _SOME or max(self._recent, default=0.0) < _SOME:
            # Small ones do not make a large one be forgotten: what it left behind stays.
            self._recent.append(size)
        if self.floor is None:
            return
        # What was too short to be seen says nothing of its rows; but a peak before it is over.
        peak = (self._peak or _glance(self)) + self._elsewhere(controls)
        self.used = peak
        largest = max(*self._recent, _LEAST)
        if self._more:
            return  # workers that started in this batch: what they have by themselves is not known
        if not self._peak or largest < _SOME:
            # A JVM that warms up; later on, what a large batch has left behind: that is not what a
            # small one takes for its rows.
            if self._peak and not self._ratio:
                self.floor = max(self.floor, peak)
            return
        ratio = max(0, peak - self.floor) / largest
        if not self._ratio:
            self._ratio = max(ratio, _DOUBTED) if size > largest / 2 else 0.0
        elif ratio > self._ratio:
            self._ratio = ratio
        elif size > largest / 2:  # a small batch says nothing of what a large one takes
            self._ratio += _FORGOTTEN * (ratio - self._ratio)

    def _elsewhere(self, controls: Iterable[Control]) -> int:
        """What workers on other machines had."""
        host = socket.gethostname()
        workers: dict[tuple[str, int], int] = {}
        for where, process, much in (one.resident for one in controls if one.resident):
            if where != host:
                workers[where, process] = max(much, workers.get((where, process), 0))
        return sum(workers.values())

    def look(self) -> int:
        """What this process and all below it have now, and what lies in memory for them."""
        global _tree
        now = time.monotonic()
        if now - _tree[0] > _TREE:
            _tree = (now, [os.getpid(), *_below(os.getpid())])
        return sum(map(resident, _tree[1])) + bytes_held()


class _Watcher:
    """One thread that looks for all flows of this process: a batch of each would start its own."""

    def __init__(self) -> None:
        self._since: dict[Memory, float] = {}  # when batches began that are under way
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, memory: Memory) -> Iterator[None]:
        """Tell it what is seen, from a moment after now on."""
        with self._news:
            self._since[memory] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
                self._thread.start()
            self._news.notify()
        try:
            yield
        finally:
            with self._news:
                del self._since[memory]

    def _watch(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._since)
            time.sleep(_EVERY / 2)
            late = time.monotonic() - _EVERY
            with self._news:
                under_way = [one for one, since in self._since.items() if since <= late]
            much = _glance(under_way[0]) if under_way else 0
            with self._news:
                for one in under_way:
                    if self._since.get(one, late + 1) <= late:  # and not another batch by now
                        one.seen(much)


_watcher = _Watcher()
_tree: tuple[float, list[int]] = (-math.inf, [])  # when it was looked for, and our processes
_glancing = threading.Lock()
_glanced = (-math.inf, 0)  # until when it serves, and what was seen


def _glance(memory: Memory) -> int:
    """A look that serves all flows of this process for a moment: they have the same processes.

    With many flows there are many folders to look through, and it serves for longer.
    """
    global _glanced
    with _glancing:
        if time.monotonic() > _glanced[0]:
            begun = time.thread_time()
            seen = memory.look()
            used = time.thread_time() - begun
            _glanced = (time.monotonic() + max(_EVERY / 2, used / _LOOKING), seen)
        return _glanced[1]


def resident(process: int | str = "self") -> int:
    """Bytes of a process that are in memory; 0 where the system does not tell, or it has ended.

    Without those of files in memory: processes share them, and they are counted where they lie.
    """
    with suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        told = {name: value for name, _, value in (line.partition(":") for line in lines)}
        return _kilobytes(told["VmRSS"]) - _kilobytes(told.get("RssShmem", "0 kB"))
    return 0


def _kilobytes(told: str) -> int:
    return int(told.split()[0]) * 1024


def _below(process: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    with suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{process}/task"):
            found = Path(f"/proc/{process}/task/{task}/children").read_text().split()
            for child in map(int, found):
                yield child
                yield from _below(child)


def own_resident() -> tuple[str, int, int]:
    """The machine, the number and the memory of this process: what a task says of itself."""
    return socket.gethostname(), os.getpid(), resident()


def give_back() -> None:
    """Return memory to the system that this process has and does not use."""
    pa.default_memory_pool().release_unused()
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim  # glibc's
    return None


@cache
def of_machine() -> int:
    """What this machine, or the container we are in, has."""
    limits = [_machine()]
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int((Path("/sys/fs/cgroup") / place).read_text()))
    return min(limits)


def _machine() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * _PAGE
    return 8 << 30

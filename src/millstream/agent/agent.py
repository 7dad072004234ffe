"""The agent: reads where the records are, and sends what the first steps of the flow made of them.

One loop: make a message of what is new, keep it on disk, send what the collector does not have,
forget what it has committed. With several trees a message has a part for each, which goes to the
parent there; it is forgotten when all of them are committed. While the collector is away reading
goes on until the disk space the agent may use is full; then it waits, or gives up the oldest and
counts it, as was declared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from millstream.agent.accepting import Accepting
from millstream.agent.clocks import clock_of
from millstream.agent.outbox import Outbox, TooLarge
from millstream.agent.programs import Programs
from millstream.agent.sending import Away, Connection
from millstream.agent.working import Working, collector_of, plan_here
from millstream.api.flow import Flow
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.io.prints import MOVED
from millstream.run.messages.greetings import Hello, Welcome
from millstream.run.messages.message import FULL, Message
from millstream.run.tasks.watching import Attempt, watched
from millstream.settings import Settings
from millstream.state.manifests import SourceState
from millstream.state.storage import NO_ROOM

_ROWS = 100_000  # records of a message
_BYTES = 16 * 1024 * 1024
_AGAIN = 1.0  # seconds between tries to reach a collector that is away
OVERLOAD = ("wait", "drop")


@dataclass
class Branch:
    """The way to the parent of one tree, and what is known to have come there."""

    parent: Connection
    tree: int = 0
    durable: int = -1  # the last message that is there
    committed: int = -1
    next_try: float = 0.0
    next_boundary: float = 0.0
    away: str | None = None  # what was said of a parent that is


@dataclass
class Agent:
    """One agent on its machine."""

    flow: Flow
    collector: Connection
    name: str
    directory: Path
    settings: Settings = field(default_factory=Settings)
    spool: int = 1 << 30  # bytes of messages it may keep
    overload: str = "wait"
    say: Callable[[str], None] = lambda text: None
    rows: int = _ROWS
    reload: Callable[[], Flow] | None = None  # its file once more, which may have changed
    others: tuple[Connection, ...] = ()  # the parents in further trees
    accept: Accepting | None = None  # code from the collector; None: only the file it has
    largest: ClassVar[int] = FULL  # bytes of a message

    def __post_init__(self) -> None:
        if self.overload not in OVERLOAD:
            raise ConfigError(f"overload={self.overload!r}: use {' or '.join(OVERLOAD)}")
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ConfigError(f"the name of an agent is a short text, got {self.name!r}")
        self.check_trees(collector_of(self.flow).spec.trees)
        self.outbox = Outbox(self.directory, self.largest)
        root = self.outbox.root
        self.programs = Programs(self.flow, root, self._say, self.reload, self.accept)
        node = collector_of(self.programs.flow)
        self.source, self.clock = node.name, clock_of(node.spec.clock_skew)
        self.branches = [
            Branch(one, tree) for tree, one in enumerate((self.collector, *self.others))
        ]
        self.working: Working | None = None
        self.over = False  # all is read
        self._stopping = False
        self._period = 1.0
        self._unkept: list[Message] | None = None  # made, and not on disk yet
        self._next_made = 0.0  # while all parents are away, or the disk is full
        self._less = 1  # so many times less is read for a message, because one was too large
        self._full = False  # that the disk is full was said

    def _say(self, text: str) -> None:
        self.say(text)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Until all is read and committed, or it shall stop."""
        while not self._stopping and not self.done:
            if not self.step():
                time.sleep(self.settings.poll)

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping = True

    @property
    def committed(self) -> int:
        """The last message that is committed in all trees."""
        return min(one.committed for one in self.branches)

    @property
    def durable(self) -> int:
        """The last message that has come to a parent, whichever."""
        return max(one.durable for one in self.branches)

    @property
    def done(self) -> bool:
        """Whether the collector has committed all there ever is."""
        return self.over and self.committed >= self.outbox.last

    def step(self) -> bool:
        """Read, send and forget once; False if there was nothing to do."""
        made = self._with_room(self.make)
        return self._with_room(self.send) or made  # what is committed then makes room

    def _with_room(self, act: Callable[[], bool]) -> bool:
        """Do what needs room on the disk; if there is none, later."""
        try:
            return act()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not self._full:
                self.say(f"no space is left for {self.directory}; waiting until there is some")
            self._full, self._next_made = True, time.monotonic() + _AGAIN
            return False

    def make(self) -> bool:
        """A message of what is new here, if there is room for it."""
        if self.working is None and not (self._reach() and self._begin()):
            return False
        assert self.working is not None
        if self.over or self._rests() or not self._has_room():
            return False
        if self._unkept is None:
            self._unkept = self._work(self.working)
        found = self._unkept
        if found is None:
            return False
        try:
            self.outbox.put(found)  # if the disk is full it is tried again
        except TooLarge as error:
            self._take_less(error)
            return True
        self._unkept, self._full, self._less = None, False, max(1, self._less // 2)
        self.working.tracker.committed()
        head = found[0][0]
        self.over = head.ended
        many = head.rows >= self.rows // 2
        self._next_made = 0.0 if many else time.monotonic() + self._period
        return True

    def _has_room(self) -> bool:
        """Whether one more message may be kept; if that was declared, after others are dropped."""
        if self.overload == "drop" and self.outbox.size(self.committed) > self.spool:
            self.outbox.make_room(self.committed, self.durable, self.spool // 2)
        return self.outbox.size(self.committed) <= self.spool

    def _rests(self) -> bool:
        """Whether to wait for room, or for more to read: while all are away few messages do."""
        away = not any(one.parent.connected for one in self.branches)
        return (away or self._full) and time.monotonic() < self._next_made

    def _work(self, working: Working) -> list[Message] | None:
        rows, size = max(1, self.rows // self._less), max(1, _BYTES // self._less)
        try:
            # A function that hangs cannot be ended but with its process.
            here = Attempt("", "agent", 0, self.settings.function_micros, self.say)
            with watched(here):
                found = working.step(rows, size)
        except (RunError, OSError) as error:
            if MOVED not in str(error):
                raise
            self._begin_again()  # a log was rotated under our feet: look for it anew
            return None
        return found and [
            (msgspec.structs.replace(head, agent=self.name), data) for head, data in found
        ]

    def _take_less(self, error: TooLarge) -> None:
        """Read the same again, less at once: what came of it is too large for one message."""
        if self._less > _BYTES:
            raise RunError(
                f"one record or file of {self.source!r} makes a message of {error}, and "
                f"{self.largest >> 20} MiB are the most: have the steps before the first exchange "
                "give less, or write smaller files"
            )
        self._less *= 8
        self._begin_again()

    def _reach(self) -> bool:
        """Meet parents that are there; True in any case if one was met before."""
        now = time.monotonic()
        for branch in self.branches:
            if not branch.parent.connected and now >= branch.next_try:
                try:
                    self._meet(branch, self.hello(branch))
                except Away as error:
                    self._is_away(branch, error, now)
                except OSError:  # what it said could not be kept
                    branch.parent.close()
                    raise
        return self.programs.met

    def hello(self, branch: Branch) -> Welcome:
        """Say who one is."""
        forgotten = self.outbox.first - 1
        return branch.parent.hello(
            Hello(self.name, self.outbox.life, tree=branch.tree, forgotten=forgotten)
        )

    def _is_away(self, branch: Branch, error: Away, now: float) -> None:
        branch.next_try = now + _AGAIN
        if str(error) not in {one.away for one in self.branches}:  # trees may have one parent
            self.say(f"{error}; trying again")
        branch.away = str(error)

    def send(self) -> bool:
        """Send what parents do not have; False if there was nothing, or they are away."""
        self._reach()
        sent = [self._send(one) for one in self.branches if one.parent.connected]
        return any(sent)

    def _send(self, branch: Branch) -> bool:
        now, sent, parent = time.monotonic(), False, branch.parent
        try:
            for number in range(branch.durable + 1, self.outbox.last + 1):
                head, blocks = self.outbox.read(number, branch.tree)
                self._told(branch, parent.put(msgspec.structs.replace(head, after={}), blocks))
                sent = True
                if self._stopping or not parent.connected:
                    break
            if not sent and now >= branch.next_boundary:
                told = parent.boundary(self.name, self.outbox.life, tree=branch.tree)
                self._told(branch, told)
        except Away as error:
            self._is_away(branch, error, now)
            return False
        if branch.away is not None:
            self.say(f"the collector at {parent.address} is there now")
        branch.away = None
        return sent

    # -- the collector --------------------------------------------------------------------------

    def _meet(self, branch: Branch, welcome: Welcome) -> None:
        """Take in what the collector has."""
        if self.programs.meet(self.name, welcome, branch.parent):
            self._begin_again()
        if welcome.edition == self.programs.edition:
            self.learn(welcome)
        self._told(branch, welcome)

    def learn(self, welcome: Welcome) -> None:
        """What the collector has is known here, and perhaps to be told others."""

    def check_trees(self, trees: int) -> None:
        """There is a parent for every part of the keys."""
        if trees != len(self.others) + 1:
            raise ConfigError(
                f"the flow has trees={trees}, and there are {len(self.others) + 1} parents: give "
                "--to once for all trees, or once for each"
            )

    def _begin_again(self) -> None:
        """Plan anew with the next message, and go on where the last one ended."""
        if self.working is not None:
            self.working.close()
        self.working, self._unkept = None, None

    def _told(self, branch: Branch, welcome: Welcome) -> None:
        branch.durable, branch.committed = welcome.durable, welcome.committed
        branch.next_boundary = time.monotonic() + welcome.boundary / 1e6
        self._period = welcome.boundary / 1e6
        if (said := self.clock.compare(welcome.clock)) is not None:
            self.say(said)
        if self.programs.is_newer(welcome):
            branch.parent.close()  # the next hello tells the program
        self.forget(self.committed)
        self.outbox.check(self.name, branch.durable)

    def forget(self, committed: int) -> None:
        """What the collector has committed is needed no more."""
        self.outbox.forget(committed)

    def _begin(self) -> bool:
        """Plan and go on where the last message ended."""
        state = self.outbox.state(self.source)
        self.working = self.make_working(self.programs.known, state)
        self.over = state.ended
        return True

    def make_working(self, welcome: Welcome, state: SourceState) -> Working:
        """The source, and the first level over it."""
        idle = collector_of(self.programs.flow).spec.idle_timeout
        return Working(
            plan_here(self.programs.flow, welcome.program),
            self.source,
            self.outbox.root,
            state,
            self.settings,
            welcome.program["shards"],
            welcome.number,
            self.clock,
            len(self.branches),
            None if idle is None else micros(idle, "Collector(idle_timeout=)"),
        )

    def close(self) -> None:
        """Let go of the directory, the source and the connection."""
        if self.working is not None:
            self.working.close()
        for branch in self.branches:
            branch.parent.close()
        self.outbox.close()

"""A relay: a collector to its children and an agent to its parent; it puts their messages together.

Rows of the same pane and key become one on the way, so the traffic at the root falls with the
number of children. Who has what in a message stays known: agents are the participants, relays are
not. A child may forget a message when the root has committed the one it went into.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millstream.agent.agent import Agent, Branch
from millstream.agent.clocks import Clock
from millstream.agent.combining import combined
from millstream.agent.sending import Away, Connection
from millstream.agent.working import plan_here
from millstream.api.flow import Flow
from millstream.api.sources import Collector
from millstream.errors import ConfigError
from millstream.ops.times.progress import raise_all
from millstream.plan.stages import Plan
from millstream.run.messages.code import Given
from millstream.run.messages.greetings import Below, Hello, Later, Refused, Welcome
from millstream.run.messages.message import MOST_BYTES, Message, agent_of, sender_of, unpack
from millstream.run.sources.collector.collecting import Enrolled, MessageReceiver
from millstream.run.sources.collector.tracker import note, noted
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_Answer = TypeVar("_Answer")
_COMMITTED = "committed.json"  # of children: what the root has committed


class Children(MessageReceiver):
    """Takes the messages of children in; their numbers come from the root."""

    def __init__(
        self,
        name: str,
        spec: Collector,
        place: Storage,
        parent: Connection,
        welcome: Welcome,
        most: int,
        tree: int | None,
    ) -> None:
        self.parent, self.program, self.most, self.tree = parent, welcome.program, most, tree
        self.number, self._digest = welcome.edition, welcome.code
        self._asking = threading.Lock()
        self._numbers: dict[str, int] = {}  # of those the root has been asked about
        super().__init__(name, spec, place, "children")

    def greet(self, hello: Hello, whole: bool) -> Welcome:
        """Take in who belongs to this tree."""
        known = self.roster.get(hello.agent)
        relay = hello.relay or (known is not None and known.relay)  # has no tree of its own
        if self.tree not in (None, hello.tree) and not relay and not hello.through:
            raise Refused(
                f"this relay is in tree {self.tree}, and {hello.agent!r} sends what belongs to "
                f"tree {hello.tree}: give --to in the order of the trees"
            )
        if whole:
            self._catch_up(hello)
        return super().greet(hello, whole)

    def _catch_up(self, hello: Hello) -> None:
        """Learn what the root has of somebody, who may come from another parent."""
        own = [name for name, one in self.roster.items() if not one.through]
        if hello.agent not in self.roster and len(own) >= self.most and not hello.through:
            raise Refused(f"this relay has its {self.most} children already: --children")
        sender = hello.sender
        try:
            who = msgspec.structs.replace(hello, through=True)
            welcome = self._asked(lambda: self.parent.hello(who))
        except Later:
            if hello.forgotten > self._accepted.get(sender, -1) or sender not in self._accepted:
                raise
            return  # it goes on here; the root is told later
        with self._lock:
            self._numbers[hello.agent] = welcome.number
            for known in (self._accepted, self.durable):
                raise_all(known, {sender: welcome.durable})
            raise_all(self.committed, {sender: welcome.committed})

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """What the parent says."""
        with self._asking:
            try:
                return ask()
            except Away as error:
                raise Later(str(error)) from None
            except ConfigError as error:
                raise Refused(str(error)) from None
            finally:
                self.parent.close()

    def all_over(self, over: set[str]) -> bool:
        """Whether all that can come from here has, given who has sent everything."""
        trees = range(self.trees) if self.tree is None else [self.tree]
        ended = 0
        for agent in {agent_of(one) for one in over}:
            relay = agent in self.roster and self.roster[agent].relay
            ended += relay or all(sender_of(agent, tree) in over for tree in trees)
        return ended >= self.most

    def enrol(self, hello: Hello) -> Enrolled:
        """The number that the root gave somebody new."""
        if hello.agent not in self._numbers:
            raise Refused(f"{hello.agent!r} is not known here: it has to say hello first")
        return Enrolled(self._numbers[hello.agent], hello.life, hello.relay, hello.through)

    @property
    def digest(self) -> str:
        """Of the files that the root gives."""
        return self._digest

    def give(self, nonce: str) -> Given:
        """What the root gives: only its proof is one."""
        return self._asked(lambda: self.parent.code(nonce))

    def learn(self, welcome: Welcome) -> None:
        """Children shall hear of what the root has now."""
        self.program = welcome.program
        self.number, self._digest = welcome.edition, welcome.code

    def _program(self) -> dict[str, Any]:
        return self.program

    def edition(self) -> int:
        """That of the root."""
        return self.number


class Relaying:
    """What stands in the place of a source: messages of children, several as one."""

    def __init__(
        self, plan: Plan, source: str, children: Children, state: SourceState, clock: Clock
    ) -> None:
        self.plan, self.source, self.children, self.clock = plan, source, children, clock
        self.taken, self.over = noted(state, "number"), set(noted(state, "over"))
        children.taken = dict(self.taken)
        self.tracker = SpoolTracker(0, children, state)

    def step(self, rows: int, size: int) -> list[Message] | None:
        """All that has come, as one message; None if nothing has."""
        self.children.ahead = self.clock.ahead  # children compare theirs with the root's
        self.tracker.poll()
        if not self.tracker.pending():
            return None
        spool = self.children.spool
        messages = [
            message
            for split in self.tracker.take(rows, size, 1)
            for piece in (split, *split.more)  # type: ignore[union-attr]
            for message in unpack(spool.read(piece.name))
        ]
        for head, _ in messages:
            self.taken.update(head.numbers)
            self.over |= {head.sender} if head.ended else set()
        after = SourceState(ended=self.children.all_over(self.over))
        self.tracker.save(after)
        note(after, "number", self.taken)
        note(after, "over", dict.fromkeys(self.over, 1))
        return [combined(self.plan, self.source, messages, after)]

    def close(self) -> None:
        """Stop receiving."""
        self.tracker.close()


def below_now(told: set[str] | None, recent: set[str]) -> Below:
    """What a relay has to say of those below it, given whom it has told of."""
    if told is None:
        return Below(sorted(recent), whole=True)
    return Below(sorted(recent - told), sorted(told - recent))


class Relay(Agent):
    """One relay between agents and their collector."""

    largest = MOST_BYTES  # it may pass on what others have filled

    def __init__(
        self,
        flow: Flow,
        collector: Connection,
        asking: Connection,
        name: str,
        directory: Path,
        spec: Collector,
        most: int,
        tree: int | None = None,
        **options: Any,
    ) -> None:
        self.asking, self.spec, self.most, self.tree = asking, spec, most, tree
        super().__init__(flow, collector, name, directory, **options)
        self._next_heard = 0.0
        self._told_of = -1  # of messages up to this one children were told
        self._below: set[str] | None = None  # who was told to be there, since it is connected
        self.known: dict[str, int] = {}  # child -> the last of its messages that is committed
        if self.outbox.root.exists(_COMMITTED):
            told = self.outbox.root.read(_COMMITTED)
            self.known = msgspec.json.decode(told, type=dict[str, int])

    def hello(self, branch: Branch) -> Welcome:
        """Say that it is a relay; whom it knows it tells anew."""
        self._below = None
        forgotten = self.outbox.first - 1
        return branch.parent.hello(
            Hello(self.name, self.outbox.life, relay=True, forgotten=forgotten)
        )

    def learn(self, welcome: Welcome) -> None:
        """Tell children of it."""
        if self.working is not None:
            self.working.children.learn(welcome)  # type: ignore[attr-defined]

    def check_trees(self, trees: int) -> None:
        """It has one parent, and may be in one tree or in all."""
        if self.tree is not None and self.tree >= trees:
            raise ConfigError(
                f"--tree {self.tree}: the flow has trees={trees}, which are numbered from 0 on"
            )

    def send(self) -> bool:
        """Send what there is, and say in every period who was heard of."""
        sent = super().send()
        now, period = time.monotonic(), self._period
        if self.collector.connected and now >= self._next_heard and self.working is not None:
            self._next_heard = now + period
            recent = self.working.children.heard_within(3 * period)  # type: ignore[attr-defined]
            below = below_now(self._below, recent)
            try:
                welcome = self.collector.boundary(self.name, self.outbox.life, below)
                self._below = None if welcome.whole else recent
                self._told(self.branches[0], welcome)
            except Away as error:
                self._is_away(self.branches[0], error, now)
        return sent

    def forget(self, committed: int) -> None:
        """Children may forget what the root has committed."""
        known = dict(self.known)
        for number in sorted(n for n in self.outbox.sizes if self._told_of < n <= committed):
            raise_all(known, self.outbox.read(number)[0].senders)
        if known != self.known:  # also while nobody is received from: nothing tells it again
            self.outbox.root.put(_COMMITTED, msgspec.json.encode(known))
            raise_all(self.known, known)
        self._told_of = max(self._told_of, committed)
        super().forget(committed)

    def make_working(self, welcome: Welcome, state: SourceState) -> Any:
        """Receive from children, under the program of the root."""
        plan = plan_here(self.programs.flow, welcome.program)
        children = Children(
            self.source, self.spec, self.outbox.root, self.asking, welcome, self.most, self.tree
        )
        children.committed = self.known
        return Relaying(plan, self.source, children, state, self.clock)

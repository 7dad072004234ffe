"""The messages of agents as a source: which go into a batch, and how far each agent has come.

With several trees each brings messages of its own, and one may be behind. An agent has come as far
as in the slowest of them: so no window leaves before the rows for all keys of it are here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from millstream.api.sources import Collector
from millstream.durations import micros, rounded
from millstream.ops.times.progress import BEGIN, Horizon
from millstream.run.messages.message import Part, agent_of, place_of, sender_of
from millstream.run.sources.collector.collecting import MessageReceiver
from millstream.run.sources.received.spool import Sealed
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.run.tasks.splits import AnySplit
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_log = logging.getLogger("millstream.collector")


def noted(state: SourceState, what: str) -> dict[str, int]:
    """What a manifest or message says of agents, by their names."""
    before = f"{what} "
    return {
        key.removeprefix(before): at for key, at in state.extra.items() if key.startswith(before)
    }


def note(state: SourceState, what: str, of_agents: dict[str, int]) -> None:
    """Say it."""
    state.extra.update({f"{what} {agent}": at for agent, at in of_agents.items()})


class CollectorTracker(SpoolTracker):
    """Messages in the spool, and how far each agent's are committed."""

    def __init__(
        self,
        number: int,
        name: str,
        spec: Collector,
        checkpoint: Storage,
        stem: str,
        state: SourceState,
    ) -> None:
        receiver = MessageReceiver(name, spec, checkpoint, stem)
        self.messages = receiver
        self.numbers = noted(state, "number")
        self._came = noted(state, "reached")  # sender -> how far; not who holds nothing back
        self._paused, self._over = set(noted(state, "paused")), set(noted(state, "over"))
        self._wrong: set[str] = set()  # whose clocks are too far ahead
        receiver.committed = dict(self.numbers)
        super().__init__(number, receiver, state)
        self._look_for_the_end()

    def poll(self, probe: object = None) -> None:
        """Take up what has come."""
        super().poll(probe)
        self._look_for_the_end()

    def deal(self, several: list[Sealed]) -> list[AnySplit]:
        """Messages in the order they came."""
        moved = dict[str, None]()
        splits: list[Any] = super().deal(several)
        for piece in several:
            for head in self.messages.contents.get(piece.number, ()):
                self.numbers[head.sender] = head.number
                for part in head.parts:
                    moved[part.agent] = None
                    self._note(part)
        self._look_for_the_end()
        if splits:
            reached = {agent: self._reached_by(agent) for agent in moved}
            told = tuple((agent, at) for agent, at in reached.items() if at > BEGIN)
            splits[0] = replace(splits[0], reached=told)
        return splits

    def _note(self, part: Part) -> None:
        """What an agent says of itself in one tree."""
        sender = part.sender
        self.numbers[sender] = part.number
        self._over -= {sender}  # one that is given more lines goes on after all
        self._over |= {sender} if part.ended else set()
        self._paused -= {sender}
        self._came.pop(sender, None)
        if part.reached is None:
            self._paused |= {sender}
        else:
            self._came[sender] = part.reached
        self._look_at_clock(part)

    def _reached_by(self, agent: str) -> int:
        """How far an agent has come in all trees."""
        senders = self._senders(agent)
        if not self.numbers.keys() >= set(senders):
            return BEGIN  # in one of them nothing has come yet
        return min((self._came[one] for one in senders if one in self._came), default=BEGIN)

    def _senders(self, agent: str) -> list[str]:
        return [sender_of(agent, tree) for tree in range(self.messages.trees)]

    def _in_all(self, senders: set[str]) -> set[str]:
        """The agents of which all trees are among these."""
        agents = {agent_of(one) for one in senders}
        return {agent for agent in agents if senders.issuperset(self._senders(agent))}

    @property
    def paused(self) -> set[str]:
        """Agents that hold nothing back."""
        return self._in_all(self._paused)

    def _look_at_clock(self, part: Part) -> None:
        """Say once of an agent that its clock is too far ahead."""
        spec: Collector = self.receiver.spec
        wrong = part.ahead > micros(spec.clock_skew, "clock_skew", zero=True)
        if wrong and part.agent not in self._wrong:
            _log.warning(
                "source %r: the clock of agent %r is %s ahead of the one here, more than "
                "clock_skew=%s: its times move no watermark, and nobody waits for them; set it "
                "right",
                self.receiver.source,
                part.agent,
                rounded(part.ahead),
                spec.clock_skew,
            )
        self._wrong = self._wrong | {part.agent} if wrong else self._wrong - {part.agent}

    def _look_for_the_end(self) -> None:
        spec: Collector = self.receiver.spec
        relays = {name for name, one in self.messages.roster.items() if one.relay}
        expected = spec.expected({agent_of(one) for one in self.numbers} - relays)
        over = self._in_all(self._over)
        self.ended = not spec.endless and expected <= over and not self.waiting

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """Agents are heard of with every message, also one that says only that they are there.

        One that is silent in a tree is silent: what it sends there does not come.
        """
        heard = self.messages.last_heard()
        agents = self._in_all(set(heard)) if self.messages.trees > 1 else heard.keys()
        last = {one: min(heard[sender] for sender in self._senders(one)) for one in agents}
        told: dict[int | str, int] = {agent: int(at * 1e6) for agent, at in last.items()}
        return Horizon(heard=told, taken=self._reached(), since=self.receiver.since)

    def save(self, state: SourceState) -> None:
        super().save(state)
        note(state, "number", self.numbers)
        note(state, "over", dict.fromkeys(self._over, 1))
        note(state, "paused", dict.fromkeys(self._paused, 1))
        if self.messages.trees > 1:
            note(state, "reached", self._came)

    def committed(self) -> None:
        """Agents may forget what is in a manifest."""
        for piece in self._taken:
            self.messages.contents.pop(piece.number, None)
        super().committed()
        self.messages.committed = dict(self.numbers)

    def ask_to_stop(self, patience: float) -> None:
        """Agents that have brought everything may still hear that it is committed."""
        self.messages.lingers = self.ended
        super().ask_to_stop(patience)

    def place(self, position: int) -> dict[str, Any]:
        """Which agent, which of its files (by number), and where in it."""
        place = place_of(position)
        names = {member.number: name for name, member in self.messages.roster.items()}
        return {**place, "agent": names.get(place["agent"], str(place["agent"]))}

"""The collector: takes messages of agents in, durably and each once, and hands them to batches.

An agent asks first (`hello`): it learns the program it must have, its number, and which of its
messages are here. Then it puts messages, in order; each is answered once it is durable in the
spool. With every answer it learns which are covered by a committed manifest: only these may it
forget. A message that came before is answered and not taken again.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from millstream.api.sources import Collector
from millstream.durations import micros
from millstream.ops.times.progress import raise_all
from millstream.run.messages.code import Code, Given, proof_of
from millstream.run.messages.greetings import Hello, Refused, Twice, Welcome
from millstream.run.messages.message import FORM, FULL, MESSAGES, MOST_AGENTS, Head, unpack
from millstream.run.sources.collector.listening import CollectorServer
from millstream.run.sources.received.spool import Receiver, Sealed
from millstream.state.storage import Storage

ROSTER = "agents.json"
_EDITION = "edition.json"
_editions = msgspec.json.Decoder(tuple[int, str])
_LINGER = 4.0  # seconds at most in which agents are still answered when all is done
PROGRAM = ("flow", "shards", "sources", "operators", "families", "numbers")


class Enrolled(msgspec.Struct):
    """An agent that has been here."""

    number: int  # in positions of its records
    life: int
    relay: bool = False  # it sends what others have made
    through: bool = False  # what it makes comes through a relay


_roster = msgspec.json.Decoder(dict[str, Enrolled])


@dataclass
class Unsealed:
    """A message, and who waits for it to be durable."""

    head: Head
    data: bytes
    done: Future[None] = field(default_factory=Future)


class Editions:
    """Programs that agents were told of, by number: so it is known which of two is newer."""

    def __init__(self, place: Storage) -> None:
        self.place, self.number, self._digest = place, 0, ""
        if place.exists(_EDITION):
            self.number, self._digest = _editions.decode(place.read(_EDITION))

    def look(self, program: dict[str, Any], code: str) -> None:
        """Take in what the program is now, and which files it consists of if these are given."""
        whole = msgspec.json.encode(program, order="sorted") + code.encode()
        digest = hashlib.sha256(whole).hexdigest()
        if digest != self._digest:
            self.place.put(_EDITION, msgspec.json.encode((self.number + 1, digest)))
            self.number, self._digest = self.number + 1, digest


class MessageReceiver(Receiver):
    """Messages of agents: in the order of each, whole."""

    suffix = MESSAGES
    worth = 1  # somebody waits for the answer
    sent_again = True  # who got no answer asks again

    def __init__(self, name: str, spec: Collector, checkpoint: Storage, stem: str) -> None:
        super().__init__(name, spec, checkpoint.within("spool").within(stem))
        self.checkpoint = checkpoint
        self.roster: dict[str, Enrolled] = {}
        self.durable: dict[str, int] = {}  # sender -> the last message that is here
        self.committed: dict[str, int] = {}
        self.taken: dict[str, int] = {}  # what has gone on from here, perhaps not committed yet
        self.told: dict[str, int] = {}  # sender -> the last message it knows to be committed
        self.direct: set[str] = set()  # who talks with us, and not through a relay
        self.lingers = False  # all has come: agents may still ask whether it is committed
        self.heard: dict[str, float] = {}  # sender -> the clock when it last spoke itself
        self.below: dict[str, set[str]] = {}  # relay -> who is there below it
        self.ahead = 0  # of a relay: how far its clock is before that of the root, in microseconds
        self.contents: dict[int, list[Head]] = {}  # piece -> its messages, without their rows
        self._accepted: dict[str, int] = {}  # also those that are not durable yet
        self._waiting: list[Unsealed] = []
        self._size = 0
        self.trees = spec.trees
        if self.spool.exists(ROSTER):
            self.roster = _roster.decode(self.spool.read(ROSTER))
        self._editions = Editions(self.spool)
        self._next_look = 0.0
        self.code: Code | None = spec.code
        self.server = CollectorServer(self, spec)

    def resume(self, taken: int, rows: int, arrival: int) -> list[Sealed]:
        """Go on after what was committed, with what lies in the spool beside it."""
        rest = super().resume(taken, rows, arrival)
        self.durable = dict(self.committed)
        raise_all(self.durable, self.taken)
        for piece in rest:
            heads = [head for head, _ in unpack(self.spool.read(piece.name))]
            self.contents[piece.number] = heads
            for head in heads:
                self.durable.update(head.numbers)
        self._accepted = dict(self.durable)
        return rest

    # -- agents ------------------------------------------------------------------------------------

    def greet(self, hello: Hello, whole: bool) -> Welcome:
        """Take an agent in, or tell it why not."""
        if hello.form != FORM:
            raise Refused(
                f"agent {hello.agent!r} sends messages of form {hello.form}, and form {FORM} is "
                "read here: give both the same release of millstream"
            )
        with self._lock:
            now = self.clock.now() / 1e6
            self._note_below(hello)
            self.heard[hello.sender] = now
            if not hello.through:
                self.direct.add(hello.sender)
            member = self.roster.get(hello.agent)
            if member is None:
                member = self._join(hello)
            if member.life != hello.life:
                raise Refused(
                    f"agent {hello.agent!r} has been here with another directory, and its records "
                    f"up to message {self.committed.get(hello.agent, -1)} count: give it that "
                    "directory back, or start it under a name of its own"
                )
            committed = self.committed.get(hello.sender, -1)
            durable = self.durable.get(hello.sender, -1)
            self.told[hello.sender] = committed
            unknown = hello.below is not None and hello.agent not in self.below
        program = self._program() if whole else {}
        return Welcome(
            member.number,
            durable,
            committed,
            micros(self.spec.boundary, "boundary"),
            program,
            self.clock.now() - self.ahead,
            unknown,
            self.edition(),
            self.digest,
        )

    @property
    def digest(self) -> str:
        """Of the program's files, if agents may have them; "" if not."""
        return self.code.digest if self.code is not None and self.server.token else ""

    def give(self, nonce: str) -> Given:
        """The program, for an agent that accepts it."""
        token = self.server.token
        if self.code is None or token is None:
            raise Refused(
                "this collector gives no code: that needs a token, TLS, and a flow that was "
                "started from a file with `millstream run`"
            )
        return Given(self.code, proof_of(token, nonce, self.code.digest))

    def _note_below(self, hello: Hello) -> None:
        """Take in who is there below a relay; only what has changed is looked at."""
        told, known = hello.below, self.below.get(hello.agent)
        if told is None or (known is None and not told.whole):
            return  # after a restart what has changed says nothing
        known = known or set()
        gone = known - {*told.heard} if told.whole else known & {*told.silent}
        before = self.heard.get(hello.agent, 0.0)  # when they were there last
        for one in gone:
            self.heard[one] = max(before, self.heard.get(one, before))
        known.update(told.heard)
        known -= gone
        self.below[hello.agent] = known

    def last_heard(self) -> dict[str, float]:
        """Sender -> the clock when it last said anything, itself or through a relay."""
        with self._lock:
            found = dict(self.heard)
            for relay, below in self.below.items():
                at = self.heard[relay]
                found |= {one: max(at, found.get(one, at)) for one in below}
            return found

    def heard_within(self, seconds: float) -> set[str]:
        """Who has said anything in the last so many seconds, by the clock that says when."""
        now = self.clock.now() / 1e6
        return {who for who, at in self.last_heard().items() if now - at <= seconds}

    def _join(self, hello: Hello) -> Enrolled:
        expected = self.spec.participants
        if expected and hello.agent not in expected and not hello.relay:
            raise Refused(
                f"agent {hello.agent!r} is not expected here; Collector(agents=) has: "
                f"{', '.join(expected)}"
            )
        named = bool(hello.agent) and hello.agent.isprintable()
        if not named or len(self.roster) >= MOST_AGENTS:
            raise Refused(f"an agent needs a name, and there are at most {MOST_AGENTS:,} of them")
        member = self.enrol(hello)
        roster = {**self.roster, hello.agent: member}
        self.spool.put(ROSTER, msgspec.json.encode(roster))
        self.roster = roster
        return member

    def enrol(self, hello: Hello) -> Enrolled:
        """The number of somebody new."""
        return Enrolled(len(self.roster) + 1, hello.life, hello.relay, hello.through)

    def _program(self) -> dict[str, Any]:
        known = msgspec.json.decode(self.checkpoint.read("flow.json"))
        return {part: known[part] for part in PROGRAM}

    def edition(self) -> int:
        """Which program this is, counted from 1; looked at again once in a boundary period."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                period = micros(self.spec.boundary, "boundary") / 1e6
                self._next_look = time.monotonic() + min(1.0, period)
                self._editions.look(self._program(), self.digest)
            return self._editions.number

    def check_source(self, head: Head) -> None:
        """A message is for this source."""
        if head.source != self.source:
            raise Refused(f"a message for source {head.source!r} came to {self.source!r}")

    def offer(self, head: Head, data: bytes) -> Future[None]:
        """Take a message in; the future is done once it is durable."""
        with self._lock:
            last = self._accepted.get(head.sender, -1)
            if head.number <= last:
                under_way = (one for one in self._waiting if one.head.sender == head.sender)
                found = next((one for one in under_way if one.head.number == head.number), None)
                if found is not None:
                    return found.done
                done: Future[None] = Future()
                if head.number <= self.durable.get(head.sender, -1):
                    done.set_result(None)
                else:
                    done.set_exception(Refused("that message is being written; send it again"))
                return done
            if head.number != last + 1:
                raise Refused(f"message {head.number} came, and {last + 1} was expected")
            self._check_parts(head)
            if self._held + self._size > self.most_held:
                raise Refused("the collector is behind; send it again later")
            message = Unsealed(head, data)
            self._accepted.update(head.numbers)
            self._waiting.append(message)
            self._size += len(data)
            self._came.notify()
            return message.done

    def _check_parts(self, head: Head) -> None:
        """What a relay brings of others goes on where theirs ended, whichever way that came."""
        for part in head.of:
            last = self._accepted.get(part.sender)
            if last is None:
                continue
            if part.number <= last or part.first not in (None, last + 1):
                raise Twice(
                    f"{head.agent!r} has messages of {part.agent!r} up to {part.number}, and "
                    f"{last + 1} is the next that is missing: {part.agent!r} has sent some another "
                    f"way. Start {head.agent!r} under a new name and with a new directory; those "
                    "below it still have what is not committed, and send that again"
                )

    # -- sealing -----------------------------------------------------------------------------------

    def receive(self) -> None:
        """Serve until it shall stop, and at the end until agents know what is committed."""
        self._stopping.wait()
        until = time.monotonic() + min(_LINGER, 3 * micros(self.spec.boundary, "boundary") / 1e6)
        while self.lingers and time.monotonic() < until:
            waiting = (one for one in self.direct if one in self.committed)
            if all(self.told.get(one, -1) >= self.committed[one] for one in waiting):
                break
            time.sleep(0.01)
        self.server.end()

    def amount(self) -> int:
        return self._size

    def cut(self) -> list[Unsealed] | None:
        sizes = accumulate(len(one.data) for one in self._waiting)
        many = max(1, sum(size <= FULL for size in sizes))  # as fit into one message of a relay
        taken, self._waiting = self._waiting[:many], self._waiting[many:]
        self._size -= sum(len(one.data) for one in taken)
        return taken or None

    def encode(self, content: list[Unsealed]) -> tuple[bytes, int]:
        self.contents[self._number] = [one.head for one in content]
        return b"".join(one.data for one in content), sum(one.head.weight for one in content)

    def kept(self, content: list[Unsealed]) -> None:
        with self._lock:
            for one in content:
                self.durable.update(one.head.numbers)
        for one in content:
            one.done.set_result(None)

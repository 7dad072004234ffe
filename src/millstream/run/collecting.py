"""The collector: takes messages of agents in, durably and each once, and hands them to batches.

An agent asks first (`hello`): it learns the program it must have, its number, and which of its
messages are here. Then it puts messages, in order; each is answered once it is durable in the
spool. With every answer it learns which are covered by a committed manifest: only these may it
forget. A message that came before is answered and not taken again.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from millstream.api.sources import Collector
from millstream.durations import micros, rounded
from millstream.errors import ConfigError, RunError
from millstream.ops.progress import Horizon
from millstream.run.messages import (
    FORM,
    MESSAGES,
    MOST_AGENTS,
    Head,
    Part,
    check_blocks,
    pack,
    place_of,
    read_head,
    unpack,
)
from millstream.run.received import SpoolTracker
from millstream.run.splits import AnySplit
from millstream.run.spool import AHEAD, Receiver, Sealed
from millstream.serve.guard import is_local
from millstream.serve.tokens import find_token
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_log = logging.getLogger("millstream.collector")
ROSTER = "agents.json"
_EDITION = "edition.json"
_editions = msgspec.json.Decoder(tuple[int, str])
MOST_BYTES = 64 * 1024 * 1024  # of one message
WAIT = 30.0  # seconds an agent waits for its message to be durable
_LINGER = 4.0  # seconds at most in which agents are still answered when all is done
_PROGRAM = ("flow", "shards", "sources", "operators", "families", "numbers")


class Refused(RunError):
    """What an agent asks for cannot be, now or ever."""


class Later(RunError):
    """What an agent asks for can only be said when somebody else is there again."""


class Enrolled(msgspec.Struct):
    """An agent that has been here."""

    number: int  # in positions of its records
    life: int
    relay: bool = False  # it sends what others have made
    through: bool = False  # what it makes comes through a relay


_roster = msgspec.json.Decoder(dict[str, Enrolled])


class Below(msgspec.Struct, frozen=True):
    """Who is there below a relay: what has changed since it told last, or all of them.

    So what arrives at the root in a period grows with its children, not with all agents.
    """

    heard: list[str] = []
    silent: list[str] = []
    whole: bool = False  # these are all; those told before do not count


class Hello(msgspec.Struct, frozen=True):
    """What an agent says first, and in every boundary period."""

    agent: str
    life: int
    relay: bool = False
    below: Below | None = None  # of a relay: who is there below it
    through: bool = False  # a relay asks for somebody else
    form: int = FORM  # of messages, which agent and collector must have in common


hellos = msgspec.json.Decoder(Hello)


class Welcome(msgspec.Struct, frozen=True):
    """What it is told: its number, the last of its messages here, and the last committed."""

    number: int
    durable: int
    committed: int
    boundary: int  # microseconds
    program: dict[str, Any] = {}
    clock: int = 0  # of the collector, in microseconds
    whole: bool = False  # to a relay: who is below it is not known here, tell of all
    edition: int = 0  # of the program: a higher one is newer


welcomes = msgspec.json.Decoder(Welcome)


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

    def look(self, program: dict[str, Any]) -> None:
        """Take in what the program is now."""
        digest = hashlib.sha256(msgspec.json.encode(program, order="sorted")).hexdigest()
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
        self.durable: dict[str, int] = {}  # agent -> the last message that is here
        self.committed: dict[str, int] = {}
        self.taken: dict[str, int] = {}  # what has gone on from here, perhaps not committed yet
        self.told: dict[str, int] = {}  # agent -> the last message it knows to be committed
        self.direct: set[str] = set()  # who talks with us, and not through a relay
        self.lingers = False  # all has come: agents may still ask whether it is committed
        self.heard: dict[str, float] = {}  # agent -> the clock when it last said anything
        self.below: dict[str, set[str]] = {}  # relay -> who is there below it
        self.ahead = 0  # of a relay: how far its clock is before that of the root, in microseconds
        self.contents: dict[int, list[Head]] = {}  # piece -> its messages, without their rows
        self._accepted: dict[str, int] = {}  # also those that are not durable yet
        self._waiting: list[Unsealed] = []
        self._size = 0
        if self.spool.exists(ROSTER):
            self.roster = _roster.decode(self.spool.read(ROSTER))
        self._editions: Editions | None = None
        self._next_look = 0.0
        self.server = CollectorServer(self, spec)

    def resume(self, taken: int, rows: int, arrival: int) -> list[Sealed]:
        """Go on after what was committed, with what lies in the spool beside it."""
        rest = super().resume(taken, rows, arrival)
        self.durable = {**self.committed, **self.taken}
        for piece in rest:
            heads = [head for head, _ in unpack(self.spool.read(piece.name))]
            self.contents[piece.number] = heads
            self.durable.update({head.agent: head.number for head in heads})
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
            self.heard.update(dict.fromkeys([*self._below(hello), hello.agent], now))
            if not hello.through:
                self.direct.add(hello.agent)
            member = self.roster.get(hello.agent)
            if member is None:
                member = self._join(hello)
            if member.life != hello.life:
                raise Refused(
                    f"agent {hello.agent!r} has been here with another directory, and its records "
                    f"up to message {self.committed.get(hello.agent, -1)} count: give it that "
                    "directory back, or start it under a name of its own"
                )
            self.told[hello.agent] = self.committed.get(hello.agent, -1)
            unknown = hello.below is not None and hello.agent not in self.below
        program = self._program() if whole else {}
        return Welcome(
            member.number,
            self.durable.get(hello.agent, -1),
            self.committed.get(hello.agent, -1),
            micros(self.spec.boundary, "boundary"),
            program,
            self.clock.now() - self.ahead,
            unknown,
            self.edition(),
        )

    def _below(self, hello: Hello) -> set[str]:
        """Who is there below a relay that says so."""
        if hello.below is None or (not hello.below.whole and hello.agent not in self.below):
            return set()  # after a restart what has changed says nothing
        known = set() if hello.below.whole else self.below[hello.agent]
        self.below[hello.agent] = (known | {*hello.below.heard}) - {*hello.below.silent}
        return self.below[hello.agent]

    def _join(self, hello: Hello) -> Enrolled:
        expected = self.spec.participants
        if expected and hello.agent not in expected and not hello.relay:
            raise Refused(
                f"agent {hello.agent!r} is not expected here; Collector(agents=) has: "
                f"{', '.join(expected)}"
            )
        if not hello.agent or len(self.roster) >= MOST_AGENTS:
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
        return {part: known[part] for part in _PROGRAM}

    def edition(self) -> int:
        """Which program this is, counted from 1; looked at again once in a boundary period."""
        with self._lock:
            if self._editions is None:
                self._editions = Editions(self.spool)
            if time.monotonic() >= self._next_look:
                period = micros(self.spec.boundary, "boundary") / 1e6
                self._next_look = time.monotonic() + min(1.0, period)
                self._editions.look(self._program())
            return self._editions.number

    def check_source(self, head: Head) -> None:
        """A message is for this source."""
        if head.source != self.source:
            raise Refused(f"a message for source {head.source!r} came to {self.source!r}")

    def offer(self, head: Head, data: bytes) -> Future[None]:
        """Take a message in; the future is done once it is durable."""
        with self._lock:
            last = self._accepted.get(head.agent, -1)
            if head.number <= last:
                under_way = (one for one in self._waiting if one.head.agent == head.agent)
                found = next((one for one in under_way if one.head.number == head.number), None)
                if found is not None:
                    return found.done
                done: Future[None] = Future()
                if head.number <= self.durable.get(head.agent, -1):
                    done.set_result(None)
                else:
                    done.set_exception(Refused("that message is being written; send it again"))
                return done
            if head.number != last + 1:
                raise Refused(f"message {head.number} came, and {last + 1} was expected")
            if self._held + self._size > AHEAD:
                raise Refused("the collector is behind; send it again later")
            message = Unsealed(head, data)
            self._accepted[head.agent] = head.number
            self._waiting.append(message)
            self._size += len(data)
            self._came.notify()
            return message.done

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
        taken, self._waiting, self._size = self._waiting, [], 0
        return taken or None

    def encode(self, content: list[Unsealed]) -> tuple[bytes, int]:
        self.contents[self._number] = [one.head for one in content]
        return b"".join(one.data for one in content), sum(one.head.weight for one in content)

    def kept(self, content: list[Unsealed]) -> None:
        with self._lock:
            self.durable.update({one.head.agent: one.head.number for one in content})
        for one in content:
            one.done.set_result(None)


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
        self.paused, self.over = set(noted(state, "paused")), set(noted(state, "over"))
        self._wrong: set[str] = set()  # whose clocks are too far ahead
        receiver.committed = dict(self.numbers)
        super().__init__(number, receiver, state)
        self._look_for_the_end()

    def poll(self, probe: object = None) -> None:
        """Take up what has come."""
        super().poll(probe)
        self._look_for_the_end()

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Messages in the order they came."""
        first = len(self._taken)
        splits = super().take(rows, size, parts)
        for piece in self._taken[first:]:
            for head in self.messages.contents.get(piece.number, ()):
                self.numbers[head.agent] = head.number
                for part in head.parts:
                    self.numbers[part.agent] = part.number
                    self.over -= {part.agent}  # one that is given more lines goes on after all
                    self.over |= {part.agent} if part.ended else set()
                    self.paused -= {part.agent}
                    self.paused |= {part.agent} if part.reached is None else set()
                    self._look_at_clock(part)
        self._look_for_the_end()
        return splits

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
        expected = spec.expected(self.numbers.keys() - relays)
        self.ended = not spec.endless and expected <= self.over and not self.waiting

    def horizon(self, now: int) -> Horizon:
        """Agents are heard of with every message, also one that says only that they are there."""
        return Horizon(heard={agent: int(at * 1e6) for agent, at in self.messages.heard.items()})

    def save(self, state: SourceState) -> None:
        super().save(state)
        note(state, "number", self.numbers)
        note(state, "over", dict.fromkeys(self.over, 1))
        note(state, "paused", dict.fromkeys(self.paused, 1))

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


# -- over the network -----------------------------------------------------------------------------


class _Token(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets nobody in without the token."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        if self.token is None:
            return
        given = next(iter(headers.get("authorization", [])), "")
        if not secrets.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class CollectorServer(flight.FlightServerBase):  # type: ignore[misc]
    """Arrow Flight: the actions `hello` and `boundary`, and messages that are put."""

    def __init__(self, receiver: MessageReceiver, spec: Collector) -> None:
        self.receiver = receiver
        token, tls = check_place(spec)
        host, port = spec.place
        scheme = "grpc+tls" if tls else "grpc+tcp"
        super().__init__(
            f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}",
            tls_certificates=tls,
            middleware={"token": _Token(token)},
        )
        self._ended = threading.Lock()

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Say who one is, and hear what is known of one."""
        if action.type not in ("hello", "boundary"):
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        try:
            hello = hellos.decode(action.body.to_pybytes())
            welcome = self.receiver.greet(hello, action.type == "hello")
        except Later as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except (msgspec.DecodeError, RunError) as error:
            raise flight.FlightServerError(str(error)) from None
        return iter([flight.Result(pa.py_buffer(msgspec.json.encode(welcome)))])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A message: its head is the command, its blocks are the rows of the one column."""
        try:
            head = read_head(descriptor.command)
            self.receiver.greet(Hello(head.agent, head.life), False)
            self.receiver.check_source(head)
            blocks = list(_bounded(reader, len(descriptor.command)))
            check_blocks(head, blocks)
            self.receiver.offer(head, pack(head, blocks)).result(WAIT)
        except (RunError, TimeoutError) as error:
            raise flight.FlightServerError(
                str(error) or "it could not be written in time"
            ) from None
        welcome = self.receiver.greet(Hello(head.agent, head.life), False)
        writer.write(pa.py_buffer(msgspec.json.encode(welcome)))

    def end(self) -> None:
        """Stop, once.

        Not by `shutdown`: Flight would do it again when this object goes, or at the interpreter's
        end, and it may be done only once.
        """
        if self._ended.acquire(blocking=False):
            self.__exit__(None, None, None)
            self.wait()


def _bounded(reader: Any, size: int) -> Iterator[bytes]:
    """The blocks of a message, as long as it is not too large."""
    for chunk in reader:
        for block in chunk.data.column(0):
            data = block.as_buffer().to_pybytes()
            size += len(data)
            if size > MOST_BYTES:
                raise Refused(f"a message has more than {MOST_BYTES >> 20} MiB")
            yield data


def check_place(spec: Collector) -> tuple[str | None, list[tuple[bytes, bytes]]]:
    """The token, and what TLS needs; refuses to listen beyond this machine without them."""
    host, port = spec.place
    token = find_token(None if spec.token_file is None else Path(spec.token_file), spec.token_env)
    if token is None and not is_local(host):
        raise ConfigError(
            f"Collector({spec.address!r}) takes messages from other machines, which needs a token: "
            f"set {spec.token_env} or give token_file=, or listen on 127.0.0.1"
        )
    tls: list[tuple[bytes, bytes]] = []
    if spec.certificate is not None and spec.private_key is not None:
        try:
            with open(spec.certificate, "rb") as one, open(spec.private_key, "rb") as other:
                tls = [(one.read(), other.read())]
        except OSError as error:
            raise ConfigError(f"Collector({spec.address!r}): {error}") from None
    if not is_local(host) and not tls:
        raise ConfigError(
            f"Collector({spec.address!r}): beyond this machine messages are encrypted; give "
            "certificate= and private_key= (PEM files), or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"Collector({spec.address!r}): cannot listen there ({error.strerror or error}); free "
            "the port or use another"
        ) from None
    return token, tls


def check_places(specs: Iterable[Collector]) -> None:
    """All ports can be had, and tokens and certificates are there."""
    for spec in specs:
        check_place(spec)

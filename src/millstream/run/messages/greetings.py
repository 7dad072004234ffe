"""What agents and their collector say to each other beside messages.

An agent says hello first, and then once in every boundary period that it is there. With every
answer it learns which of its messages are here and which are committed, what time it is, and which
program is the newest.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from millstream.errors import RunError
from millstream.run.messages.message import FORM, sender_of


def hush() -> None:
    """Have gRPC say errors only: it has a line for everybody who knocks, and for every try."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


class Refused(RunError):
    """What an agent asks for cannot be, now or ever."""


class Twice(Refused):
    """A message has what came another way; it can never be taken."""


NEVER = b"never"  # said beside a refusal that stays one


class Later(RunError):
    """What an agent asks for can only be said when somebody else is there again."""


class Below(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is there below a relay: what has changed since it told last, or all of them.

    So what arrives at the root in a period grows with its children, not with all agents.
    """

    heard: list[str] = []
    silent: list[str] = []
    whole: bool = False  # these are all; those told before do not count


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent says first, and in every boundary period."""

    agent: str
    life: int
    relay: bool = False
    below: Below | None = None  # of a relay: who is there below it
    through: bool = False  # a relay asks for somebody else
    tree: int = 0  # which of its messages it speaks of
    forgotten: int = -1  # up to this one its messages are committed, and gone from its disk
    form: int = FORM  # of messages, which agent and collector must have in common

    @property
    def sender(self) -> str:
        """Whose messages it speaks of."""
        return sender_of(self.agent, self.tree)


hellos = msgspec.json.Decoder(Hello)


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it is told: its number, the last of its messages here, and the last committed."""

    number: int
    durable: int
    committed: int
    boundary: int  # microseconds
    program: dict[str, Any] = {}
    clock: int = 0  # of the collector, in microseconds
    whole: bool = False  # to a relay: who is below it is not known here, tell of all
    edition: int = 0  # of the program: a higher one is newer
    code: str = ""  # the digest of its files, if they are given to who accepts them


welcomes = msgspec.json.Decoder(Welcome)

"""The program as text, for agents that accept it, and the proof that it is the collector's.

Collector and agent share a token. Neither sends it: an agent shows a word that is derived from it
(`bearer`), from which nobody finds the token. Code comes with a proof (`proof_of`) that only who
has the token can make: over the files themselves, and over a number that the agent has just drawn,
so that nobody can repeat an older one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import PurePosixPath
from typing import Protocol

import msgspec

from millstream.errors import ConfigError

MOST_CODE = 4 * 1024 * 1024  # bytes of all files together
_MOST_FILES = 500
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]*")


class Code(msgspec.Struct, frozen=True):
    """The files a program consists of, as they were when it was loaded."""

    entry: str  # the file with the flow
    flow: str  # which of its flows
    files: dict[str, str]  # where they lie beside each other -> their text

    @property
    def digest(self) -> str:
        """What it is known by: other files, another digest."""
        whole = msgspec.json.encode([self.entry, self.flow, sorted(self.files.items())])
        return hashlib.sha256(whole).hexdigest()

    def check(self) -> None:
        """Refuse names that lead elsewhere, and what is far too much."""
        for name in (self.entry, *self.files):
            check_place(name)
        if self.entry not in self.files or len(self.files) > _MOST_FILES:
            raise ConfigError("code of the collector: these are not the files of a program")
        if sum(len(text.encode()) for text in self.files.values()) > MOST_CODE:
            raise ConfigError(f"the files of a program have more than {MOST_CODE >> 20} MiB")


class Given(msgspec.Struct, frozen=True):
    """Code on its way to an agent."""

    code: Code
    proof: str


givens = msgspec.json.Decoder(Given)


class Asked(msgspec.Struct, frozen=True):
    """What an agent asks with: a number nobody has seen before."""

    nonce: str


askeds = msgspec.json.Decoder(Asked)


class Gives(Protocol):
    """Who can be asked for code."""

    def code(self, nonce: str) -> Given:
        """The program, with the proof that it is the collector's."""


def check_place(name: str) -> str:
    """A file beside the program, or in a folder there; refused if it is anywhere else."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or not all(map(_PART.fullmatch, path.parts)):
        raise ConfigError(f"{name!r} is no file beside the program: write it like rules/prices.py")
    return name


def bearer(token: str) -> str:
    """What an agent shows to be let in."""
    return hmac.digest(token.encode(), b"millstream agent", "sha256").hex()


def proof_of(token: str, nonce: str, digest: str) -> str:
    """What only who has the token can say of code."""
    key = hmac.digest(token.encode(), b"millstream code", "sha256")
    return hmac.digest(key, f"{nonce} {digest}".encode(), "sha256").hex()


def is_proven(token: str, nonce: str, given: Given) -> bool:
    """Whether code comes from who has the token, and was asked for just now."""
    return hmac.compare_digest(proof_of(token, nonce, given.code.digest), given.proof)

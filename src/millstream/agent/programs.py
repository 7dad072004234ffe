"""Which program an agent runs: that of its own file or, if it accepts it, the collector's.

The collector's programs have numbers; a higher one is newer, whoever tells it. When there is a
newer one the agent takes it up if its file has it by now, or if it may take the collector's. Until
then it goes on with the one it has: what both have counts, and what was made for the old program is
sent all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from millstream.agent.accepting import Accepting
from millstream.agent.sending import Connection
from millstream.agent.working import plan_here
from millstream.api.flow import Flow
from millstream.errors import MillstreamError, RunError
from millstream.run.messages.greetings import Welcome, welcomes
from millstream.state.storage import Storage

_KNOWN = "collector.json"  # what the collector said last, so that a start needs it no more
_LOOK = 5.0  # seconds between looks at a file that differs from the collector's program


class Programs:
    """The program that runs here, and the collector's newest that fits it."""

    def __init__(
        self,
        flow: Flow,
        root: Storage,
        say: Callable[[str], None],
        reload: Callable[[], Flow] | None,
        accept: Accepting | None,
    ) -> None:
        self.root, self.say, self.reload, self.accept = root, say, reload, accept
        self.flow = self._kept() or flow
        self.edition = self.known.edition if self.met else 0  # of the program it has
        self.next_look = 0.0
        self.differs: str | None = None  # what was said of one that does not fit
        self._without = False  # that the collector gives no code was said

    def _kept(self) -> Flow | None:
        """What the collector gave in an earlier run; it is asked again if that cannot be used."""
        try:
            return None if self.accept is None else self.accept.kept(self.root)
        except MillstreamError as error:
            self.say(f"{error}; asking the collector for its program again")
            return None

    @property
    def met(self) -> bool:
        """Whether the collector has ever been there."""
        return self.root.exists(_KNOWN)

    @property
    def known(self) -> Welcome:
        """What it said."""
        return welcomes.decode(self.root.read(_KNOWN))

    def is_newer(self, welcome: Welcome) -> bool:
        """Whether to ask for the collector's program, now."""
        return welcome.edition > self.edition and time.monotonic() >= self.next_look

    def meet(self, name: str, welcome: Welcome, parent: Connection) -> bool:
        """Take in what the collector says; True if another program runs from now on."""
        met, taken = self.met, False
        if met and self.known.number != welcome.number:
            raise RunError(
                f"the collector knows {name!r} by another number than it gave it; it is not the "
                "one this agent was started with. Start it under a new name and with a new "
                "directory"
            )
        if self._has_code(welcome):
            taken = self._fits(welcome, lambda: self._accepted(welcome, parent))
            if met and not taken:
                return False
        elif met and self.known.program != welcome.program:
            newer = welcome.edition > self.edition
            taken = newer and self._fits(welcome, lambda: self._loaded(welcome))
            if not taken:
                return False
        if welcome.edition >= self.edition:  # else the parent in this tree has not heard of it yet
            self.root.put(_KNOWN, msgspec.json.encode(welcome))
            self.edition = welcome.edition
        return taken

    def _has_code(self, welcome: Welcome) -> bool:
        """Whether the collector has other files than run here, and they are accepted."""
        if self.accept is not None and not welcome.code and not self._without:
            self._without = True
            self.say("the collector gives no code: going on with the program that is here")
        if self.accept is None or welcome.code in ("", self.accept.digest):
            return False
        return welcome.edition >= self.edition

    def _fits(self, welcome: Welcome, take: Callable[[], Flow]) -> bool:
        """Take another program up, unless it is not the collector's after all."""
        self.next_look = time.monotonic() + _LOOK
        try:
            self.flow = take()
        except MillstreamError as error:
            if self.differs != str(error):
                self.say(f"{error}. Until then it goes on with the program it has")
            self.differs = str(error)
            return False
        self.differs = None
        return True

    def _accepted(self, welcome: Welcome, parent: Connection) -> Flow:
        assert self.accept is not None
        code, flow = self.accept.fetch(parent)
        plan_here(flow, welcome.program)
        self.accept.keep(code)
        self.say(f"going on with the collector's program, sha256 {code.digest[:16]}")
        return flow

    def _loaded(self, welcome: Welcome) -> Flow:
        flow = self.flow if self.reload is None else self.reload()
        plan_here(flow, welcome.program)
        self.say("the collector has a new program, which this file has, too: going on with it")
        return flow

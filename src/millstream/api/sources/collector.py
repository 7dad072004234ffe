"""What agents on other machines read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.api.frames import plainly
from millstream.api.sources.files import Files
from millstream.api.sources.generated import HostStats
from millstream.api.sources.received import Socket, Stdin
from millstream.api.sources.timing import Timing, fill
from millstream.durations import Duration, micros
from millstream.errors import ConfigError


@plainly
@dataclass(frozen=True)
class Collector(Timing):
    """What agents on other machines read there: only what the first steps made of it travels.

    Every agent reads `reads` on its own machine and runs the flow up to the first exchange. Each is
    a participant: nothing leaves before all that are expected have come so far.

    address: where it listens for agents, as "host:port".
    reads: the source that every agent has: ms.Files("/var/log/app/*.log", ...), ms.Socket,
        ms.Stdin or ms.HostStats.
    agents: the names of those that are expected, or how many.
    boundary: how often an agent says that it is there, also when it has nothing to send.
    trees: into how many parts the keys are dealt, each with relays of its own: what agents send of
        a part goes to the parent it has there (millstream agent --to, once per tree).
    idle_timeout: an agent that was not heard of, or has read nothing, for so long does not hold the
        watermark back; None: it does. (That of `reads` is for the files of an agent among each
        other: while one of them grows, those that are silent for so long do not hold it.)
    clock_skew: how far ahead of the collector's clock that of an agent may be. If it is further
        ahead, times beyond that move no watermark, and the agent says so.
    modules: files beside the program that it imports, for agents that accept code from here.
    token_file, token_env: where the token is that agents must bring, as a file or as the name of
        an environment variable.
    certificate, private_key: files (PEM) for TLS; beyond this machine it is needed.
    """

    address: str = ""
    reads: Any = None
    agents: Sequence[str] | int = 1
    boundary: Duration = "1s"
    clock_skew: Duration = "1m"
    trees: int = 1
    token_file: str | Path | None = None
    token_env: str = "MILLSTREAM_AGENT_TOKEN"
    certificate: str | Path | None = None
    private_key: str | Path | None = None
    modules: Sequence[str] = field(default=(), compare=False)
    code: Any = field(default=None, init=False, repr=False, compare=False)  # the program as text
    idle_timeout: Duration | None = None
    time: str | None = field(default=None, init=False)
    time_unit: str = field(default="s", init=False)
    time_format: str | None = field(default=None, init=False)
    time_pattern: str | None = field(default=None, init=False)
    zone: str | None = field(default=None, init=False)
    lateness: Duration | None = field(default=None, init=False)
    max_future_skew: Duration = field(default="1d", init=False)
    participant: str | None = field(default=None, init=False)
    participants: Sequence[str] | None = field(default=(), init=False)

    def __init__(self, address: str, reads: Any = None, **options: Any) -> None:
        fill(self, Collector, {"address": address, "reads": reads, **options})

    def __post_init__(self) -> None:
        reads, names = self.reads, self.agents
        if not isinstance(reads, Files | Socket | Stdin | HostStats):
            raise ConfigError(
                "Collector(reads=): expected what agents read on their machines, like "
                'ms.Files("/var/log/app/*.log", time="ts"), ms.Socket, ms.Stdin or ms.HostStats, '
                f"got {reads!r}"
            )
        if reads.time is None:
            raise ConfigError(
                "Collector(reads=): the clocks of machines differ, so records need a time of their "
                "own; say with time= which column has it"
            )
        if reads.overload.sheds:
            raise ConfigError(
                f"Collector(reads=): {reads.overload} is for the collector, which knows what "
                "waits; write Collector(..., overload=ms.drop())"
            )
        own = {"idle_timeout", "participant", "participants", "overload"}
        for name in Timing.__dataclass_fields__.keys() - own:
            object.__setattr__(self, name, getattr(reads, name))
        super().__post_init__()
        host, _, port = self.address.rpartition(":") if isinstance(self.address, str) else ("",) * 3
        if not host or not port.isdigit() or not int(port) < 65536:
            raise ConfigError(f'Collector({self.address!r}): expected "host:port"')
        if self.overload.kind == "divert":
            raise ConfigError(
                f"Collector(overload={self.overload}): agents send what their first steps made of "
                "records, which no other step can take; use ms.drop() or ms.throttle()"
            )
        micros(self.boundary, "Collector(boundary=)")
        micros(self.clock_skew, "Collector(clock_skew=)", zero=True)
        named = not isinstance(names, int | str) and all(isinstance(one, str) for one in names)
        counted = isinstance(names, int) and not isinstance(names, bool) and names > 0
        if not (counted or (named and len(set(names)) == len(names) > 0)):  # type: ignore[arg-type]
            raise ConfigError(
                f"Collector(agents={names!r}): expected the names of agents, each once, or how many"
            )
        if isinstance(self.trees, bool) or not isinstance(self.trees, int) or self.trees < 1:
            raise ConfigError(f"Collector(trees={self.trees!r}): expected how many, from 1 on")
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("Collector(certificate=, private_key=): TLS needs both")
        if isinstance(self.modules, str) or not all(isinstance(one, str) for one in self.modules):
            raise ConfigError(
                f"Collector(modules={self.modules!r}): expected files beside the program, like "
                '["prices.py"]'
            )
        object.__setattr__(self, "modules", tuple(self.modules))
        object.__setattr__(self, "participant", "agent")
        object.__setattr__(self, "participants", () if counted else tuple(names))  # type: ignore[arg-type]

    @property
    def bounded(self) -> bool:
        return bool(self.reads.bounded)

    @property
    def endless(self) -> bool:
        return bool(self.reads.endless)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def expected(self, known: Iterable[str]) -> frozenset[str]:
        """Who is expected, given those that are known: by name, or so many others."""
        if not isinstance(self.agents, int):
            return frozenset(self.agents)
        there = set(known)
        return frozenset({*there, *(f"agent {n + 1}" for n in range(len(there), self.agents))})

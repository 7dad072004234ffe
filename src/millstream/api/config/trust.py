"""What a configuration file may ask for by itself: no code, and no secrets that are not for it.

Options of the JVM, class paths, plug-ins, scripts and environments are code by another name, and
the environment of who runs a flow holds keys to other things. Who may write a configuration file
need not be the one who runs it; that one says `--trust-config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from millstream.graph.nodes import Sink, Source

_PLAIN = {  # after "spark.", what may follow it
    "app": ("name",),
    "authenticate": ("",),
    "cores": ("max",),
    "default": ("parallelism",),
    "driver": ("cores", "maxResultSize", "memory", "memoryOverhead"),
    "dynamicAllocation": ("enabled", "initialExecutors", "maxExecutors", "minExecutors"),
    "executor": (
        "cores",
        "heartbeatInterval",
        "instances",
        "memory",
        "memoryOverhead",
        "pyspark.memory",
    ),
    "io": ("encryption.enabled",),
    "locality": ("wait",),
    "memory": ("fraction", "offHeap.enabled", "offHeap.size", "storageFraction"),
    "network": ("crypto.enabled", "timeout"),
    "python": ("worker.memory", "worker.reuse"),
    "reducer": ("maxSizeInFlight",),
    "rpc": ("askTimeout", "message.maxSize"),
    "scheduler": ("mode",),
    "shuffle": ("compress", "file.buffer", "spill.compress"),
    "speculation": ("",),
    "task": ("cpus", "maxFailures"),
    "ui": ("enabled", "port"),
}
PLAIN_PROPERTIES = frozenset(
    ".".join(filter(None, ("spark", head, tail)))
    for head, tails in _PLAIN.items()
    for tail in tails
)
_VALUE = re.compile(r"[A-Za-z0-9_.:%-]*")


def untrusted(properties: Mapping[str, str]) -> str | None:
    """The first property that a file may not set by itself, if there is one."""
    for name, value in properties.items():
        if name not in PLAIN_PROPERTIES or not _VALUE.fullmatch(str(value)):
            return name
    return None


@dataclass(frozen=True)
class Variable:
    """A variable of the environment that a source or sink asks for, and how it should be called."""

    section: str  # "source" or "sink"
    step: str
    option: str
    name: str
    expected: str  # how its name should begin

    def __str__(self) -> str:
        return (
            f"{self.section} {self.step!r}, {self.option}: {self.name!r} may be a secret that is "
            f"not meant for it; in a file a name begins with {self.expected!r}: give the variable "
            "such a name, or run with --trust-config if you trust this file as you trust a program"
        )


def foreign_variable(nodes: Iterable[Any]) -> Variable | None:
    """The first variable of the environment that a file may not name by itself, if there is one."""
    for node in nodes:
        if isinstance(node, Source | Sink) and is_dataclass(node.spec):
            section = "source" if isinstance(node, Source) else "sink"
            for option in (one for one in fields(node.spec) if one.name.endswith("_env")):
                expected = f"{str(option.default).rpartition('_')[0]}_"
                name = getattr(node.spec, option.name)
                if name is not None and not str(name).startswith(expected):
                    return Variable(section, node.name, option.name, str(name), expected)
    return None

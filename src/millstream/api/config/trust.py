"""Which Spark properties a configuration file may set by itself: sizes and times, no code.

Options of the JVM, class paths, plug-ins, scripts and environments are code by another name. Who
may write a configuration file need not be the one who runs it; that one says `--trust-config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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

"""Figures of this machine, by psutil: what `ms.HostStats` gives."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from millstream.errors import ConfigError

_COUNTED = ("swapped_in", "swapped_out", "disk_read", "disk_written", "sent", "received")


def figures(every: float, host: str | None) -> Iterator[dict[str, Any]]:
    """One record every so many seconds, at multiples of that."""
    stats = _psutil()
    name = host or socket.gethostname()
    stats.cpu_percent()  # since the last time: this is the first
    before = _counts(stats)
    while True:
        time.sleep(every - time.time() % every)
        now = _counts(stats)
        yield {
            "ts": datetime.now(UTC),
            "host": name,
            "cpu": stats.cpu_percent(),
            "memory": stats.virtual_memory().percent,
            "swap": stats.swap_memory().percent,
            "load": stats.getloadavg()[0],
            **{key: max(0, now[key] - before[key]) for key in _COUNTED},
        }
        before = now


def _counts(stats: Any) -> dict[str, int]:
    """Bytes since the machine was started; a machine without disks or networks has none."""
    swap, disk, net = stats.swap_memory(), stats.disk_io_counters(), stats.net_io_counters()
    return {
        "swapped_in": swap.sin,
        "swapped_out": swap.sout,
        "disk_read": 0 if disk is None else disk.read_bytes,
        "disk_written": 0 if disk is None else disk.write_bytes,
        "sent": 0 if net is None else net.bytes_sent,
        "received": 0 if net is None else net.bytes_recv,
    }


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        raise ConfigError(
            "HostStats: psutil is needed; install it with `pip install millstream[hosts]`"
        ) from None
    return psutil

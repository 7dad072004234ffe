"""Producers at five times what can be processed, and what a flow does about it.

`OVERLOAD_SECONDS` says for how long (4), `OVERLOAD_CAPACITY` how many records a second a flow can
process (4,000).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import millstream as ms

SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "4"))
CAPACITY = int(os.environ.get("OVERLOAD_CAPACITY", "4000"))
TIMES = 5
PATIENCE = 60 + 20 * SECONDS  # far more than five times as long, on a busy machine
POLICIES = {
    "throttle": ms.throttle(when="256KB"),
    "drop newest": ms.drop("newest", when="256KB"),
    "drop oldest": ms.drop("oldest", when="256KB"),
    "divert": ms.divert("more", when="256KB"),
}


def records() -> Iterator[dict[str, Any]]:
    """Numbered records with the time at which they were made, five times as many as can be."""
    began, many = time.time(), int(SECONDS * CAPACITY * TIMES)
    for n in range(many):
        if n % 100 == 0:
            time.sleep(max(0.0, began + n / (CAPACITY * TIMES) - time.time()))
        yield {"ts": int(time.time() * 1000), "n": n, "k": f"k{n % 5}"}


def produced() -> int:
    return int(SECONDS * CAPACITY * TIMES)


OPTIONS: dict[str, Any] = {
    "time": "ts",
    "time_unit": "ms",
    "lateness": "1s",
    "schema": "ts bigint, n bigint, k string",
}


Records = Callable[[], Iterator[dict[str, Any]]]


def files(
    place: Path, policy: ms.Overload, records: Records = records
) -> tuple[Any, Callable[[], None]]:
    """A log that grows."""
    path = place / "grows.json"
    path.write_text("")

    def write() -> None:
        with path.open("a", buffering=1 << 14) as out:
            for one in records():
                out.write(json.dumps(one) + "\n")

    return ms.Files(path, format="json", follow=True, overload=policy, **OPTIONS), write


def sockets(
    place: Path, policy: ms.Overload, records: Records = records
) -> tuple[Any, Callable[[], None]]:
    """Somebody who sends as fast as the connection takes it."""
    server = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        connection, _ = server.accept()
        with connection, server:
            lines = (json.dumps(one).encode() + b"\n" for one in records())
            block: list[bytes] = []
            for line in lines:
                block.append(line)
                if len(block) == 100:
                    connection.sendall(b"".join(block))
                    block = []
            connection.sendall(b"".join(block))

    port = server.getsockname()[1]
    return ms.Socket("127.0.0.1", port, format="json", overload=policy, **OPTIONS), send


def generators(
    place: Path, policy: ms.Overload, records: Records = records
) -> tuple[Any, Callable[[], None]]:
    """A function that is asked."""
    return ms.Generator(records, overload=policy, **OPTIONS), lambda: None


def slowly(table: pa.Table) -> pa.Table:
    """So many records a second."""
    time.sleep(len(table) / CAPACITY)
    return table

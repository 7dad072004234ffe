"""A flow in a process of its own, mirrored to Redis; it can kill itself while it writes there."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import millstream as ms
from millstream.io import mirrors
from millstream.testing import run_in_process


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    if event.value["v"] < 0:
        ctx.delete()
        return
    slate["n"] = slate.get("n", 0) + 1
    slate["sum"] = slate.get("sum", 0) + event.value["v"]
    slate["last"] = event.value["ts"]


def main(url: str, data: str, checkpoint: str) -> None:
    flow = ms.Flow("counting")
    source = flow.source(
        ms.Files(data, schema="ts bigint, k string, v bigint", time="ts", lateness="0s"), name="in"
    )
    source.key_by("k").update(count, name="counts").sink(ms.Redis(url))
    at = int(os.environ.get("CRASH_AT_PIECE", "0"))
    if at:
        crash_at_piece(at)
    run_in_process(flow, checkpoint, batch_rows=20, batch_bytes=1000)


def crash_at_piece(at: int) -> None:
    """Die right after so many pieces of three keys have been written."""
    mirrors._PIECE_KEYS, mirrors._IN_FLIGHT = 3, 1
    real = mirrors.Mirror._send
    sent = 0

    def counting(self: mirrors.Mirror, group: list[Any]) -> None:
        nonlocal sent
        real(self, group)
        sent += 1
        if sent == at:
            os.kill(os.getpid(), signal.SIGKILL)

    mirrors.Mirror._send = counting  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])

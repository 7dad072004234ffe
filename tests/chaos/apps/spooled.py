"""A flow over a source that cannot be asked twice, run by the tests and killed by them.

python spooled.py SOURCE WORK: SOURCE is "generator" or the port of a server on this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import millstream as ms

ROWS = 4_000
TIMES = {"time": "ts", "time_unit": "ms", "lateness": "5s"}


def generate() -> Iterator[dict[str, int]]:
    """The same rows every time, now and then with a pause."""
    for i in range(ROWS):
        yield {"id": i, "ts": 1_700_000_000_000 + 10 * i}
        if i % 100 == 99:
            time.sleep(0.01)


def build(source: str, out: Path) -> ms.Flow:
    """All rows, and how many there are in every second."""
    flow = ms.Flow("spooled")
    if source == "generator":
        rows = flow.source(ms.Generator(generate, **TIMES), name="rows")
    else:
        socket = ms.Socket(
            "127.0.0.1", int(source), format="json", schema="id bigint, ts bigint", **TIMES
        )
        rows = flow.source(socket, name="rows")
    rows.sink(ms.Jsonl(out / "rows"))
    rows.key_by().window(ms.tumbling("1s")).agg(n=ms.count()).sink(ms.Jsonl(out / "seconds"))
    return flow


if __name__ == "__main__":
    from millstream.testing import run_in_process

    flow = build(sys.argv[1], Path(sys.argv[2]) / "out")
    print("ready", flush=True)
    run_in_process(flow, Path(sys.argv[2]) / "ck", poll=0.01)
    print("done", flush=True)

"""A flow with every kind of stored row, for checkpoints that an older version leaves half-way.

`python tests/state/before.py DIRECTORY` runs the first half with the version it is started with.
The archive beside this file was made so, with the last version in which every column that segments
are known by was called `pane`.
"""

from __future__ import annotations

import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.testing import Driver

ARCHIVE = Path(__file__).with_name("before.tar.gz")
OPTIONS: dict[str, Any] = {"parallelism": 2, "shards": 3}
HALF, ALL = 60, 80
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def tally(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1
    slate["at"] = event.value["v"]
    ctx.timer(after="7s")


def rang(event: Any, slate: Any, ctx: Any) -> None:
    slate["rang"] = slate.get("rang", 0) + 1


def flow() -> ms.Flow:
    """Slates that expire, timers and events that wait; panes, values, tails, totals and running."""
    made = ms.Flow("before")
    source = ms.Files(
        "in/", schema="ts timestamp, k bigint, v bigint", time="ts", lateness="9s", follow=True
    )
    keyed = made.source(source, name="in").key_by("k")
    keyed.update(tally, name="tally", ttl="30s", on_timer=rang)
    windows = {
        "slid": ms.sliding("20s", "5s"),
        "grown": ms.landmark("10s"),
        "numbered": ms.count_window(7, 3),
        "apart": ms.session("4s"),
    }
    for name, window in windows.items():
        keyed.window(window).agg(n=ms.count(), s=ms.sum("v")).sink(ms.Memory(), name=name)
    return made


def rows(number: int) -> list[dict[str, Any]]:
    """The records of one batch: keys come and stay away, and some are out of order."""
    ts = NOON + timedelta(seconds=number - 4 * (number % 5 == 3))
    return [{"ts": ts, "k": (number // 11 + i) % 6, "v": number * 10 + i} for i in range(3)]


def run(driver: Driver, start: int, stop: int) -> None:
    """Batches of some numbers."""
    for number in range(start, stop):
        driver.push("in", rows(number)).step()


if __name__ == "__main__":
    with Driver(flow(), checkpoint=sys.argv[1], **OPTIONS) as first:
        run(first, 0, HALF)
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        archive.add(sys.argv[1], "ck", filter=lambda one: None if "/pushed" in one.name else one)

"""Updaters with a cycle, timers, times to live and published streams, run and killed by the tests.

python updaters.py DATA WORK [MASTER]: without a master it runs in this process, without Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import millstream as ms

LATENESS = "20s"
FLUSH = os.environ.get("CHAOS_FLUSH", "batch")
BATCH_ROWS = 75
PAGES = 11
Row = dict[str, Any]


def visit(event: Any, slate: Row, ctx: Any) -> Row | None:
    """A user looks at a page; who is quiet for a while is gone, and forgotten later."""
    value = event.value
    if value["value"] == 13:
        raise ValueError("thirteen is refused")
    slate["n"] = slate.get("n", 0) + 1
    slate["last"] = [*slate.get("last", []), value["id"]][-3:]
    ctx.timer(at=event.ts + timedelta(seconds=4))
    ctx.publish("looks", f"page {value['page']}", {"hops": value["value"] % 4, "by": event.key})
    return {"user": event.key, "n": slate["n"]} if slate["n"] % 3 == 0 else None


def quiet(event: Any, slate: Row, ctx: Any) -> None:
    slate["looks"] = slate.get("looks", 0) + 1
    if slate["looks"] % 5 == 0:
        ctx.publish("quiet", event.key, slate["looks"])
    if slate["looks"] % 17 == 0:
        ctx.delete()


def look(event: Any, slate: Row, ctx: Any) -> None:
    """A page passes the look on to the next one: a cycle."""
    slate["n"] = slate.get("n", 0) + 1
    slate["path"] = (slate.get("path", 0) * 31 + event.value["by"]) % 1_000_003
    hops = event.value["hops"]
    if hops:
        number = (int(event.key.removeprefix("page ")) + slate["path"]) % PAGES
        ctx.publish("looks", f"page {number}", {"hops": hops - 1, "by": event.value["by"]})
    if slate["n"] % 20 == 0:
        ctx.publish("often", number_of(event.key), slate["n"])


def number_of(page: str) -> int:
    return int(page.removeprefix("page "))


def note(event: Any, slate: Row, ctx: Any) -> None:
    slate.setdefault("notes", []).append(event.value)
    if "begun" not in slate:
        slate["begun"] = event.stream
        ctx.timer(after="5s")


def report(event: Any, slate: Row, ctx: Any) -> Iterator[Row]:
    notes, slate["notes"] = slate.get("notes", []), []
    slate["reports"] = slate.get("reports", 0) + 1
    ctx.timer(after="5s")
    for number in notes:
        yield {"key": str(event.key), "note": number, "report": slate["reports"]}


def build(visits: ms.Stream, sinks: dict[str, Any]) -> None:
    """The updaters on a stream of visits; sinks by name."""
    flow = visits.flow
    looks, often, silent = (flow.stream(name) for name in ("looks", "often", "quiet"))
    users = visits.key_by("user").update(
        visit, name="users", on_timer=quiet, ttl="10s", flush=FLUSH
    )
    users.sink(sinks["thirds"], name="thirds")
    counted = users.key_by("user").window(ms.tumbling("10s")).agg(n=ms.count(), top=ms.max("n"))
    counted.sink(sinks["windows"], name="windows")
    looks.key_by("key").update(look, name="pages", ttl="30s")
    both = often.key_by("key").union(silent.key_by("key"))
    notes = both.update(note, name="notes", on_timer=report, flush=FLUSH)
    notes.sink(sinks["reports"], name="reports")
    silent.sink(sinks["silence"], name="silence")


SINKS = ("thirds", "windows", "reports", "silence")


def main(data: Path, work: Path, master: str | None, **more: Any) -> None:
    """Run to the end; a line tells the test that the imports are done."""
    from millstream.testing import run_in_process

    flow = ms.Flow("updaters")
    files = ms.Files(data / "*.parquet", time="ts", lateness=LATENESS)
    build(flow.source(files, name="visits"), {n: ms.Jsonl(work / "out" / n) for n in SINKS})
    print("ready", flush=True)
    options = {"batch_rows": BATCH_ROWS, "shards": 8, "retain": 3, **more}
    if master is None:
        run_in_process(flow, work / "ck", parallelism=2, **options)
    else:
        flow.run(checkpoint=work / "ck", master=master, parallelism=2, **options)
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)

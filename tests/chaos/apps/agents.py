"""One process of a tree of agents, to be killed: `collector`, `relay NAME`, `agent NAME`.

Everything is slow, so that there is time to be killed, until there is a file `hurry`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import millstream as ms
from tests.agent.centre import Centre, agent_of, relay_of

PLACE = Path(os.environ["PLACE"])
PORTS = [int(port) for port in os.environ["PORTS"].split()]  # of the collector and the relays
TREES = int(os.environ.get("TREES", "1"))  # with two, each relay is in one of them
NAMES = ["web-0", "web-1", "web-2", "web-3"]
PAUSE = 0.15  # seconds


def results(stream: ms.Stream, out: Path) -> None:
    """Windows whose panes are combined, values that are kept, and events for an updater."""

    def last(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
        slate["n"] = slate.get("n", 0) + 1
        return {"k": event.key, "n": slate["n"], "v": event.value["v"]}

    counted = stream.key_by("k").window(ms.sliding("20s", "5s"))
    counted.agg(n=ms.count(), t=ms.sum("v")).sink(ms.Jsonl(out / "counted"))
    listed = stream.where("v > 7").key_by("k").window(ms.tumbling("30s"))
    listed.agg(all=ms.collect("v")).sink(ms.Jsonl(out / "listed"))
    stream.where("v = 3").key_by("k").update(last, name="last").sink(ms.Jsonl(out / "updated"))


def files(path: Path) -> ms.Files:
    schema = "ts timestamp, k string, v bigint"
    return ms.Files(path, format="json", schema=schema, time="ts", lateness="2s")


def flow_of(name: str) -> ms.Flow:
    flow = ms.Flow("killed")
    reads, where = files(PLACE / "in" / name), f"127.0.0.1:{PORTS[0]}"
    source = ms.Collector(where, reads, agents=NAMES, boundary="100ms", trees=TREES)
    results(flow.source(source, name="in"), PLACE / "out")
    return flow


def rest() -> bool:
    """Wait a little, unless there is haste."""
    hurry = (PLACE / "hurry").exists()
    time.sleep(0.005 if hurry else PAUSE)
    return hurry


def main(kind: str, name: str = "collector") -> None:
    if kind == "collector":
        with Centre(flow_of(NAMES[0]), PLACE / "collector") as centre:
            while not centre.engine.done:
                centre.step()
                rest()
            (PLACE / "done").touch()
            until = time.monotonic() + 60
            while not (PLACE / "end").exists() and time.monotonic() < until:
                centre.step()  # it still tells agents what is committed
                time.sleep(0.05)
        return
    if kind == "relay":
        number = int(name[-1])
        flow = flow_of(NAMES[0])
        options: dict[str, Any] = {"tree": number} if TREES > 1 else {}
        most = len(NAMES) if TREES > 1 else 2
        listen, place = PORTS[number + 1], PLACE / "agents"
        one = relay_of(flow, PORTS[0], listen, name, place, most, **options)
    else:
        number = NAMES.index(name)
        parents = PORTS[1:] if TREES > 1 else [PORTS[1 + number // 2]]
        first, *more = parents
        one = agent_of(flow_of(name), first, name, PLACE / "agents", *more, rows=20)
    while not one.done and not (PLACE / "end").exists():
        one.step()
        if rest():
            one.rows = 5_000
    one.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

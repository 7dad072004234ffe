"""Claim: at five times what a flow can process, for minutes, no record is unaccounted for.

Producers make five times as many records as the flow can process (a step that takes so long for
each), for every policy of overload, on files, sockets and generators: in one process, all at once,
since the step mostly waits; and each policy once more on Spark, one after the other. Looked at are
the ledger at every commit, which records came out (each at most once, and as many as the ledger
says), that all which were made are booked in the end if they may be shed, how late those were that
were not, and the memory of all processes beside the budget.

The bound of the latency: as much as may wait, at the rate at which it was processed, and four
batches. Nothing bounds it where a throttle lets a file grow, or a sender fill the buffers of TCP.
Both are of what was made after the first result: before it Spark starts.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.burst import resident
from benchmarks.common import goal, markdown, module, side, workspace

KINDS = ("files", "sockets", "generators")
POLICIES = ("throttle", "drop newest", "drop oldest", "divert")
WAYS = ("in process", "spark")
ON_SPARK = dict(zip(POLICIES, ("generators", "sockets", "files", "sockets"), strict=True))
CAPACITY = 500  # records a second
BATCH = 0.5  # seconds
SECONDS = {"in process": 120.0, "spark": 60.0}
REST = 5.0  # seconds that are left for what was made last
BUDGETS = {"in process": 512 << 20, "spark": 2 << 30}
WAITS = 64 << 10  # bytes that may wait, as the policies say
RECORD = {"files": 48, "sockets": 48, "generators": 24}  # bytes, about: lines, and columns of Arrow
UNBOUNDED = {("files", "throttle"), ("sockets", "throttle")}


# -- one flow --------------------------------------------------------------------------------------


class Seen:
    """What came out of a flow, and what it took."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.diverted: list[int] = []
        self.late: list[float] = []
        self.first = 0.0  # when a result came
        self.last = 0.0
        self.made = 0
        self.until = float("inf")  # when it is over
        self.most = 0
        self.unbalanced = 0

    def keep(self, row: dict[str, Any]) -> None:
        """A record that was processed."""
        self.last = time.time()
        self.first = self.first or self.last
        self.kept.append(row["n"])
        if row["ts"] / 1000 > self.first:
            self.late.append(self.last - row["ts"] / 1000)

    def divert(self, row: dict[str, Any]) -> None:
        """One that went the other way."""
        self.diverted.append(row["n"])

    def books(self, ledger: dict[str, dict[str, int]]) -> None:
        """Those of a commit."""
        from millstream.run.batches.ledger import WAYS as ways

        for account in ledger.values():
            self.unbalanced += account["offered"] != sum(account[way] for way in ways)

    def watch(self, over: threading.Event) -> None:
        """Look at the memory ten times a second."""
        while not over.wait(0.1):
            self.most = max(self.most, resident(os.getpid()))


def run_side(place: Path, way: str, kind: str, policy: str, seconds: float) -> dict[str, Any]:
    """One policy on one kind of source."""
    os.environ |= {"OVERLOAD_CAPACITY": str(CAPACITY), "OVERLOAD_SECONDS": str(seconds)}
    import millstream as ms
    from tests.overload import producing

    seen = Seen()

    def records() -> Iterator[dict[str, Any]]:
        """As they are made elsewhere, but only for so long if they are held back."""
        until = time.time() + seconds
        seen.until = until + REST
        for one in producing.records():
            if one["n"] % 100 == 0 and time.time() > until:
                return
            seen.made = one["n"] + 1
            yield one

    overload = {
        "throttle": ms.throttle(when=WAITS),
        "drop newest": ms.drop("newest", when=WAITS),
        "drop oldest": ms.drop("oldest", when=WAITS),
        "divert": ms.divert("more", when=WAITS),
    }[policy]
    spec, produce = getattr(producing, kind)(place, overload, records)
    flow = ms.Flow("overload")
    slow = flow.source(spec, name="in").map_batches(producing.slowly)
    slow.sink(ms.Call(seen.keep), name="kept")
    windows = slow.key_by("k").window(ms.tumbling("1s")).agg(n=ms.count())
    windows.sink(ms.Call(lambda row: None), name="windows")
    if spec.overload.stream is not None:
        flow.stream(spec.overload.stream).sink(ms.Call(seen.divert), name="overflow")
    over = threading.Event()
    watching = threading.Thread(target=seen.watch, args=(over,), daemon=True)
    watching.start()
    options = {"memory": BUDGETS[way], "batch_rows": CAPACITY // 2, "batch_seconds": BATCH}
    follow = _in_process if way == "in process" else _on_spark
    account = follow(flow, place / "ck", options, produce, seen, lambda: time.time() > seen.until)
    over.set()
    watching.join()
    return _figures(seen, account, policy, RECORD[kind])


def _in_process(
    flow: Any,
    checkpoint: Path,
    options: dict[str, Any],
    produce: Callable[[], None],
    seen: Seen,
    over: Callable[[], bool],
) -> dict[str, int]:
    import millstream as ms
    from millstream.run.batches.engine import Engine
    from millstream.run.planning import plan_flow
    from millstream.run.tasks.executors import InProcess
    from millstream.state.checkpoint import Checkpoint

    kept = Checkpoint(checkpoint)
    kept.lock()
    engine = Engine(plan_flow(flow), kept, ms.Settings(parallelism=1, **options))
    engine.open(1)
    executor = InProcess(engine.plan, 1)
    threading.Thread(target=produce, daemon=True).start()
    try:
        while not over():
            if engine.step(executor):
                seen.books(engine.manifest.ledger)
            else:
                time.sleep(0.01)
    finally:
        engine.close()
    return engine.manifest.ledger["in"]


def _on_spark(
    flow: Any,
    checkpoint: Path,
    options: dict[str, Any],
    produce: Callable[[], None],
    seen: Seen,
    over: Callable[[], bool],
) -> dict[str, int]:
    from tests.stored import content_of, manifests_in

    # One task, as in one process: what can be processed is what one can.
    handle = flow.start(checkpoint=checkpoint, retain=10_000, parallelism=1, **options)
    try:
        threading.Thread(target=produce, daemon=True).start()
        while handle.running and not over():
            time.sleep(0.1)
    finally:
        handle.stop()
    found = [content_of(path) for path in manifests_in(checkpoint / "manifests")]
    for manifest in found:
        seen.books(manifest.ledger)
    return found[-1].ledger["in"]


def _figures(seen: Seen, account: dict[str, int], policy: str, record: int) -> dict[str, Any]:
    numbers = [*seen.kept, *seen.diverted]
    shed = account["dropped"] + account["diverted"]
    exact = {
        "books of every commit": not seen.unbalanced,
        "each record once": len({*numbers}) == len(numbers),
        "as many kept as booked": len(seen.kept) == account["aggregated"],
        "as many diverted as booked": len(seen.diverted) == account["diverted"],
        "shed or not, as the policy says": (shed > 0) == (policy != "throttle"),
        "all that were made are booked": policy == "throttle" or account["offered"] == seen.made,
        "only dropped ones are missing": account["offered"] == len(numbers) + account["dropped"],
    }
    late = sorted(seen.late)
    return {
        "made": seen.made,
        "offered": account["offered"],
        "processed": len(seen.kept),
        "shed": shed,
        "p50": late[len(late) // 2],
        "p99": late[int(len(late) * 0.99)],
        "bound": WAITS / record / (len(seen.kept) / (seen.last - seen.first)) + 4 * BATCH,
        "memory": seen.most,
        "wrong": [what for what, holds in exact.items() if not holds],
    }


# -- the benchmark ---------------------------------------------------------------------------------


def run(quick: bool = False) -> dict[str, Any]:
    """Both ways."""
    return summary({way: measure(way, quick) for way in (WAYS[:1] if quick else WAYS)})


def measure(way: str, quick: bool = False) -> dict[str, Any]:
    """All policies in one way."""
    seconds = 5.0 if quick else SECONDS[way]
    pairs = (
        [(kind, policy) for kind in KINDS for policy in POLICIES]
        if way == "in process"
        else [(kind, policy) for policy, kind in ON_SPARK.items()]
    )
    found: dict[str, Any] = {}
    at_once = 6 if way == "in process" else 1
    for begin in range(0, len(pairs), at_once):
        found |= _together(way, pairs[begin : begin + at_once], seconds)
    return found


def _together(way: str, pairs: list[tuple[str, str]], seconds: float) -> dict[str, Any]:
    """Some cases, each in a process of its own, all at once."""
    found: dict[str, Any] = {}

    def one(kind: str, policy: str) -> None:
        with workspace("overload") as place:
            told = side(module("overload", place, way, kind, policy, seconds), seconds * 2 + 120)
        found[f"{kind}, {policy}"] = told | {"kind": kind, "policy": policy, "budget": BUDGETS[way]}
        print(f"  {way}, {kind}, {policy}: {json.dumps(told)}", flush=True)

    threads = [threading.Thread(target=one, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    missing = [pair for pair in pairs if ", ".join(pair) not in found]
    if missing:
        raise RuntimeError(f"overload, {way}: failed: {missing}")
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What was seen of all ways, beside what was wanted."""
    told = []
    for way, by in found.items():
        share = max(one["memory"] / one["budget"] for one in by.values())
        told.append(goal(f"{way}: most memory", "at most the budget", share, share <= 1))
        bounded = {
            name: one["p99"] / one["bound"]
            for name, one in by.items()
            if (one["kind"], one["policy"]) not in UNBOUNDED
        }
        worst = max(bounded, key=lambda name: bounded[name])
        seen, met = bounded[worst], bounded[worst] <= 1
        told.append(goal(f"{way}: p99 beside its bound", "at most 1", seen, met, worst))
    wrong = [(way, name, one["wrong"]) for way, by in found.items() for name, one in by.items()]
    for case in wrong:
        if case[2]:
            print(f"  WRONG: {case}", flush=True)
    return {"found": found, "agree": not any(case[2] for case in wrong), "goals": told}


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    head = [
        "",
        "made",
        "processed",
        "shed",
        "p50, s",
        "p99, s",
        "bound, s",
        "memory, MB",
        "budget, MB",
    ]
    rows = [
        [
            f"{way}: {name}",
            one["made"],
            one["processed"],
            one["shed"],
            one["p50"],
            one["p99"],
            None if (one["kind"], one["policy"]) in UNBOUNDED else one["bound"],
            round(one["memory"] / 2**20),
            round(one["budget"] / 2**20),
        ]
        for way, by in figures["found"].items()
        for name, one in by.items()
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    print(json.dumps(run_side(Path(sys.argv[1]), *sys.argv[2:5], float(sys.argv[5]))))

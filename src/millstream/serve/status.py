"""What a flow is doing: figures of the last committed batch, and of the run if there is one.

Everything that was committed is read from the checkpoint. A running flow adds what only it knows:
the speed of its batches, what waits at its sources, and where its watermarks stand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.ops.times.progress import BEGIN, END
from millstream.serve.following import Follower
from millstream.serve.slates import Snapshot
from millstream.serve.telling import iso
from millstream.state.manifests import OVERLOADED, Hot, Left, QueueState, sizes_of
from millstream.state.segments import safe_name

_PARTICIPANTS = 100  # that are shown
_WAYS = ("offered", "aggregated", "dead", "late", "diverted", "dropped", "results", "failed")


@dataclass(frozen=True)
class Live:
    """What only the process that runs a flow knows."""

    here: bool = True  # it runs in this process
    rows_per_second: float = 0.0
    batch_seconds: float = 0.0
    watermark: int | None = None
    watermarks: dict[str, int] = field(default_factory=dict)  # sources and operators
    pending: dict[str, int] = field(default_factory=dict)  # source -> bytes
    held_by: dict[str, str] = field(default_factory=dict)  # source -> participant
    paused: str | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    silent: dict[str, float] = field(default_factory=dict)  # source -> since when it hangs, seconds
    # source -> participant -> how far it is, and for how many seconds it was not heard of
    participants: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    memory: tuple[int, int] | None = (0, 0)  # bytes at the peak of the last batch, and the budget
    answers: dict[str, Any] | None = None  # of a flow that is looked at (`drawing.py`)
    state: dict[str, int] = field(default_factory=dict)  # bytes moved by the last batch, and kept
    # source or updater with a policy that sheds -> the policy, and what waits by what may
    overload: dict[str, tuple[str, float]] = field(default_factory=dict)


ELSEWHERE = Live(here=False, memory=None)


class Served:
    """What the server shows: the newest snapshot, and what the running flow says of itself."""

    def __init__(self, follower: Follower, live: Callable[[], Live] = lambda: ELSEWHERE) -> None:
        """`live`: what the flow says of itself, if it runs in this process."""
        self.follower, self.live = follower, live

    @property
    def snapshot(self) -> Snapshot:
        """The newest committed state."""
        return self.follower.current

    def status(self) -> dict[str, Any]:
        """All of `GET /status`."""
        snapshot, live = self.snapshot, self.live()
        manifest, program = snapshot.manifest, snapshot.program
        running = live.here or self.follower.place.store.held("lock")
        earlier = None if live.here else self.follower.at(snapshot.batch - 1)
        ledger = _of_program(manifest.ledger, program)
        marks = _watermarks(snapshot, live)
        mine = [at for name, at in marks.items() if name in program.get("operators", {})]
        lowest = live.watermark if live.here else min(mine, default=None)
        lag = None
        if running and lowest is not None and BEGIN < lowest < END // 2:
            lag = max(0.0, time.time() - lowest / 1e6)
        return {
            "flow": str(program.get("flow", "")),
            "batch": snapshot.batch,
            "at": manifest.at,
            "running": running,
            "complete": manifest.complete,
            "paused": live.paused,
            "problem": self.follower.problem and "the newest batch cannot be read; see the log",
            "rates": _rates(snapshot, earlier, live),
            "state_bytes": live.state,
            "watermark": _moment(lowest),
            "lag_seconds": lag,
            "sources": [
                {
                    "name": name,
                    "rows": ledger.get(name, {}).get("offered", 0),
                    "pending_bytes": live.pending.get(name),
                    "watermark": _moment(marks.get(name)),
                    "held_by": live.held_by.get(name),
                    "silent_since": live.silent.get(name),
                    "participants": _participants(live.participants.get(name, {})),
                    "overload": _overload(
                        manifest.sources[name].extra if name in manifest.sources else {},
                        *live.overload.get(name, ()),
                    ),
                }
                for name in program.get("sources", {})
            ],
            "operators": _operators(snapshot, marks),
            "queues": _queues(snapshot, live),
            "memory": live.memory and dict(zip(("used", "budget"), live.memory, strict=True)),
            "ledger": ledger,
            "dead": manifest.dead,
            **{
                way: sum(account.get(way, 0) for account in manifest.ledger.values())
                for way in ("late", "future", "failed")
            },
            "hot": {name: _hot(about) for name, about in manifest.hot.items()},
            "graph": program.get("graph") or {"nodes": [], "edges": []},
            "history": live.history,
            "answers": live.answers,
        }


def _overload(
    known: dict[str, int], policy: str | None = None, pressure: float | None = None
) -> dict[str, Any] | None:
    """How overloaded a step is, where a policy looks after that."""
    since = known.get(OVERLOADED, 0)
    if not since and policy is None:
        return None
    return {"policy": policy, "pressure": pressure, "since": _moment(since) if since else None}


def _participants(known: dict[str, tuple[int, float]]) -> list[dict[str, Any]]:
    """Who takes part in a source, those that are furthest behind first; not more than a page of."""
    slowest = sorted(known.items(), key=lambda one: one[1])[:_PARTICIPANTS]
    return [
        {"name": name, "at": _moment(at), "silent_seconds": silent}
        for name, (at, silent) in slowest
    ]


def _of_program(
    ledger: dict[str, dict[str, int]], program: dict[str, Any]
) -> dict[str, dict[str, int]]:
    """The books of the steps there are; those of a step that was renamed or removed are history."""
    steps = {node["name"] for node in (program.get("graph") or {}).get("nodes", [])}
    return {name: account for name, account in ledger.items() if not steps or name in steps}


def _rates(snapshot: Snapshot, earlier: Snapshot | None, live: Live) -> dict[str, float]:
    """Of the last batch: as measured, or between the last two commits."""
    rows, seconds, often = live.rows_per_second, live.batch_seconds, _frequency(live.history)
    if earlier is not None and earlier.batch >= 0 and earlier.manifest.at < snapshot.manifest.at:
        seconds = snapshot.manifest.at - earlier.manifest.at
        rows = max(0, _offered(snapshot) - _offered(earlier)) / seconds
    often = often or (1 / seconds if seconds else 0.0)
    return {"rows_per_second": rows, "batch_seconds": seconds, "batches_per_second": often}


def _frequency(history: list[dict[str, float]]) -> float:
    """Batches per second over the last ones."""
    recent = history[-20:]
    if len(recent) < 2 or recent[-1]["at"] <= recent[0]["at"]:
        return 0.0
    return (len(recent) - 1) / (recent[-1]["at"] - recent[0]["at"])


def _offered(snapshot: Snapshot) -> int:
    names = snapshot.program.get("sources", {})
    return sum(snapshot.manifest.ledger.get(name, {}).get("offered", 0) for name in names)


def _watermarks(snapshot: Snapshot, live: Live) -> dict[str, int]:
    """Event time reached by what came to each operator, and by each source.

    An operator all of whose input has ended has none: its manifest tells where it was before.
    """
    operators, sources = (snapshot.program.get(kind, {}) for kind in ("operators", "sources"))
    goes_on = {name for name in sources if snapshot.manifest.source(name).watermark != END}
    edges = (snapshot.program.get("graph") or {"edges": []})["edges"]
    while more := {to for one, to in edges if one in goes_on} - goes_on:
        goes_on |= more
    marks = snapshot.manifest.watermarks
    known = {name: at for name, at in marks.items() if name in operators and name in goes_on}
    for name, state in snapshot.manifest.sources.items():
        if name in sources and state.watermark is not None:
            known[name] = state.watermark
    return {**known, **live.watermarks}


def _operators(snapshot: Snapshot, marks: dict[str, int]) -> list[dict[str, Any]]:
    manifest, found, sizes = snapshot.manifest, [], sizes_of(snapshot.manifest)
    for name, about in snapshot.program.get("operators", {}).items():
        stored, plain = sizes.get(safe_name(about.get("family", name)), (0, 0))
        account = manifest.ledger.get(name, {})
        tables = manifest.segments.get(about.get("family", name), {})
        rows = {
            table: sum(segment.rows for several in shards.values() for segment in several)
            for table, shards in tables.items()
        }
        found.append(
            {
                "name": name,
                "kind": about.get("kind", ""),
                "watermark": _moment(marks.get(name)),
                **{way: account.get(way, 0) for way in _WAYS},
                "pending": rows.get("waiting", 0),
                "slates": rows.get("slates", 0) if about.get("kind") == "update" else None,
                "carried": manifest.carried.get(name, 0),
                "stored_bytes": stored,
                "plain_bytes": plain,
                "overload": _overload(manifest.memos.get(name, {})),
                "strategy": manifest.strategies.get(name),
                "late_by": manifest.late.get(name, {}),
                **_stood_on(manifest.left.get(name)),
            }
        )
    return found


def _queues(snapshot: Snapshot, live: Live) -> list[dict[str, Any]]:
    """What waits before sources, operators and sinks after the last batch; at sources, now."""
    found = []
    for name, one in snapshot.manifest.queues.items():
        size = live.pending.get(name, one.size) if one.kind == "source" else one.size
        found.append(
            {
                "name": name,
                "kind": one.kind,
                "rows": round(one.rows * size / one.size) if one.size else one.rows,
                "bytes": size,
                "head": _moment(one.head),
                "held": one.held,
                **_costs(one),
            }
        )
    return found


def _costs(one: QueueState) -> dict[str, float]:
    """What a row was measured to cost."""
    return {
        "input_size": one.taken_size / one.taken if one.taken else 0.0,
        "output_size": one.given_size / one.given if one.given else 0.0,
        "selectivity": one.given / one.taken if one.taken else 0.0,
        "seconds": one.seconds / one.taken if one.taken else 0.0,
    }


def _stood_on(left: Left | None) -> dict[str, Any]:
    """How much of its input the last window that left stood on, where windows tell."""
    if left is None:
        return {}
    return {
        "fidelity": left.fidelity,
        "participants": left.participants,
        "closed_by": left.closed_by,
    }


def _hot(hot: Hot) -> dict[str, Any]:
    """Which keys had most of the last events."""
    return {
        "events": hot.events,
        "keys": [
            {"key": key, "count": count, "share": count / hot.events if hot.events else 0.0}
            for key, count in hot.keys
        ],
    }


def _moment(at: int | None) -> str | None:
    return iso(at) if at is not None and BEGIN < at < END else None

"""How far a run is: for people and programs that ask, and for the server beside it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from millstream.ops.zones import timestamp
from millstream.run.batches.engine import Engine
from millstream.run.console import told_work
from millstream.run.sources.shedding import Shedding
from millstream.serve.status import Live
from millstream.state.manifests import Manifest

_HISTORY = 300  # batches


@dataclass(frozen=True, repr=False)
class Progress:
    """How far a flow is: counts over the life of the checkpoint, and `new_...` of this run."""

    batch: int = -1
    rows: int = 0  # records read
    rows_per_second: float = 0.0  # of the last batch
    batch_seconds: float = 0.0
    pending_bytes: int = 0
    fraction: float | None = None  # of bounded input
    watermark: int | None = None  # the lowest of all operators, microseconds UTC
    windows: int = 0  # rows of results
    new_batches: int = 0
    new_rows: int = 0
    new_windows: int = 0
    dead: int = 0
    late: int = 0
    future: int = 0  # too far ahead of the clock to move the watermark
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    done: bool = False
    paused: str | None = None
    elapsed: float = 0.0
    state_read: int = 0  # bytes of state the last batch read from the checkpoint
    state_warm: int = 0  # and had from memory instead
    state_written: int = 0
    warm_bytes: int = 0  # of state that is kept in memory now
    notes: tuple[str, ...] = ()  # what was said: windows added, what is not filled, who hangs

    def __repr__(self) -> str:
        state = self.paused or ("complete" if self.done else "under way")
        lines = [f"{state} after {self.elapsed:.1f} s: {told_work(self)}"]
        if self.fraction is not None and not self.done:
            lines.append(f"  {self.fraction:.0%} read, {self.pending_bytes:,} bytes left")
        if self.watermark is not None:
            lines.append(f"  watermark {timestamp(self.watermark).isoformat()}")
        lost = {"dead": self.dead, "late": self.late, "future": self.future}
        told = ", ".join(f"{count:,} {name}" for name, count in lost.items() if count)
        return "\n".join([*lines, *([f"  {told}"] if told else [])])


class Reporter:
    """Makes of an engine what is told of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._begun = (-1, 0, 0)  # batch, rows and results before this run
        self._started = time.monotonic()
        self._told: int | None = None  # the last watermark
        self._history: deque[dict[str, float]] = deque(maxlen=_HISTORY)

    def begin(self) -> None:
        """Count from here what is new."""
        self._begun = self._counts()

    def _counts(self) -> tuple[int, int, int]:
        """The last batch, and the records and results up to there."""
        manifest = self.engine.manifest
        sources = (manifest.ledger.get(node.name, {}) for node in self.engine.plan.sources())
        return manifest.batch, sum(one.get("offered", 0) for one in sources), manifest.windows

    def progress(self) -> Progress:
        """How far it is now."""
        engine, manifest, pace = self.engine, self.engine.manifest, self.engine.pace
        pending = sum(engine.intake.waiting().values())
        sources = [node.name for node in engine.plan.sources()]
        batch, rows, windows = self._counts()
        bounded = all(node.spec.bounded for node in engine.plan.sources())
        self._told = self._watermark()
        fraction = None
        if bounded and rows:
            width = getattr(engine.trackers[sources[0]], "row_bytes", 64.0)
            fraction = 1.0 if engine.done else rows / (rows + pending / max(width, 1.0))
        return Progress(
            batch=batch,
            rows=rows,
            rows_per_second=pace.last_rows / pace.last_seconds if pace.last_seconds else 0.0,
            batch_seconds=pace.last_seconds,
            pending_bytes=pending,
            fraction=fraction,
            watermark=self._told,
            windows=windows,
            new_batches=batch - self._begun[0],
            new_rows=rows - self._begun[1],
            new_windows=windows - self._begun[2],
            dead=manifest.dead,
            late=sum(account.get("late", 0) for account in manifest.ledger.values()),
            future=sum(account.get("future", 0) for account in manifest.ledger.values()),
            ledger=manifest.ledger,
            done=engine.done,
            paused=engine.patience.paused,
            elapsed=time.monotonic() - self._started,
            state_read=engine.moved.read,
            state_warm=engine.moved.warm,
            state_written=engine.moved.written,
            warm_bytes=engine.warmth.held() if engine.warmth is not None else 0,
            notes=tuple(engine.notes),
        )

    def _watermark(self) -> int | None:
        """The lowest of all steps; one that was added may be behind, and time does not go back."""
        marks = [at for at in self.engine.footing.watermarks.values() if abs(at) < 2**61]
        if not marks:
            return None
        return min(marks) if self._told is None else max(min(marks), self._told)

    def live(self, progress: Progress, answers: Any) -> Live:
        """What the server tells beyond what is committed, and answers of a flow looked at."""
        engine = self.engine
        last = self._history[-1]["batch"] if self._history else -1
        if progress.batch > last and engine.pace.last_seconds:
            self._history.append(
                {
                    "batch": progress.batch,
                    "at": engine.manifest.at,
                    "rows_per_second": progress.rows_per_second,
                    "batch_seconds": progress.batch_seconds,
                    "rows": engine.pace.last_rows,
                    **_least_fidelity(engine.manifest),
                }
            )
        watermarks, held_by = dict(engine.footing.watermarks), {}
        name_of = engine.intake.name_of
        participants: dict[str, dict[str, tuple[int, float]]] = {}
        for name, known in engine.outlook.progress().items():
            participants[name] = engine.outlook.participants(name, known)
            at, holder = known.watermark(), known.holder()
            if at is not None:
                watermarks[name] = at
            if holder is not None:
                held_by[name] = holder if isinstance(holder, str) else name_of(name, holder)
        return Live(
            rows_per_second=progress.rows_per_second,
            batch_seconds=progress.batch_seconds,
            watermark=progress.watermark,
            watermarks=watermarks,
            pending=engine.intake.waiting(),
            held_by=held_by,
            paused=progress.paused,
            history=list(self._history),
            silent=dict(engine.noticing.silent),
            participants=participants,
            memory=(engine.memory.used, engine.memory.budget),
            answers=answers,
            state={
                "read": progress.state_read,
                "warm": progress.state_warm,
                "written": progress.state_written,
                "kept": progress.warm_bytes,
            },
            overload={
                name: (str(one.policy), one.standing.pressure)
                for name, one in engine.trackers.items()
                if isinstance(one, Shedding)
            },
        )


def _least_fidelity(manifest: Manifest) -> dict[str, float]:
    """The lowest of the shares that the last windows stood on, where any tell."""
    shares = [left.fidelity for left in manifest.left.values()]
    return {"fidelity": min(shares)} if shares else {}

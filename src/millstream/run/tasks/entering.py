"""Records as they are read, in a task: accounted for, marked where late, known by who sent them.

This is where it is decided which records of a source are late, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from millstream.durations import micros
from millstream.graph import nodes
from millstream.io.kafka.consuming import Stretch
from millstream.io.readers import Split
from millstream.operators.batch import Batch, Control
from millstream.operators.protocol import Senders
from millstream.ops.chunks import Chunk
from millstream.ops.records import DeadLetter, dead_row
from millstream.ops.times.lateness import Place, Watch, participants_of
from millstream.ops.times.shares import DIVERTED, KEPT
from millstream.plan.stages import Plan
from millstream.run.tasks.reading import Piece
from millstream.run.tasks.splits import AnySplit, Aside, RateSplit, SpoolSplit


class Entrance:
    """The sources of one task: how far each was read, and what is being pushed now."""

    def __init__(self, plan: Plan, batch: Batch, control: Control) -> None:
        self._plan, self._batch, self._control = plan, batch, control
        self._watches: dict[str, Watch] = {}
        self._pushed: tuple[nodes.Source, AnySplit, Chunk] | None = None

    def take_in(self, source: nodes.Source, split: AnySplit, piece: Piece, way: str) -> Chunk:
        """What was read, accounted for and marked where it is late; `way`: where it goes."""
        counts = self._control.account(source.name)
        counts["offered"] += piece.offered
        counts[way] += len(piece.chunk)
        counts["dead"] += sum(one.records for one in piece.dead)
        number = self._plan.number(source)
        self._control.dead.extend(
            DeadLetter(source.name, number, d.position, d.raw, d.error) for d in piece.dead
        )
        watch = self.watch(source)
        chunk = self._of_participants(source, watch, replace(piece.chunk, src=number), way)
        due = watch.mark(chunk, *_place(split))
        watch.note_way(chunk.ts, DIVERTED if way == DIVERTED else KEPT)
        chunk = replace(chunk, due=due)
        self._pushed = (source, split, chunk)
        return chunk

    def _of_participants(self, source: nodes.Source, watch: Watch, chunk: Chunk, way: str) -> Chunk:
        """Records without those of participants that are too many, which are dead letters."""
        beyond = watch.one_too_many(chunk)
        if beyond is None:
            return chunk
        lost, why = beyond
        letters = (dead_row(source.name, chunk, row, why) for row in np.flatnonzero(lost).tolist())
        self._control.dead.extend(letters)
        counts = self._control.account(source.name)
        counts[way] -= int(lost.sum())
        counts["dead"] += int(lost.sum())
        return chunk.take(~lost)

    def watch(self, source: nodes.Source) -> Watch:
        """Who looks after the times of a source; one too far ahead of the clock does not count."""
        if source.name not in self._watches:
            self._watches[source.name] = Watch(
                self._batch.progress[source.name],
                source.spec.participant,
                self.future(source),
                self._batch.max_participants,
            )
        return self._watches[source.name]

    def future(self, source: nodes.Source) -> int:
        """Up to when times of a source are believed."""
        return self._batch.trusted + micros(source.spec.max_future_skew, "skew", zero=True)

    def senders(self, records: Chunk) -> Senders:
        """Whose some of the records are that are being read: those of one participant, or by it."""
        if self._pushed is None or records.src != self._pushed[2].src:
            origins = {self._plan.number(one): one.name for one in self._plan.origins()}
            return Counter({(origins.get(records.src, ""), ""): len(records)})
        source, split, chunk = self._pushed
        who: str | int = split.file if isinstance(split, Split | Stretch) else ""
        if source.spec.participant is None:
            return Counter({(source.name, who): len(records)})
        order = np.argsort(chunk.pos, kind="stable")
        rows = order[np.searchsorted(chunk.pos[order], records.pos)]
        names = participants_of(chunk.take(rows), source.spec.participant).to_pylist()
        return Counter((source.name, name) for name in names)

    def report(self) -> None:
        """Tell the driver how far sources were read."""
        for name, watch in self._watches.items():
            self._control.reached[name] = watch.reached
            self._control.extents[name] = list(watch.extents.values())
            if watch.ahead:
                self._control.account(name)["future"] += watch.ahead


def _place(split: AnySplit) -> tuple[Place, int | None, int | None]:
    """Where a piece stands among those of its source; of a file also which, and its time before."""
    match split:
        case Split() | Stretch():
            return (split.file, split.start), split.file, split.after
        case SpoolSplit():
            return (split.file, 0), None, None
        case RateSplit():
            return (0, split.start), None, None
        case Aside():
            return _place(split.piece)

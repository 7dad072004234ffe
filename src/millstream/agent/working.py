"""What an agent makes of its records: the first level of the flow, as one task after the other.

The plan is the collector's: the same families, panes, numbers and shards, so that rows fit where
those of its own tasks would. Only the source is another: what `Collector(reads=)` says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from millstream.agent.clocks import Clock
from millstream.agent.trees import in_trees, parted
from millstream.api.flow import Flow
from millstream.api.sources import Collector
from millstream.durations import micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.io.readers import Split
from millstream.operators.batch import Batch
from millstream.operators.protocol import Known, Shipping
from millstream.ops.chunks import concat, decode_block, encode_block
from millstream.ops.times.progress import BEGIN, END, Reached, SourceProgress
from millstream.plan.planner import make_plan
from millstream.plan.stages import Plan
from millstream.run.batches.attending import Attention
from millstream.run.messages.message import (
    COMPRESSION,
    Block,
    Head,
    Message,
    encode_records,
    placed_for,
)
from millstream.run.planning import formats_of
from millstream.run.program.describing import describe_program, panes_of
from millstream.run.program.differing import difference
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.resolving import resolve_format
from millstream.run.sources.standing import progress_of, state_after
from millstream.run.sources.trackers import make_tracker
from millstream.run.tasks.reading import Piece
from millstream.run.tasks.splits import AnySplit, Item, Readable
from millstream.run.tasks.task import Task
from millstream.settings import Settings
from millstream.state.manifests import Manifest, SourceState
from millstream.state.storage import Storage


def collector_of(flow: Flow) -> nodes.Source:
    """The source of a flow that agents feed."""
    found = [
        node
        for node in flow.nodes
        if isinstance(node, nodes.Source) and isinstance(node.spec, Collector)
    ]
    if len(found) != 1:
        raise ConfigError(
            f"flow {flow.name!r} has {len(found)} sources of agents; an agent needs one: "
            'flow.source(ms.Collector("host:port", reads=ms.Files(...), agents=[...]))'
        )
    return found[0]


def plan_here(flow: Flow, program: dict[str, Any]) -> Plan:
    """The plan of the collector with what is read here; a program that differs is refused."""
    source, known = collector_of(flow), panes_of(program)
    formats = formats_of(flow)
    described = describe_program(make_plan(flow.name, flow.nodes, formats, *known))
    found = difference(program, described)
    new = [name for name in described["operators"] if name not in program["operators"]]
    told = [*found.refused, *(f"operator {name!r} is not here" for name in found.removed)]
    told += [f"operator {name!r} is not there" for name in new]
    if told:
        raise ConfigError(
            f"the program differs from that of the collector: {'; '.join(told)}. Give both the "
            "same file"
        )
    formats[source.name] = resolve_format(source.name, source.spec.reads)
    made: dict[nodes.Node, nodes.Node] = {}
    for node in flow.nodes:
        changed = {"spec": source.spec.reads} if node is source else {}
        made[node] = nodes.over(node, made, **changed)
    return make_plan(flow.name, tuple(made.values()), formats, *known)


class _Task(Task):
    """A task whose records are known by agent, file and place."""

    def __init__(self, plan: Plan, batch: Batch, agent: int) -> None:
        super().__init__(plan, batch, 0, 0)
        self.agent = agent

    def _placed(self, split: AnySplit, positions: Any) -> Any:
        return placed_for(self.agent, positions, isinstance(split, Split))

    def pieces(self, source: nodes.Source, split: Readable) -> Iterator[Piece]:
        """What a split holds."""
        for piece in super().pieces(source, split):
            chunk = replace(piece.chunk, pos=self._placed(split, piece.chunk.pos))
            dead = [
                replace(one, position=int(self._placed(split, np.array([one.position]))[0]))
                for one in piece.dead
            ]
            yield Piece(chunk, dead, piece.offered)

    def outputs(self) -> Iterator[Item]:
        """Records for sinks travel: the collector hands them over."""
        return iter(())


class Working:
    """The source of an agent, and its first level."""

    def __init__(
        self,
        plan: Plan,
        source: str,
        place: Storage,
        state: SourceState,
        settings: Settings,
        shards: int,
        agent: int,
        clock: Clock,
        trees: int = 1,
        patience: int | None = None,
    ) -> None:
        self.patience = patience  # of the collector with an agent that reads nothing, in micros
        self.plan, self.source, self.settings = plan, source, settings
        self.clock, self._astray = clock, False  # its newest times are too far ahead
        self.shards, self.agent, self.trees = shards, agent, trees
        self.place, self.state = place, state
        self.node = next(node for node in plan.sources() if node.name == source)
        number = plan.sources().index(self.node)
        self.tracker = make_tracker(number, self.node, plan.formats[source], place, state)
        if isinstance(self.tracker, FilesTracker):  # it looks at first times by itself
            self.tracker.trusted = self._trusted
        self.attention = Attention()
        self.attention.since = self._read = int(time.time() * 1e6)
        self.told: tuple[int | None, bool] = (BEGIN, False)

    def step(self, rows: int, size: int) -> list[Message] | None:
        """What the records that are new here come to, per tree; None if there is nothing to say."""
        self.tracker.poll(lambda look, paths: look(paths))
        now = time.time()
        self.attention.sign(int(now * 1e6))
        splits = self.tracker.take(rows, size, 1) if self.tracker.pending() else []
        if not self.tracker.pending():
            self._read = int(now * 1e6)
        progress = self._progress(now)
        batch = self._batch(progress, now)
        task = _Task(self.plan, batch, self.agent)
        items = list(task.ingest(splits))
        report = task.control.reached.get(self.source, Reached())
        seen = progress.seen(report)
        reached, lateness = seen.watermark(), seen.lateness
        if reached is not None and BEGIN < reached < END and lateness is not None:
            reached += lateness  # how far the slowest is: the collector takes the lateness off
        if reached is None and not self._lets_go(now):
            reached = self.told[0]  # a pause: it stays where it is, and is waited for
        if self._is_astray(task, report):
            reached = None  # nobody waits for times that are wrong
        told = (reached, self.tracker.ended)
        if not splits and told == self.told:
            return None
        self.told = told
        self.state = state_after(self.state, self.tracker, seen, report, int(now * 1e6))
        return self._message(task, items, told, self.state)

    def _lets_go(self, now: float) -> bool:
        """Whether nobody waits for an agent that is there and has read nothing for so long."""
        if self.patience is None:
            return False
        last = max(int(self.state.heard * 1e6), self.attention.since)
        return int(now * 1e6) - last > self.patience

    def _progress(self, now: float) -> SourceProgress:
        since, spec = self.attention.since, self.node.spec
        return progress_of(spec, self.state, self.tracker, int(now * 1e6), since, self._read)

    def _is_astray(self, task: Task, report: Reached) -> bool:
        """Whether what was read last here has times that only a wrong clock can have given."""
        future = task.control.ledger.get(self.source, Counter())["future"]
        if not self.clock.wrong or report.top > BEGIN:
            self._astray = False
        if self.clock.wrong and future:
            self._astray = True
        return self._astray

    def _trusted(self) -> int:
        """By the collector's clock, what times of records are measured by."""
        future = micros(self.node.spec.max_future_skew, "max_future_skew", zero=True)
        return self.clock.trusted(future)

    def _batch(self, progress: Any, now: float) -> Batch:
        wall = int(now * 1e6)
        known = Known(Manifest(-1), self.settings, wall, {}, {})
        return Batch(
            number=0,
            now=wall,
            trusted=self._trusted(),
            parallelism=1,
            shards=self.shards,
            checkpoint=self.place.where(),
            progress={self.source: progress},
            watermarks={},
            told={},
            shares={},
            orders={one.name: one.order(known) for one in self.plan.operators.values()},
            segments={},
            files={},
            totals={},
            ships=True,
            trees=self.trees,
            max_key=self.settings.max_key,
            max_participants=self.settings.max_participants,
            times=self.settings.times,
            function_timeout=self.settings.function_micros,
        )

    def _message(
        self, task: Task, items: list[Any], told: tuple[int | None, bool], after: SourceState
    ) -> list[Message]:
        control = task.control
        parts: list[tuple[list[Block], list[bytes]]] = [([], []) for _ in range(self.trees)]
        for _, tag, name, payload in items:
            if tag == "rows":
                table, block = payload[1]
                for tree, made in enumerate(parted(decode_block(block), self.trees)):
                    if len(made) or self.trees == 1:
                        parts[tree][0].append(Block(name, table, len(made), shards=self.shards))
                        parts[tree][1].append(encode_block(made, COMPRESSION))
        blocks, data = parts[0]  # what has no key goes with the first tree
        for sink, chunks in task.sunk.items():
            for src in {chunk.src for chunk in chunks}:
                mine = [chunk for chunk in chunks if chunk.src == src]
                records = replace(
                    mine[0],
                    table=concat([chunk.table for chunk in mine]),
                    ts=np.concatenate([chunk.ts for chunk in mine]),
                    pos=np.concatenate([chunk.pos for chunk in mine]),
                )
                blocks.append(Block(sink, "", len(records), src))
                data.append(encode_records(records))
        shipped = [
            operator.shipped(control.reports[name])
            for name, operator in self.plan.operators.items()
            if isinstance(operator, Shipping) and name in control.reports
        ]
        rows, seconds = control.read.get(self.source, (0, 0.0))
        top = control.reached.get(self.source, Reached()).top
        head = Head(
            agent="",
            life=0,
            number=0,
            source=self.source,
            rows=rows,
            seconds=seconds,
            reached=told[0],
            top=None if top == BEGIN else top,
            ended=told[1],
            ahead=self.clock.ahead,
            ledger={step: dict(one) for step, one in control.ledger.items()},
            dead=[(d.operator, d.source, d.position, d.raw, d.error) for d in control.dead],
            late={step: count for one in shipped for step, count in one.late.items()},
            blocks=blocks,
            after={self.source: after},
        )
        panes = {step: counts for one in shipped for step, counts in one.panes.items()}
        return in_trees(head, parts, panes)

    def close(self) -> None:
        """Let go of the source."""
        self.tracker.close()

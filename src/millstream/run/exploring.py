"""Looking at streams without Spark and without a checkpoint: in this process, on some records.

The engine, the tasks and the state are those of every run. Only the sources are cut: each ends
after its first records, so that windows leave as they would at the end of the input. The state lies
in a directory that is removed afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.early import Snapshot
from millstream.api.flow import Flow
from millstream.api.samples import Sample
from millstream.api.sinks import Memory
from millstream.api.sources import Delta, Files, Frame, Generator, Kafka, Rate, SourceSpec
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.io.formats import READER
from millstream.io.records import Split
from millstream.ops.interrupts import interruptible
from millstream.plan.stages import Plan
from millstream.run.batches.engine import Engine
from millstream.run.batches.letters import letters_in
from millstream.run.console import logger, warnings_of
from millstream.run.early.looker import Looker
from millstream.run.early.target import target_for
from millstream.run.engines import engine_of
from millstream.run.fleeting import fleeting
from millstream.run.planning import plan_flow
from millstream.run.sources.files.listing import list_seen
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.partitions import PartitionsTracker
from millstream.run.sources.received.spool import Receiver
from millstream.run.sources.received.tracker import SpoolTracker, make_receiver
from millstream.run.sources.trackers import files_of, make_tracker
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import SourceState

_PATIENCE = 1.0  # seconds that a generator has to give its first records
_STEM = "sample"  # of what is remembered of files
_UNPACKED = 64 * 1024 * 1024  # bytes of a compressed file that are looked at, at least
_LONG_ROW = 1024  # bytes
_SMALL = 32 * 1024 * 1024  # bytes of input that are collected here sooner than Spark starts


def sample(flow: Flow, steps: Iterable[str], rows: int, records: int) -> dict[str, Sample]:
    """The first rows of some steps, made of the first records of every source they depend on."""
    part, sinks = _part(flow, steps, lambda node: _shortened(node.name, node.spec, records))
    made: dict[str, Tracker] = {}

    def trackers(number: int, node: nodes.Source, *rest: Any) -> Tracker:
        made[node.name] = _first_records(records, number, node, *rest)
        return made[node.name]

    settings = Settings(parallelism=1, dead_letter_limit=1.0, function_timeout=None)
    with fleeting(settings) as path:
        engine = run_here(plan_flow(part), path, settings, trackers)
        ledger = engine.manifest.ledger
        read = {name: ledger.get(name, {}).get("offered", 0) for name in made}
        whole = not any(_was_cut(one, read[name], records) for name, one in made.items())
        first = next(letters_in(engine.checkpoint.dead), {"operator": "", "error": ""})
        example = f"{first['operator']}: {first['error']}"
        late = {name: row["late"] for name, row in ledger.items() if row.get("late")}
        tables = {
            step: _in_columns(memory.table(), engine.plan, step) for step, memory in sinks.items()
        }
    return {
        step: Sample(
            step,
            table.slice(0, min(rows, len(table))),  # one without columns has what is asked of it
            len(table),
            read,
            whole,
            engine.manifest.dead,
            example,
            late,
        )
        for step, table in tables.items()
    }


def collect(flow: Flow, step: str, options: dict[str, Any]) -> pa.Table:
    """All rows of a step over the whole of a bounded input."""
    from millstream.run.runner import start  # and with it pyspark, which takes a second

    settings = Settings.from_options(options)
    part, sinks = _part(flow, [step], lambda node: _bounded(step, node))
    with fleeting(settings) as path:
        plan = plan_flow(part)
        if not options and all(map(_is_small, plan.sources())):
            engine = run_here(plan, path, settings)
            steps, dead = [node.name for node in plan.nodes], engine.checkpoint.dead
            warnings = tuple(warnings_of(engine.manifest, steps, dead, kept=False))
        else:
            handle = start(part, path, settings)
            handle.wait()
            warnings = handle.warnings
    for warning in () if settings.quiet else warnings:
        logger.warning("%s: %s", step, warning)
    return _in_columns(sinks[step].table(), plan, step)


def run_here(
    plan: Plan, path: Path, settings: Settings, trackers: Callable[..., Tracker] | None = None
) -> Engine:
    """Run a plan on bounded input to its end in this process; gives its engine, closed."""
    looking, place = target_for(plan, None), Checkpoint(path)
    place.lock()
    engine, looker = engine_of(plan, place, settings, looking, trackers)
    with interruptible():
        for _ in steps_here(engine, looker):
            pass
    return engine


def steps_here(engine: Engine, looker: Looker | None) -> Iterator[Snapshot]:
    """Run to the end, or until who looks has seen enough; gives what was seen on the way."""
    parallelism = engine.settings.parallelism or 1
    try:
        engine.open(parallelism)
        executor = InProcess(engine.plan, parallelism)
        enough = looker is not None and looker.at_start()
        while True:
            while looker is not None and not looker.found.empty():
                if (found := looker.found.get()) is not None:
                    yield found
            if enough:
                engine.bring_out(executor)
                return
            worked = engine.step(executor)
            enough = engine.done if looker is None else looker.after_step()
            if not worked and not enough:
                time.sleep(engine.settings.poll)
    finally:
        engine.close()


def _in_columns(table: pa.Table, plan: Plan, step: str) -> pa.Table:
    """A table without a row has the columns that are known all the same."""
    if table.column_names:
        return table
    known, types = plan.columns.get(step) or (), plan.types.get(step, {})
    return pa.schema([(name, types.get(name, pa.null())) for name in known]).empty_table()


# -- the part of a flow that a step depends on -----------------------------------------------------


def _part(
    flow: Flow, steps: Iterable[str], source: Callable[[nodes.Source], SourceSpec]
) -> tuple[Flow, dict[str, Memory]]:
    """What some steps depend on, as a flow of its own, with a sink in memory for each of them."""
    by_name = {node.name: node for node in flow.nodes}
    looked = [by_name[step] for step in steps]
    needed = _needed(flow.nodes, looked)
    copies: dict[nodes.Node, nodes.Node] = {}
    for node in needed:
        spec = {"spec": source(node)} if isinstance(node, nodes.Source) else {}
        copies[node] = nodes.over(node, copies, **spec)
    sinks = {node.name: Memory() for node in looked}
    ends = [
        nodes.Sink(name=f"rows of {node.name}", inputs=(copies[node],), spec=sinks[node.name])
        for node in looked
    ]
    return Flow.of_nodes(flow.name, [*copies.values(), *ends]), sinks


def _needed(all_of_them: Iterable[nodes.Node], looked: list[nodes.Node]) -> list[nodes.Node]:
    """Steps whose records can reach others; who publishes to a stream is found by the planner."""
    steps = [node for node in all_of_them if not isinstance(node, nodes.Sink)]
    found: set[nodes.Node] = set()
    waiting = list(looked)
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Published):
            return steps
        if node not in found:
            found.add(node)
            waiting += [*node.inputs, *([node.of] if isinstance(node, nodes.Late) else [])]
    return [node for node in steps if node in found]


# -- sources that end after their first records ----------------------------------------------------


def _shortened(name: str, spec: SourceSpec, records: int) -> SourceSpec:
    """A source that ends, with the same idea of what is late."""
    lateness = "0s" if spec.lateness is None and not spec.bounded else spec.lateness
    match spec:
        case Files() | Delta() | Kafka():
            return replace(spec, follow=False, lateness=lateness)
        case Frame(streams=False):
            return replace(spec, df=spec.df.limit(records))
        case Rate():
            return replace(spec, limit=min(records, spec.limit or records), lateness=lateness)
        case Generator():
            return replace(spec, fn=lambda: islice(spec.fn(), records), lateness=lateness)
    raise ConfigError(
        f"source {name!r} is ms.{type(spec).__name__}, and what it receives is only known while "
        "the flow runs: there is nothing to look at before. Try the flow on a file with ms.Files, "
        "or push records by hand with millstream.testing.Driver"
    )


def _first_records(records: int, number: int, node: nodes.Source, *rest: Any) -> Tracker:
    spec = node.spec
    fmt, checkpoint, state = rest
    if isinstance(spec, Files | Delta):
        return _FirstOfFiles(records, number, spec, fmt, checkpoint, state)
    if isinstance(spec, Kafka):
        return PartitionsTracker(number, spec, state, records)
    if isinstance(spec, Rate):  # as if it had begun long enough ago
        state.extra["origin"] = int((time.time() - records / spec.rows_per_second) * 1e6)
    if isinstance(spec, Rate | Frame):
        return make_tracker(number, node, fmt, checkpoint, state)
    receiver = make_receiver(node.name, spec, checkpoint.within("spool"))
    return _FirstOfGenerator(number, receiver, state)


def _was_cut(tracker: Tracker, read: int, records: int) -> bool:
    if isinstance(tracker, _FirstOfFiles | _FirstOfGenerator):
        return tracker.cut(read, records)
    return read >= records


class _FirstOfFiles(FilesTracker):
    """Files of which only the first records are read."""

    def __init__(
        self, records: int, number: int, spec: Files | Delta, fmt: Any, checkpoint: Any, state: Any
    ) -> None:
        files, listing = files_of(spec, checkpoint, _STEM)
        super().__init__(number, files, fmt, checkpoint.within("sources"), _STEM, state, listing)
        self._lengths.most = max(_UNPACKED, records * _LONG_ROW)
        self._left: float = records
        self._over = False

    def cut(self, read: int, records: int) -> bool:
        """Whether there is more than was read."""
        full = self.fmt.cut == READER and read >= records
        return full or super().pending() > 0 or self._lengths.cut

    def pending(self) -> int:
        return 0 if self._over else super().pending()

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        if self._over:
            return []
        most = max(1, int(self._left))
        splits = [_looked_at(one, most) for one in super().take(most, size, parts)]
        self._left -= sum(map(self.weigh, splits))
        self._over = self._left < 1 or super().pending() == 0
        self.ended = self._over
        return splits

    def poll(self, *probe: Any) -> None:
        super().poll(*probe)
        self.ended |= self._over


def _looked_at(split: AnySplit, most: int) -> AnySplit:
    """A piece of a file; where that is all of it, at most so many records."""
    if isinstance(split, Split) and split.end < 0:
        return replace(split, most=most)
    return split


class _FirstOfGenerator(SpoolTracker):
    """A generator that is not waited for any longer than it takes to look."""

    def __init__(self, number: int, receiver: Receiver, state: SourceState) -> None:
        super().__init__(number, receiver, state)
        self._until = time.monotonic() + _PATIENCE
        self._given_up = False

    def poll(self, probe: object = None) -> None:
        super().poll(probe)
        if not self._finished and time.monotonic() > self._until:
            self._given_up = True
            self.ask_to_stop(0.0)
        if self._given_up:
            self.ended = not self.waiting

    def cut(self, read: int, records: int) -> bool:
        """Whether it had more to give than was read."""
        return read >= records or self._given_up


# -- all records -----------------------------------------------------------------------------------


def _bounded(step: str, node: nodes.Source) -> SourceSpec:
    spec: SourceSpec = node.spec
    if spec.bounded or (isinstance(spec, Generator | Rate) and not spec.endless):
        return spec
    raise ConfigError(
        f"collect(): source {node.name!r} of {step!r} never ends; look at its first rows with "
        "head(), or send the stream to a sink and run the flow"
    )


def _is_small(node: nodes.Source) -> bool:
    spec = node.spec
    return isinstance(spec, Files) and sum(seen.size for seen in list_seen(spec)) <= _SMALL

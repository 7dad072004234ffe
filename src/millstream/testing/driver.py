"""Driving a flow by hand: push records, move the clock, look at results and state.

The engine, the tasks, the state and the commits are the real ones; only Spark is left out, and the
sources are replaced by what the test pushes. A driver can be restarted from its checkpoint at any
point, as after a crash.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa

from millstream.api.flow import Flow
from millstream.api.frames import plainly
from millstream.api.sinks import Memory
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes as graph
from millstream.io.formats import Format, parse_schema
from millstream.ops.codec import as_key
from millstream.ops.records import to_table
from millstream.ops.sql.types import is_numeric
from millstream.ops.times.progress import BEGIN, Horizon
from millstream.plan.planner import make_plan
from millstream.run.batches.engine import Engine
from millstream.run.batches.letters import letters_in
from millstream.run.exploring import run_here
from millstream.run.planning import plan_flow
from millstream.run.program.program import known_panes
from millstream.run.replacing import Replacement, replace_program
from millstream.run.resharding import reshard
from millstream.run.sources.shedding import Shedding, shedding
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit, SpoolSplit
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import SourceState
from millstream.state.segments import read_segments
from millstream.state.storage import Storage
from millstream.state.tables import KeyedTable
from millstream.state.unflushed import both

_RECORD_BYTES = 64  # what a record counts as


class Pushed(Tracker):
    """A source that has what was pushed; it stands in for the real one."""

    def __init__(
        self,
        number: int,
        spool: Storage,
        state: SourceState,
        clock: Callable[[], float],
        by_arrival: bool = False,
        sheds: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        self.number, self.spool, self.clock = number, spool, clock
        self.schema = schema if schema is not None else pa.schema([])
        self.by_arrival, self.sheds = by_arrival, sheds
        self._over = state.ended
        self.next: int = state.extra.get("next", 0)
        self.passed: int = state.extra.get("passed", 0)  # before which all has been taken
        self.waiting: list[list[Any]] = []

    @property
    def ended(self) -> bool:
        """Whether it is over, and all that was pushed has been taken: a policy may hold it back."""
        return self._over and not self.waiting

    @ended.setter
    def ended(self, over: bool) -> None:
        self._over = over

    def poll(self, probe: object = None) -> None:
        """Nothing happens by itself."""

    def pending(self) -> int:
        """How much waits, in the runner's measure."""
        return sum(map(len, self.waiting)) * _RECORD_BYTES

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """All that was pushed, one piece per push; what may be too much only as far as it fits."""
        several = len(self.waiting)
        if self.sheds:
            several = max(1, self._first(rows))
        return self._cut(several)

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """The first that was pushed, as far as it is not more than that."""
        return self._cut(self._first(size // _RECORD_BYTES))

    def _first(self, rows: int) -> int:
        ends = list(accumulate(map(len, self.waiting)))
        return bisect_right(ends, rows)

    def _cut(self, several: int) -> list[AnySplit]:
        splits: list[AnySplit] = []
        for records in self.waiting[:several]:
            arrival = max(int(self.clock() * 1e6), self.passed)  # a test's clock may stand still
            name = f"{self.next:06d}.arrow"
            self.spool.put(name, _as_file(records, self.schema))
            where, number = self.spool.where(), len(records)
            splits.append(SpoolSplit(self.number, self.next, where, name, arrival, number))
            self.next += 1
        self.waiting = self.waiting[several:]
        return splits

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """By arrival, all that was pushed has been taken."""
        self.passed = max(now, self.passed)
        return Horizon(clock=self.passed if self.by_arrival else None)

    def save(self, state: SourceState) -> None:
        """Keep the number of the next piece, and when it comes at the earliest."""
        state.extra = {"next": self.next, "passed": self.passed}


def _as_file(records: list[Any], schema: pa.Schema) -> pa.Buffer:
    table, bad = to_table(records, None)
    if bad:
        raise ConfigError(f"pushed records do not fit one table: {next(iter(bad.values()))}")
    table = _declared(table, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _declared(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Numbers in the types that the source declares, as it would give them, if they fit."""
    for at, name in enumerate(table.column_names):
        if name not in schema.names or not is_numeric(schema.field(name).type):
            continue
        column = table.column(name)
        if is_numeric(column.type) or pa.types.is_null(column.type):
            with suppress(pa.ArrowInvalid):  # what does not fit stays as it was pushed
                table = table.set_column(at, name, column.cast(schema.field(name).type))
    return table


@plainly
class Driver:
    """A flow in the hands of a test.

    with Driver(flow) as driver:
        driver.push("trades", [{"ts": ..., "symbol": "A", "price": 1.0}])
        driver.step()
        driver.end()
        assert driver.output("memory") == [...]
    """

    def __init__(
        self,
        flow: Flow,
        *,
        parallelism: int = 1,
        now: float | None = None,
        checkpoint: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.now = time.time() if now is None else now
        self._own = None if checkpoint is not None else tempfile.mkdtemp(prefix="millstream-")
        self._path = Path(checkpoint or self._own or ".")
        self._settings = Settings.from_options({"parallelism": parallelism, **options})
        self._sinks = {n.name: Memory() for n in flow.nodes if isinstance(n, graph.Sink)}
        nodes = self._with_memory(flow)
        formats = {
            node.name: _pushed_format(node.spec) for node in nodes if isinstance(node, graph.Source)
        }
        self._plan = make_plan(flow.name, nodes, formats, *known_panes(self._path))
        for node in self._plan.windowed():
            if node.emission.mode == "snapshot":
                raise ConfigError(
                    f"{node.name}: records that are pushed have no blocks to be drawn at random; "
                    'look at emit="snapshot" over files, with run_in_process(flow, checkpoint)'
                )
        self._open()

    def _with_memory(self, flow: Flow) -> tuple[graph.Node, ...]:
        """The nodes of a flow, with sinks that a test can look into."""
        return tuple(
            replace(node, spec=self._sinks[node.name]) if isinstance(node, graph.Sink) else node
            for node in flow.nodes
        )

    def _open(self) -> None:
        checkpoint = Checkpoint(self._path)
        checkpoint.lock()
        pushed = checkpoint.store.within("pushed")
        self.engine = Engine(
            self._plan,
            checkpoint,
            self._settings,
            clock=lambda: self.now,
            trackers=lambda number, node, fmt, path, state: shedding(
                Pushed(
                    number,
                    pushed.within(node.name.replace(" ", "_")),
                    state,
                    lambda: self.now,
                    node.spec.time is None,
                    node.spec.overload.sheds,
                    fmt.schema,
                ),
                node.name,
                node.spec.overload,
                state,
                lambda: self.now,
            ),
        )
        self._executor = InProcess(self._plan, self._settings.parallelism or 1)
        try:
            self.engine.open(self._executor.cores)
        except BaseException:
            checkpoint.close()
            raise

    # -- input ----------------------------------------------------------------------------------

    def push(self, source: str, records: Iterable[dict[str, Any]]) -> Driver:
        """Give records to a source; the next `step` takes them in as one piece."""
        records = list(records)
        if records:
            self._tracker(source).waiting.append(records)
        return self

    def end(self, source: str | None = None) -> Driver:
        """Say that a source (or all of them) is over, and run until everything has left."""
        for name in [source] if source else list(self.engine.trackers):
            self._tracker(name).ended = True
        while self.step():
            pass
        return self

    def advance(self, by: Duration) -> Driver:
        """Move the wall clock."""
        self.now += micros(by, "advance(by)") / 1e6
        return self

    def step(self) -> bool:
        """One batch with all that was pushed; False if there was nothing to do."""
        return self.engine.step(self._executor)

    def restart(self) -> Driver:
        """Start again from the checkpoint, as after a crash: what was not committed is gone.

        Also what was pushed and not taken yet, as under a policy that throttles: files or Kafka
        would still have it, here it has to be pushed again.
        """
        self.engine.close()
        self._open()
        return self

    def reshard(self, shards: int) -> Driver:
        """Stop, change the number of shards as `millstream reshard` does, and start again."""
        self.engine.bring_out(self._executor)
        self.engine.close()
        reshard(self._path, shards, self._plan)
        self._settings = replace(self._settings, shards=None)
        self._open()
        return self

    def replace(self, flow: Flow, *, dry_run: bool = False) -> Replacement:
        """Put another flow in the place of this one, as `handle.replace` does.

        Sinks of the same name go on; what a removed one got can still be looked at.
        """
        for node in flow.nodes:
            if isinstance(node, graph.Sink):
                self._sinks.setdefault(node.name, Memory())
        parallelism = self._settings.parallelism or 1
        ready: list[InProcess] = []
        found = replace_program(
            self.engine,
            flow.name,
            self._with_memory(flow),
            lambda plan: ready.append(InProcess(plan, parallelism)),
            dry_run=dry_run,
        )
        if not dry_run:
            self._executor, self._plan = ready[0], self.engine.plan
        return found

    def _tracker(self, source: str) -> Pushed:
        tracker = self.engine.trackers.get(source)
        tracker = tracker.inner if isinstance(tracker, Shedding) else tracker
        if not isinstance(tracker, Pushed):
            known = ", ".join(self.engine.trackers)
            raise ConfigError(f"there is no source {source!r}; this flow has: {known}")
        return tracker

    # -- what there is to see ---------------------------------------------------------------------

    def output(self, sink: str | None = None) -> list[dict[str, Any]]:
        """All rows a sink got so far (of the only sink, if there is one)."""
        if sink is None and len(self._sinks) == 1:
            (sink,) = self._sinks
        if sink not in self._sinks:
            raise ConfigError(f"there is no sink {sink!r}; this flow has: {list(self._sinks)}")
        return self._sinks[sink].rows

    def state(self, operator: str) -> list[dict[str, Any]]:
        """The stored partial rows of a keyed operator (and of those that share its panes)."""
        manifest = self.engine.manifest
        updater = any(node.name == operator for node in self._plan.updaters())
        owner = operator if updater else self._plan.family_of(operator).name
        rows: list[dict[str, Any]] = []
        for shards in manifest.segments.get(owner, {}).values():
            segments = [one for found in shards.values() for one in found]
            for table in read_segments(self.engine.checkpoint.state, segments, manifest.files):
                rows.extend(table.to_pylist())
        return rows

    def slates(self, updater: str) -> dict[Any, Any]:
        """The slates of an updater that are there now, by key."""
        node = self._plan.node(updater)
        if not isinstance(node, graph.Update):
            raise ConfigError(f"{updater!r} is not an updater")
        manifest = self.engine.manifest
        stored = both(manifest.segments.get(updater, {}), "slates")
        now = manifest.closed.get(updater, BEGIN)
        if node.job.clock == "wall":
            now = int(self.now * 1e6)
        found: dict[Any, Any] = {}
        for table in KeyedTable(self.engine.checkpoint.state, stored, manifest.files).scan():
            for row in table.to_pylist():
                if row["expires"] > now:
                    key = row["key"] if row["plain"] else msgspec.json.decode(row["key"])
                    found[as_key(key)] = node.job.codec.decode(row["slate"])
        return found

    @property
    def ledger(self) -> dict[str, dict[str, int]]:
        """Where every record went, per step."""
        return self.engine.manifest.ledger

    @property
    def dead(self) -> list[dict[str, Any]]:
        """All dead letters so far."""
        return list(letters_in(self.engine.checkpoint.dead))

    @property
    def watermarks(self) -> dict[str, int]:
        """The watermark of every keyed operator, in microseconds."""
        return self.engine.footing.watermarks

    def close(self) -> None:
        """Let go of the checkpoint, and remove it if it was made here."""
        self.engine.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _pushed_format(spec: Any) -> Format:
    declared = getattr(spec, "schema", None)
    schema = parse_schema(declared) if declared is not None else pa.schema([])
    return Format("json", schema, spec.time, spec.time_unit, spec.zone)


@plainly
def run_in_process(
    flow: Flow, checkpoint: str | Path, *, parallelism: int = 1, **options: Any
) -> dict[str, dict[str, int]]:
    """Run a flow on bounded input to its end without Spark; gives the ledger."""
    settings = Settings.from_options({"parallelism": parallelism, **options})
    plan = plan_flow(flow, Path(checkpoint))
    return run_here(plan, Path(checkpoint), settings).manifest.ledger

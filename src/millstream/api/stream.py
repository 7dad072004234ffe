"""Streams: the fluent surface over the graph. Every method adds a node and runs nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.api import aggregates
from millstream.api.closing import ClosingPolicy, closes_early
from millstream.api.columns import Columns, join_bounds, join_keys
from millstream.api.computed import with_expressions
from millstream.api.early import ESTIMATE, MARKS, Looks, snapshot
from millstream.api.elsewhere import STREAMS, as_aggregate, called_here, one_of, unnamed
from millstream.api.frames import plainly
from millstream.api.job import check_close
from millstream.api.job import job as as_job
from millstream.api.mapreduce import MapReduce
from millstream.api.programs import Program, job_name
from millstream.api.samples import Sample
from millstream.api.sinks import Redis, SinkSpec
from millstream.api.windows import WHOLE, WindowSpec
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.graph.changing import gives_changes, tells_fidelity
from millstream.io.formats import UNITS, check_zone, parse_schema
from millstream.io.timeformats import time_format
from millstream.operators.comparing import Compare
from millstream.operators.dedup import Dedup
from millstream.operators.distinct import Distinct
from millstream.operators.grouped.node import Grouped
from millstream.operators.joins.step import HOW, Join
from millstream.operators.last import Last
from millstream.operators.operations import Operations
from millstream.operators.tagger import Changes
from millstream.operators.top import Top, parse_order
from millstream.operators.view import Kept
from millstream.ops.expressions import Expression, parse_condition, parse_projection
from millstream.ops.fidelity import COLUMNS as FIDELITY
from millstream.ops.firing import FINAL, Emission
from millstream.ops.updates import DICTS, UpdateJob

if TYPE_CHECKING:
    from millstream.api.flow import Flow


class _NoKey(ConfigError, AttributeError):
    """What only a keyed stream has."""


@plainly
class Stream:
    """Records on their way. Use a stream any number of times: each use is a fork."""

    def __init__(self, flow: Flow, node: nodes.Node) -> None:
        self.flow = flow
        self.node = node

    def __repr__(self) -> str:
        return f"Stream {self.flow.told(self.node)}"

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getattr__(self, name: str) -> Any:
            if name in ("window", "update", "agg", "reduce"):
                raise _NoKey(
                    f"{name}(): {self.node.name!r} has no key yet; write key_by(...).{name}(...), "
                    "and key_by() for one group of everything"
                )
            raise called_here("stream", name, STREAMS, Stream) or AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )

    @property
    def name(self) -> str:
        """The name of the step this stream comes from."""
        return self.node.name

    def named(self, name: str) -> Stream:
        """The same stream under a name of your own, for plans, ledger and state."""
        return Stream(self.flow, self.flow.rename(self.node, name))

    # -- stateless ------------------------------------------------------------------------------

    def select(self, *exprs: str) -> Stream:
        """Columns by SQL expressions: `select("symbol", "price * qty AS notional")`."""
        if not exprs:
            raise ConfigError("select(): give at least one column or expression")
        try:
            items = tuple(
                item for text in exprs for item in parse_projection(_text("select", text))
            )
        except ConfigError as error:
            raise as_aggregate("select", error) from None
        return self._add(nodes.Select, "select", items=items)

    def where(self, expr: str) -> Stream:
        """The records for which a SQL condition is true."""
        return self._add(nodes.Where, "where", condition=parse_condition(_text("where", expr)))

    def map(self, fn: Callable[[dict[str, Any]], Any], *, schema: Any = None) -> Stream:
        """A function per record: dict -> dict, an iterable of dicts, or None.

        Types of columns are inferred from what it gives; `schema` fixes them.
        """
        return self._add(nodes.Map, "map", fn=_function("map", fn), schema=_schema(schema))

    def flat_map(
        self, fn: Callable[[dict[str, Any]], Iterable[dict[str, Any]] | None], *, schema: Any = None
    ) -> Stream:
        """A function per record that gives any number of records."""
        return self._add(
            nodes.Map, "flat_map", fn=_function("flat_map", fn), schema=_schema(schema)
        )

    def process(
        self,
        fn: Callable[..., Any],
        *,
        behind: Duration | None = None,
        publishes: Iterable[str] | None = None,
        schema: Any = None,
    ) -> Stream:
        """A function per event, `fn(event, ctx)`: it sees stream, time, key and value.

        What it returns (a dict, several, None) has the time of the event. `ctx.emit(record, ts=)`
        gives a record another time, `ctx.publish(stream, key, value, ts=)` sends an event to a
        stream declared with `flow.stream`, later than this one.
        behind: how far before its event a record may lie; the watermark is held back by it.
        publishes: the streams it publishes to, where that cannot be seen in its code.
        """
        return KeyedStream(self, (), "keep").process(
            fn, behind=behind, publishes=publishes, schema=schema
        )

    def map_batches(self, fn: Callable[[pa.Table], pa.Table]) -> Stream:
        """A function per Arrow table, of as many rows as it gets."""
        return self._add(nodes.MapBatches, "map_batches", fn=_function("map_batches", fn))

    def with_column(self, name: str, expr: str) -> Stream:
        """All columns and one more by a SQL expression; one of that name is replaced."""
        if not isinstance(name, str) or not name or "`" in name:
            raise ConfigError(f"with_column(): expected the name of a column, got {name!r}")
        parse_expression("with_column", expr)
        items = (*parse_projection("*"), *parse_projection(f"({expr}) AS `{name}`"))
        return self._add(nodes.Select, "with_column", items=items)

    def at(
        self,
        when: str | Callable[[dict[str, Any]], Any],
        *,
        behind: Duration = "0s",
        unit: str = "s",
        zone: str | None = None,
        format: str | None = None,
    ) -> Stream:
        """The same records at another event time: of a SQL expression, or of a function per record.

        when: gives a time with an offset, or a number that counts `unit` since the epoch, or a
            text (ISO-8601, or written as `format`); times without an offset are in `zone`. A record
            without one is a dead letter.
        behind: how far before its old time (of the source, or of arrival) the new one may lie. The
            watermark is held back by it, and a record further back is late. Where the source has no
            `lateness`, all is read before anything leaves, and nothing is late.
        """
        if not isinstance(when, str):
            _check_call("at()", _function("at", when), "record")
        if unit not in UNITS:
            raise ConfigError(f"at(unit={unit!r}): use one of {', '.join(UNITS)}")
        try:
            check_zone(zone)
            if format is not None:
                time_format(format)
        except ConfigError as error:
            raise ConfigError(f"at(): {error}") from None
        return self._add(
            nodes.At,
            "at",
            expr=parse_expression("at", when) if isinstance(when, str) else None,
            fn=None if isinstance(when, str) else when,
            behind=micros(behind, "at(behind=)", zero=True),
            unit=UNITS[unit],
            zone=zone,
            format=format,
        )

    def union(self, *others: Stream) -> Stream:
        """This stream and others as one."""
        for other in others:
            self._check_stream("union", other)
        inputs = (self.node, *(other.node for other in others))
        node = self.flow.add(nodes.Union, "union", inputs=inputs)
        return Stream(self.flow, node)

    # -- keyed ----------------------------------------------------------------------------------

    def distinct(self, *columns: str) -> Stream:
        """Every row once: of these columns, or of all.

        A row leaves when the watermark has passed the first record that has it. Over changes it is
        there as long as at least one record has it, and is taken back after the last.
        """
        _check_columns("distinct", columns)
        return self._add(Distinct, "distinct", keys=columns)

    def dedup(self, *columns: str, within: Duration | None = None) -> Stream:
        """Records without those that repeat one given shortly before, in these columns or in all.

        within: a record is left out if an equal one was given at most so long before it, in event
            time; then nothing older is remembered. Left out: if one was ever given.
        A record leaves when the watermark has passed it; late ones are set aside (`late()`).
        """
        _check_columns("dedup", columns)
        span = None if within is None else micros(within, "dedup(within=)")
        return self._add(Dedup, "dedup", keys=columns, within=span)

    def last(self, size: Duration) -> Stream:
        """The rows of the last so long, as changes: a row leaves with `-` when it is that old.

        The time is the one that all sources have passed by their lateness, and after the end of the
        input that of the latest record. A row that comes too late for it is set aside (`late()`).
        """
        return self._add(Last, "last", keys=(), size=micros(size, "last(size)"))

    def changes(
        self,
        key: str | Iterable[str],
        *,
        op: str | None = None,
        ops: Mapping[str, str] | None = None,
    ) -> Stream:
        """Records of objects as changes: each is the row of its object until a later one comes.

        Steps behind may keep either side of a change: what begins to qualify is `+`, what changes
        `u`, what no longer qualifies `-`.
        key: the column, or columns, that name an object. A record without one is a dead letter.
        op: of a change log, the column that says what happened: +, u and -, insert, update and
            delete, or the letters of Debezium. Rows do not have it any more.
        ops: what other values of it mean: {"gone": "-", "new": "+"}.
        """
        columns = (key,) if isinstance(key, str) else tuple(key)
        if not columns or any(not isinstance(one, str) or not one for one in columns):
            raise ConfigError(f"changes(key={key!r}): expected a column, or several")
        if len(set(columns)) != len(columns):
            raise ConfigError(f"changes(): a column is named twice in {columns}")
        return self._add(Changes, "changes", keys=columns, op=_operations(columns, op, ops))

    def join(
        self,
        other: Stream,
        *,
        on: Columns,
        how: str = "inner",
        suffix: str = "_right",
        within: Duration | None = None,
        between: Iterable[str] | None = None,
    ) -> Stream:
        """Rows of this stream and of another one that have the same key; null equals nothing.

        on: a column of both, several, or pairs of a column here and one there; none: every pair.
        how: "inner"; "left", "right" or "full" also give rows that match nothing, with null in the
            columns of the other side, until a match comes; "semi" gives the rows of this stream
            that match something, "anti" those that match nothing; "asof" gives every record of this
            stream with the latest of the other one that is not after it.
        suffix: is put behind the name of a column of the other stream that this one has, too. Keys
            of one name are one column.
        within: only records whose times differ by no more; what is past that is forgotten, and a
            record that matches nothing leaves when it can match nothing any more. With "asof": how
            old the other record may be.
        between: the same with two bounds: how far the other record lies after this one, like
            ("-5m", "10m").
        The time of a joined row is the later one of its two rows.
        """
        self._check_stream("join", other)
        keys = join_keys(on)
        if how not in HOW:
            known = '"full"' if how in ("outer", "full_outer", "fullouter") else ", ".join(HOW)
            raise ConfigError(f"join(how={how!r}): use {known}")
        if not isinstance(suffix, str):
            raise ConfigError(f"join(suffix={suffix!r}): expected a text")
        bounds = join_bounds(how, within, between)
        node = self.flow.add(
            Join,
            "join",
            (self.node, other.node),
            keys=tuple(left for left, _ in keys),
            right_keys=tuple(right for _, right in keys),
            how=how,
            suffix=suffix,
            between=bounds,
        )
        return Stream(self.flow, node)

    def intersect(self, other: Stream, *, all: bool = False) -> Stream:
        """The rows that both streams have, compared whole, null with null.

        all: each as often as both have it, not once.
        """
        return self._compare("intersect", other, all)

    def difference(self, other: Stream, *, all: bool = False) -> Stream:
        """The rows of this stream that another does not have, compared whole, null with null.

        A row is taken back when the other stream gets it.
        all: each as often as this stream has it more, not once.
        """
        return self._compare("difference", other, all)

    def _compare(self, how: str, other: Stream, all: bool) -> Stream:
        self._check_stream(how, other)
        if not isinstance(all, bool):
            raise ConfigError(f"{how}(all={all!r}): use True or False")
        node = self.flow.add(Compare, how, (self.node, other.node), how=how, all=all)
        return Stream(self.flow, node)

    def key_by(
        self,
        *columns: str,
        nulls: str = "dead",
        partition: Callable[[Any], int] | None = None,
    ) -> KeyedStream:
        """Group by one or more columns, or SQL expressions, which become columns of the same name.

        A null key is a dead letter, or with `nulls="keep"` a key.

        Without columns everything is one group.
        partition: `partition(key)` gives a number that says which shard a key belongs to (modulo
            the number of shards), instead of its hash; for a MapReduce job it gets the keys that
            `map` gives. It must give the same for a key for as long as the checkpoint lives.
        """
        for column in columns:
            if not isinstance(column, str) or not column:
                raise ConfigError(f"key_by(): expected names of columns, got {column!r}")
        stream, names = with_expressions(self, columns)
        if len(set(names)) != len(names):
            raise ConfigError(f"key_by(): a column is named twice in {columns}")
        if nulls not in ("dead", "keep"):
            raise ConfigError(f'key_by(nulls={nulls!r}): use "dead" or "keep"')
        if partition is not None:
            _check_call("key_by(partition=)", _function("key_by(partition=)", partition), "key")
        return KeyedStream(stream, tuple(names), nulls, partition)

    def map_reduce(
        self, job: Any, window: WindowSpec | None = None, *, sorted: bool = False
    ) -> Stream:
        """A MapReduce job; without a window over the whole (bounded) input.

        job: a subclass of `ms.MapReduce`, or any program that `ms.job` takes.
        """
        return KeyedStream(self, (), "keep").map_reduce(job, window, sorted=sorted)

    # -- looking --------------------------------------------------------------------------------

    def head(self, n: int = 5, *, records: int = 10_000) -> Sample:
        """The first rows, computed in this process from the first records of the sources.

        Neither Spark nor a checkpoint is used, and sinks get nothing.
        records: how many of each source; windows over them leave as at the end of the input.
        """
        return self.flow.sampled([self.name], n, records)[self.name]

    def show(self, n: int = 20, *, records: int = 10_000) -> None:
        """Print the first rows, and what they were made of."""
        print(self.head(n, records=records))

    @property
    def schema(self) -> pa.Schema:
        """The columns of this stream and their types, as the first records show them."""
        return self.head(1).schema

    def collect(self, **options: Any) -> pa.Table:
        """All rows over the whole of a bounded input, as an Arrow table; `.to_pandas()` of it.

        A small input is read in this process; a large one, or one run with options (the fields of
        `millstream.Settings`), on Spark. No checkpoint is left, and sinks get nothing.
        """
        return self.flow.collected(self.name, options)

    # -- leaving --------------------------------------------------------------------------------

    def late(self) -> Stream:
        """The records that came too late for the windows or the updater of this stream.

        For a MapReduce job these are the pairs of its `map`, key and value as JSON.
        """
        node = self.node
        if not isinstance(node, nodes.Keyed):
            raise ConfigError(
                f"late(): {node.name!r} is not windowed; call it on the result of agg(), "
                "reduce(), map_reduce(), update(), distinct(), dedup() or last()"
            )
        if isinstance(node, nodes.Update) and node.job.late != "divert":
            raise ConfigError(
                f"late(): {node.name!r} applies late events; to set them aside use "
                'update(..., late="divert")'
            )
        late = self.flow.add(nodes.Late, f"{node.name}.late", inputs=node.inputs, of=node)
        return Stream(self.flow, late)

    def sink(self, sink: SinkSpec, *, name: str | None = None) -> Stream:
        """Send the records of this stream somewhere; gives the stream back."""
        if not isinstance(sink, SinkSpec):
            if callable(sink):
                raise ConfigError("sink(): to hand results to a function use ms.Call(fn)")
            raise ConfigError(
                f"sink(): expected {one_of(SinkSpec)}, got {type(sink).__name__}"
                + (f"; write ms.Parquet({sink!r})" if isinstance(sink, str | Path) else "")
            )
        if isinstance(sink, Redis):
            self._check_redis(sink)
        self.flow.add(nodes.Sink, type(sink).__name__.lower(), (self.node,), name=name, spec=sink)
        return self

    def view(self, name: str) -> Stream:
        """Keep the rows of this stream as a table that can be read; gives the stream back.

        `ms.views(checkpoint, name)` reads it, and so do SQL, HTTP and the command line, while the
        flow runs and afterwards. Records stay for ever, rows of changes until they are taken back.
        """
        return self._keep(name)

    def _keep(self, name: str, query: str = "", schema: pa.Schema | None = None) -> Stream:
        """The same, with what SQL knows of it."""
        for node in self.flow.nodes:
            if isinstance(node, Kept) and node.view == name:
                raise ConfigError(f"view({name!r}): flow {self.flow.name!r} has one of that name")
        self.flow.add(
            Kept, "view", (self.node,), name=f"{name}.view", view=name, query=query, schema=schema
        )
        return self

    def _check_redis(self, sink: Redis) -> None:
        slates = isinstance(self.node, nodes.Update)
        if slates and (sink.columns or sink.ttl is not None):
            raise ConfigError(
                f"sink(ms.Redis(...)): {self.name!r} is an updater, and its slates are mirrored "
                "under their own keys with their own ttl; leave out key= and ttl=. To mirror the "
                "records it gives, put a step in between, like .where('true')"
            )
        if not slates and not sink.columns:
            raise ConfigError(
                f"sink(ms.Redis(...)): say which column of {self.name!r} names a row, with key="
            )
        for node in self.flow.nodes:
            if isinstance(node, nodes.Sink) and isinstance(node.spec, Redis):
                same = (node.spec.address.shown, node.spec.prefix) == (
                    sink.address.shown,
                    sink.prefix,
                )
                if same and node.inputs == (self.node,):
                    raise ConfigError(
                        f"sink(ms.Redis(...)): {self.name!r} is mirrored there already, by "
                        f"{node.name!r}; give one of them another prefix="
                    )

    def _add(self, cls: type[nodes.Node], stem: str, **fields: Any) -> Stream:
        return Stream(self.flow, self.flow.add(cls, stem, (self.node,), **fields))

    def _check_stream(self, step: str, other: Any) -> None:
        """Refuse what this stream cannot be put together with."""
        if not isinstance(other, Stream):
            raise ConfigError(f"{step}(): expected streams, got {type(other).__name__}")
        if other.flow is not self.flow:
            raise ConfigError(
                f"{step}(): stream {other.name!r} belongs to flow {other.flow.name!r}, this one "
                f"to {self.flow.name!r}; a flow cannot use the streams of another"
            )


@plainly
class KeyedStream:
    """A stream grouped by key."""

    def __init__(
        self,
        stream: Stream,
        keys: tuple[str, ...],
        nulls: str,
        partition: Callable[[Any], int] | None = None,
    ) -> None:
        self.stream = stream
        self.keys = keys
        self.nulls = nulls
        self.partition = partition

    def __repr__(self) -> str:
        return f"{self.stream!r}, by {', '.join(self.keys) or 'everything'}"

    def _computing(self, aggs: dict[str, Any]) -> KeyedStream:
        """The same with columns for expressions that are aggregated."""
        texts = [name for agg in aggs.values() for name in getattr(agg, "columns", ())]
        stream, _ = with_expressions(self.stream, dict.fromkeys(texts))
        return KeyedStream(stream, self.keys, self.nulls, self.partition)

    def window(
        self,
        window: WindowSpec,
        *,
        emit: str = "final",
        every: Duration | None = None,
        every_rows: int | None = None,
        every_event: Duration | None = None,
        close: ClosingPolicy | None = None,
        fidelity: bool = False,
    ) -> WindowedStream:
        """Cut time into windows.

        emit="final": a result leaves once, when its window is complete.
        emit="early": results of open windows leave as well, by the wall clock (`every`), by records
            taken in (`every_rows`) or by event time (`every_event`: at its multiples, over the
            records before, whatever the batches), each when it has changed;
            columns `revision` (0, 1, 2, ...) and `final` say which is which. Behind a step that may
            leave out rows there is `op` as well.
        emit="delta": a result leaves when event time has passed the end of its window, and again
            when a record within the allowed lateness changes it; column `op` is "+", "u" or, if it
            is no more or has other bounds now, "-". That column is there where results leave the
            flow. Windows further down take changes into account.
        close: when a window leaves that is not complete, like ms.evict(timeout="60s"). Results then
            have columns `fidelity`, `participants` and `closed_by`.
        fidelity: have these columns also where only complete windows leave.
        """
        if not isinstance(window, WindowSpec):
            raise ConfigError(
                f"window(): expected a window like ms.tumbling('1m') or "
                f"ms.sliding('10m', '1m'), got {window!r}"
            )
        emission = _emission(window, emit, every, every_rows, every_event)
        if self.partition is not None and emission.mode != "final":
            raise ConfigError(
                f"window(emit={emit!r}) after key_by(partition=): what was emitted of open windows "
                'is kept by the hash of the key; use emit="final", or leave partition= out'
            )
        if close is not None and not isinstance(close, ClosingPolicy):
            raise ConfigError(
                f'window(close=): expected a policy like ms.evict(timeout="60s"), got {close!r}'
            )
        policy = close if closes_early(close) else None
        if policy is not None or fidelity:
            _check_closing(window, emission)
        return WindowedStream(self, window, emission, policy, fidelity or policy is not None)

    def union(self, *others: KeyedStream) -> KeyedStreams:
        """This keyed stream and others, each with its own key columns, for one updater."""
        return KeyedStreams((self,)).union(*others)

    def update(self, fn: Any, **options: Any) -> Stream:
        """One slate per key, changed by `fn(event, slate, ctx)`; see `KeyedStreams.update`."""
        return KeyedStreams((self,)).update(fn, **options)

    def process(
        self,
        fn: Callable[..., Any],
        *,
        behind: Duration | None = None,
        publishes: Iterable[str] | None = None,
        schema: Any = None,
    ) -> Stream:
        """The same as `Stream.process`, with the key of this stream as `event.key`."""
        _check_call("process()", _function("process", fn), "event", "ctx")
        if isinstance(publishes, str):
            publishes = (publishes,)
        stem = str(getattr(fn, "__name__", "process"))
        node = self.stream.flow.add(
            nodes.Process,
            stem if stem.isidentifier() else "process",
            (self.stream.node,),
            fn=fn,
            keys=self.keys,
            null_keys=self.nulls,
            behind=0 if behind is None else micros(behind, "process(behind=)", zero=True),
            publishes=None if publishes is None else tuple(publishes),
            schema=_schema(schema),
        )
        return Stream(self.stream.flow, node)

    def agg(self, /, *without_name: Any, emit: Any = None, **aggs: Any) -> Stream:
        """Aggregates without a window, of all there is: the key columns and these.

        emit="final": one row per group, when the (bounded) input has ended.
        emit="delta": a row per group from its first row on, kept up to date: `+` for a new group,
            `u` when it says something else, `-` when no row is left. Without a key there is always
            one row.
        emit="snapshot", or `ms.snapshot(at=[0.1, 0.5])` to say when: estimates with bounds after
            some of the (stored) input, and the answer at the end, marked with `progress` and
            `exact`.
        Left out, it is "delta" over changes and "final" over records, which nothing takes back.
        """
        if without_name:
            raise unnamed("agg", without_name)
        if isinstance(emit, aggregates.Builtin | aggregates.Aggregate):
            aggs, emit = {**aggs, "emit": emit}, None  # a column of that name
        if emit is None:
            emit = "delta" if gives_changes(self.stream.node) else "final"
        if emit == "final":
            return WindowedStream(self, WHOLE).agg(**aggs)
        if emit == "snapshot" or isinstance(emit, Looks):
            asked = emit if isinstance(emit, Looks) else snapshot()
            return WindowedStream(self, WHOLE, Emission("snapshot", looks=asked)).agg(**aggs)
        if emit != "delta":
            raise ConfigError(
                f'agg(emit={emit!r}): use "final", "delta", "snapshot" or ms.snapshot(at=[...]); '
                "early results go with a window"
            )
        if self.partition is not None:
            raise ConfigError(
                'agg(emit="delta") after key_by(partition=): groups are kept by the hash of their '
                "key; leave partition= out"
            )
        checked = aggregates.checked(aggs, "agg", {*self.keys, "op"})
        stream = self._computing(checked).stream
        node = stream.flow.add(
            Grouped,
            "agg",
            (stream.node,),
            keys=self.keys,
            aggs=tuple(checked.items()),
            null_keys=self.nulls,
        )
        return Stream(self.stream.flow, node)

    def top(self, n: int, /, *, by: str | Iterable[str], rank: str | None = None) -> Stream:
        """The first `n` rows of every group in an order, as changes.

        by: a column, or several; the largest come first, or the smallest with `"price ASC"`. Nulls
            come last, unless it says `NULLS FIRST`. Of rows that are equal in these the earlier
            comes first.
        rank: the name of a column with the number of a row in its group, from 1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"top({n!r}): expected a whole number from 1")
        if rank is not None and (not isinstance(rank, str) or not rank):
            raise ConfigError(f"top(rank={rank!r}): expected the name of a column")
        several = tuple(by) if isinstance(by, Iterable) and not isinstance(by, str) else (by,)
        order = tuple(map(parse_order, several))
        if not order or len({one.column for one in order}) != len(order):
            raise ConfigError(f"top(by={by!r}): expected a column, or several, each once")
        if self.partition is not None:
            raise ConfigError("top() after key_by(partition=): leave partition= out")
        node = self.stream.flow.add(
            Top,
            "top",
            (self.stream.node,),
            keys=self.keys,
            most=n,
            order=order,
            rank=rank,
            null_keys=self.nulls,
        )
        return Stream(self.stream.flow, node)

    def reduce(self, reducer: Callable[..., Any]) -> Stream:
        """A reduce function over the whole (bounded) input."""
        return WindowedStream(self, WHOLE).reduce(reducer)

    def map_reduce(
        self,
        job: Any,
        window: WindowSpec | None = None,
        *,
        sorted: bool = False,
        emission: Emission | None = None,
        policy: ClosingPolicy | None = None,
        fidelity: bool = False,
    ) -> Stream:
        """A MapReduce job whose `map` gets the key of this stream."""
        job = as_job(job)
        window = window or WHOLE
        by_time = window.kind not in ("session", "count", "bytes")
        if not by_time and isinstance(job, Program) and job.can("close"):
            check_close(job, str(window))
        stem = job_name(job)
        pairs = self.stream._add(
            nodes.Pairs,
            f"{stem}.map",
            job=job,
            keys=self.keys,
            null_keys=self.nulls,
            span=window.span if by_time else None,
        )
        node = self.stream.flow.add(
            nodes.Windowed,
            stem,
            (pairs.node,),
            keys=("key",),
            window=window,
            job=job,
            in_order=sorted,
            partition=self.partition,
            emission=emission or FINAL,
            policy=policy,
            fidelity=fidelity,
        )
        return Stream(self.stream.flow, node)


@plainly
class KeyedStreams:
    """Keyed streams an updater subscribes to together."""

    def __init__(self, streams: tuple[KeyedStream, ...]) -> None:
        self.streams = streams

    def union(self, *others: KeyedStream) -> KeyedStreams:
        """These and others."""
        flow = self.streams[0].stream.flow
        for other in others:
            if not isinstance(other, KeyedStream):
                raise ConfigError(
                    f"union(): expected keyed streams (with key_by), got {type(other).__name__}"
                )
            if other.stream.flow is not flow:
                raise ConfigError(
                    f"union(): stream {other.stream.name!r} belongs to flow "
                    f"{other.stream.flow.name!r}, this one to {flow.name!r}"
                )
        return KeyedStreams((*self.streams, *others))

    def update(
        self,
        fn: Any,
        *,
        name: str | None = None,
        ttl: Duration | None = None,
        on_timer: Callable[..., Any] | None = None,
        order: str = "event",
        late: str = "apply",
        clock: str = "event",
        merge: Callable[[Any, Any], Any] | None = None,
        codec: Any = None,
        publishes: Iterable[str] | None = None,
        max_slate: int = 1 << 20,
    ) -> Stream:
        """One slate per key, changed by a function per event.

        fn: `update(event, slate, ctx)`, or an object (or class) with that method and, if it wants,
            `on_timer` and `merge`. The records it returns are the stream this gives.
        ttl: a slate not written for so long is gone. on_timer: called for `ctx.timer(...)`.
        order: "event" applies events in the order of their time, once the watermark has passed
            them; "arrival" applies them with the batch they come in.
        late: what comes after its time is applied all the same ("apply") or set aside ("divert").
        clock: what ttl and timers go by, "event" time or the "wall" clock.
        merge: `merge(slate, slate)` for updates whose order does not matter: partial slates are
            built where records are read, so that a hot key costs no more than others.
        codec: how slates that are not dicts are made (`new`), stored (`encode`) and read
            (`decode`). max_slate: the most bytes one may have.
        publishes: the streams it publishes to, where that cannot be seen in its code.
        """
        update, timer, merging = _updater(fn, on_timer, merge)
        for what, given, known in (
            ("order", order, ("event", "arrival")),
            ("late", late, ("apply", "divert")),
            ("clock", clock, ("event", "wall")),
        ):
            if given not in known:
                raise ConfigError(f'update({what}={given!r}): use "{known[0]}" or "{known[1]}"')
        if merging is not None and (timer is not None or (ttl is not None and clock == "event")):
            raise ConfigError(
                "update(merge=): an update whose order does not matter can have neither timers "
                'nor a ttl in event time; use clock="wall" for a ttl'
            )
        if codec is not None and not all(
            callable(getattr(codec, method, None)) for method in ("new", "encode", "decode")
        ):
            raise ConfigError("update(codec=): expected an object with new, encode and decode")
        if not isinstance(max_slate, int) or max_slate < 1:
            raise ConfigError(f"update(max_slate={max_slate!r}): expected a number of bytes")
        if isinstance(publishes, str):
            publishes = (publishes,)
        partition = self.streams[0].partition
        if any(one.partition is not partition for one in self.streams):
            raise ConfigError(
                "update(): its streams have different key_by(partition=); events of one key must "
                "come to one place, so give all of them the same function"
            )
        flow = self.streams[0].stream.flow
        stem = str(getattr(fn, "__name__", type(fn).__name__))
        job = UpdateJob(
            "",
            update,
            timer,
            merging,
            DICTS if codec is None else codec,
            None if ttl is None else micros(ttl, "update(ttl=)"),
            "arrival" if merging is not None else order,
            late,
            clock,
            max_slate,
            partition,
        )
        node = flow.add(
            nodes.Update,
            stem if stem.isidentifier() else "update",
            tuple(one.stream.node for one in self.streams),
            name=name,
            keys=tuple(one.keys for one in self.streams),
            null_keys=tuple(one.nulls for one in self.streams),
            job=job,
            publishes=None if publishes is None else tuple(publishes),
        )
        return Stream(flow, node)


def _updater(fn: Any, on_timer: Any, merge: Any) -> tuple[Any, Any, Any]:
    """The functions of an updater: given one by one, or as methods of one object."""
    if isinstance(fn, type):
        try:
            fn = fn()
        except TypeError as error:
            raise ConfigError(
                f"update(): {fn.__name__} cannot be made without arguments ({error}); give an "
                "instance"
            ) from error
    if callable(getattr(fn, "update", None)) and not isinstance(fn, dict | set):
        on_timer = on_timer or getattr(fn, "on_timer", None)
        merge = merge or getattr(fn, "merge", None)
        fn = fn.update
    elif not callable(fn):
        raise ConfigError(
            f"update(): expected a function or an object with a method update, got "
            f"{type(fn).__name__}"
        )
    for what, one in (("on_timer=", on_timer), ("merge=", merge)):
        if one is not None and not callable(one):
            raise ConfigError(f"update({what}): expected a function, got {one!r}")
    _check_call("update()", fn, "event", "slate", "ctx")
    _check_call("update(on_timer=)", on_timer, "event", "slate", "ctx")
    _check_call("update(merge=)", merge, "slate", "slate")
    return fn, on_timer, merge


def _check_call(where: str, fn: Any, *arguments: str) -> None:
    """A function that cannot be called this way would make a dead letter of every event."""
    if fn is None:
        return
    called = getattr(fn, "__qualname__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise ConfigError(f"{where}: {called} is async; give a plain function")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{where}: {called}{signature} cannot be called with ({', '.join(arguments)}): {error}"
        ) from error


@plainly
class WindowedStream:
    """A keyed stream cut into windows."""

    def __init__(
        self,
        keyed: KeyedStream,
        window: WindowSpec,
        emission: Emission | None = None,
        policy: ClosingPolicy | None = None,
        fidelity: bool = False,
    ) -> None:
        self.keyed = keyed
        self.spec = window
        self.emission = emission or FINAL
        self.policy, self.fidelity = policy, fidelity

    def __repr__(self) -> str:
        return f"{self.keyed!r}, window {self.spec}"

    def agg(self, /, *without_name: Any, **aggs: Any) -> Stream:
        """One row per window and key: the key columns, window_start, window_end and these."""
        if without_name:
            raise unnamed("agg", without_name)
        taken = {*self.keyed.keys, "window_start", "window_end"}
        taken |= {"early": {"revision", "final"}, "delta": {"op"}}.get(self.emission.mode, set())
        if self.emission.mode == "snapshot":
            taken |= {*MARKS, *(name + end for name in aggs for end in ESTIMATE[1:])}
            aggregates.free(self.keyed.keys, taken - {*self.keyed.keys}, "key_by")
        taken |= set(FIDELITY) if self.fidelity else set()
        checked = aggregates.checked(aggs, "agg", taken)
        self.keyed = self.keyed._computing(checked)
        if self._inherits(checked):
            inherited = aggregates.mean("fidelity")
            return self._add("agg", True, aggs=(*checked.items(), ("fidelity", inherited)))
        return self._add("agg", aggs=tuple(checked.items()))

    def _inherits(self, aggs: dict[str, Any]) -> bool:
        """Whether results stand on others that say how much of their input they stand on.

        Where the program itself does something with that column, it knows better.
        """
        plain = self.spec.kind in EVICTED and self.emission.mode == "final"
        names = {*aggs, *self.keyed.keys}
        return plain and names.isdisjoint(FIDELITY) and tells_fidelity(self.keyed.stream.node)

    def reduce(self, reducer: Callable[..., Any]) -> Stream:
        """`reducer(key, records, window)` gives a dict, several, a plain value, or None.

        Records are dicts in (ts, source, offset) order.
        """
        if isinstance(reducer, MapReduce):
            return self.map_reduce(reducer)
        return self._add("reduce", reducer=_function("reduce", reducer))

    def map_reduce(self, job: Any, *, sorted: bool = False) -> Stream:
        """A MapReduce job over these windows."""
        if self.emission.mode != "final" and sorted:
            raise ConfigError("map_reduce(sorted=True): sorted output leaves once, as final")
        return self.keyed.map_reduce(
            job,
            self.spec,
            sorted=sorted,
            emission=self.emission,
            policy=self.policy,
            fidelity=self.fidelity,
        )

    def _add(self, stem: str, inherits: bool = False, **fields: Any) -> Stream:
        keyed = self.keyed
        taken = ("window_start", "window_end", *(FIDELITY if self.fidelity else ()))
        for name in keyed.keys:
            if name in taken:
                raise ConfigError(f"key_by({name!r}): that name is taken by the window's columns")
        node = keyed.stream.flow.add(
            nodes.Windowed,
            stem,
            (keyed.stream.node,),
            keys=keyed.keys,
            window=self.spec,
            null_keys=keyed.nulls,
            partition=keyed.partition,
            emission=self.emission,
            policy=self.policy,
            fidelity=self.fidelity or inherits,
            **fields,
        )
        return Stream(keyed.stream.flow, node)


EVICTED = ("tumbling", "sliding", "hopping", "landmark")  # windows whose bounds time alone gives


def _check_closing(window: WindowSpec, emission: Emission) -> None:
    """Refuse to evict windows of which nobody can say how much has come."""
    if window.kind not in EVICTED:
        raise ConfigError(
            f"window({window}, close=): how much of such a window has come is not known before it "
            "is over; closing policies and fidelity= are for tumbling, sliding and hopping windows "
            "and landmarks over time"
        )
    if emission.mode != "final":
        raise ConfigError(
            f'window(emit="{emission.mode}", close=): a window that is evicted leaves once; leave '
            "out emit=, or close= and fidelity="
        )


def _emission(
    window: WindowSpec,
    emit: str,
    every: Duration | None,
    every_rows: int | None,
    every_event: Duration | None,
) -> Emission:
    if emit not in ("final", "early", "delta"):
        raise ConfigError(f'window(emit={emit!r}): use "final", "early" or "delta"')
    given = [one for one in (every, every_rows, every_event) if one is not None]
    if emit != "early" and given:
        raise ConfigError('window(): every=, every_rows= and every_event= go with emit="early"')
    if every_event is not None and window.span.calendar is not None:
        raise ConfigError(
            f"window({window}, every_event=): windows of a calendar are not cut finer than they "
            "are; use every= or every_rows="
        )
    if emit == "early" and not given:
        raise ConfigError(
            'window(emit="early"): say when, with every="10s" (wall clock), every_rows=1000 or '
            'every_event="1m"'
        )
    if emit != "final" and window.span.whole:
        raise ConfigError(
            f"window(emit={emit!r}): over the whole input a result leaves once; for what there is "
            "so far at every slide use ms.landmark(slide)"
        )
    if every_rows is not None and (not isinstance(every_rows, int) or every_rows < 1):
        raise ConfigError(f"window(every_rows={every_rows!r}): expected a whole number from 1")
    return Emission(
        emit,
        micros(every, "window(every=)") if every is not None else 0,
        every_rows or 0,
        micros(every_event, "window(every_event=)") if every_event is not None else 0,
    )


def _check_columns(step: str, columns: tuple[Any, ...]) -> None:
    for column in columns:
        if not isinstance(column, str) or not column:
            several = f"; write {step}({', '.join(map(repr, column))})" if _is_list(column) else ""
            raise ConfigError(f"{step}(): expected names of columns, got {column!r}{several}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"{step}(): a column is named twice in {columns}")


def _is_list(column: Any) -> bool:
    return isinstance(column, list | tuple) and all(isinstance(one, str) for one in column)


def parse_expression(step: str, expr: Any) -> Expression:
    """One SQL expression over the columns of a record."""
    items = parse_projection(_text(step, expr))
    if len(items) != 1 or items[0].name == "*":
        raise ConfigError(f"{step}(): expected one expression, got {expr!r}")
    return items[0]


def _text(step: str, expr: Any) -> str:
    if callable(expr):
        raise ConfigError(
            f"{step}(): expected a SQL expression as a string, got a function; write "
            f'{step}("price > 0"), or use .map(fn), which leaves a record out by giving None'
        )
    if not isinstance(expr, str):
        raise ConfigError(f"{step}(): expected a SQL expression as a string, got {expr!r}")
    return expr


def _function(step: str, fn: Any) -> Any:
    if not callable(fn):
        sql = '; for SQL use .select("*", "price * 2 AS twice")' if isinstance(fn, str) else ""
        raise ConfigError(f"{step}(): expected a function, got {type(fn).__name__} {fn!r}{sql}")
    return fn


def _schema(schema: Any) -> pa.Schema | None:
    return None if schema is None else parse_schema(schema)


def _operations(
    keys: tuple[str, ...], op: str | None, ops: Mapping[str, str] | None
) -> Operations | None:
    if op is None:
        if ops is not None:
            raise ConfigError("changes(ops=...): say which column has these, with op=")
        return None
    if not isinstance(op, str) or not op or op in keys:
        raise ConfigError(f"changes(op={op!r}): expected a column that is not part of the key")
    for word, meaning in (ops or {}).items():
        if not isinstance(word, str) or meaning not in ("+", "-", "u"):
            raise ConfigError(
                f"changes(ops=...): {word!r}: {meaning!r}; expected words and what they mean, "
                "+ (or u) for a row that is there and - for one that is no more"
            )
    meant = {word: "-" if mark == "-" else "+" for word, mark in (ops or {}).items()}
    return Operations(op, tuple(meant.items()))

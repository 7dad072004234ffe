"""Streams grouped by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream.api import aggregates
from millstream.api.arguments import check_call, function, schema_of
from millstream.api.closing import ClosingPolicy, closes_early
from millstream.api.computed import with_expressions
from millstream.api.early import Looks, snapshot
from millstream.api.elsewhere import too_late, unnamed
from millstream.api.frames import plainly
from millstream.api.job import check_close
from millstream.api.job import job as as_job
from millstream.api.programs import Program, job_name
from millstream.api.updater import KeyedStreams
from millstream.api.windowed import WindowedStream, check_closing, emission_of
from millstream.api.windows import WHOLE, WindowSpec
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.graph.changing import gives_changes
from millstream.operators.grouped.node import Grouped
from millstream.operators.top import Top, parse_order
from millstream.operators.topping import taken_rank
from millstream.ops.emitting.firing import FINAL, Emission

if TYPE_CHECKING:
    from millstream.api.stream import Stream


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

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getattr__(self, name: str) -> Any:
            then = '.agg(n=ms.count()), .window(ms.tumbling("1m")) or .update(fn)'
            raise too_late("a stream by key", name, then)

    def _computing(self, aggs: dict[str, Any]) -> KeyedStream:
        """The same with columns for expressions that are aggregated."""
        texts = [name for agg in aggs.values() for name in getattr(agg, "columns", ())]
        stream, names = with_expressions(self.stream, texts)
        for text, name in zip(texts, names, strict=True):
            if text != name:
                raise ConfigError(
                    f"agg(): {text!r}: leave AS {name} out; the name of a result is that of its "
                    f'argument, as in agg({name}=ms.sum("..."))'
                )
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
            raise _no_window("window()", window)
        emission = emission_of(window, emit, every, every_rows, every_event)
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
            check_closing(window)
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
        check_call("process()", function("process", fn), "event", "ctx")
        if isinstance(publishes, str):
            publishes = (publishes,)
        stem = str(getattr(fn, "__name__", "process"))
        return self.stream._add(
            nodes.Process,
            stem if stem.isidentifier() else "process",
            fn=fn,
            keys=self.keys,
            null_keys=self.nulls,
            behind=0 if behind is None else micros(behind, "process(behind=)", zero=True),
            publishes=None if publishes is None else tuple(publishes),
            schema=schema_of(schema),
        )

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
            raise unnamed(without_name)
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
        return self._computing(checked).stream._add(
            Grouped, "agg", keys=self.keys, aggs=tuple(checked.items()), null_keys=self.nulls
        )

    def top(self, n: int, /, *, by: str | Iterable[str], rank: str | None = None) -> Stream:
        """The first `n` rows of every group in an order, as changes.

        by: a column, or several; the largest come first, or the smallest with `"price ASC"`. Nulls
            come last, unless it says `NULLS FIRST`. Of rows that are equal in these the earlier
            comes first.
        rank: the name of a new column with the number of a row in its group, from 1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"top({n!r}): expected a whole number from 1")
        if rank is not None and (not isinstance(rank, str) or not rank):
            raise ConfigError(f"top(rank={rank!r}): expected the name of a column")
        several = tuple(by) if isinstance(by, Iterable) and not isinstance(by, str) else (by,)
        order = tuple(map(parse_order, several))
        if not order or len({one.column for one in order}) != len(order):
            raise ConfigError(f"top(by={by!r}): expected a column, or several, each once")
        if rank is not None and rank in (*self.keys, *(one.column for one in order)):
            raise taken_rank("top", rank)
        if self.partition is not None:
            raise ConfigError("top() after key_by(partition=): leave partition= out")
        return self.stream._add(
            Top, "top", keys=self.keys, most=n, order=order, rank=rank, null_keys=self.nulls
        )

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
        if window is not None and not isinstance(window, WindowSpec):
            raise _no_window("map_reduce(window=)", window)
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
        return pairs._add(
            nodes.Windowed,
            stem,
            keys=("key",),
            window=window,
            job=job,
            in_order=sorted,
            partition=self.partition,
            emission=emission or FINAL,
            policy=policy,
            fidelity=fidelity,
        )


def _no_window(where: str, given: object) -> ConfigError:
    return ConfigError(
        f"{where}: expected a window like ms.tumbling('1m') or ms.sliding('10m', '1m'), "
        f"got {given!r}"
    )

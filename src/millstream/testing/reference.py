"""A slow, obvious interpreter of a flow in plain Python: what the engine is compared with.

It reads the same graph and shares nothing else with the engine: no panes, no partial states, no
batches, no Arrow kernels. Every window is looked up for every record, and every aggregate is
computed from the list of its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from millstream.api.aggregates import Aggregate, Builtin
from millstream.api.flow import Flow
from millstream.api.windows import WindowSpec
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.jobs import Window

Row = dict[str, Any]
Batches = list[dict[str, list[Row]]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = ("tumbling", "sliding", "hopping")
_KINDS = (*_PLAIN, "whole", "session", "landmark", "count", "bytes")
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}


def reference(
    flow: Flow,
    inputs: Mapping[str, list[Row]] | None = None,
    *,
    batches: Batches | None = None,
) -> dict[str, list[Row]]:
    """The complete answer of a flow: per sink its rows, once all input was read.

    `inputs` gives the records of every source, in order; nothing is late. With `batches` instead (a
    list of such dicts) the watermark moves after every batch, so that records can be late: each
    source has come to its latest time less its lateness.

    Of windows with emit="early" or "delta" there is the final answer only: one row per result with
    final=True and without `revision`, or without `op`. That is what the last revision of each key
    and window must come to. Steps that name these columns, and windows over early results, are
    refused; functions further down simply do not see them.

    Not modelled: idle sources, participants, times of arrival, and times far ahead of the clock.
    Results at the same time of different keys of one job have no order of their own; here they are
    in the order of keys. The same holds for results of one key over rows or bytes that end at the
    same time; here they are in the order of their windows.
    """
    if (inputs is None) == (batches is None):
        raise ConfigError("reference(): give either inputs or batches")
    for node in flow.nodes:
        _check(node)
    run = _Run(flow.nodes, can_be_late=batches is not None)
    for batch in batches if batches is not None else [dict(inputs or {})]:
        run.batch(batch)
    run.finish()
    return {
        node.name: [one.row for one in sorted(run.arrived[node], key=_place)]
        for node in flow.nodes
        if isinstance(node, nodes.Sink)
    }


@dataclass(frozen=True)
class _Record:
    """A row with its time (microseconds) and its place: which step it is from, and where there."""

    ts: int
    source: int
    position: int
    row: Row
    left: float = -math.inf  # windows that end by then had left when it came


def _place(record: _Record) -> tuple[int, int, int]:
    return record.ts, record.source, record.position


@dataclass
class _Run:
    """Records pushed through the graph, step by step."""

    graph: tuple[nodes.Node, ...]
    can_be_late: bool
    arrived: dict[nodes.Node, list[_Record]] = field(default_factory=dict)
    watermark: dict[nodes.Node, float] = field(default_factory=dict)  # at the start of the batch
    latest: dict[nodes.Node, int] = field(default_factory=dict)
    read: dict[nodes.Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph:
            self.arrived[node] = []
            self.watermark[node] = -math.inf
        self.origins = [n for n in self.graph if isinstance(n, nodes.Source | nodes.Windowed)]

    def batch(self, given: Mapping[str, list[Row]]) -> None:
        """Take in some records of some sources, then move the watermarks."""
        sources = {n.name: n for n in self.graph if isinstance(n, nodes.Source)}
        for name in given:
            if name not in sources:
                raise ConfigError(f"there is no source {name!r}; this flow has: {list(sources)}")
        for name, source in sources.items():
            self.push(source, self._records(source, given.get(name, [])))
        for node in self.graph:
            self.watermark[node] = self._watermark(node)

    def finish(self) -> None:
        """The end of all input: every window leaves, those that feed others first."""
        self.can_be_late = False  # a result is never late: what waits for it waits for its window
        for node in self.graph:
            if isinstance(node, nodes.Windowed):
                self.push(node, self._results(node))

    # -- sources and watermarks -------------------------------------------------------------------

    def _records(self, node: nodes.Source, rows: list[Row]) -> list[_Record]:
        spec, out = node.spec, []
        for row in _filled(rows):
            position = self.read.get(node, 0)
            self.read[node] = position + 1
            ts = _event_time(row.get(spec.time), spec.time_unit, spec.zone) if spec.time else 0
            if ts is not None:
                self.latest[node] = max(ts, self.latest.get(node, ts))
                out.append(_Record(ts, self.origins.index(node), position, row))
        return out

    def _watermark(self, node: nodes.Node) -> float:
        """The time before which nothing more comes out of a step."""
        if isinstance(node, nodes.Source):
            lateness: int | None = node.spec.lateness_micros()
            if lateness is None or node not in self.latest:
                return -math.inf
            return self.latest[node] - lateness
        lowest = min(self.watermark[one] for one in node.inputs)
        if isinstance(node, nodes.Windowed):
            return self._next_result(node.window, lowest)
        return lowest

    def _next_result(self, window: WindowSpec, watermark: float) -> float:
        """The time of the earliest result that is still to come."""
        size, slide = window.span.size, window.span.slide
        if math.isinf(watermark) or not slide:
            return -math.inf
        start = (int(watermark) - size) // slide * slide  # the last window that has closed
        return start + slide + size - 1

    def _furthest(self, node: nodes.Node) -> float:
        """What the watermark after a step comes to if nothing is out of order and none holds it."""
        if isinstance(node, nodes.Source):
            return self.latest.get(node, -math.inf)
        furthest = max(self._furthest(one) for one in node.inputs)
        if isinstance(node, nodes.Windowed):
            return self._next_result(node.window, furthest)
        return furthest

    # -- steps ------------------------------------------------------------------------------------

    def push(self, node: nodes.Node, records: list[_Record]) -> None:
        """Give records to every step after this one."""
        for consumer in self.graph:
            if node in consumer.inputs and not isinstance(consumer, nodes.Late) and records:
                self._step(consumer, records)

    def _step(self, node: nodes.Node, records: list[_Record]) -> None:
        match node:
            case nodes.Sink():
                self.arrived[node] += records
            case nodes.Windowed():
                self._arrive(node, records)
            case nodes.Union():
                self.push(node, records)
            case nodes.MapBatches():
                self.push(node, _mapped_batch(node, records))
            case _:
                names = {name for one in records for name in one.row}
                rows = [(one, _rows_of(node, one, names)) for one in records]
                flat = [(one, row) for one, several in rows for row in several]
                full = _filled([row for _, row in flat])
                self.push(
                    node,
                    [
                        _Record(one.ts, one.source, one.position, row)
                        for (one, _), row in zip(flat, full, strict=True)
                    ],
                )

    def _arrive(self, node: nodes.Windowed, records: list[_Record]) -> None:
        if not node.window.span.whole and any(
            source.spec.time is None for source in _sources_of(node)
        ):
            raise ConfigError(f"{node.name}: reference() needs a source with a time column")
        closed = self.watermark[node.inputs[0]]
        late = []
        for record in records:
            windows = _windows_of(node.window, record.ts)
            if self.can_be_late and windows and all(end <= closed for _, end in windows):
                late.append(record)
            elif self.can_be_late:
                self.arrived[node].append(replace(record, left=closed))
            else:
                self.arrived[node].append(record)
        for other in self.graph:
            if isinstance(other, nodes.Late) and other.of is node and late:
                self.push(other, late)

    # -- windows ----------------------------------------------------------------------------------

    def _results(self, node: nodes.Windowed) -> list[_Record]:
        mine: dict[Any, list[_Record]] = {}
        keys: dict[Any, list[Any]] = {}
        for record in sorted(self.arrived[node], key=_place):
            key = [record.row.get(name) for name in node.keys]
            if node.job is None and None in key and node.null_keys == "dead":
                continue
            identity = _identity(key, exact=node.job is not None)
            keys.setdefault(identity, key)
            mine.setdefault(identity, []).append(record)
        found = [
            (identity, cut) for identity, records in mine.items() for cut in _cut(node, records)
        ]
        found.sort(key=lambda one: (one[1].end, one[0]))
        number, out = self.origins.index(node), []
        ended = self._furthest(node.inputs[0])
        for position, (identity, cut) in enumerate(found):
            ts = 0 if math.isinf(cut.end) else int(cut.end) - 1
            if not cut.full and not math.isinf(ended):
                ts = max(ts, int(ended))
            for row in _reduced(node, keys[identity], cut.records, cut.window()):
                out.append(_Record(ts, number, position, row))
        filled = _filled([one.row for one in out])
        return [
            _Record(one.ts, one.source, one.position, row)
            for one, row in zip(out, filled, strict=True)
        ]


def _check(node: nodes.Node) -> None:
    """Refuse what is not modelled."""
    if isinstance(node, nodes.Windowed):
        kind = node.window.kind
        if kind not in _KINDS:
            raise ConfigError(f"{node.name}: reference() does not know {kind} windows")
        if kind == "bytes" and node.job is not None:
            raise ConfigError(
                f"{node.name}: reference() does not know how many bytes a pair of a MapReduce job "
                "has; use agg() or reduce()"
            )
        if any(early for one in node.inputs for early in _marks(one) if early == "revision"):
            raise ConfigError(
                f"{node.name}: reference() does not know what comes of windows over early results"
            )
    expressions: tuple[Expression, ...] = ()
    if isinstance(node, nodes.Where):
        expressions = (node.condition,)
    elif isinstance(node, nodes.Select):
        expressions = node.items
    for expression in expressions:
        named = sorted(_marks(node.inputs[0]) & set(expression.columns))
        if named:
            raise ConfigError(f"{node.name}: reference() does not know the column {named[0]!r}")


def _marks(node: nodes.Node) -> set[str]:
    """The columns that mark results before they are final, of windows right before this step."""
    if isinstance(node, nodes.Windowed):
        return {"early": {"revision"}, "delta": {"op"}}.get(node.emission.mode, set())
    return {mark for one in node.inputs for mark in _marks(one)}


def _sources_of(node: nodes.Node) -> list[nodes.Source]:
    if isinstance(node, nodes.Source):
        return [node]
    return [source for one in node.inputs for source in _sources_of(one)]


def _event_time(value: Any, unit: str, zone: str | None) -> int | None:
    """Microseconds since the epoch, or None for a record without a time."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            if zone is None:
                return None
            value = value.replace(tzinfo=ZoneInfo(zone))
        since: timedelta = value - _EPOCH
        return since // timedelta(microseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value // 1000 if unit == "ns" else value * _MICROS[unit]
    if isinstance(value, float) and math.isfinite(value):
        return round(value / 1000 if unit == "ns" else value * _MICROS[unit])
    return None


def _moment(micros: float) -> datetime:
    return _EPOCH + timedelta(microseconds=int(micros))


@dataclass(frozen=True)
class _Cut:
    """One window of one key: its bounds, and its records in order."""

    start: float
    end: float
    records: list[_Record]
    full: bool = True  # else it leaves because the input has ended

    def window(self) -> Window:
        """As users see it: what has no bound has None."""
        start, end = (None if math.isinf(at) else _moment(at) for at in (self.start, self.end))
        return Window(start, end)


def _cut(node: nodes.Windowed, records: list[_Record]) -> list[_Cut]:
    """The windows of one key, with its records in order."""
    spec = node.window
    match spec.kind:
        case "session":
            return _sessions(records, spec.span.size)
        case "landmark":
            ends = sorted({end for one in records for _, end in _windows_of(spec, one.ts)})
            return [_Cut(-math.inf, end, [r for r in records if r.ts < end]) for end in ends]
        case "count":
            return _numbered(records, [1] * len(records), spec.logical.size, spec.logical.slide)
        case "bytes":
            sizes = [_bytes_of(node.name, one.row) for one in records]
            return _numbered(records, sizes, spec.logical.size, spec.logical.slide)
    held: dict[tuple[float, float], list[_Record]] = {}
    for record in records:
        for bounds in _windows_of(spec, record.ts):
            if bounds[1] > record.left:  # else it came in time for others
                held.setdefault(bounds, []).append(record)
    return [_Cut(start, end, several) for (start, end), several in held.items()]


def _sessions(records: list[_Record], gap: int) -> list[_Cut]:
    """Records less than the gap apart; a session that had left is not there for later records."""
    out: list[_Cut] = []
    pending: list[_Record] = []
    for left in sorted({one.left for one in records}):
        over = [one for one in _joined(pending, gap) if one.end <= left]
        out += over
        gone = {id(record) for one in over for record in one.records}
        pending = [one for one in pending if id(one) not in gone]
        pending += [one for one in records if one.left == left]
    return out + _joined(pending, gap)


def _joined(records: list[_Record], gap: int) -> list[_Cut]:
    runs: list[list[_Record]] = []
    for record in sorted(records, key=_place):
        if runs and record.ts - runs[-1][-1].ts < gap:
            runs[-1].append(record)
        else:
            runs.append([record])
    return [_Cut(run[0].ts, run[-1].ts + gap, run) for run in runs]


def _numbered(records: list[_Record], sizes: list[int], size: int, slide: int) -> list[_Cut]:
    """Windows of `size`, every `slide`, over what came before each record; unfilled ones too."""
    places = [sum(sizes[:index]) for index in range(len(sizes))]
    out = []
    for start in range(0, sum(sizes), slide):
        inside = [start <= place < start + size for place in places]
        held = [one for one, there in zip(records, inside, strict=True) if there]
        if held:
            full = start + size <= sum(sizes)
            out.append(_Cut(held[0].ts, held[-1].ts + 1, held, full))
    return out


def _bytes_of(name: str, row: Row) -> int:
    """Texts have their UTF-8 length, numbers and times 8, booleans 1, nulls 0; at least 1."""
    total = 0
    for column, value in row.items():
        if isinstance(value, str):
            total += len(value.encode())
        elif isinstance(value, bool):
            total += 1
        elif isinstance(value, int | float | date):
            total += 8
        elif value is not None:
            raise ConfigError(
                f"{name}: reference() does not know how many bytes column {column!r} has, "
                f"with values like {value!r}"
            )
    return max(total, 1)


def _windows_of(window: WindowSpec, ts: int) -> list[tuple[float, float]]:
    """Every window [start, end) that holds a time; of other kinds, how long a record can matter."""
    size, slide = window.span.size, window.span.slide
    if window.span.whole:
        return [(-math.inf, math.inf)]
    if window.kind not in (*_PLAIN, "landmark"):
        return [(ts, ts + size)]
    starts = []
    start = ts // slide * slide
    while start > ts - size:
        starts.append(start)
        start -= slide
    return [(start, start + size) for start in starts]


def _filled(rows: Iterable[Row]) -> list[Row]:
    """Rows with the same columns: what a record lacks is None."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


# -- steps without state -------------------------------------------------------------------------


def _rows_of(node: nodes.Node, record: _Record, names: set[str]) -> list[Row]:
    """What a step makes of one record; nothing if it fails on it."""
    try:
        match node:
            case nodes.Where():
                keep = node.condition.evaluate_row(record.row)
                return [record.row] if keep is True else []
            case nodes.Select():
                return [_selected(node.items, record.row)]
            case nodes.Map():
                return _several(node.fn(dict(record.row)))
            case nodes.Pairs():
                return _pairs(node, record, names)
    except ExpressionError:
        return []
    except ConfigError:
        raise
    except Exception:  # a user's function may raise anything: the record is a dead letter
        return []
    raise ConfigError(f"{node.name}: reference() does not know the step {node.kind}")


def _selected(items: tuple[Expression, ...], row: Row) -> Row:
    out: Row = {}
    for item in items:
        if item.name == "*":
            out.update(row)
        else:
            out[item.name] = item.evaluate_row(row)
    return out


def _several(result: Any) -> list[Row]:
    if result is None:
        return []
    return [dict(result)] if isinstance(result, Mapping) else [dict(row) for row in result]


def _pairs(node: nodes.Pairs, record: _Record, names: set[str]) -> list[Row]:
    row = record.row
    key: Any = None
    value: Any = dict(row)
    if node.keys:
        keys = [row.get(name) for name in node.keys]
        if None in keys and node.null_keys == "dead":
            return []
        key = _as_key(keys[0] if len(keys) == 1 else keys)
    elif {"key", "value"} <= names <= {"key", "value", "window_start", "window_end"}:
        key, value = _as_key(row["key"]), row["value"]
    elif names == {"value"}:
        key, value = record.position, row["value"]
    pairs = node.job.map(key, value, _moment(record.ts)) or ()
    return [{"key": _as_key(k), "value": _as_value(v)} for k, v in pairs]


def _as_key(value: Any) -> Any:
    """Keys are hashable: lists are tuples."""
    return tuple(map(_as_key, value)) if isinstance(value, list | tuple) else value


def _as_value(value: Any) -> Any:
    """Values travel: tuples arrive as lists."""
    if isinstance(value, dict):
        return {name: _as_value(one) for name, one in value.items()}
    return list(map(_as_value, value)) if isinstance(value, list | tuple) else value


def _mapped_batch(node: nodes.MapBatches, records: list[_Record]) -> list[_Record]:
    table = pa.Table.from_pylist([one.row for one in records])
    table = table.append_column("__row", pa.array(range(len(records)), pa.int64()))
    try:
        result = node.fn(table)
    except Exception:  # a user's function may raise anything
        return []
    out = []
    for index, row in enumerate(result.to_pylist()):
        at = records[row.pop("__row", index)]
        out.append(_Record(at.ts, at.source, at.position, row))
    return out


# -- keys, aggregates and reduce functions -------------------------------------------------------


def _identity(key: Any, *, exact: bool) -> Any:
    """A form in which equal keys are equal, with an order: numbers, texts, ..., NaN, null.

    In a column there is one type of number, so 1 is 1.0; `exact` keeps them apart, as the keys of
    MapReduce jobs are Python values. True is never 1.
    """
    if isinstance(key, list | tuple):
        return ("list", tuple(_identity(one, exact=exact) for one in key))
    if isinstance(key, dict):
        return ("record", tuple((n, _identity(v, exact=exact)) for n, v in key.items()))
    if key is None:
        return ("~null",)
    if isinstance(key, float) and math.isnan(key):
        return ("number~nan",)
    if isinstance(key, int | float) and not isinstance(key, bool):
        return ("number", key + 0, type(key).__name__ if exact else "")
    if isinstance(key, datetime):
        return ("datetime", key if key.tzinfo else key.replace(tzinfo=UTC))
    return (type(key).__name__, key)


def _reduced(
    node: nodes.Windowed, key: list[Any], records: list[_Record], window: Window
) -> list[Row]:
    """The rows of one window and key."""
    head: Row = dict(zip(node.keys, key, strict=True))
    bounds: Row = {}
    if window.end is not None:
        bounds = {"window_start": window.start, "window_end": window.end}
    final = {"final": True} if node.emission.mode == "early" else {}
    shown = _as_key(key[0] if len(key) == 1 else key)
    try:
        if node.job is not None:
            values = [one.row["value"] for one in records]
            pairs = node.job.reduce(shown, values, window) or ()
            return [{"key": _as_key(k), "value": v, **bounds, **final} for k, v in pairs]
        if node.reducer is not None:
            result = node.reducer(shown, [dict(one.row) for one in records], window)
            if not isinstance(result, Mapping | list | tuple) and not hasattr(result, "__next__"):
                result = None if result is None else {"value": result}
            return [{**head, **bounds, **row, **final} for row in _several(result)]
    except Exception:  # a user's function may raise anything: this one result is lost
        return []
    rows = [one.row for one in records]
    return [{**head, **bounds, **{name: aggregate(agg, rows) for name, agg in node.aggs}, **final}]


def aggregate(agg: Builtin | Aggregate, rows: list[Row]) -> Any:
    """An aggregate of some records, which must be in order, by its definition."""
    values = rows if agg.column is None else [row.get(agg.column) for row in rows]
    there = [value for value in values if value is not None]
    if isinstance(agg, Aggregate):
        state = agg.zero()
        for value in there:
            state = agg.add(state, value)
        return agg.result(state)
    match agg.kind:
        case "count":
            return len(there)
        case "collect":
            return values
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "min":
            return min(there, key=_nan_last, default=None)
        case "max":
            return max(there, key=_nan_last, default=None)
        case "sum":
            return _total(there) if there else None
        case "mean":
            return _divided(_total(there), len(there)) if there else None
        case "var" | "std":
            return _spread(there, root=agg.kind == "std")
        case "top_k":
            return _top(rows, agg.column, agg.by, dict(agg.options)["k"])
        case "distinct":
            return len({_identity(value, exact=False) for value in there})
        case "quantile":
            q = dict(agg.options)["q"]
            ordered: list[float] = sorted(there, key=_nan_last)  # type: ignore[arg-type]
            if not ordered:
                return None
            if isinstance(q, tuple):
                return [_quantile(ordered, one) for one in q]
            return _quantile(ordered, q)
    raise ConfigError(f"reference() does not know the aggregate {agg}")


def _top(rows: list[Row], column: str | None, by: str | None, k: int) -> list[Row]:
    """The values that occur most often, or have the largest totals."""
    found: dict[Any, list[Any]] = {}
    values: dict[Any, Any] = {}
    for row in rows:
        value, size = row.get(column or ""), 1 if by is None else row.get(by)
        if value is not None and size is not None:
            identity = _identity(value, exact=False)
            values.setdefault(identity, value)
            found.setdefault(identity, []).append(size)
    totals = {identity: _total(sizes) for identity, sizes in found.items()}
    order = sorted(totals, key=lambda one: (_descending(totals[one]), one))
    name = "count" if by is None else "total"
    return [{"value": values[one], name: totals[one]} for one in order[:k]]


def _descending(total: Any) -> tuple[bool, Any]:
    return (False, 0) if total != total else (True, -total)


def _quantile(ordered: list[float], q: float) -> float:
    """Between the two values nearest in rank."""
    rank = (len(ordered) - 1) * q
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    share = rank - math.floor(rank)
    return low if low == high or not share else low * (1 - share) + high * share


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0) if isinstance(value, float) and math.isnan(value) else (False, value)


def _total(values: list[Any]) -> Any:
    if not any(isinstance(value, float) for value in values):
        return sum(map(int, values))
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # infinities of both signs, or too large in between
        return sum(map(float, values))


def _divided(total: Any, count: int) -> float:
    return float(total / count)


def _spread(values: list[Any], *, root: bool) -> float | None:
    if len(values) < 2:
        return None
    mean = _divided(_total(values), len(values))
    squares = [(float(value) - mean) ** 2 for value in values]
    variance = _divided(_total(squares), len(values) - 1)
    return math.sqrt(variance) if root and not math.isnan(variance) else variance

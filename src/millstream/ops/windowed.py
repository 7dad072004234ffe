"""A windowed job: records to partial states, partial states to panes, panes to results.

`prepare` runs where the records are (map side): it sets late and keyless records aside and reduces
the rest to one row per (key, pane). `close` runs where the state of the keys is: it slides over the
panes and gives one row per (window, key). Between the two lie only associative merges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import Chunk, Int64, flat
from millstream.ops.codec import as_key, decode, decode_key
from millstream.ops.grid import find_runs
from millstream.ops.holding import ObjectKernel, gather_lists
from millstream.ops.kernels import Kernel, Rows
from millstream.ops.keys import canonical, factorize, group_by, hash_keys
from millstream.ops.records import DeadLetter, as_json, dead_row, describe, several, to_table
from millstream.ops.spans import Span

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Window:
    """The window a reduce function works on: [start, end), both None for the whole input."""

    start: datetime | None
    end: datetime | None


@dataclass(frozen=True)
class Measure:
    """One output column: how it is computed from one input column (or from whole records)."""

    name: str
    column: str | None
    kernel: Kernel | None = None  # vectorised states
    objects: ObjectKernel | None = None  # a user's states
    fold: Callable[[list[Any]], Any] | None = None  # kept values, folded; None: as a list

    @property
    def held(self) -> bool:
        """Its values are kept until the window leaves."""
        return self.kernel is None and self.objects is None


@dataclass(frozen=True)
class WindowJob:
    """All a task needs to know of one windowed operator."""

    name: str
    keys: tuple[str, ...]
    span: Span
    measures: tuple[Measure, ...] = ()
    reducer: Callable[[Any, list[Any], Window], Any] | None = None
    packed: bool = False  # a MapReduce job: key and value are packed Python values
    keep_null_keys: bool = False
    one_shard: bool = False  # all keys together, so that the output can be sorted

    @property
    def combines(self) -> bool:
        """It has states per pane."""
        return any(not m.held for m in self.measures)

    @property
    def holds(self) -> bool:
        """It keeps values."""
        return (self.reducer is not None and not self.combines) or any(
            m.held for m in self.measures
        )


@dataclass
class Prepared:
    """The map side of one chunk: rows for the exchange, and the records that do not get there."""

    panes: pa.Table | None
    values: pa.Table | None
    late: Chunk
    dead: list[DeadLetter]
    dropped: int  # in the gap between hopping windows
    accepted: int


def split_late(span: Span, chunk: Chunk, closed: int) -> tuple[Chunk, Chunk]:
    """Records some open window still takes, and records for which every window has left."""
    late = span.last_end(span.pane_of(chunk.ts)) <= closed
    if not late.any():
        return chunk, chunk.take(np.zeros(0, np.int64))
    return chunk.take(~late), chunk.take(late)


def prepare(job: WindowJob, chunk: Chunk, closed: int, shards: int) -> Prepared:
    """Reduce a chunk to partial states (and kept values) per (key, pane)."""
    dead: list[DeadLetter] = []
    dropped = 0
    in_window = job.span.covered(job.span.pane_of(chunk.ts))
    if not in_window.all():  # before lateness: a record in a gap is too late for no window
        dropped = int((~in_window).sum())
        chunk = chunk.take(in_window)
    chunk, late = split_late(job.span, chunk, closed)
    chunk = _without_null_keys(job, chunk, dead)
    while True:
        panes, values, bad = _reduce(job, chunk, shards)
        if not bad:
            return Prepared(panes, values, late, dead, dropped, len(chunk))
        dead.extend(dead_row(job.name, chunk, index, why) for index, why in bad.items())
        keep = np.ones(len(chunk), np.bool_)
        keep[list(bad)] = False
        chunk = chunk.take(keep)


def _without_null_keys(job: WindowJob, chunk: Chunk, dead: list[DeadLetter]) -> Chunk:
    if job.keep_null_keys:
        return chunk
    for name in job.keys:
        column = chunk.column(name)
        if column.null_count:
            null = np.asarray(pc.is_null(column))
            why = f"key column {name!r} is null"
            if name not in chunk.table.column_names:
                have = ", ".join(chunk.table.column_names)
                why = f"key column {name!r} is missing; the record has: {have}"
            dead.extend(dead_row(job.name, chunk, int(i), why) for i in np.flatnonzero(null))
            chunk = chunk.take(~null)
    return chunk


def _reduce(
    job: WindowJob, chunk: Chunk, shards: int
) -> tuple[pa.Table | None, pa.Table | None, dict[int, str]]:
    if not len(chunk):
        return None, None, {}
    panes = job.span.pane_of(chunk.ts)
    key_columns = [canonical(chunk.column(name)) for name in job.keys]
    codes, uniques = factorize(key_columns) if job.keys else (np.zeros(len(chunk), np.int64), [])
    shard = _shards_of(uniques, int(codes.max()) + 1, shards, job.one_shard)
    states = values = None
    if job.combines:
        groups, group_key, group_pane = group_by(codes, panes)
        rows = Rows(groups, len(group_key), chunk.ts, chunk.src, chunk.pos)
        at = pa.array(group_key)
        columns: dict[str, pa.Array] = {
            "shard": pa.array(shard[group_key]),
            "pane": pa.array(group_pane),
            **{f"key.{i}": unique.take(at) for i, unique in enumerate(uniques)},
        }
        for number, measure in enumerate(job.measures):
            bad = _lift(measure, number, chunk, rows, columns)
            if bad:
                return None, None, bad
        states = pa.table(columns)
    if job.holds:
        columns = {
            "shard": pa.array(shard[codes]),
            "pane": pa.array(panes),
            **{f"key.{i}": column for i, column in enumerate(key_columns)},
            "ts": pa.array(chunk.ts),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
        }
        for name in _held_columns(job, chunk):
            columns[f"value.{name}"] = chunk.column(name)
        values = pa.table(columns)
    return states, values, {}


def _shards_of(uniques: list[pa.Array], count: int, shards: int, one_shard: bool) -> Int64:
    if not uniques or one_shard:
        return np.zeros(count, np.int32)
    return (hash_keys(uniques) % np.uint64(shards)).astype(np.int32)


def _lift(
    measure: Measure, number: int, chunk: Chunk, rows: Rows, columns: dict[str, pa.Array]
) -> dict[int, str]:
    if measure.kernel is not None:
        values = chunk.column(measure.column) if measure.column is not None else None
        try:
            state = measure.kernel.lift(values, rows)
        except RunError as error:
            raise RunError(f"column {measure.column!r}: {error}") from error
        columns.update({f"state.{number}.{field}": state[field] for field in state})
    elif measure.objects is not None:
        if measure.column is None:
            items: list[Any] = chunk.table.to_pylist()
        else:
            items = chunk.column(measure.column).to_pylist()
        state_column, bad = measure.objects.lift(items, rows.groups, rows.count)
        columns[f"state.{number}.state"] = state_column
        return bad
    return {}


def _held_columns(job: WindowJob, chunk: Chunk) -> list[str]:
    """The columns that must be kept: those of held measures, or all of them for a reducer."""
    if job.reducer is not None or any(m.held and m.column is None for m in job.measures):
        return list(chunk.table.column_names)
    return list(dict.fromkeys(m.column for m in job.measures if m.held and m.column is not None))


def merge_panes(job: WindowJob, table: pa.Table) -> pa.Table:
    """One row per (key, pane), ascending, from rows that may repeat."""
    codes, uniques = _codes(job, table)
    panes = np.asarray(flat(table.column("pane")))
    groups, group_key, group_pane = group_by(codes, panes)
    some_row = np.zeros(len(group_key), np.int64)
    some_row[groups] = np.arange(len(groups))
    at = pa.array(group_key)
    columns: dict[str, pa.Array] = {
        "shard": flat(table.column("shard")).take(pa.array(some_row)),
        "pane": pa.array(group_pane),
        **{f"key.{i}": unique.take(at) for i, unique in enumerate(uniques)},
    }
    for number, measure in enumerate(job.measures):
        state = _state(table, number)
        if measure.kernel is not None:
            merged = measure.kernel.merge(state, groups, len(group_key))
            columns.update({f"state.{number}.{field}": merged[field] for field in merged})
        elif measure.objects is not None:
            columns[f"state.{number}.state"] = measure.objects.merge(
                state["state"], groups, len(group_key)
            )
    return pa.table(columns)


def _codes(job: WindowJob, table: pa.Table) -> tuple[Int64, list[pa.Array]]:
    if not job.keys:
        return np.zeros(len(table), np.int64), []
    return factorize([flat(table.column(f"key.{i}")) for i in range(len(job.keys))])


def _state(table: pa.Table, number: int) -> dict[str, pa.Array]:
    prefix = f"state.{number}."
    return {
        name[len(prefix) :]: flat(table.column(name))
        for name in table.column_names
        if name.startswith(prefix)
    }


def live(span: Span, table: pa.Table, closed: int) -> pa.Table:
    """The rows some window that has not left still needs."""
    alive = span.last_end(np.asarray(flat(table.column("pane")))) > closed
    return table if alive.all() else table.filter(pa.array(alive))


def close(
    job: WindowJob,
    panes: pa.Table | None,
    values: pa.Table | None,
    closed: int,
    closing: int,
    src: int,
) -> tuple[Chunk, int, list[DeadLetter]]:
    """The results of all windows that end in (closed, closing], and the last such end.

    `panes` must be merged; `values` may be in any order.
    """
    dead: list[DeadLetter] = []
    window_key, window_end, uniques, outputs = _outputs(job, panes, values, closed, closing)
    place = _places(job, uniques)
    order = np.lexsort((place[window_key] if job.one_shard else window_key, window_end))
    key, end = window_key[order], window_end[order]
    pos = place[key]
    ts = np.zeros(len(end), np.int64) if job.span.whole else end * job.span.pane - 1
    at = pa.array(key)
    columns = {name: unique.take(at) for name, unique in zip(job.keys, uniques, strict=True)}
    if not job.span.whole:
        columns["window_start"] = _stamps((end - job.span.panes) * job.span.pane)
        columns["window_end"] = _stamps(end * job.span.pane)
    last = int(end.max()) if len(end) else closed
    if job.reducer is None:
        for measure in job.measures:
            columns[measure.name] = outputs[measure.name].take(pa.array(order))
        return Chunk(pa.table(columns), ts, pos, src), last, dead
    heads = Chunk(pa.table(columns), ts, pos, src)
    return _call_reducer(job, heads, outputs["values"], order, dead), last, dead


def _places(job: WindowJob, uniques: list[pa.Array]) -> Int64:
    """The place of each key among results of the same time: by hash, or in the order of keys."""
    if job.one_shard and job.packed:
        keys = [decode_key(data) for data in uniques[0].to_pylist()]
        places = np.empty(len(keys), np.int64)
        places[_ascending(keys)] = np.arange(len(keys))
        return places
    hashes = hash_keys(uniques) if uniques else np.zeros(1, np.uint64)
    return (hashes >> np.uint64(1)).astype(np.int64)


def _ascending(keys: list[Any]) -> list[int]:
    try:
        return sorted(range(len(keys)), key=keys.__getitem__)
    except TypeError:  # keys of several types: each type by itself
        return sorted(range(len(keys)), key=lambda i: (type(keys[i]).__name__, repr(keys[i])))


def _stamps(micros: Int64) -> pa.Array:
    return pa.array(micros).cast(STAMP)


def _outputs(
    job: WindowJob, panes: pa.Table | None, values: pa.Table | None, closed: int, closing: int
) -> tuple[Int64, Int64, list[pa.Array], dict[str, Any]]:
    """Per closing window its key code and end; the distinct keys; and the output columns."""
    outputs: dict[str, Any] = {}
    found: tuple[Int64, Int64, list[pa.Array]] | None = None
    if panes is not None and len(panes):
        codes, uniques = _codes(job, panes)
        pane = np.asarray(flat(panes.column("pane")))
        runs = find_runs(job.span, codes, pane, closed, closing)
        key, end, low, high = runs.slices(pane)
        found = (key, end, uniques)
        grids = list(runs.grids(pane)) if any(m.kernel for m in job.measures) else []
        for number, measure in enumerate(job.measures):
            state = _state(panes, number)
            if measure.kernel is not None:
                parts = [measure.kernel.result(measure.kernel.slide(state, g)) for g in grids]
                outputs[measure.name] = pa.concat_arrays(parts) if parts else pa.nulls(0)
            elif measure.objects is not None:
                states = measure.objects.slide(state["state"], low, high)
                results = measure.objects.results(states)
                if job.reducer is not None:
                    outputs["values"] = [[result] for result in results]
                else:
                    outputs[measure.name] = _python_column(measure.name, results)
    if values is not None and len(values):
        codes, uniques = _codes(job, values)
        sort = np.lexsort(
            [np.asarray(flat(values.column(name))) for name in ("pos", "src", "ts")] + [codes]
        )
        codes, values = codes[sort], values.take(pa.array(sort))
        pane = np.asarray(flat(values.column("pane")))
        key, end, low, high = find_runs(job.span, codes, pane, closed, closing).slices(pane)
        if found is not None and len(found[1]) != len(end):
            raise RunError(f"{job.name}: panes and kept values disagree; the state is damaged")
        found = (key, end, uniques)
        _held_outputs(job, values, low, high, outputs)
    if found is None:
        nothing = np.zeros(0, np.int64)
        empty = {m.name: pa.nulls(0) for m in job.measures} | {"values": []}
        return nothing, nothing, [pa.nulls(0) for _ in job.keys], empty
    return *found, outputs


def _held_outputs(
    job: WindowJob, values: pa.Table, low: Int64, high: Int64, outputs: dict[str, Any]
) -> None:
    if job.reducer is not None:
        rows: list[Any] = _kept_records(values)
        if job.packed:
            rows = [decode(row["value"]) for row in rows]
        spans = zip(low.tolist(), high.tolist(), strict=True)
        outputs["values"] = [rows[start:stop] for start, stop in spans]
        return
    for measure in job.measures:
        if not measure.held:
            continue
        if measure.column is None:  # the values are whole records
            rows = _kept_records(values)
            kept: Any = [rows[start:stop] for start, stop in zip(low, high, strict=True)]
        else:
            name = f"value.{measure.column}"
            known = name in values.column_names
            column = flat(values.column(name)) if known else pa.nulls(len(values))
            kept = gather_lists(column, low, high)
        if measure.fold is not None:
            lists = kept if isinstance(kept, list) else kept.to_pylist()
            kept = _python_column(measure.name, [measure.fold(v) for v in lists])
        outputs[measure.name] = kept


def _kept_records(values: pa.Table) -> list[dict[str, Any]]:
    names = [n for n in values.column_names if n.startswith("value.")]
    kept = values.select(names).rename_columns([n.removeprefix("value.") for n in names])
    rows: list[dict[str, Any]] = kept.to_pylist()
    return rows


def _python_column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as e:
        raise RunError(f"the results of {name!r} cannot share one column: {e}") from e


def _call_reducer(
    job: WindowJob,
    heads: Chunk,
    values: list[list[Any]],
    order: Int64,
    dead: list[DeadLetter],
) -> Chunk:
    """The user's reduce per (window, key); a failure costs that one result and is reported."""
    assert job.reducer is not None
    rows: list[dict[str, Any]] = []
    origin: list[int] = []
    # Without keys and bounds a table has no columns, and so forgets its number of rows.
    head_rows = heads.table.to_pylist() or [{} for _ in range(len(heads))]
    for index, place in enumerate(order.tolist()):
        head = head_rows[index]
        keys = [head[name] for name in job.keys]
        window = Window(head.get("window_start"), head.get("window_end"))
        key: Any = as_key(keys[0] if len(keys) == 1 else tuple(keys))
        if job.packed:
            key = decode_key(keys[0])
        try:
            results = _reduced(job, key, values[place], window, head)
        except Exception as error:  # a user's function may raise anything
            raw = as_json({"key": key, "window_start": window.start, "window_end": window.end})
            dead.append(DeadLetter(job.name, -1, int(heads.pos[index]), raw, describe(error)))
            continue
        rows.extend(results)
        origin.extend([index] * len(results))
    table, bad = to_table(rows, None)
    if bad:
        why = next(iter(bad.values()))
        raise RunError(f"{job.name}: the results of reduce cannot share one table: {why}")
    at = np.array(origin, np.int64)
    return Chunk(table, heads.ts[at], heads.pos[at], heads.src)


def _reduced(
    job: WindowJob, key: Any, values: list[Any], window: Window, head: dict[str, Any]
) -> list[dict[str, Any]]:
    assert job.reducer is not None
    result = job.reducer(key, values, window)
    if not job.packed:
        if not isinstance(result, dict | list | tuple) and not hasattr(result, "__next__"):
            result = None if result is None else {"value": result}
        return [head | row for row in several(result)]
    bounds = {k: v for k, v in head.items() if k in ("window_start", "window_end")}
    pairs = [] if result is None else list(result)
    return [{"key": as_key(k), "value": v} | bounds for k, v in pairs]


def timestamp(micros: int) -> datetime:
    """Microseconds since the epoch as an aware datetime."""
    return EPOCH + timedelta(microseconds=micros)

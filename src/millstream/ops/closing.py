"""The keyed side of windows: panes to results, one row per window and key.

Built-in states slide through two-pass blocks, a user's states through two stacks, kept values are
handed over as slices of the rows in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.chunks import Chunk, Int64, flat
from millstream.ops.codec import as_key, decode, decode_key
from millstream.ops.grid import find_runs
from millstream.ops.holding import gather_lists
from millstream.ops.jobs import Window, WindowJob
from millstream.ops.keys import hash_keys
from millstream.ops.preparing import codes_of, state_of
from millstream.ops.records import DeadLetter, as_json, describe, several, to_table

STAMP = pa.timestamp("us", "UTC")


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
        codes, uniques = codes_of(job.keys, panes)
        pane = np.asarray(flat(panes.column("pane")))
        runs = find_runs(job.span, codes, pane, closed, closing)
        key, end, low, high = runs.slices(pane)
        found = (key, end, uniques)
        grids = list(runs.grids(pane)) if any(m.kernel for m in job.measures) else []
        for measure in job.measures:
            state = state_of(panes, measure)
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
        codes, uniques = codes_of(job.keys, values)
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
    head_rows = heads.table.to_pylist()
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

"""The map side of windows: records to one row per key and pane, where the records are.

Late and keyless records are set aside for every job of a family by itself; what any job takes is
reduced to partial states (and kept values) once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.aggregates.holding import naming
from millstream.ops.aggregates.kernels import Rows
from millstream.ops.chunks import Chunk, Int64, Mask, concat, flat, numbers
from millstream.ops.codec import as_key, decode_key, encode, python_rows, python_values
from millstream.ops.keys.hashing import canonical, factorize, group_by, hash_keys, key_names
from millstream.ops.keys.partitioning import Shards, shards_of_columns
from millstream.ops.mixed import REFUSED, exact_columns, exactly, is_mixed, kind_of
from millstream.ops.pairs import as_packed, unpacked
from millstream.ops.records import DeadLetter, dead_row
from millstream.ops.times.sessions import find_sessions
from millstream.ops.windows.jobs import Family, Measure, WindowJob


@dataclass
class Account:
    """What became of a chunk's records in one job."""

    late: Chunk
    dead: list[DeadLetter]
    dropped: int  # in the gap between hopping windows
    accepted: int
    took: Mask  # which of the records


@dataclass
class Prepared:
    """Rows for the exchange, and per job the records that do not get there."""

    panes: pa.Table | None
    values: pa.Table | None
    accounts: dict[str, Account]
    kept: Int64  # which records any of them took
    keyed: _Keyed | None  # these by their key

    def shards_of(self, took: Mask) -> Shards:
        """Where the records go that a job took."""
        found = np.zeros(len(took), np.int32)
        if self.keyed is not None:
            found[self.kept] = self.keyed.shard[self.keyed.codes]
        return found[took]


def prepare(
    family: Family,
    chunk: Chunk,
    closed: dict[str, int],
    shards: int,
    single: bool = False,
    max_key: int | None = None,
) -> Prepared:
    """Reduce a chunk to partial states (and kept values) per (key, pane).

    `single`: one state for each value, as the pane of one value. `max_key`: the most bytes a key
    may have, as it stands in every window of every record.
    """
    accounts: dict[str, Account] = {}
    takes: dict[str, Mask] = {}
    panes = family.span.pane_of(chunk.ts)
    for job in family.jobs:
        inside = job.span.covered(panes)  # before lateness: a gap is too late for no window
        late = inside & (job.span.last_end(panes) <= closed[job.name])
        if chunk.due is not None and not job.span.whole:
            late |= inside & chunk.late()
        takes[job.name] = inside & ~late
        accounts[job.name] = Account(chunk.take(late), [], int((~inside).sum()), 0, takes[job.name])
    bad = {} if family.jobs[0].keep_null_keys else null_keys(family.keys, chunk)
    bad.update({} if max_key is None else long_keys(family.keys, chunk, max_key))
    chunk, unfit = with_numbers((m for job in family.jobs for m in job.measures), chunk)
    bad.update(unfit)
    adds = chunk.weights() > 0
    wanted = np.logical_or.reduce(list(takes.values()))
    while True:
        keep = wanted.copy()
        keep[list(bad)] = False
        kept = np.flatnonzero(keep)
        states, values, keyed, failed = _reduce(family, chunk.take(kept), shards, single)
        if not failed:
            break
        bad.update({int(kept[index]): why for index, why in failed.items()})
    for job in family.jobs:
        account, taken = accounts[job.name], takes[job.name]
        account.dead = [
            dead_row(job.name, chunk, index, why)
            for index, why in bad.items()
            if taken[index] and adds[index]  # what is taken back was dead when it came
        ]
        account.accepted = int(taken.sum()) - len(account.dead)
        account.took = taken & ~np.isin(np.arange(len(taken)), list(bad)) if bad else taken
    return Prepared(states, values, accounts, kept, keyed)


def null_keys(keys: tuple[str, ...], chunk: Chunk) -> dict[int, str]:
    """The records without a key, and what is missing."""
    bad: dict[int, str] = {}
    for name in reversed(keys):
        column = chunk.column(name)
        if column.null_count:
            why = f"key column {name!r} is null"
            if name not in chunk.table.column_names:
                have = ", ".join(chunk.table.column_names)
                why = f"key column {name!r} is missing; the record has: {have}"
            null = np.flatnonzero(np.asarray(pc.is_null(column)))
            bad.update(dict.fromkeys(null.tolist(), why))
    return dict(sorted(bad.items()))


def long_keys(keys: tuple[str, ...], chunk: Chunk, most: int) -> dict[int, str]:
    """The records whose key has more bytes than a key may have."""
    sizes = np.zeros(len(chunk), np.int64)
    for name in keys:
        sizes += _sizes(chunk.column(name))
    return {
        index: f"the key has {sizes[index]:,} bytes, more than max_key={most:,}"
        for index in np.flatnonzero(sizes > most).tolist()
    }


def _sizes(column: pa.Array) -> Int64:
    """The bytes of every value of a key column."""
    if is_mixed(column.type):
        column = column.storage
    if any(is_text(column.type) for is_text in TEXTS):
        return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)
    if pa.types.is_nested(column.type):
        return np.array([len(encode(value)) for value in column.to_pylist()], np.int64)
    return np.full(len(column), 8, np.int64)


def with_numbers(measures: Iterable[Measure], chunk: Chunk) -> tuple[Chunk, dict[int, str]]:
    """Columns that must be of numbers as such, and the records that have something else there.

    Where columns are known before the run, this is found then; here they come from a function.
    """
    bad: dict[int, str] = {}
    for measure in measures:
        name = measure.numbers
        at = -1 if name is None else chunk.table.schema.get_field_index(name)
        if name is None or at < 0 or _is_number(chunk.table.schema.field(at).type):
            continue
        values = python_values(chunk.column(name))
        for index, value in enumerate(values):
            if value is not None and kind_of(value) not in ("int", "float", "bool"):
                kind = type(value).__name__
                bad[index] = f"{measure.state} needs numbers, {name!r} is {kind} {value!r:.80}"
                values[index] = None
        chunk = chunk.with_table(chunk.table.set_column(at, name, _numbers(values)))
    return chunk, bad


def _is_number(kind: pa.DataType) -> bool:
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(simple or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _numbers(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except REFUSED:  # whole numbers beside fractions, and true beside 1
        return pa.array([None if v is None else float(v) for v in values], pa.float64())


def _reduce(
    family: Family, chunk: Chunk, shards: int, single: bool
) -> tuple[pa.Table | None, pa.Table | None, _Keyed | None, dict[int, str]]:
    if not len(chunk):
        return None, None, None, {}
    panes = family.span.pane_of(chunk.ts)
    key_columns = [canonical(chunk.column(name)) for name in family.keys]
    codes, uniques = factorize(key_columns) if family.keys else (np.zeros(len(chunk), np.int64), [])
    shard, astray = _shards_of(uniques, int(codes.max()) + 1, shards, family.jobs[0])
    if astray:
        lost = {i: astray[c] for i, c in enumerate(codes.tolist()) if c in astray}
        return None, None, None, lost
    keyed = _Keyed(codes, uniques, key_columns, shard, panes)
    states = values = None
    if family.combines:
        states, bad = _lifted(family, chunk, keyed, single)
        if bad:
            return None, None, None, bad
    if family.holds:
        if family.changes and (bad := _failing(family, chunk, codes)):
            return None, None, None, bad
        values = _held(family, chunk, keyed)
    return states, values, keyed, {}


@dataclass(frozen=True)
class _Keyed:
    """Rows by their key."""

    codes: Int64  # of each row
    uniques: list[pa.Array]  # of each code the columns of its key
    columns: list[pa.Array]  # of each row the same
    shard: Shards  # of each code
    panes: Int64  # of each row


def _lifted(
    family: Family, chunk: Chunk, keyed: _Keyed, single: bool
) -> tuple[pa.Table | None, dict[int, str]]:
    """One row of partial aggregates per key and pane, or per record; or which records failed."""
    until: dict[str, pa.Array] = {}
    if family.kind == "session":  # pieces of sessions: from their first to their last record
        found = find_sessions(keyed.codes, chunk.ts, chunk.ts, family.span.size)
        groups, group_key, group_pane = found.groups, found.key, found.start
        until = {"until": pa.array(found.until)}
    elif single:
        groups, group_key, group_pane = np.arange(len(chunk)), keyed.codes, keyed.panes
    else:
        groups, group_key, group_pane = group_by(keyed.codes, keyed.panes)
    rows = Rows(groups, len(group_key), chunk.ts, chunk.src, chunk.pos)
    shard = pa.array(keyed.shard[group_key])
    columns = heads_of(shard, group_pane, keyed.uniques, group_key, until)
    with naming_key(family.jobs, pa.table(_named(keyed.columns))):
        for measure in family.measures:
            bad = lift(measure, chunk, rows, columns)
            if bad:
                return None, bad
    return pa.table(columns), {}


def _held(family: Family, chunk: Chunk, keyed: _Keyed) -> pa.Table:
    """The records themselves, as far as windows need them."""
    columns: dict[str, pa.Array] = {
        "shard": pa.array(keyed.shard[keyed.codes]),
        "pane": pa.array(keyed.panes),
        **_named(keyed.columns),
        "ts": pa.array(chunk.ts),
        "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
        "pos": pa.array(chunk.pos),
    }
    if family.changes:
        none = np.full(len(chunk), -1, np.int64)
        columns["weight"] = pa.array(chunk.weights().astype(np.int8))
        columns["revision"] = pa.array(none if chunk.revision is None else chunk.revision)
        columns["window"] = pa.array(none if chunk.window is None else chunk.window)
    if family.jobs[0].packed:
        pairs = chunk.table.drop_columns(["value"])
        chunk = chunk.with_table(pairs.append_column("value", as_packed(chunk.column("value"))))
    if family.kind == "bytes":
        columns["size"] = pa.array(record_sizes(chunk))
    held = held_columns(family)
    for name in chunk.table.column_names if held is None else held:
        columns[f"value.{name}"] = chunk.column(name)
    return exactly(columns, (f"value.{name}" for name in exact_columns(chunk.table)))


def heads_of(
    shard: pa.Array, pane: Int64, uniques: list[pa.Array], key: Int64, until: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """What rows of states begin with: where they lie, and their key by its number among all."""
    at = pa.array(key)
    keys = _named([one.take(at) for one in uniques])
    return {"shard": shard, "pane": pa.array(pane), **until, **keys}


def _named(key_columns: list[pa.Array]) -> dict[str, pa.Array]:
    return dict(zip(key_names(key_columns), key_columns, strict=True))


def _failing(family: Family, chunk: Chunk, codes: Int64) -> dict[int, str]:
    """Records a user's `add` raises on: found here, so that they are dead letters."""
    rows = Rows(codes, int(codes.max()) + 1, chunk.ts, chunk.src, chunk.pos)
    for measure in family.measures:
        if measure.objects is not None and measure.objects.bulk is None:
            bad = lift(measure, chunk, rows, {})
            if bad:
                return bad
    return {}


def _shards_of(
    uniques: list[pa.Array], count: int, shards: int, job: WindowJob
) -> tuple[Shards, dict[int, str]]:
    """The shard of every key, and the keys for which a user's partition gives none."""
    if not uniques or job.over_stream:
        return np.zeros(count, np.int32), {}
    if job.partition is not None:
        return shards_of_columns(job.partition, uniques, shards, job.packed)
    # The hash as it stands in the place of results, so that both lead to the same shard.
    return ((hash_keys(uniques) >> np.uint64(1)) % np.uint64(shards)).astype(np.int32), {}


def lift(
    measure: Measure, chunk: Chunk, rows: Rows, columns: dict[str, pa.Array]
) -> dict[int, str]:
    """Add the state columns of one measure; gives the records a user's function raised on."""
    if measure.kernel is not None:
        values = chunk.column(measure.column) if measure.column is not None else None
        try:
            state = measure.kernel.lift(values, rows)
        except RunError as error:
            raise RunError(f"column {measure.column!r}: {error}") from error
        columns.update({f"state.{measure.state}.{field}": state[field] for field in state})
    elif measure.objects is not None and measure.objects.bulk is not None:
        inputs = [chunk.column(name) for name in measure.columns]
        try:
            states = measure.objects.bulk(inputs, rows.groups, rows.count)
        except RunError as error:
            raise RunError(f"column {measure.columns[-1]!r}: {error}") from error
        columns[f"state.{measure.state}.state"] = states
    elif measure.objects is not None and measure.objects.gather is not None:
        pairs = chunk.column("key"), unpacked(chunk.column("value"))
        states = measure.objects.lift_pairs(*pairs, rows.groups, rows.count)
        columns[f"state.{measure.state}.state"] = states
    elif measure.objects is not None:
        if measure.column is None:
            items: list[Any] = python_rows(chunk.table)
        else:
            items = python_values(chunk.column(measure.column))
        state_column, bad = measure.objects.lift(items, rows.groups, rows.count)
        columns[f"state.{measure.state}.state"] = state_column
        return bad
    return {}


def held_columns(family: Family) -> list[str] | None:
    """The columns that must be kept: those of held measures, or all of them (None)."""
    late = family.jobs[0].whole_rows  # states are made later, of these rows
    held = [m for job in family.jobs for m in job.measures if m.held or late]
    whole = any(job.reducer is not None and job.holds for job in family.jobs)
    if whole or any(m.column is None and m.kernel is None for m in held):
        return None
    return list(dict.fromkeys(name for m in held for name in m.columns))


TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def record_sizes(chunk: Chunk) -> Int64:
    """The bytes of every record: the UTF-8 length of strings, 8 for a number or time, 1 a bool."""
    sizes = np.zeros(len(chunk), np.int64)
    for name in chunk.table.column_names:
        column = chunk.column(name)
        valid = np.asarray(pc.is_valid(column))
        if any(is_text(column.type) for is_text in TEXTS):
            sizes += np.asarray(pc.binary_length(column).fill_null(0))
        else:
            sizes += valid * (1 if pa.types.is_boolean(column.type) else 8)
    return np.maximum(sizes, 1)


def merge_panes(family: Family, table: pa.Table) -> pa.Table:
    """One row per (key, pane), ascending, from rows that may repeat; or one per session."""
    codes, uniques = codes_of(family.keys, table)
    panes = numbers(table, "pane")
    until: dict[str, pa.Array] = {}
    if family.kind == "session":
        ends = numbers(table, "until")
        found = find_sessions(codes, panes, ends, family.span.size)
        groups, group_key, group_pane = found.groups, found.key, found.start
        until = {"until": pa.array(found.until)}
    else:
        groups, group_key, group_pane = group_by(codes, panes)
    some_row = np.zeros(len(group_key), np.int64)
    some_row[groups] = np.arange(len(groups))
    shard = flat(table.column("shard")).take(pa.array(some_row))
    columns = heads_of(shard, group_pane, uniques, group_key, until)
    for measure in family.measures:
        state = state_of(table, measure)
        if measure.kernel is not None:
            merged = measure.kernel.merge(state, groups, len(group_key))
            columns.update({f"state.{measure.state}.{field}": merged[field] for field in merged})
        elif measure.objects is not None:
            with naming_key(family.jobs, table):
                merged = measure.objects.merge(state["state"], groups, len(group_key))
            columns[f"state.{measure.state}.state"] = merged
    return pa.table(columns)


def naming_key(jobs: Iterable[WindowJob], table: pa.Table) -> AbstractContextManager[None]:
    """Where states of a table are combined: an error names operators, and the key of its row."""
    jobs = tuple(jobs)
    names = key_names(jobs[0].keys)

    def key_of(row: int) -> Any:
        return user_key(jobs[0], [table.column(name)[row].as_py() for name in names])

    return naming(", ".join(job.name for job in jobs), key_of)


def user_key(job: WindowJob, keys: list[Any]) -> Any:
    """A key as users know it."""
    if job.packed:
        return decode_key(keys[0])
    return as_key(keys[0] if len(keys) == 1 else tuple(keys))


def in_pane_order(family: Family, table: pa.Table) -> pa.Table:
    """Rows by key and pane, which may repeat."""
    codes, _ = codes_of(family.keys, table)
    order = np.lexsort((numbers(table, "pane"), codes))
    return table.take(pa.array(order))


def count_panes(family: Family, table: pa.Table | None, low: int, high: int) -> int:
    """How many panes of a range have rows, of all keys together."""
    if table is None or not len(table):
        return 0
    pane = numbers(table, "pane")
    inside = table.filter(pa.array((pane >= low) & (pane < high)))
    codes, _ = codes_of(family.keys, inside)
    _, keys, _ = group_by(codes, numbers(inside, "pane"))
    return len(keys)


def of_keys(keys: tuple[str, ...], rows: pa.Table, others: Iterable[pa.Table]) -> pa.Table:
    """Rows of keys that some others have, too."""
    names = list(key_names(keys))
    if not names:
        return rows
    codes, _ = codes_of(keys, concat([one.select(names) for one in (rows, *others)]))
    return rows.filter(pa.array(np.isin(codes[: len(rows)], codes[len(rows) :])))


def codes_of(keys: tuple[str, ...], table: pa.Table) -> tuple[Int64, list[pa.Array]]:
    """The key of every row as a dense code, and the distinct keys in order."""
    if not keys:
        return np.zeros(len(table), np.int64), []
    return factorize([flat(table.column(name)) for name in key_names(keys)])


def state_of(table: pa.Table, measure: Measure) -> dict[str, pa.Array]:
    """The state columns of one measure; rows from before it was added have an empty state."""
    prefix = f"state.{measure.state}."
    fields = ("state",) if measure.kernel is None else measure.kernel.fields
    return {field: _filled(table, prefix + field, measure) for field in fields}


def _filled(table: pa.Table, name: str, measure: Measure) -> pa.Array:
    known = name in table.column_names
    column = flat(table.column(name)) if known else pa.nulls(len(table))
    if not column.null_count or name.endswith(".value"):  # there null is the empty state
        return column
    if measure.objects is not None:
        return pc.fill_null(column.cast(pa.binary()), encode(measure.objects.zero()))
    if pa.types.is_null(column.type):
        column = column.cast(pa.int64())
    return column.fill_null(0)


def live(jobs: list[WindowJob], table: pa.Table, closed: dict[str, int]) -> pa.Table:
    """The rows some window of these jobs that has not left still needs."""
    panes = numbers(table, "pane")
    alive = np.zeros(len(table), np.bool_)
    for job in jobs:
        alive |= job.needed_until(panes) > closed[job.name]
    return table if alive.all() else table.filter(pa.array(alive))

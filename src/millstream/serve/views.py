"""Views as one committed batch left them: their rows as a table, and page by page.

The rows of a view lie in the order of what they are known by (two hashes), so that a page goes on
where the last one ended, and a row that changes stays where it was. Rows that a condition leaves
out are read as well; a page that would read too many ends early and says where to go on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.io.schemas import parse_schema
from millstream.ops.chunks import ROW, concat, numbers
from millstream.ops.expressions import Expression, ExpressionError
from millstream.serve.shelves import Bools, Int64, Shelf
from millstream.serve.slates import KeptView, Snapshot
from millstream.state.tables import newest

_LEAST = 64  # rows that are looked at in a segment at once
_MOST = 1 << 14
_SHARES = 2  # more than its share, since shards are not all equally full


class BadRequest(ConfigError):
    """A condition or place that does not fit a view; the message says why."""


@dataclass(frozen=True, order=True)
class Place:
    """A row of a view by its two hashes, and how many equal ones of it came before."""

    hash: int
    check: int
    copies: int = 0

    def __str__(self) -> str:
        more = f"-{self.copies}" if self.copies else ""
        return f"{self.hash:016x}{self.check:016x}{more}"


def place_of(text: str) -> Place:
    """The place that a page said to go on after."""
    hashes, _, copies = text.partition("-")
    hexadecimal = len(hashes) == 32 and all(sign in "0123456789abcdef" for sign in hashes)
    if not hexadecimal or not (copies.isascii() and (copies or "0").isdecimal()):
        raise BadRequest(f"after: {text[:50]!r} is not what a page gave as `next`")
    return Place(int(hashes[:16], 16), int(hashes[16:], 16), int(copies[:18] or 0))


@dataclass(frozen=True)
class ViewPage:
    """Some rows, and where the next page begins."""

    rows: pa.Table
    next: str | None


def read_page(
    snapshot: Snapshot,
    view: KeptView,
    where: Expression | None = None,
    after: Place | None = None,
    limit: int = 100,
    seconds: float | None = None,
    size: int | None = None,
) -> ViewPage:
    """Rows that a condition lets through, in the order of what they are known by.

    If time runs out, or rows have `size` bytes as they are stored, the page ends early; `next` says
    where to go on.
    """
    begun, found, count = time.monotonic(), [], 0
    stored = [[snapshot.shelf(one) for one in some] for some in snapshot.stored(view).values()]
    most = _MOST if size is None else max(1, min(_MOST, size // _largest(stored)))
    step = min(most, max(_LEAST, _SHARES * limit // max(len(stored), 1)))
    while True:
        rows, bound = _following(stored, after, step)
        rows = rows.filter(pa.array(chosen(view, rows, where)))
        if size is not None and len(rows):
            limit = min(limit, count + max(1, size // max(1, rows.nbytes // len(rows))))
        times = _times(rows, after)
        before = np.cumsum(times) - times
        if count + int(times.sum()) > limit:
            at = int(np.searchsorted(before, limit - count)) - 1  # the last that is given
            given = limit - count - int(before[at])
            found.append(_repeated(rows.slice(0, at + 1), np.r_[times[:at], given]))
            last = _place(rows, at)
            if given < times[at]:
                given += after.copies if after is not None and _same(last, after) else 0
                last = Place(last.hash, last.check, given)
            return ViewPage(shown(view, found), str(last))
        found.append(_repeated(rows, times))
        count += int(times.sum())
        if bound is None:
            return ViewPage(shown(view, found), None)
        late = seconds is not None and time.monotonic() - begun > seconds
        if late or count == limit:
            return ViewPage(shown(view, found), str(bound))
        after, step = bound, min(2 * step, most)


def read_all(snapshot: Snapshot, view: KeptView) -> pa.Table:
    """All rows of a view."""
    tables = []
    for segments in snapshot.stored(view).values():
        rows = _living([snapshot.shelf(one).rows for one in segments])
        if rows is not None:
            tables.append(_repeated(rows, numbers(rows, "count")))
    return shown(view, tables)


def chosen(view: KeptView, rows: pa.Table, where: Expression | None) -> Bools:
    """Which stored rows a condition lets through."""
    if where is None or not len(rows):
        return np.ones(len(rows), np.bool_)
    try:
        found = where.evaluate(shown(view, [rows]))
    except (ExpressionError, ConfigError) as error:
        raise BadRequest(f"where: {error}") from None
    except (pa.ArrowException, OverflowError, RecursionError) as error:
        raise BadRequest(f"where: {where.sql!r} cannot be computed ({error})") from None
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def check_condition(view: KeptView, where: Expression) -> None:
    """Refuse a condition that cannot be, also if there are no rows."""
    schema = schema_of(view)
    if not len(schema):  # columns are not known before rows are
        return
    try:
        if all(kind is not None for _, kind in view.columns):
            where.check(schema)
        else:
            where.check(schema.names)
    except ConfigError as error:
        raise BadRequest(f"where: {error}") from None


def schema_of(view: KeptView) -> pa.Schema:
    """The columns of a view as far as they are known without rows; null where the type is not."""
    return pa.schema([pa.field(name, _type(name, kind)) for name, kind in view.columns])


def _type(name: str, kind: str | None) -> pa.DataType:
    try:
        return pa.null() if kind is None else parse_schema({name: kind}).field(0).type
    except ConfigError:  # a type that has no name in SQL
        return pa.null()


def shown(view: KeptView, stored: list[pa.Table]) -> pa.Table:
    """Stored rows as a table of the view: its own columns, those that are known first."""
    schema = schema_of(view)
    tables = [rows for rows in stored if len(rows)]
    if not tables:
        return schema.empty_table()
    rows = concat(tables)
    own = [name.removeprefix(ROW) for name in rows.column_names if name.startswith(ROW)]
    names = [*schema.names, *(name for name in own if name not in schema.names)]
    nothing = {
        name: pa.nulls(len(rows), schema.field(name).type) for name in names if name not in own
    }
    return pa.table({n: nothing[n] if n in nothing else rows.column(f"{ROW}{n}") for n in names})


# -- in the order of what rows are known by -------------------------------------------------------


def _following(
    stored: list[list[Shelf]], after: Place | None, step: int
) -> tuple[pa.Table, Place | None]:
    """The next living rows in order, and the place up to which none is missing (None: all are)."""
    starts = [[_start(shelf, after) for shelf in shelves] for shelves in stored]
    bound: Place | None = None
    for shelves, begin in zip(stored, starts, strict=True):
        for shelf, start in zip(shelves, begin, strict=True):
            if start + step < len(shelf.hash):
                last = Place(int(shelf.hash[start + step - 1]), int(shelf.check[start + step - 1]))
                bound = last if bound is None else min(bound, last)
    tables = []
    for shelves, begin in zip(stored, starts, strict=True):
        ends = [len(shelf.hash) if bound is None else _start(shelf, bound) for shelf in shelves]
        slices = zip(shelves, begin, ends, strict=True)
        rows = _living([shelf.rows.slice(start, end - start) for shelf, start, end in slices])
        if rows is not None:
            tables.append(rows)
    if not tables:
        return pa.table({"hash": pa.array([], pa.uint64())}), bound
    rows = concat(tables)
    return rows.take(pa.array(np.lexsort((numbers(rows, "check"), numbers(rows, "hash"))))), bound


def _largest(stored: list[list[Shelf]]) -> int:
    """How many bytes a row has, on average where they are the largest."""
    sizes: list[int] = [one.rows.nbytes // max(1, len(one.hash)) for some in stored for one in some]
    return max([1, *sizes])


def _start(shelf: Shelf, after: Place | None) -> int:
    """The first row after a place; that of the place itself if not all equal ones came."""
    if after is None:
        return 0
    wanted = np.uint64(after.hash)
    low, high = shelf.hash.searchsorted(wanted), shelf.hash.searchsorted(wanted, "right")
    checks, check = shelf.check[low:high], np.uint64(after.check)
    inside = checks.searchsorted(check) if after.copies else checks.searchsorted(check, "right")
    return int(low + inside)


def _living(segments: list[pa.RecordBatch]) -> pa.Table | None:
    """The rows of some segments, from the oldest to the newest, that are there."""
    rows = newest([pa.Table.from_batches([one]) for one in segments])
    return None if rows is None else rows.filter(pc.invert(rows.column("gone")))


def _times(rows: pa.Table, after: Place | None) -> Int64:
    """How often each row is still to be given."""
    if not len(rows):
        return np.zeros(0, np.int64)
    times: Int64 = numbers(rows, "count").copy()
    if after is not None and after.copies and _same(_place(rows, 0), after):
        times[0] = max(times[0] - after.copies, 0)
    return times


def _repeated(rows: pa.Table, times: Int64) -> pa.Table:
    if bool((times == 1).all()):
        return rows
    return rows.take(pa.array(np.repeat(np.arange(len(rows)), times)))


def _place(rows: pa.Table, at: int) -> Place:
    return Place(rows.column("hash")[at].as_py(), rows.column("check")[at].as_py())


def _same(one: Place, other: Place) -> bool:
    return (one.hash, one.check) == (other.hash, other.check)

"""Files by the values of columns: `country=DE/day=2026-11-17/part-….parquet`, as Hive has them.

Values are opaque: what is not a letter, a digit or one of `-_.~` is written as `%XX`, so that no
value is ever a path. Readers (DuckDB, pandas, Spark) take the columns back from the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.chunks import flat
from millstream.ops.keys.hashing import factorize

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST = 200  # bytes of a name; file systems take 255
_DEEPEST = 800  # bytes of all names of a place; object stores take 1,024 with what is before them
_MANY = 10_000  # folders that the first batch of one task writes to


def by_folder(
    table: pa.Table, columns: tuple[str, ...], *, first: bool = False
) -> Iterator[tuple[str, pa.Table]]:
    """Rows by the folder they belong to, without the columns that name it.

    first: nothing has been written so far, so that many folders are a mistake in the program. Later
    they come from a sender, who is not to end a run.
    """
    if not columns:
        yield "", table
        return
    codes, uniques = factorize([flat(table.column(name)) for name in columns])
    if first and len(uniques[0]) > _MANY:
        raise RunError(
            f"partition_by={list(columns)}: one batch would write to {len(uniques[0]):,} folders; "
            "choose columns with fewer values, like a day or a country"
        )
    rest = table.drop_columns(list(columns))
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(uniques[0]) + 1))
    values = zip(*(one.to_pylist() for one in uniques), strict=True)
    for number, several in enumerate(values):
        rows = order[bounds[number] : bounds[number + 1]]
        folder = "/".join(map(_folder, columns, several))
        yield folder, rest.take(pa.array(rows))


def without_folder(table: pa.Table, columns: tuple[str, ...]) -> dict[int, str]:
    """The rows whose values are too long for the name of a folder, and why."""
    if not columns or not len(table):
        return {}
    codes, uniques = factorize([flat(table.column(name)) for name in columns])
    wrong: dict[int, str] = {}
    for code, several in enumerate(zip(*(one.to_pylist() for one in uniques), strict=True)):
        names = [*map(_folder, columns, several)]
        for column, value, name in zip(columns, several, names, strict=True):
            if len(name) > _LONGEST:
                wrong[code] = (
                    f"partition_by: a value of {column!r} is too long for the name of a folder "
                    f"({len(name)} bytes, {_LONGEST} at most): {str(value)[:60]!r}..."
                )
        if sum(map(len, names)) > _DEEPEST:
            wrong.setdefault(
                code, f"partition_by: values of {list(columns)} are too long for names of folders"
            )
    return {row: wrong[code] for row, code in enumerate(codes.tolist()) if code in wrong}


def _folder(column: str, value: object) -> str:
    text = _NULL if value is None else str(value)
    written = quote(text, safe="")
    if value is not None and text == _NULL:  # which somebody may send, and is no null
        written = "%5F" + written[1:]
    return f"{quote(column, safe='')}={written}"

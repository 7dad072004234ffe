"""The csv files that lie about in installed packages: as pandas and DuckDB read them, or refused.

Nobody wrote these files for us. A file may be refused, or have lines that are dead letters, only if
the message says what to give; it is given then, and the file must read as the others read it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.io.formats import infer_format
from millstream.io.readers import available_end, plan_splits, read_split

_GIVEN = {"comment='#'": {"comment": "#"}, "header=False": {"header": False}}
_KINDS = (".csv", ".tsv")
_LARGE = 2_000_000
_OF_A_KIND = 8  # files of one directory


def corpus() -> list[Path]:
    roots = [Path(place) for place in sys.path if Path(place).name == "site-packages"]
    walks = (walk for root in roots for walk in os.walk(root))
    found = sorted(
        {Path(at, name) for at, _, names in walks for name in names if name.endswith(_KINDS)}
    )
    sizes = {path: path.stat().st_size for path in found}
    alike = {path: found.index(next(p for p in found if p.parent == path.parent)) for path in found}
    return [
        path
        for at, path in enumerate(found)
        if 0 < sizes[path] < _LARGE and at - alike[path] < _OF_A_KIND
    ]


def attempt(path: Path, options: dict[str, Any]) -> tuple[pa.Table | None, str, str]:
    """The records, the delimiter, and what was said about those that could not be read."""
    try:
        fmt = infer_format("csv", [str(path)], delimiter=None, **options)
    except ConfigError as error:
        return None, "", str(error)
    end = available_end(str(path), "csv", complete=True)
    splits = plan_splits("csv", 0, 0, str(path), 0, end, 4_096)
    parsed = [one for split in splits for one in read_split(fmt, split)]
    said = "; ".join({letter.error for one in parsed for letter in one.dead})
    tables = [one.table for one in parsed] or [fmt.delivered.empty_table()]
    return pa.concat_tables(tables), fmt.delimiter, said


def read(path: Path) -> tuple[pa.Table, str, dict[str, Any]]:
    """The records after doing what messages say, at most twice."""
    options: dict[str, Any] = {}
    for _ in range(3):
        table, delimiter, said = attempt(path, options)
        if not said:
            assert table is not None
            return table, delimiter, options
        wanted = [given for hint, given in _GIVEN.items() if hint in said]
        assert wanted, f"{path}: nothing says what to give: {said}"
        options |= wanted[0]
    raise AssertionError(f"{path}: {said} though {options} were given")


def columns(table: pa.Table) -> Iterator[tuple[int, pa.Array]]:
    for at, column in enumerate(table.columns):
        yield at, column.combine_chunks()


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.name)
def test_as_pandas_and_duckdb_read_it(path: Path) -> None:
    table, delimiter, options = read(path)
    header = 0 if options.get("header", True) else None
    plain: dict[str, Any] = {
        "sep": delimiter,
        "comment": options.get("comment"),
        "header": header,
        "encoding": "utf-8",
    }
    texts = pd.read_csv(path, dtype=str, keep_default_na=False, **plain)
    typed = pd.read_csv(path, **plain)
    assert len(table) == len(texts)
    names = [f"_c{i}" for i in range(texts.shape[1])] if header is None else list(texts.columns)
    unnamed = [re.sub(r"^Unnamed: (\d+)$", r"_\1", str(name)).strip() for name in names]
    assert table.column_names == unnamed
    for at, column in columns(table):
        theirs = typed.iloc[:, at]
        if pa.types.is_string(column.type):
            assert column.to_pylist() == texts.iloc[:, at].to_list()
            assert not pd.api.types.is_numeric_dtype(theirs)
        elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            moments = pd.to_datetime(theirs, utc=True).to_list()
            assert column.cast(pa.timestamp("us", "UTC")).to_pandas().to_list() == moments
        else:
            ours = column.to_pandas()
            pd.testing.assert_series_equal(ours, theirs, check_names=False, check_dtype=False)
    _like_duckdb(path, table, delimiter, options)


def _like_duckdb(path: Path, table: pa.Table, delimiter: str, options: dict[str, Any]) -> None:
    said = {
        "header": options.get("header", True),
        "delim": delimiter,
        "quote": '"',
        "comment": options.get("comment", ""),
    }
    args = ", ".join(f"{name}={value!r}" for name, value in said.items())
    theirs = duckdb.sql(f"SELECT * FROM read_csv('{path}', {args})").to_arrow_table()
    assert len(theirs) == len(table)
    for at, column in columns(table):
        other = theirs.column(at).combine_chunks()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            assert column.cast(pa.float64()).to_pylist() == other.cast(pa.float64()).to_pylist()
        elif pa.types.is_string(column.type) and pa.types.is_string(other.type):
            assert [one or None for one in column.to_pylist()] == other.to_pylist()


def test_there_are_files_to_read() -> None:
    assert len(corpus()) >= 10, "no installed package has any: this file would test nothing"

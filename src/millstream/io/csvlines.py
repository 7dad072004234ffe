"""csv lines to raw text columns: Arrow for whole blocks, one line at a time where that is unsafe.

Arrow lets a quoted field run over line ends and takes a lone CR for a line end; a record here is
one line. So lines with a lone CR never go to Arrow, and Arrow's result counts only when it found
exactly one row per line, which rules out that any quote swallowed a line end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from millstream.errors import ConfigError
from millstream.io.columns import empty_to_null, words_to_null
from millstream.io.formats import Format
from millstream.io.lines import BOM, Lines, Raw
from millstream.io.records import MAX_LINE, raw_text
from millstream.io.timestamps import Bools

_SHOWN = 1_000  # characters of a header in a message


def csv_header(line: bytes, fmt: Format, where: str) -> tuple[str, ...]:
    """The field names of a header line, checked against the schema."""
    fields = split_csv(line.decode(fmt.encoding or "utf-8", "replace"), fmt.delimiter)
    if fields is None:
        raise ConfigError(f"{where}: the header line has an unclosed quote: {raw_text(line)!r}")
    names = header_names(fields)
    wanted = fmt.delivered.names
    missing = [name for name in wanted if name not in names]
    if missing:
        has = ", ".join(names)
        has = has if len(has) <= _SHOWN else f"{has[:_SHOWN]}... ({len(line):,} bytes)"
        raise ConfigError(
            f"{where}: the csv header has no column {', '.join(map(repr, missing))}; "
            f"it has {has}. Correct schema=, or header=False if it has no header"
        )
    twice = [name for name in wanted if names.count(name) > 1]
    if twice:
        raise ConfigError(f"{where}: the csv header names {', '.join(map(repr, twice))} twice")
    return tuple(names)


def header_names(fields: list[str]) -> list[str]:
    """The names of columns; one without is called by its number, as `_0`."""
    return [name.strip() or f"_{i}" for i, name in enumerate(fields)]


def split_csv(line: str, delimiter: str) -> list[str] | None:
    """The fields of one line, or None for an unclosed quote.

    A quote opens a quoted field only at the start of a field; text after the closing quote is
    taken literally, as Arrow does.
    """
    if '"' not in line:
        return line.split(delimiter)
    fields: list[str] = []
    at = 0
    while True:
        value = ""
        if line.startswith('"', at):
            quoted = _quoted(line, at + 1)
            if quoted is None:
                return None
            value, at = quoted
        end = line.find(delimiter, at)
        if end < 0:
            fields.append(value + line[at:])
            return fields
        fields.append(value + line[at:end])
        at = end + 1


def _quoted(line: str, at: int) -> tuple[str, int] | None:
    parts: list[str] = []
    while True:
        end = line.find('"', at)
        if end < 0:
            return None
        parts.append(line[at:end])
        if not line.startswith('"', end + 1):
            return "".join(parts), end + 1
        parts.append('"')
        at = end + 2


_NO_HEADER = (
    f"the first {MAX_LINE} bytes of its file are blank lines or comments, expected a csv header; "
    "correct the file, or give header=False if it has none"
)


def csv_fields(fmt: Format, lines: Lines, layout: tuple[str, ...], careful: bool) -> Raw:
    """The fields of lines, in the order of delivery; without a layout there is no header."""
    if not layout:
        none = [pa.array([], pa.string()) for _ in fmt.delivered]
        return Raw(none, np.zeros(0, np.int64), dict.fromkeys(range(len(lines)), _NO_HEADER))
    wanted = [layout.index(name) for name in fmt.delivered.names]
    fast = np.zeros(len(lines), bool) if careful else ~_misread_by_arrow(lines)
    table, fast = _csv_fast(lines, fast, fmt.delimiter, len(layout), wanted)
    values: list[list[str]] = [[] for _ in wanted]
    rows: list[int] = []
    refused: dict[int, str] = {}
    for i in np.flatnonzero(~fast).tolist():
        fields = split_csv(lines.line(i).decode("utf-8"), fmt.delimiter)
        if fields is None:
            refused[i] = "a quoted field is not closed" + (
                "" if fmt.multiline else " on its line; if it goes on, give multiline=True"
            )
        elif len(fields) != len(layout):
            refused[i] = f"expected {len(layout)} fields, found {len(fields)}" + _advice(fields[0])
        else:
            rows.append(i)
            for column, at in zip(values, wanted, strict=True):
                column.append(fields[at])
    columns = [pa.array(column, pa.string()) for column in values]
    numbers = np.array(rows, np.int64)
    if table is not None:
        numbers = np.concatenate([np.flatnonzero(fast), numbers])
        columns = [
            pa.concat_arrays([*table.column(k).chunks, columns[k]]) for k in range(len(columns))
        ]
        if rows:
            order = np.argsort(numbers, kind="stable")
            numbers = numbers[order]
            columns = [column.take(pa.array(order)) for column in columns]
    return Raw(_csv_nulls(fmt, columns, lines.data), numbers, refused)


def _advice(first: str) -> str:
    mark = first.lstrip()[:1]
    return f"; if this is no record, give comment={mark!r}" if mark in ("#", "%") else ""


def _csv_nulls(fmt: Format, columns: list[pa.Array], data: bytes) -> list[pa.Array]:
    # An empty field is the empty string in a string column and null in every other.
    everywhere = [word for word in fmt.nulls if word.encode() in data]
    elsewhere = [*everywhere, *(word for word in fmt.absent if word.encode() in data)]
    return [
        words_to_null(column, everywhere)
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        else words_to_null(empty_to_null(column), elsewhere, trim=True)
        for field, column in zip(fmt.delivered, columns, strict=True)
    ]


def _misread_by_arrow(lines: Lines) -> Bools:
    """Lines Arrow would read differently: a CR inside is a line end to it, a leading BOM noise."""
    found = np.zeros(len(lines), bool)
    array = lines.as_array()
    if b"\r" in lines.data:
        found[lines.holding(np.flatnonzero(array == 13))] = True
    if BOM in lines.data:
        for i in np.flatnonzero(array[lines.starts] == BOM[0]):
            found[i] |= lines.data.startswith(BOM, int(lines.starts[i]))
    return found


def _csv_fast(
    lines: Lines, fast: Bools, delimiter: str, width: int, wanted: list[int]
) -> tuple[pa.Table | None, Bools]:
    """The rows Arrow read, and which lines those are; lines it did not read stay for the other."""
    for attempt in _attempts(lines, fast, delimiter):
        result = _arrow_csv(lines.take(attempt), delimiter, width, wanted)
        if result is not None:
            table, skipped = result
            attempt[np.flatnonzero(attempt)[skipped]] = False
            return table, attempt
    return None, np.zeros(len(lines), bool)


def _attempts(lines: Lines, fast: Bools, delimiter: str) -> Iterator[Bools]:
    """Ever smaller sets of lines to try together: all, those with paired quotes, the unquoted."""
    yield from _unless_empty(lines, fast, delimiter)
    if b'"' not in lines.data:
        return
    quotes = lines.holding(np.flatnonzero(lines.as_array() == 0x22))
    counts = np.bincount(quotes, minlength=len(lines))
    if (counts % 2).any():
        yield from _unless_empty(lines, fast & (counts % 2 == 0), delimiter)
    yield from _unless_empty(lines, fast & (counts == 0), delimiter)


def _unless_empty(lines: Lines, rows: Bools, delimiter: str) -> Iterator[Bools]:
    rows = rows.copy()
    for i in np.flatnonzero(rows)[::-1].tolist():
        # An unclosed quote on the very last line swallows nothing, so counting would not show it.
        line = lines.line(i)
        if b'"' not in line or split_csv(line.decode("utf-8"), delimiter) is not None:
            break
        rows[i] = False
    if rows.any():
        yield rows


def _arrow_csv(
    lines: Lines, delimiter: str, width: int, wanted: list[int]
) -> tuple[pa.Table, list[int]] | None:
    data = lines.joined()
    if len(data) >= 2**31 - 1:  # Arrow's limit for one block
        return None
    skipped: list[int] = []

    def skip(row: pacsv.InvalidRow) -> str:
        skipped.append(row.number - 1)
        return "skip"

    names = [f"f{i}" for i in range(width)]
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=[names[i] for i in wanted],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    return (table, skipped) if table.num_rows + len(skipped) == len(lines) else None

"""A block of csv, json or text lines to `Parsed`: scan, screen, find fields, convert.

This is the middle of the data path in a worker. For csv and json there is a fast parser that reads
a whole block with compiled code and is believed only when it provably read one record per line;
otherwise a careful one, which sees one line at a time, decides. Both only find fields. The careful
one is the definition: whatever the fast one accepts, it accepts with the same fields.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.io.columns import build
from millstream.io.csvlines import csv_fields
from millstream.io.envelopes import debezium_fields
from millstream.io.formats import DEBEZIUM, Format
from millstream.io.jsonlines import json_fields
from millstream.io.lines import Lines, Raw, screen, too_deep
from millstream.io.records import MAX_RAW, Dead, Parsed, raw_text


def parse_scanned(
    fmt: Format, lines: Lines, layout: tuple[str, ...], *, careful: bool = False
) -> Parsed:
    """Parse scanned lines; `layout` names the csv fields in file order.

    `careful` skips the fast parsers; the result is the same, and a test holds us to that.
    """
    refused = screen(lines, fmt.encoding)
    if fmt.kind in ("json", DEBEZIUM):
        refused |= too_deep(lines, refused)
    usable = np.ones(len(lines), bool)
    usable[list(refused)] = False
    raw = _fields(fmt, lines.take(usable), layout, careful)
    numbers = np.flatnonzero(usable)
    refused |= {int(numbers[i]): why for i, why in raw.refused.items()}
    dead = [Dead(int(lines.positions[i]), _shown(lines, i), why) for i, why in refused.items()]
    rows = numbers[raw.rows]
    return build(fmt, raw.columns, lines.positions[rows], dead, lambda i: _shown(lines, rows[i]))


def _fields(fmt: Format, lines: Lines, layout: tuple[str, ...], careful: bool) -> Raw:
    if fmt.kind == "csv":
        return csv_fields(fmt, lines, layout, careful)
    if fmt.kind == "json":
        return json_fields(fmt, lines, careful)
    if fmt.kind == DEBEZIUM:
        return debezium_fields(fmt, lines, careful)
    return _text_fields(lines)


def _text_fields(lines: Lines) -> Raw:
    """Every line is its own value: cut the line ends out of the block and keep the offsets."""
    lengths = lines.ends - lines.starts
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    edges = np.zeros(len(lines.data) + 1, np.int8)
    edges[lines.starts] += 1
    edges[lines.ends] -= 1  # never a start of another line: a newline lies between
    inside = np.cumsum(edges[:-1], dtype=np.int8).view(bool)
    content = pa.py_buffer(lines.as_array()[inside])
    wide = pa.LargeStringArray.from_buffers(len(lines), pa.py_buffer(offsets), content)
    return Raw([wide.cast(pa.string())], np.arange(len(lines)), {})


def _shown(lines: Lines, i: int) -> str:
    start = int(lines.starts[i])
    return raw_text(lines.data[start : min(int(lines.ends[i]), start + MAX_RAW)])

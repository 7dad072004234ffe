"""Debezium's envelopes to raw columns: one change of a table per line of JSON.

An envelope has the row `before` and `after` a change, `op` (c, r, u, d) and a time; with schemas in
the messages it lies in `payload`. The record is the row as it is now, or as it was if it is gone,
with `__op`, and `__ts` if that column is declared. A tombstone (null), which tells Kafka to forget
a key, follows a removal and says nothing more: it is skipped like a blank line.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.io.formats import DEBEZIUM_OP, DEBEZIUM_TIME, Format
from millstream.io.jsonlines import columns_of, decoded_together, getters_of, record_type
from millstream.io.lines import Lines, Raw

_AFTER, _BEFORE = ("c", "r", "u"), ("d",)
_META = (DEBEZIUM_OP, DEBEZIUM_TIME)
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def debezium_fields(fmt: Format, lines: Lines, careful: bool) -> Raw:
    """The rows of changes, and why some lines have none."""
    schema, decoder = fmt.delivered, _decoder(fmt.delivered)
    envelopes: list[Any] | None = None if careful else decoded_together(decoder, lines)
    refused: dict[int, str] = {}
    if envelopes is None:
        envelopes = []
        for i, line in enumerate(lines.all_lines()):
            try:
                envelopes.append(None if line.strip() == b"null" else decoder.decode(line))
            except _REFUSED as error:
                envelopes.append(None)
                refused[i] = str(error)
    own = _own(schema)
    named = dict(zip(own.names, getters_of(own), strict=True))
    keys = {key: named[key] for key in fmt.keys if key in named}
    changes, rows, at = [], [], []
    for i, envelope in enumerate(envelopes):
        change = (
            envelope if envelope is None or envelope.payload is msgspec.UNSET else envelope.payload
        )
        if change is None:
            continue
        row = change.after if change.op in _AFTER else change.before
        why = _wrong(change, row, keys)
        if why is not None:
            refused[i] = why
            continue
        changes.append(change)
        rows.append(row)
        at.append(i)
    return Raw(_columns(schema, changes, rows), np.array(at, np.int64), refused)


def _wrong(change: Any, row: Any, keys: dict[str, Any]) -> str | None:
    if change.op is None:
        return "this is no envelope of Debezium: it has no op"
    if change.op not in (*_AFTER, *_BEFORE):
        return f"op {change.op!r} cannot be applied to rows; there are c, r, u and d"
    if row is None:
        side = "after" if change.op in _AFTER else "before"
        return f"op {change.op!r} without {side!r}: which row is it about?"
    if change.op != "u" or change.before is None:
        return None
    for key, value in keys.items():
        was, now = value(change.before), value(change.after)
        if was is not None and was != now:
            return (
                f"op 'u' changes the key {key!r} from {was!r} to {now!r}: which row goes? Debezium "
                "tells that of a table's own key as a removal and a new row; go by that key"
            )
    return None


def _columns(schema: pa.Schema, changes: list[Any], rows: list[Any]) -> list[pa.Array]:
    own = _own(schema)
    found = dict(zip(own.names, columns_of(own, rows), strict=True))
    found[DEBEZIUM_OP] = pa.array([one.op for one in changes], pa.string())
    if DEBEZIUM_TIME in schema.names:
        found[DEBEZIUM_TIME] = pa.array([_moment(one.ts_ms) for one in changes], pa.string())
    return [found[name] for name in schema.names]


def _own(schema: pa.Schema) -> pa.Schema:
    """The columns of the table."""
    return pa.schema([field for field in schema if field.name not in _META])


def _moment(millis: int | None) -> str | None:
    if millis is None:
        return None
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        return str(millis)  # which is no time, and is said to be none


@lru_cache(maxsize=64)
def _decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    row = record_type(_own(schema)) | None
    fields: list[Any] = [("before", row, None), ("after", row, None)]
    fields += [("op", str | None, None), ("ts_ms", int | None, None)]
    change = msgspec.defstruct("Change", fields, gc=False)
    payload = ("payload", change | None | msgspec.UnsetType, msgspec.UNSET)
    return msgspec.json.Decoder(msgspec.defstruct("Envelope", [*fields, payload], gc=False))

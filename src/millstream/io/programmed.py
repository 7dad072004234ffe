"""Files read by a function of the user: raw bytes to records, run inside tasks.

The function gets an open file and gives `(position, record)`, positions ascending. What follows is
as for every other kind: records become columns of the schema, and what does not fit is a dead
letter. A file is read whole, in one split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError, RunError
from millstream.io.columns import build
from millstream.io.formats import Format
from millstream.io.opening import open_unpacked
from millstream.io.records import Dead, Parsed
from millstream.io.schemas import TIMESTAMP, normal_type
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.records import as_json, describe

ReadFile = Callable[[BinaryIO], Iterable[tuple[int, Any]]]

_SAMPLE = 1_000  # records looked at to find the columns
_FILES = 20  # files looked at before giving up on finding a record
_ARROW = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def read_records(fmt: Format, path: str, max_rows: int) -> Iterator[Parsed]:
    """The records of a file, at most so many at a time."""
    assert fmt.reader is not None
    with open_unpacked(path) as file:
        records = _placed(fmt.reader, file, path)
        while block := list(islice(records, max_rows)):
            yield _parsed(fmt, block)


def sample_schema(reader: ReadFile, paths: Sequence[str]) -> pa.Schema:
    """Columns and types of the first records of the first file that has any."""
    for path in paths[:_FILES]:
        try:
            with open_unpacked(path) as file:
                block = list(islice(_placed(reader, file, path), _SAMPLE))
        except (RunError, OSError) as error:
            raise ConfigError(f"{error}; it was looked at to find the columns") from None
        rows = [record for _, record in block if isinstance(record, dict)]
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            return pa.schema(
                [(name, _type_of(name, [r.get(name) for r in rows])) for name in names]
            )
    problem = "no file holds a record" if paths else "there is no file yet"
    raise ConfigError(
        f"cannot infer the columns of what the reader gives: {problem}. Give schema=, for example "
        "schema='ts timestamp, name string, price double'"
    )


def _type_of(name: str, values: list[Any]) -> pa.DataType:
    try:
        found = pa.array(values).type
    except _ARROW as error:
        raise ConfigError(
            f"column {name!r} of what the reader gives has values of several types ({error}); give "
            "schema="
        ) from None
    if pa.types.is_timestamp(found):
        return TIMESTAMP if found.tz else pa.timestamp("us")
    return pa.string() if pa.types.is_null(found) else normal_type(found)


def _placed(reader: ReadFile, file: BinaryIO, path: str) -> Iterator[tuple[int, Any]]:
    """What a reader gives, its positions checked; it cannot go on after an error, nor can we."""
    last = -1
    after = "at its beginning"
    try:
        for item in reader(file):
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise RunError(
                    f"the reader of {path} gave {_shown(item)} {after}; expected (position, record)"
                )
            position, record = item
            if type(position) is not int or not last < position < 1 << OFFSET_BITS:
                raise RunError(
                    f"the reader of {path} gave position {_shown(position)} {after}; expected "
                    f"whole numbers from 0 to 2^{OFFSET_BITS} that ascend"
                )
            yield position, record
            last, after = position, f"after position {position}"
    except (RunError, GeneratorExit):  # the latter: nobody wants the rest
        raise
    except BaseException as error:  # a user's function may raise anything
        raise RunError(
            f"the reader of {path} raised {describe(error)} {after}; what comes after that cannot "
            "be read, so nothing of this batch was committed. To go on after a bad record, give "
            "its error in its place: yield position, error"
        ) from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _parsed(fmt: Format, block: list[tuple[int, Any]]) -> Parsed:
    refused: dict[int, str] = {}
    for index, (_, record) in enumerate(block):
        if isinstance(record, Exception):
            refused[index] = describe(record)
        elif not isinstance(record, dict):
            refused[index] = f"the reader gave {type(record).__name__}, expected a dict"
    schema = fmt.delivered
    for field in schema:
        values = [r.get(field.name) if isinstance(r, dict) else None for _, r in block]
        refused = _misfits(field, values) | refused
    kept = [one for index, one in enumerate(block) if index not in refused]
    dead = [
        Dead(block[index][0], _raw(block[index][1]), why) for index, why in sorted(refused.items())
    ]
    columns = [_column(field, [record.get(field.name) for _, record in kept]) for field in schema]
    positions = np.array([position for position, _ in kept], np.int64)
    return build(fmt, columns, positions, dead, lambda index: _raw(kept[index][1]))


def _raw(record: Any) -> str:
    return "" if isinstance(record, Exception) else as_json(record)


def _misfits(field: pa.Field, values: list[Any]) -> dict[int, str]:
    """The records whose value cannot be of the type of its column, and why."""
    try:
        _column(field, values)
        return {}
    except _ARROW:
        pass
    bad = {}
    for index, value in enumerate(values):
        try:
            _column(field, [value])
        except _ARROW:
            kind = type(value).__name__
            bad[index] = f"column {field.name!r} holds {field.type}, the reader gave {kind}"
    return bad


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    """Values as an array; times as texts, so that a zone holds for them as for other kinds."""
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        texts = [one.isoformat() if isinstance(one, date | datetime) else one for one in values]
        return pa.array(texts, pa.string())
    return pa.array(values, field.type)

"""A look at the first files of a source, in the driver: which columns, of which types.

Only `formats.infer_format` calls this. Types are tried with the very conversion the workers use
(`columns.convert`), so an inferred column reads without dead letters at least in the sample.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import ConfigError
from millstream.io.columns import convert, empty_to_null
from millstream.io.csvlines import csv_header, split_csv
from millstream.io.formats import Format
from millstream.io.lines import scan
from millstream.io.parquet import repeated
from millstream.io.records import raw_text
from millstream.io.schemas import TIMESTAMP, normal_type
from millstream.io.timestamps import is_naive_text

SAMPLE_BYTES = 1024 * 1024
_MAX_FILES = 20  # looked at before giving up on finding a record


def parquet_schema(paths: Sequence[str], required: bool) -> pa.Schema | None:
    """The (normalised) schema in the first readable footer."""
    problem = "there is no file yet"
    for path in paths[:_MAX_FILES]:
        try:
            stored = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            problem = f"{path} cannot be read ({error})"
            continue
        twice = sorted({name for name in stored.names if stored.names.count(name) > 1})
        if twice:
            raise ConfigError(repeated(path, twice))
        return pa.schema([pa.field(f.name, normal_type(f.type)) for f in stored])
    if required:
        raise ConfigError(_no_sample("parquet", problem))
    return None


def infer_schema(
    kind: str,
    paths: Sequence[str],
    zone: str | None,
    time: str | None,
    header: bool,
    delimiter: str,
) -> pa.Schema:
    """Columns and types from the first file that holds a record."""
    for lines in _samples(paths):
        if kind == "csv":
            columns = _csv_columns(lines, header, delimiter)
            fields = [pa.field(n, _type_of_texts(v, zone, n == time)) for n, v in columns.items()]
        else:
            fields = _json_fields(lines, zone, time)
        if fields:
            return pa.schema(fields)
    problem = "no file holds a record" if paths else "there is no file yet"
    raise ConfigError(_no_sample(kind, problem))


def naive_example(fmt: Format, paths: Sequence[str]) -> str | None:
    """A time text without offset, when the sample has such texts and none with an offset."""
    if fmt.time is None or not _is_text_time(fmt.schema.field(fmt.time).type):
        return None
    for lines in _samples(paths):
        texts = [t for t in _time_texts(fmt, fmt.time, lines) if t]
        if texts:
            naive = [t for t in texts[:1000] if is_naive_text(t)]
            read = ~convert(pa.array(texts[:1000]), TIMESTAMP, None)[1]
            return naive[0] if naive and not read.any() else None
    return None


def _is_text_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _time_texts(fmt: Format, time: str, lines: list[bytes]) -> list[str]:
    if fmt.kind == "csv":
        names = tuple(fmt.schema.names)
        if fmt.header:
            names = csv_header(lines[0], fmt, "the first file")
            lines = lines[1:]
        at = names.index(time)
        rows = [split_csv(raw_text(line), fmt.delimiter) for line in lines]
        return [row[at] for row in rows if row and len(row) == len(names)]
    if fmt.kind == "json":
        values = [record.get(time) for record in _objects(lines)]
        return [value for value in values if isinstance(value, str)]
    return [raw_text(line) for line in lines]


def _samples(paths: Sequence[str]) -> Iterator[list[bytes]]:
    for path in paths[:_MAX_FILES]:
        try:
            with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream:
                data = stream.read(SAMPLE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"cannot read {path} to look at its columns: {error}") from error
        # The last line may be half written, or cut by the sample: use it only if it is all we have.
        whole = scan(data[: data.rfind(b"\n") + 1], 0).all_lines()
        lines = whole if len(whole) > 1 else scan(data, 0).all_lines()
        if lines:
            yield lines


def _csv_columns(lines: list[bytes], header: bool, delimiter: str) -> dict[str, list[str]]:
    rows = [split_csv(line.decode("utf-8", "replace"), delimiter) for line in lines]
    first = rows[0]
    if first is None:
        raise ConfigError(f"the first csv line has an unclosed quote: {raw_text(lines[0])!r}")
    names = [n.strip() for n in first] if header else [f"_c{i}" for i in range(len(first))]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(
            f"the csv header has empty or repeated names: {raw_text(lines[0])!r}; correct it, or "
            f"give header=False if it is no header"
        )
    body = [row for row in rows[header:] if row is not None and len(row) == len(names)]
    return {name: [row[i] for row in body] for i, name in enumerate(names)} if body else {}


def _type_of_texts(
    texts: list[str], zone: str | None, is_time: bool, numbers: bool = True
) -> pa.DataType:
    array = empty_to_null(pa.array(texts, pa.string())).drop_null()
    if not len(array):
        return pa.string()
    kinds = [pa.int64(), pa.float64(), pa.bool_()] if numbers else []
    for kind in [*kinds, pa.date32(), TIMESTAMP]:
        # The time column is a timestamp even if its zone is missing: the caller then says so.
        if not convert(array, kind, "UTC" if is_time else zone)[1].any():
            return kind
    return pa.string()


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            value = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _json_fields(lines: list[bytes], zone: str | None, time: str | None) -> list[pa.Field]:
    return _members(_objects(lines), zone, time)


def _members(records: list[dict[str, Any]], zone: str | None, time: str | None) -> list[pa.Field]:
    names = list(dict.fromkeys(name for record in records for name in record))
    return [
        pa.field(name, _type_of([r.get(name) for r in records], zone, name == time))
        for name in names
    ]


def _type_of(values: list[Any], zone: str | None, is_time: bool) -> pa.DataType:
    values = [v for v in values if v is not None]
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in values):
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {str}:
        return _type_of_texts(values, zone, is_time, numbers=False)
    if kinds == {list}:
        return pa.list_(_type_of([item for v in values for item in v], zone, False))
    if kinds == {dict} and any(values):
        return pa.struct(_members(values, zone, None))
    return pa.string()


def _no_sample(kind: str, problem: str) -> str:
    return (
        f"cannot infer the columns of this {kind} source: {problem}. "
        f"Give schema=, for example schema='ts timestamp, name string, price double'"
    )

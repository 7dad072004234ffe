"""A look at the first files of a source, in the driver: which columns, of which types.

Only `formats.infer_format` calls this. Types are tried with the very conversion the workers use
(`columns.convert`), so an inferred column reads without dead letters at least in the sample.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError, RunError
from millstream.io import csvguess
from millstream.io.columns import convert, empty_to_null, words_to_null
from millstream.io.csvlines import csv_header, split_csv
from millstream.io.formats import Format, naive_message
from millstream.io.multiline import Records
from millstream.io.opening import open_unpacked
from millstream.io.parquet import opened, repeated
from millstream.io.readers import scan_lines
from millstream.io.records import raw_text
from millstream.io.schemas import TIMESTAMP, normal_type
from millstream.io.timeformats import formats_of, time_format
from millstream.io.timepatterns import numbered, times_in
from millstream.io.timestamps import is_naive_text

_log = logging.getLogger("millstream.sources")

SAMPLE_BYTES = 1024 * 1024
_MAGIC = {
    b"PAR1": 'a parquet file; give format="parquet"',
    b"PK\x03\x04": "a zip archive, as books of Excel are; save its sheet as csv or unpack it",
    b"\x1f\x8b": "compressed with gzip; give it a name that ends in .gz",
    b"Obj\x01": "an Avro file, which cannot be read; convert it to parquet",
    b"ORC": "an ORC file, which cannot be read; convert it to parquet",
}
_WHOLE = r"^\s*[-+]?[0-9]+\s*$"
_LARGE = pa.decimal128(38, 0)  # of whole numbers that 64 bits do not hold
_MAX_FILES = 20  # looked at before giving up on finding a record


def parquet_schema(paths: Sequence[str], required: bool) -> pa.Schema | None:
    """The (normalised) schema in the first readable footer."""
    problem = "there is no file yet"
    for path in paths[:_MAX_FILES]:
        try:
            with opened(path) as file:
                stored = file.schema_arrow
        except RunError as error:
            problem = str(error)
            continue
        twice = sorted({name for name in stored.names if stored.names.count(name) > 1})
        if twice:
            raise ConfigError(repeated(path, twice))
        return pa.schema([pa.field(f.name, normal_type(f.type)) for f in stored])
    if required:
        raise ConfigError(_no_sample("parquet", problem))
    return None


def infer_schema(fmt: Format, paths: Sequence[str]) -> pa.Schema:
    """Columns and types from the first file that holds a record."""
    problem = "no file holds a record" if paths else "there is no file yet"
    for path, lines in _samples(fmt, paths):
        _check_encoding(path, lines, fmt)
        if fmt.kind == "csv":
            fields = _csv_fields(path, fmt, csvguess.columns(path, lines, fmt))
        else:
            _check_json(path, lines)
            records = _objects(lines)
            fields = _members(records, fmt.zone, fmt.time, top=True)
            _tell_mixed(path, records)
        if fields:
            return pa.schema(fields)
        if fmt.kind == "csv" and fmt.header:
            problem = f"{path} has a header and no record (header=False if it has no header)"
    raise ConfigError(_no_sample(fmt.kind, problem))


def find_delimiter(fmt: Format, paths: Sequence[str]) -> str:
    """What parts the fields of the first file that holds a line."""
    for path, lines in _samples(fmt, paths):
        found = csvguess.delimiter(lines)
        if found != ",":
            _log.info("%s: fields are parted by %r; give delimiter= if not", path, found)
        return found
    return "\t" if any(".tsv" in path for path in paths) else ","


def _check_encoding(path: str, lines: list[bytes], fmt: Format) -> None:
    """Refuse a file in another encoding; a broken line among good ones is a dead letter."""
    for magic, what in _MAGIC.items():
        if lines[0].startswith(magic):
            raise ConfigError(f"{path} is no {fmt.kind} but {what}")
    if lines[0].startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(
            f"{path} is UTF-16; convert it to UTF-8, for example with "
            f"iconv -f UTF-16 -t UTF-8 {path}"
        )
    special = [line for line in lines if not line.isascii()]
    if special and not any(_is_utf8(line) for line in special):
        name = fmt.encoding or "UTF-8"
        raise ConfigError(
            f"{path} is not {name}: see {raw_text(special[0])[:100]!r}; say which encoding it "
            "has, for example encoding='cp1252' for files of Windows"
        )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_json(path: str, lines: list[bytes]) -> None:
    """Refuse json that is not one object per line by what it is."""
    first = lines[0].lstrip()
    if first.startswith(b"[") and not isinstance(_value(first), list):
        what = "one array over several lines"
    elif isinstance(_value(first), list):
        what = "an array"
    elif first.startswith(b"{") and not any(isinstance(_value(x), dict) for x in lines[:1000]):
        what = "an object over several lines"
    else:
        return
    raise ConfigError(
        f"{path} holds {what}, expected one object per line; convert it, for example with "
        f"jq -c '.[]' for an array and jq -c . for objects, or give reader= with a function "
        "that reads it"
    )


def _value(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def check_times(fmt: Format, paths: Sequence[str]) -> None:
    """Refuse a source if nothing in the sample of its time column can be read."""
    assert fmt.time is not None
    kind = fmt.schema.field(fmt.time).type
    if not _is_text_time(kind):
        return
    for _, lines in _samples(fmt, paths):
        words = {"", *fmt.nulls, *fmt.absent}
        texts = [t for t in _time_texts(fmt, fmt.time, lines) if t.strip() not in words][:1000]
        if texts and fmt.time_pattern is not None:
            texts = _found(fmt, fmt.time_pattern, texts)
        if texts:
            _check_texts(fmt, pa.array(texts), texts)
            return


def _found(fmt: Format, pattern: str, texts: list[str]) -> list[str]:
    """The times inside of texts, without those that are numbers since the epoch."""
    found = times_in(pa.array(texts), pattern)
    if found.null_count == len(found):
        raise ConfigError(
            f"time column {fmt.time!r} has texts like {texts[0]!r}, in which "
            f"time_pattern={pattern!r} finds nothing"
        )
    are = numbered(found, fmt.time_unit)[2] if fmt.time_format is None else [False] * len(found)
    times = zip(found.to_pylist(), are, strict=True)
    return [text for text, number in times if text is not None and not number]


def _check_texts(fmt: Format, array: pa.Array, texts: list[str]) -> None:
    if fmt.time_format is not None:
        if time_format(fmt.time_format).micros(array, fmt.zone)[1].all():
            raise ConfigError(
                f"time column {fmt.time!r} has texts like {texts[0]!r}, which are not written as "
                f"time_format={fmt.time_format!r} says{_meant(texts)}"
            )
        return
    if not convert(array, TIMESTAMP, fmt.zone)[1].all():
        return
    naive = [text for text in texts if is_naive_text(text)]
    if naive and fmt.zone is None:
        raise ConfigError(naive_message(str(fmt.time), f"like {naive[0]!r}"))
    if (meant := _meant(texts)) and not naive:
        raise ConfigError(
            f"time column {fmt.time!r} has texts like {texts[0]!r}, expected ISO-8601{meant}"
        )


def _meant(texts: list[str]) -> str:
    """Which formats the texts may have."""
    several = [f'time_format="{one}"' for one in formats_of(texts)]
    return "; give " + " or ".join(several) if several else ""


def _is_text_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _time_texts(fmt: Format, time: str, lines: list[bytes]) -> list[str]:
    if fmt.kind == "csv":
        names = tuple(fmt.schema.names)
        if fmt.header:
            names = csv_header(lines[0], replace(fmt, encoding=None), "the first file")
            lines = lines[1:]
        at = names.index(time)
        rows = [split_csv(raw_text(line), fmt.delimiter) for line in lines]
        return [row[at] for row in rows if row and len(row) == len(names)]
    if fmt.kind == "json":
        values = [record.get(time) for record in _objects(lines)]
        return [value for value in values if isinstance(value, str)]
    return [raw_text(line) for line in lines]


def _samples(fmt: Format, paths: Sequence[str]) -> Iterator[tuple[str, list[bytes]]]:
    for path in paths[:_MAX_FILES]:
        try:
            with open_unpacked(path) as stream:
                data = stream.read(SAMPLE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"cannot read {path} to look at its columns: {error}") from error
        # The last line may be half written, or cut by the sample: use it only if it is all we have.
        whole = _lines(fmt, data[: data.rfind(b"\n") + 1])
        lines = whole if len(whole) > 1 else _lines(fmt, data)
        if lines:
            yield path, lines


def _lines(fmt: Format, data: bytes) -> list[bytes]:
    """The lines of a sample; with `multiline` its records, without a last one that goes on."""
    if fmt.multiline:
        start = Records(fmt.delimiter, fmt.comment).open_at(data)
        data = data if start < 0 else data[:start]
    return scan_lines(fmt, data, 0).all_lines()


def _csv_fields(path: str, fmt: Format, columns: dict[str, list[str]]) -> list[pa.Field]:
    """The type of every column, and a word on what was taken for null."""
    words = (*fmt.nulls, *fmt.absent)
    fields, taken = [], []
    for name, texts in columns.items():
        kind = _type_of_texts(
            texts, fmt.zone, name == fmt.time, True, words, fmt.time_format is not None
        )
        fields.append(pa.field(name, kind))
        if kind != pa.string() and not {t.strip() for t in texts}.isdisjoint(fmt.absent):
            taken.append(name)
    if taken:
        found = {t.strip() for name in taken for t in columns[name]}
        said = [word for word in fmt.absent if word in found]
        _log.warning(
            "%s: %s read as null in %s; nulls=%s says so, and nulls=[] that it is a text",
            path,
            " and ".join(map(repr, said)),
            ", ".join(taken),
            said,
        )
    return fields


def _type_of_texts(
    texts: list[str],
    zone: str | None,
    is_time: bool,
    numbers: bool = True,
    words: Sequence[str] = (),
    formatted: bool = False,
) -> pa.DataType:
    if is_time and formatted:
        return TIMESTAMP
    array = words_to_null(empty_to_null(pa.array(texts, pa.string())), words, trim=True).drop_null()
    if not len(array):
        return pa.string()
    kinds = [pa.int64(), pa.float64(), pa.bool_()] if numbers else []
    if numbers and not is_time and pc.all(pc.match_substring_regex(array, _WHOLE)).as_py():
        kinds = [pa.int64(), _LARGE]  # a double would make one number of several
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


_NAMES: dict[type, str] = {
    str: "texts",
    bool: "booleans",
    int: "numbers",
    float: "numbers",
    list: "arrays",
    dict: "objects",
}


def _tell_mixed(path: str, records: list[dict[str, Any]]) -> None:
    """Say which columns hold values of several types, and so are texts."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for name, value in record.items():
            if value is not None:
                found.setdefault(name, {}).setdefault(_NAMES[type(value)], value)
    for name, kinds in found.items():
        if len(kinds) > 1:
            examples = (msgspec.json.encode(value).decode() for value in kinds.values())
            _log.warning(
                "%s: column %r has %s (%s), so it is read as text, each value as it is written; "
                "schema= with another type makes dead letters of the others",
                path,
                name,
                " and ".join(kinds),
                ", ".join(one if len(one) <= 30 else f"{one[:30]}..." for one in examples),
            )


def _members(
    records: list[dict[str, Any]], zone: str | None, time: str | None, top: bool = False
) -> list[pa.Field]:
    names = list(dict.fromkeys(name for record in records for name in record))
    return [
        pa.field(name, _type_of([r.get(name) for r in records], zone, name == time, top))
        for name in names
    ]


def _type_of(values: list[Any], zone: str | None, is_time: bool, top: bool = False) -> pa.DataType:
    values = [v for v in values if v is not None]
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63:
        return pa.int64()
    if kinds == {int} and not is_time:
        return _LARGE if top and max(map(abs, values)) < 10**38 else pa.string()
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

"""How to read a source: its kind, columns and event time, decided once in the driver.

`infer_format` checks what the user asked for against a sample of the files, so that every mistake
shows before a job starts, as one `ConfigError`. The resulting `Format` travels with each task and
is all the readers (`readers.py`) need to know.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.io.schemas import TIMESTAMP, parse_schema
from millstream.io.timeformats import time_format as time_format_of
from millstream.io.timepatterns import time_pattern as time_pattern_of

if TYPE_CHECKING:
    from millstream.io.kafka.decoding import Topics

__all__ = ["KINDS", "READER", "Format", "SchemaLike", "infer_format", "parse_schema"]

DEBEZIUM = "debezium"  # changes of a table as Debezium tells them
DEBEZIUM_OP, DEBEZIUM_TIME = "__op", "__ts"  # what it says of a change beside the row
KINDS = ("csv", "json", "parquet", "text", DEBEZIUM)
UNITS = {
    "s": "s",
    "ms": "ms",
    "us": "us",
    "ns": "ns",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}
DELIMITERS = ",;\t|"  # those that are looked for
# What stands for a missing value in files all over the world. Where columns are inferred, these
# are null in every column that is no text.
NULLS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "\\N")
READER = "reader"  # the kind of files that a function of the user reads
SchemaLike: TypeAlias = str | Mapping[str, str | pa.DataType] | pa.Schema
_ASCII = bytes(range(128))
_TEXT_SCHEMA = pa.schema([("value", pa.string())])


@dataclass(frozen=True)
class Format:
    """Everything a task needs to know to read a split.

    A record is checked only in the columns that are read: with a projection (`columns`), a bad
    value elsewhere goes unnoticed.
    """

    kind: str
    schema: pa.Schema
    time: str | None = None
    time_unit: str = "s"
    zone: str | None = None
    header: bool = True
    delimiter: str = ","
    columns: tuple[str, ...] | None = None
    reader: Callable[[Any], Iterable[tuple[int, Any]]] | None = None  # of kind "reader"
    nulls: tuple[str, ...] = ()  # csv: fields that are null in every column
    absent: tuple[str, ...] = ()  # csv: those that are null in every column but texts
    comment: str | None = None  # csv: lines that begin with it are none
    encoding: str | None = None  # None: UTF-8
    time_format: str | None = None  # of texts in the time column; None: ISO-8601
    multiline: bool = False  # csv: a quoted field may run over line ends
    time_pattern: str | None = None  # where in texts of the time column the time stands
    loose: bool = False  # json: text columns were inferred, and take any value as it is written
    keys: tuple[str, ...] = ()  # debezium: by which rows are known, if they become changes
    topics: Topics | None = None  # records of Kafka: where they are, and what lies beside values

    @property
    def cut(self) -> str:
        """How its files are cut: as those of its kind, or not at all."""
        return READER if self.multiline else self.kind

    @property
    def delivered(self) -> pa.Schema:
        """The schema after projection; the time column is always kept, and at least one column.

        (An Arrow table without columns would not know how many rows it has.)
        """
        if self.columns is None:
            return self.schema
        wanted = {*self.columns, self.time}
        return pa.schema([f for f in self.schema if f.name in wanted] or [self.schema.field(0)])


def infer_format(
    kind: str,
    paths: Sequence[str],
    *,
    schema: SchemaLike | None = None,
    time: str | None = None,
    time_unit: str = "s",
    zone: str | None = None,
    header: bool = True,
    delimiter: str | None = ",",
    reader: Callable[[Any], Iterable[tuple[int, Any]]] | None = None,
    nulls: Sequence[str] | None = None,
    comment: str | None = None,
    encoding: str | None = None,
    multiline: bool = False,
    time_format: str | None = None,
    time_pattern: str | None = None,
) -> Format:
    """Check and complete a source's settings, looking at a sample of its files where needed."""
    from millstream.io import sampling  # it reads, and so needs this module

    time_unit = UNITS.get(time_unit, time_unit)
    _check_settings(kind, time_unit)
    check_delimiter(delimiter)
    check_zone(zone)
    if multiline and kind != "csv":
        raise ConfigError(f"multiline=True is for csv, and this source is {kind}")
    fmt = Format(
        kind,
        pa.schema([]),
        time,
        time_unit,
        zone,
        header,
        delimiter or ",",
        reader=reader,
        nulls=tuple(nulls or ()),
        absent=NULLS if nulls is None and schema is None else (),
        comment=comment,
        encoding=codec(encoding),
        time_format=time_format,
        multiline=multiline,
        time_pattern=time_pattern,
        loose=kind == "json" and schema is None,
    )
    if kind == "csv" and delimiter is None:
        fmt = replace(fmt, delimiter=sampling.find_delimiter(fmt, paths))
    found = _columns_of(fmt, None if schema is None else parse_schema(schema), paths)
    fmt = replace(fmt, schema=_zoned(found, zone))
    _check_supported(fmt)
    if time is not None:
        check_time(fmt, time)
        if kind not in ("parquet", DEBEZIUM, READER):
            sampling.check_times(fmt, paths)
    return fmt


def with_operation(schema: pa.Schema | None) -> pa.Schema:
    """The columns of a table whose changes Debezium tells, and what happened."""
    if schema is None:
        raise ConfigError(
            'format="debezium": give the columns of the table, like schema="id bigint, name '
            f'string"; the time of the change is {DEBEZIUM_TIME}, if you declare it as a timestamp'
        )
    if DEBEZIUM_OP in schema.names:
        return schema
    return schema.append(pa.field(DEBEZIUM_OP, pa.string()))


def _columns_of(fmt: Format, given: pa.Schema | None, paths: Sequence[str]) -> pa.Schema:
    """The columns of a source: those that were given, or as a look at its files finds them."""
    from millstream.io import programmed, sampling  # they read, and so need this module

    if fmt.kind == "text":
        if given is not None and given != _TEXT_SCHEMA:
            raise ConfigError("a text source has one column, 'value string': leave schema= out")
        return _TEXT_SCHEMA
    if fmt.kind == "parquet":
        stored = sampling.parquet_schema(paths, required=given is None)
        found = stored if given is None else given
        assert found is not None  # required above
        _check_naive_parquet(found, stored, fmt.time, fmt.zone)
        return found
    if fmt.kind == DEBEZIUM:
        return with_operation(given)
    if given is not None:
        return given
    if fmt.reader is not None:
        return programmed.sample_schema(fmt.reader, paths)
    return sampling.infer_schema(fmt, paths)


def _check_settings(kind: str, time_unit: str) -> None:
    if kind not in KINDS and kind != READER:
        raise ConfigError(f"unknown kind {kind!r}{_hint(kind, KINDS)}; known: {', '.join(KINDS)}")
    if time_unit not in UNITS:
        raise ConfigError(
            f"time_unit= is {time_unit!r}; it must be one of {', '.join(map(repr, UNITS))}"
        )


def check_delimiter(delimiter: str | None) -> None:
    """Refuse what cannot part fields."""
    if delimiter is not None and (
        len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'
    ):
        raise ConfigError(f"delimiter= is {delimiter!r}; it must be one ASCII character, no quote")


def codec(encoding: str | None) -> str | None:
    """The name Python has for an encoding, None for UTF-8; lines must be found without it."""
    if encoding is None:
        return None
    try:
        name = codecs.lookup(encoding).name
        plain = _ASCII.decode(name) == _ASCII.decode("ascii")
    except LookupError:
        raise ConfigError(
            f"encoding= is {encoding!r}, which Python does not know; write one like 'cp1252', "
            "'latin-1' or 'shift_jis'"
        ) from None
    except (UnicodeDecodeError, ValueError):
        plain = False
    if not plain:
        raise ConfigError(
            f"encoding= is {encoding!r}, in which a line end is more than one byte or means "
            f"something else; convert the files, for example with iconv -f {encoding} -t UTF-8"
        )
    return None if name in ("utf-8", "utf-8-sig", "ascii") else name


def check_zone(zone: str | None) -> None:
    """Refuse a name that is no zone."""
    if zone is not None:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as error:
            raise ConfigError(
                f"zone= is {zone!r}, which is no IANA zone; write one like 'UTC' or 'Europe/Paris'"
            ) from error


def _zoned(schema: pa.Schema, zone: str | None) -> pa.Schema:
    """With a zone, wall-clock timestamps are delivered as instants like all others."""
    if zone is None:
        return schema
    naive = pa.timestamp("us")
    return pa.schema([pa.field(f.name, TIMESTAMP if f.type == naive else f.type) for f in schema])


def _check_supported(fmt: Format) -> None:
    for field in fmt.schema:
        if fmt.kind == "csv" and pa.types.is_nested(field.type):
            raise ConfigError(
                f"column {field.name!r} is {field.type}: csv fields cannot be nested; "
                f"declare it string, or use kind 'json'"
            )
        if fmt.kind in ("csv", "json", DEBEZIUM, READER) and field.type == pa.timestamp("us"):
            raise ConfigError(
                f'column {field.name!r} is a timestamp without a zone: add zone="UTC" (or the '
                f"zone the times are in), or declare it timestamp"
            )
        if fmt.kind in ("json", DEBEZIUM) and _decimal_inside(field.type, top=True):
            raise ConfigError(
                f"column {field.name!r} is {field.type}: a decimal inside a nested json column is "
                f"not supported; declare it double or string"
            )


def _decimal_inside(kind: pa.DataType, top: bool) -> bool:
    if pa.types.is_decimal(kind):
        return not top
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return any(_decimal_inside(child, top=False) for child in inner)


def check_time(fmt: Format, time: str) -> None:
    """Refuse a time column that is not there, or cannot hold times."""
    names = fmt.schema.names
    if time not in names:
        raise ConfigError(
            f"time column {time!r} is not among the columns: {', '.join(names)}{_hint(time, names)}"
        )
    kind = fmt.schema.field(time).type
    if fmt.time_format is not None:
        _check_time_format(fmt, fmt.time_format, kind)
    if fmt.time_pattern is not None:
        if not pa.types.is_string(kind):
            raise ConfigError(
                f"time_pattern= is {fmt.time_pattern!r}, but time column {time!r} is {kind}; a "
                "pattern is for texts"
            )
        time_pattern_of(fmt.time_pattern)
    temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if not (
        temporal
        or pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    ):
        raise ConfigError(
            f"time column {time!r} is of type {kind}: event time must be a timestamp, a date, a "
            f"string (ISO-8601), or a number since the epoch (time_unit=)"
        )
    if temporal and not getattr(kind, "tz", None) and fmt.zone is None:
        raise ConfigError(naive_message(time, f"of type {kind}"))


def _check_time_format(fmt: Format, text: str, kind: pa.DataType) -> None:
    if not (
        pa.types.is_string(kind) or (kind == TIMESTAMP and fmt.kind in ("csv", "json", DEBEZIUM))
    ):
        raise ConfigError(
            f"time_format= is {text!r}, but time column {fmt.time!r} is {kind}; a format is for "
            "texts"
        )
    if fmt.zone is None and not time_format_of(text).zoned:
        raise ConfigError(naive_message(str(fmt.time), f"its format is {text!r}"))


def _check_naive_parquet(
    schema: pa.Schema, stored: pa.Schema | None, time: str | None, zone: str | None
) -> None:
    """Declared `timestamp`, stored as wall-clock time: without a zone no row could be read."""
    if zone is not None or stored is None:
        return
    for field in schema:
        at = stored.get_field_index(field.name)
        if field.type == TIMESTAMP and at >= 0 and stored.field(at).type == pa.timestamp("us"):
            what = "time column" if field.name == time else "column"
            raise ConfigError(naive_message(field.name, "stored without a zone", what))


def naive_message(name: str, detail: str, what: str = "time column") -> str:
    return (
        f"{what} {name!r} has times without a zone offset ({detail}): "
        f'add zone="UTC", or the zone the times are in'
    )


def _hint(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

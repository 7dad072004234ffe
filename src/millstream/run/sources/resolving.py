"""What a task must know to read a source, found before Spark starts: its format and columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.api.sources import (
    Collector,
    Delta,
    Files,
    Frame,
    Generator,
    HostStats,
    Lines,
    Rate,
    SourceSpec,
)
from millstream.api.sources.kafka import Kafka
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.io.formats import READER, UNITS, Format, check_time, infer_format, parse_schema
from millstream.io.kafka import avro, protobuf
from millstream.io.kafka.decoding import BYTES, RECORD_TIME, REGISTERED, Topics
from millstream.io.schemas import TIMESTAMP
from millstream.run.sources import frames
from millstream.run.sources.files.listing import as_files, kind_of, list_files
from millstream.run.sources.versions import open_table, paths_of


def resolve_format(name: str, spec: SourceSpec) -> Format:
    """What a task must know to read a source; every mistake shows here."""
    try:
        fmt = _format_of(spec)
        _check_participant(spec, fmt)
        return fmt
    except ConfigError as error:
        raise ConfigError(f"source {name!r}: {error}") from None
    except OSError as error:  # no right to read it, or a store that does not answer
        where = error.filename or getattr(spec, "path", name)
        raise ConfigError(
            f"source {name!r}: {where} cannot be read: {error.strerror or error}"
        ) from None


def _format_of(spec: SourceSpec) -> Format:
    if isinstance(spec, Files):
        return _files_format(spec)
    if isinstance(spec, Frame):
        return _files_format(as_files(spec, "frame", spec.streams), [], frames.schema_of(spec))
    if isinstance(spec, Delta):
        table = open_table(spec)
        schema = None if table.file_uris() else pa.schema(table.schema().to_arrow())
        return _files_format(as_files(spec, spec.location, spec.follow), paths_of(table), schema)
    if isinstance(spec, Kafka):
        return _topics_format(spec)
    if isinstance(spec, Collector):  # what its files look like agents see, and say
        return _generator_format(spec.reads)
    if isinstance(spec, Rate):
        return Format("text", parse_schema("ts timestamp, value bigint"), "ts")
    if isinstance(spec, Lines):
        return infer_format(
            spec.format,
            [],
            schema=spec.schema,
            **_timing(spec),
            header=False,
            delimiter=spec.delimiter,
        )
    return _generator_format(spec)


def _timing(spec: SourceSpec) -> dict[str, Any]:
    """What a source says of the time of its records, by the names that formats have for it."""
    told = ("time", "time_unit", "zone", "time_format", "time_pattern")
    return {name: getattr(spec, name) for name in told}


def _check_participant(spec: SourceSpec, fmt: Format) -> None:
    """Without its column all would be one participant, and slow ones late."""
    columns = [] if isinstance(spec, Collector) else fmt.schema.names
    if spec.participant is not None and columns and spec.participant not in columns:
        raise ConfigError(
            f"participant={spec.participant!r}: there is no such column; there are "
            f"{', '.join(columns)}"
        )


def _files_format(
    spec: Files, paths: list[str] | None = None, schema: pa.Schema | None = None
) -> Format:
    paths = list_files(spec) if paths is None else paths
    kind = READER if spec.reader is not None else spec.format or kind_of(spec, paths)
    return infer_format(
        kind,
        paths,
        schema=schema or spec.schema,
        **_timing(spec),
        header=spec.header,
        delimiter=spec.delimiter,
        reader=spec.reader,
        nulls=spec.nulls,
        comment=spec.comment,
        encoding=spec.encoding,
        multiline=spec.multiline,
    )


def _topics_format(spec: Kafka) -> Format:
    """Values in their format, with the columns that lie beside them."""
    spec.check_source()
    given = None if spec.schema is None else parse_schema(spec.schema)
    timed = spec.time == RECORD_TIME
    known = {} if given is None else {one.name: one.type for one in given}
    if timed and known.get(RECORD_TIME, TIMESTAMP) != TIMESTAMP:
        raise ConfigError(f"{RECORD_TIME!r} is the time that Kafka has of a record: a timestamp")
    key = spec.keys[0] if spec.keys else None
    topics = Topics(spec.cluster, key, spec.header_columns, timed, micros(spec.wait, "wait") / 1e6)
    beside = set(topics.beside)
    if spec.time in beside and not timed:
        raise ConfigError(
            f"time={spec.time!r}: event time is a column of values, or ms.record_time"
        )
    values = given if given is None else pa.schema([f for f in given if f.name not in beside])
    if values is not None and not len(values):
        raise ConfigError("schema=: it has no column that is in values; what is to be read?")
    common = _timing(spec) | ({"time": None} if timed else {})
    if spec.format in REGISTERED:
        topics, fmt = _registered(spec, topics, common)
    elif spec.format == BYTES:
        if values is not None or common["time"] is not None:
            raise ConfigError(
                'format="bytes": values are one column, "value", and have no time of their own: '
                "leave schema= out, and time= or give ms.record_time"
            )
        fmt = Format(BYTES, pa.schema([("value", pa.binary())]), zone=spec.zone)
    else:
        fmt = infer_format(
            spec.format, [], schema=values, header=False, delimiter=spec.delimiter, **common
        )
    fields = {one.name: one for one in fmt.schema}
    kinds = {RECORD_TIME: TIMESTAMP} if timed else {}
    for name in topics.beside:
        fields[name] = pa.field(name, known.get(name, kinds.get(name, pa.string())))
    order = [*(known or fields), *fields]
    schema = pa.schema([fields[name] for name in dict.fromkeys(order)])
    return replace(fmt, schema=schema, time=spec.time, topics=topics)


def _registered(spec: Kafka, topics: Topics, common: dict[str, Any]) -> tuple[Topics, Format]:
    """Values with a schema of a registry: the newest one says which columns there are."""
    registry = spec.schemas
    assert registry is not None
    try:
        wanted = registry.latest(spec.known_by)
    except RunError as error:
        raise ConfigError(f"{error} (subject {spec.known_by!r})") from None
    if wanted.kind != spec.format.upper():
        raise ConfigError(
            f"format={spec.format!r}: the schema of {spec.known_by!r} is {wanted.kind}"
        )
    columns = (avro if spec.format == "avro" else protobuf).columns_of(wanted)
    fmt = Format(spec.format, columns, **common)
    if fmt.time is not None:
        check_time(fmt, fmt.time)
    return replace(topics, registry=registry, wanted=wanted), fmt


def _generator_format(spec: Generator | Files | HostStats) -> Format:
    """A generator's columns are known only if it says so; it is not run to find out."""
    if spec.schema is not None:
        return infer_format("json", [], schema=spec.schema, **_timing(spec))
    unit = UNITS.get(spec.time_unit, spec.time_unit)
    return Format("json", pa.schema([]), **_timing(spec) | {"time_unit": unit})

"""Writing slates to files that other programs read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from millstream.errors import ConfigError, RunError
from millstream.serve.bulk import Slates
from millstream.serve.telling import to_json

_LINES = 10_000  # rows turned into lines at a time


def export_slates(slates: Slates, to: Path) -> int:
    """Write all slates to a file; its ending says how. Gives their number.

    The file appears under its name when it is whole.
    """
    writers = {".parquet": pa.parquet.write_table, ".csv": _csv, ".jsonl": _jsonl}
    write = writers.get(to.suffix.lower())
    if write is None:
        raise ConfigError(
            f"cannot export to {to}: the name must end in {', '.join(writers)}, which says how"
        )
    if not to.parent.is_dir():
        raise ConfigError(f"cannot export to {to}: there is no directory {to.parent}")
    table = slates.arrow()
    half = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    try:
        write(table, half)
        os.replace(half, to)
    except OSError as error:
        raise RunError(f"cannot export to {to} ({error.strerror or error})") from error
    finally:
        half.unlink(missing_ok=True)
    return len(table)


def _csv(table: pa.Table, path: Path) -> None:
    """Lists and records become JSON: CSV has no place for them."""
    for index, name in enumerate(table.column_names):
        kind = table.schema.field(index).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            texts = [None if v is None else _text(v) for v in table.column(index).to_pylist()]
            table = table.set_column(index, name, pa.array(texts, pa.string()))
    pa.csv.write_csv(table, path)


def _jsonl(table: pa.Table, path: Path) -> None:
    with open(path, "wb") as out:
        for start in range(0, len(table), _LINES):
            for record in table.slice(start, _LINES).to_pylist():
                out.write(to_json(record) + b"\n")


def _text(value: Any) -> str:
    text = to_json(value).decode()
    return text.strip('"') if isinstance(value, bytes) else text

"""Files read by a function of the user."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import millstream as ms
from millstream.testing import run_in_process

RECORD = struct.Struct("<qd4s")


def packed(rows: list[tuple[int, float, bytes]]) -> bytes:
    return b"".join(RECORD.pack(*row) for row in rows)


def read_packed(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of 20 bytes, as a device may write them."""
    position = 0
    while data := file.read(RECORD.size):
        ts, price, symbol = RECORD.unpack(data)
        yield position, {"ts": ts, "price": price, "symbol": symbol.decode().strip("\0")}
        position += RECORD.size


ROWS = [(at, at / 2, b"AB"[at % 2 : at % 2 + 1]) for at in range(50)]


def run(tmp_path: Path, source: ms.Files, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    flow = ms.Flow("own")
    rows = ms.Memory()
    flow.source(source).sink(rows)
    ledger = run_in_process(flow, tmp_path / "ck", **options)
    return rows.rows, ledger["files"]


def dead_letters(tmp_path: Path) -> str:
    return "".join(p.read_text() for p in sorted((tmp_path / "ck" / "dead").glob("*.jsonl")))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_records_of_any_bytes_also_compressed(tmp_path: Path, parallelism: int) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / "a.bin").write_bytes(packed(ROWS[:20]))
    (place / "b.bin.gz").write_bytes(gzip.compress(packed(ROWS[20:])))
    rows, ledger = run(
        tmp_path, ms.Files(place, reader=read_packed, time="ts"), parallelism=parallelism
    )
    assert sorted((row["ts"], row["price"], row["symbol"]) for row in rows) == [
        (ts, price, symbol.decode()) for ts, price, symbol in ROWS
    ]
    assert ledger["offered"] == 50


def test_a_reader_sees_the_name_of_its_file(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / "a.doc").write_text("one")
    (place / "b.doc.gz").write_bytes(gzip.compress(b"two"))

    def whole(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
        yield 0, {"name": Path(file.name).name, "text": file.read().decode()}

    rows, _ = run(tmp_path, ms.Files(place, reader=whole))
    assert sorted((row["name"], row["text"]) for row in rows) == [
        ("a.doc", "one"),
        ("b.doc.gz", "two"),
    ]


def test_a_zone_holds_for_times_without_one(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_text("x")

    def moments(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
        yield 0, {"at": datetime(2026, 7, 1, 12)}
        yield 1, {"at": datetime(2026, 7, 1, 12, tzinfo=UTC)}
        yield 2, {"at": "2026-07-01T12:00:00"}

    rows, _ = run(
        tmp_path,
        ms.Files(
            tmp_path / "in.bin",
            reader=moments,
            schema="at timestamp",
            time="at",
            zone="Europe/Berlin",
        ),
    )
    assert sorted(row["at"].hour for row in rows) == [10, 10, 12]


def test_what_does_not_fit_is_a_dead_letter_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_text("x")

    def mixed(file: BinaryIO) -> Iterator[tuple[int, Any]]:
        yield 0, {"n": 1}
        yield 5, {"n": "many"}
        yield 6, ["n", 2]
        yield 7, ValueError("checksum")
        yield 9, {"n": 4}

    rows, ledger = run(
        tmp_path,
        ms.Files(tmp_path / "in.bin", reader=mixed, schema="n bigint"),
        dead_letter_limit=1.0,
    )
    assert sorted(row["n"] for row in rows) == [1, 4]
    assert (ledger["offered"], ledger["dead"]) == (5, 3)
    said = dead_letters(tmp_path)
    assert "column 'n' holds int64, the reader gave str" in said
    assert "the reader gave list, expected a dict" in said
    assert "ValueError: checksum" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [(3, {"n": 1}), (3, {"n": 2})],
            "gave position 3 after position 3; expected whole numbers",
        ),
        ([(-1, {"n": 1})], "gave position -1 at its beginning"),
        ([("0", {"n": 1})], "gave position '0'"),
        ([{"n": 1}], r"expected \(position, record\)"),
        (
            [(0, {"n": 1}), OSError("torn")],
            "raised OSError: torn after position 0; what comes after",
        ),
    ],
)
def test_a_reader_that_cannot_be_trusted_stops_the_run(
    tmp_path: Path, given: list[Any], said: str
) -> None:
    (tmp_path / "in.bin").write_text("x")

    def broken(file: BinaryIO) -> Iterator[Any]:
        for one in given:
            if isinstance(one, OSError):
                raise one
            yield one

    with pytest.raises(ms.RunError, match=said):
        run(tmp_path, ms.Files(tmp_path / "in.bin", reader=broken, schema="n bigint"))


def test_mistakes_show_when_the_flow_is_built(tmp_path: Path) -> None:
    with pytest.raises(ms.ConfigError, match="expected a function that gets an open file"):
        ms.Files("in/", reader="mine")
    with pytest.raises(ms.ConfigError, match="leave format= out"):
        ms.Files("in/", "csv", reader=read_packed)
    (tmp_path / "in.bin").write_bytes(b"torn")
    with pytest.raises(ms.ConfigError, match=r"raised error.*looked at to find the columns"):
        run(tmp_path, ms.Files(tmp_path / "in.bin", reader=read_packed))

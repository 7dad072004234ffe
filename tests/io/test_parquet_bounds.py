"""Parquet files that are hostile or broken in one value: refused, or one dead letter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.errors import ConfigError, RunError
from millstream.io import parquet
from millstream.io.formats import Format
from millstream.io.pages import page_sizes
from millstream.io.readers import Split, available_end, read_split
from millstream.io.records import MAX_LINE, Parsed
from millstream.io.sampling import parquet_schema
from millstream.io.schemas import parse_schema

TEXT = Format("parquet", parse_schema("n bigint, word string"))


def written(directory: Path, table: pa.Table, **how: object) -> tuple[str, Split]:
    path = str(directory / "a.parquet")
    pq.write_table(table, path, **how)
    return path, Split(0, 0, path, 0, len(table))


def text(values: list[bytes]) -> pa.Array:
    """Texts of any bytes, as careless writers store them."""
    packed = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(packed), *packed.buffers()[1:])


def read(split: Split) -> list[Parsed]:
    return list(read_split(TEXT, split))


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_value_that_is_not_utf8_is_a_dead_letter_beside_its_neighbours(
    tmp_path: Path, dictionary: bool
) -> None:
    words = text([b"good", b"b\xffd", b"fine", b"b\xffd"])
    table = pa.table({"n": [1, 2, 3, 4], "word": words})
    (parsed,) = read(written(tmp_path, table, use_dictionary=dictionary)[1])
    assert parsed.table.to_pylist() == [{"n": 1, "word": "good"}, {"n": 3, "word": "fine"}]
    assert parsed.positions.tolist() == [0, 2]
    assert [(d.position, d.error) for d in parsed.dead] == [
        (1, "column 'word': not UTF-8"),
        (3, "column 'word': not UTF-8"),
    ]
    assert parsed.dead[0].raw == '{"n": 2, "word": "b\\\\xffd"}'


def test_text_that_is_not_utf8_inside_a_list_is_a_dead_letter(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), text([b"good", b"\xff"]))
    split = written(tmp_path, pa.table({"words": lists}))[1]
    fmt = Format("parquet", parse_schema("words array<string>"))
    (parsed,) = read_split(fmt, split)
    assert parsed.table.to_pylist() == [{"words": ["good"]}]
    assert [d.position for d in parsed.dead] == [1]


def test_a_repeated_column_name_is_refused_with_column_and_file(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["n", "word", "word"]
    )
    path, split = written(tmp_path, table)
    with pytest.raises(ConfigError, match=r"a\.parquet.* more than one column 'word'"):
        read(split)
    with pytest.raises(ConfigError, match=r"a\.parquet.* more than one column 'word'"):
        parquet_schema([path], True)
    (parsed,) = read_split(Format("parquet", parse_schema("n bigint")), split)
    assert parsed.table.to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_value_beyond_the_limit_is_a_dead_letter(tmp_path: Path, dictionary: bool) -> None:
    table = pa.table({"n": [1, 2, 3], "word": ["a", "x" * (MAX_LINE + 1), "c"]})
    parts = read(written(tmp_path, table, use_dictionary=dictionary)[1])
    assert [r["n"] for p in parts for r in p.table.to_pylist()] == [1, 3]
    (dead,) = [d for p in parts for d in p.dead]
    assert dead.position == 1 and len(dead.raw) <= 64 * 1024
    assert f"value of {MAX_LINE + 1} bytes; the limit is {MAX_LINE}" in dead.error


def test_repeated_texts_are_decoded_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PIECE", 10_000)
    words = pa.array(["x" * 4_000, None, "y"]).take(pa.array([0] * 20 + [1, 2]))
    parts = read(written(tmp_path, pa.table({"n": range(22), "word": words}))[1])
    assert max(p.table.nbytes for p in parts) < 12_000
    rows = [row for p in parts for row in p.table.to_pylist()]
    assert [row["n"] for row in rows] == list(range(22))
    assert [row["word"] for row in rows] == words.to_pylist()


_MEASURE = """
import resource, sys
from millstream.io.formats import Format
from millstream.io.pages import page_sizes
from millstream.io.readers import Split, available_end, read_split
from millstream.io.schemas import parse_schema
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fmt = Format("parquet", parse_schema("n bigint, word string"))
try:
    print(sum(p.offered for p in read_split(fmt, Split(0, 0, sys.argv[1], 0, int(sys.argv[2])))))
except Exception as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def measured(path: str, rows: int) -> tuple[str, int]:
    """What reading says, and how many MiB it took at most."""
    command = [sys.executable, "-c", _MEASURE, path, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, taken = done.stdout.strip().rsplit("\n", 1)
    return said, int(taken)


def test_a_parquet_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path, split = written(tmp_path, pa.table({"n": [1], "word": ["x" * 50_000_000]}))
    with pytest.raises(RunError, match=r"a\.parquet: column 'word' takes 500\d+ bytes for 1 rows"):
        read(split)
    assert measured(path, 1)[1] < 40


def test_a_huge_value_among_small_ones_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """On the average these rows are small."""
    table = pa.table({"n": range(100), "word": ["x" * 140_000_000, *("a" for _ in range(99))]})
    how = {"use_dictionary": False, "compression": "zstd", "write_statistics": False}
    path, _ = written(tmp_path, table, **how)
    assert Path(path).stat().st_size < 20_000
    said, taken = measured(path, 100)
    assert re.search(r"a\.parquet: the largest pages .* take 1400\d+ bytes together", said)
    assert taken < 40


def test_a_row_of_many_long_values_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(100)]
    split = written(tmp_path, pa.table({name: ["x" * 500_000] for name in names}))[1]
    fmt = Format("parquet", parse_schema(", ".join(f"{name} string" for name in names)))
    with pytest.raises(RunError, match=r"all columns take 500\d+ bytes for 1 rows .* one row 335"):
        list(read_split(fmt, split))


def test_a_row_that_is_too_long_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PIECE", 10_000)
    long = "x" * 6_000
    table = pa.table({"n": range(90), "a": [long, "", long] * 30, "b": ["", long, long] * 30})
    split = written(tmp_path, table, store_schema=False)[1]
    fmt = Format("parquet", parse_schema("n bigint, a string, b string"))
    parts = list(read_split(fmt, split))
    rows = [row["n"] for p in parts for row in p.table.to_pylist()]
    assert rows == [n for n in range(90) if n % 3 < 2]
    dead = [d for p in parts for d in p.dead]
    assert [d.position for d in dead] == list(range(2, 90, 3))
    assert {d.error for d in dead} == {"row of 12000 bytes; the limit is 10000"}


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_are_as_large_as_the_footer_says_altogether(
    tmp_path: Path, codec: str, version: str
) -> None:
    table = pa.table(
        {
            "n": range(10_000),
            "word": [f"{'w' * (i % 70)}{i}" for i in range(10_000)],
            "few": ["a", None, "b" * 500, "c", ""] * 2_000,
            "lists": [[i] * (i % 5) for i in range(10_000)],
        }
    )
    how = {"compression": codec, "data_page_version": version, "data_page_size": 4_000}
    path, _ = written(tmp_path, table, row_group_size=6_000, **how)
    with pq.ParquetFile(path) as file, open(path, "rb") as stream:
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                pages = [*page_sizes(stream, column)]
                heads = column.total_uncompressed_size - sum(pages)
                assert len(pages) > 1 and 10 * len(pages) < heads < 1_200 * len(pages)


def test_a_damaged_header_of_a_page_is_refused_by_name(tmp_path: Path) -> None:
    path, split = written(tmp_path, pa.table({"n": [1], "word": ["a"]}), use_dictionary=False)
    content = bytearray(Path(path).read_bytes())
    for at in range(4, 24):
        Path(path).write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        try:
            (parsed,) = read(split)
        except RunError as error:
            assert "a.parquet" in str(error)
        else:
            assert parsed.offered == 1


def test_a_long_text_repeated_many_times_takes_bounded_memory(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), ["x" * 1_000_000])
    table = pa.table({"n": range(500), "word": words})
    path, _ = written(tmp_path, table, store_schema=False)
    said, taken = measured(path, 500)  # 500 MB of text
    assert said == "500" and taken < 300


BEYOND = [0, 2**31 - 1]  # days: the second is in the year 5,881,580


@pytest.mark.parametrize("kind", ["date", "array<date>", "struct<d: date>", "map<string, date>"])
def test_a_day_beyond_the_calendar_is_a_dead_letter(tmp_path: Path, kind: str) -> None:
    days = pa.array(BEYOND, pa.int32()).cast(pa.date32())
    column = {
        "date": lambda: days,
        "array<date>": lambda: pa.ListArray.from_arrays([0, 1, 2], days),
        "struct<d: date>": lambda: pa.StructArray.from_arrays([days], ["d"]),
        "map<string, date>": lambda: pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], days),
    }[kind]()
    split = written(tmp_path, pa.table({"n": [1, 2], "day": column}))[1]
    (parsed,) = read_split(Format("parquet", parse_schema(f"n bigint, day {kind}")), split)
    assert parsed.table.column("n").to_pylist() == [1]
    (dead,) = parsed.dead
    assert dead.position == 1 and "2147483647" in dead.error and "2147483647" in dead.raw


def nested(kind: str, words: pa.Array) -> pa.Array:
    """One text in each value of a nested type."""
    each = list(range(len(words) + 1))
    if kind.startswith("array"):
        return pa.ListArray.from_arrays(each, words)
    if kind.startswith("struct"):
        return pa.StructArray.from_arrays([words], ["a"])
    return pa.MapArray.from_arrays(each, pa.array(["a"] * len(words)), words)


NESTED = ["array<string>", "struct<a: string>", "map<string, string>", "array<array<string>>"]


@pytest.mark.parametrize("kind", NESTED)
def test_repeated_texts_inside_of_others_are_decoded_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(parquet, "PIECE", 10_000)
    words = pa.array(["x" * 4_000, None, "y"]).take(pa.array([0] * 20 + [1, 2]))
    column = nested(kind, words)
    if kind == "array<array<string>>":
        column = pa.ListArray.from_arrays(list(range(len(column) + 1)), column)
    path, split = written(tmp_path, pa.table({"n": range(22), "s": column}), store_schema=False)
    fmt = Format("parquet", parse_schema(f"n bigint, s {kind}"))
    for part in (split, Split(0, 0, path, 5, 22)):  # the whole file, and a part of it
        parts = list(read_split(fmt, part))
        assert max(p.table.nbytes for p in parts) < 12_000
        table = pa.concat_tables(p.table for p in parts)
        assert table.column("n").to_pylist() == list(range(part.start, 22))
        assert table.column("s").to_pylist() == column.to_pylist()[part.start :]


def test_texts_of_one_list_are_one_value(tmp_path: Path) -> None:
    half = "x" * (MAX_LINE // 2 + 1)
    table = pa.table({"n": [1, 2], "s": [["a"], [half, half]]})
    split = written(tmp_path, table)[1]
    parts = list(read_split(Format("parquet", parse_schema("n bigint, s array<string>")), split))
    assert [row["n"] for p in parts for row in p.table.to_pylist()] == [1]
    (dead,) = [d for p in parts for d in p.dead]
    assert f"value of {2 * len(half)} bytes; the limit is {MAX_LINE}" in dead.error


def test_a_list_without_end_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    zeros = pa.ListArray.from_arrays([0, 10_000_000], pa.nulls(10_000_000, pa.int8()))
    path, split = written(tmp_path, pa.table({"n": [1], "word": zeros}))
    assert Path(path).stat().st_size < 2_000
    fmt = Format("parquet", parse_schema("word array<bigint>"))
    with pytest.raises(RunError, match=r"column 'word' takes 80000000 bytes for 1 rows"):
        list(read_split(fmt, split))


def test_texts_stored_as_differences_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PIECE", 10_000)
    monkeypatch.setattr(parquet, "_DELTA_ROWS", 4)
    table = pa.table({"n": range(40), "word": ["x" * 4_000] * 40})
    how = {"n": "PLAIN", "word": "DELTA_BYTE_ARRAY"}
    split = written(tmp_path, table, use_dictionary=False, column_encoding=how)[1]
    parts = read(split)
    assert max(p.table.nbytes for p in parts) < 20_000
    assert pa.concat_tables(p.table for p in parts).to_pylist() == table.to_pylist()


def test_rows_are_counted_by_row_group_where_the_file_says_none(tmp_path: Path) -> None:
    path, _ = written(tmp_path, pa.table({"n": list(range(50)), "word": ["a"] * 50}))
    stored = Path(path).read_bytes()
    rows = b"\x16\x64\x19\x1c"  # 50 as Thrift writes it, before the list of row groups
    assert stored.count(rows) == 1
    Path(path).write_bytes(stored.replace(rows, b"\x16\x00\x19\x1c"))
    assert pq.ParquetFile(path).metadata.num_rows == 0
    end = available_end(path, "parquet", complete=True)
    assert end == 50
    (parsed,) = read(Split(0, 0, path, 0, end))
    assert parsed.table["n"].to_pylist() == list(range(50))


DAMAGE = {
    "header of a page": lambda stored, at: stored[:at] + b"\xff" * 30 + stored[at + 30 :],
    "checksum": lambda stored, at: stored.replace(b"w5", b"w\xf5"),
    "dictionary": lambda stored, at: stored.replace(b"w5", b"w\xf5"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("piece", [20, 4, 3])
def test_rows_of_a_damaged_row_group_are_dead_letters_and_its_neighbours_are_read(
    tmp_path: Path, kind: str, piece: int
) -> None:
    """However the file is cut into pieces; and their number is exact."""
    table = pa.table({"n": range(20), "word": [f"w{n}" for n in range(20)]})
    how = {"write_page_checksum": True, "compression": "none", "row_group_size": 4}
    path, _ = written(tmp_path, table, use_dictionary=kind == "dictionary", **how)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    Path(path).write_bytes(DAMAGE[kind](Path(path).read_bytes(), at))
    splits = [Split(0, 0, path, low, min(low + piece, 20)) for low in range(0, 20, piece)]
    found = [parsed for split in splits for parsed in read(split)]
    rows = [row for parsed in found for row in parsed.table["n"].to_pylist()]
    assert rows == [*range(4), *range(8, 20)]
    assert [int(at) for parsed in found for at in parsed.positions] == rows
    lost = [letter for parsed in found for letter in parsed.dead]
    assert sum(letter.records for letter in lost) == 4
    assert sum(parsed.offered for parsed in found) == 20
    assert all("of row group 1 cannot be read" in letter.error for letter in lost)


def test_a_disk_that_cannot_be_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    split = written(tmp_path, pa.table({"n": [1], "word": ["a"]}))[1]
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails)
    with pytest.raises(RunError, match="Input/output error"):
        read(split)

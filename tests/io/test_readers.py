"""Reading splits: where a file is cut never shows in its records."""

from __future__ import annotations

import gzip
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError, RunError
from millstream.io import lines, readers, unpacking
from millstream.io.formats import Format, infer_format, parse_schema
from millstream.io.readers import Split, available_end, parse_lines, plan_splits, read_split
from millstream.io.unpacking import Measure, measure

AB = parse_schema("a bigint, b string")
TEXT = Format("text", pa.schema([("value", pa.string())]))
Rows = list[tuple[int, str]]


def write(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def _length(path: str) -> int:
    (found,) = measure([path])
    assert isinstance(found, Measure)
    return found.length


def read(
    fmt: Format, path: str, max_bytes: int = 1 << 30, max_rows: int = 1000
) -> tuple[Rows, Rows]:
    """(good, dead) records of a whole file, as (position, text)."""
    good: Rows = []
    dead: Rows = []
    packed = path.endswith(".gz")
    end = _length(path) if packed else available_end(path, fmt.kind, complete=True)
    for split in plan_splits(fmt.kind, 0, 0, path, 0, end, max_bytes):
        for parsed in read_split(fmt, split, max_rows):
            assert 0 < parsed.offered <= max_rows
            assert parsed.offered == parsed.table.num_rows + len(parsed.dead)
            rows = map(repr, parsed.table.to_pylist())
            good += zip(parsed.positions.tolist(), rows, strict=True)
            dead += [(d.position, d.raw) for d in parsed.dead]
    return good, dead


@settings(max_examples=60)
@given(
    st.sampled_from(["csv", "json", "text"]),
    st.lists(
        st.sampled_from(
            [b"1,x", b'2,"y"', b'3,"z', b"", b" ", b"rubbish", b'{"a":1}', b'{"b":"q"}', b"\xff"]
        ),
        max_size=25,
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 60),
    st.integers(1, 5),
)
def test_any_split_gives_the_same_records(
    kind: str, body: list[bytes], eol: bytes, bom: bool, last: bool, max_bytes: int, max_rows: int
) -> None:
    fmt = TEXT if kind == "text" else Format(kind, AB)
    lines = [b"", b"a,b", *body] if kind == "csv" else body
    data = (b"\xef\xbb\xbf" if bom else b"") + eol.join(lines) + (eol if last else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "f", data)
        whole = read(fmt, path)
        assert read(fmt, path, max_bytes, max_rows) == whole
        zipped = write(Path(folder), "f.gz", gzip.compress(data))
        assert read(fmt, zipped, max_bytes, max_rows) == whole
        splits = plan_splits(kind, 3, 4, path, 0, len(data), max_bytes)
    assert [s.start for s in splits[1:]] == [s.end for s in splits[:-1]]
    longest = max((len(part) + 1 for part in data.split(b"\n")), default=0)
    for split in splits:
        assert (split.source, split.file) == (3, 4)
        assert 0 < split.end - split.start <= max(max_bytes, longest)
    found = len(whole[0]) + len(whole[1])
    if kind == "text":  # as many as wc counts, and a last one without its newline
        content = data.removeprefix(b"\xef\xbb\xbf")
        assert found == content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
    else:
        assert found == sum(bool(line.strip()) for line in body)


def test_windows_smaller_than_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(b"%d,%s\n" % (i, b"v" * (i % 50)) for i in range(300))
    path = write(tmp_path, "f", data)
    fmt = Format("csv", AB, header=False)
    whole = read(fmt, path)
    monkeypatch.setattr(readers, "WINDOW", 7)
    assert read(fmt, path) == whole and len(whole[0]) == 300


def test_huge_line_is_skipped_without_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 100)
    monkeypatch.setattr("millstream.io.lines.MAX_LINE", 100)
    monkeypatch.setattr(readers, "WINDOW", 30)
    data = b"first\n" + b"x" * 1000 + b"\nlast\n" + b"y" * 500
    good, dead = read(TEXT, write(tmp_path, "f", data))
    assert [p for p, _ in good] == [0, 1007]
    assert [(p, len(r)) for p, r in dead] == [(6, 102), (1012, 102)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [1, 7, 30, 1000])
@pytest.mark.parametrize("begin", [b" ", b"\t", b"x", b"\r"])
def test_a_record_behind_the_limit_of_a_line_is_not_lost_uncounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes, window: int, packed: bool
) -> None:
    """What is cut off may hold a record, though the rest looks blank, or ends as a line does."""
    for place in (readers, unpacking, lines):
        monkeypatch.setattr(place, "MAX_LINE", 100)
    monkeypatch.setattr(readers, "WINDOW", window)
    monkeypatch.setattr(unpacking, "_WINDOW", window)
    fmt = Format("csv", AB, header=False)
    for length in (99, 100, 101, 102, 103, 400):
        for before_cut in (begin * length, begin * 100 + b"\r" + begin * (length - 101)):
            data = b"1,a\n" + before_cut + b"2,b\n3,c\n"
            name = f"{length}-{len(before_cut)}-{before_cut[100:101].hex()}"
            stored = (f"{name}.gz", gzip.compress(data)) if packed else (name, data)
            good, dead = read(fmt, write(tmp_path, *stored))
            assert [p for p, _ in good] == [0, len(data) - 4], (length, before_cut)
            assert [p for p, _ in dead] == [4]


def test_growing_file(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b"1,a\n2,b\n3,")
    assert available_end(path, "csv", complete=False) == 8
    assert available_end(path, "csv", complete=True) == 10
    fmt = Format("csv", AB, header=False)
    first = [p for s in plan_splits("csv", 0, 0, path, 0, 8, 100) for p in read_split(fmt, s)]
    with open(path, "ab") as stream:
        stream.write(b"c\n")
    assert available_end(path, "csv", complete=False) == 12
    then = [p for s in plan_splits("csv", 0, 0, path, 8, 12, 100) for p in read_split(fmt, s)]
    assert [p.positions.tolist() for p in first + then] == [[0, 4], [8]]
    assert plan_splits("csv", 0, 0, path, 12, 12, 100) == []
    assert available_end(write(tmp_path, "g", b"no line yet"), "text", complete=False) == 0
    long = write(tmp_path, "h", b"a\n" + b"x" * 200_000)
    assert available_end(long, "text", complete=False) == 2


def test_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(b"a,b\n1,x\n") + gzip.compress(b"2,y")
    path = write(tmp_path, "f.csv.gz", packed)
    assert measure([path]) == [Measure(11, 5.5)]
    assert [p for p, _ in read(Format("csv", AB), path)[0]] == [4, 8]
    broken = write(tmp_path, "g.csv.gz", packed[:-3])
    assert measure([broken]) == ["it ends in the middle, was it truncated?"]
    with pytest.raises(RunError, match=r"g\.csv\.gz"):
        list(read_split(Format("csv", AB), Split(0, 0, broken, 0, -1)))


def test_header_order_extra_and_bom(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b'\xef\xbb\xbf"b", zz,a\r\nx,1,5\r\n\r\ny,2,6\r\n')
    good, dead = read(Format("csv", AB), path, max_bytes=4)
    assert good == [(14, "{'a': 5, 'b': 'x'}"), (23, "{'a': 6, 'b': 'y'}")] and not dead


def test_header_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b"a,c\n1,2\n")
    with pytest.raises(ConfigError) as caught:
        read(Format("csv", AB), path)
    assert path in str(caught.value) and "no column 'b'; it has a, c" in str(caught.value)
    assert read(Format("csv", AB, columns=("a",)), path)[0] == [(4, "{'a': 1}")]
    with pytest.raises(ConfigError, match="names 'a' twice"):
        parse_lines(Format("csv", AB), b"a,a,b\n", 0, first_line_is_header=True)
    with pytest.raises(ConfigError, match="unclosed quote"):
        parse_lines(Format("csv", AB), b'a,"b\n', 0, first_line_is_header=True)


def test_empty_inputs(tmp_path: Path) -> None:
    for data in (b"", b"a,b\n", b"\n\n"):
        assert read(Format("csv", AB), write(tmp_path, "f", data)) == ([], [])
    empty = parse_lines(Format("json", AB, time="a"), b"", 0, first_line_is_header=False)
    assert empty.offered == 0 and empty.table.schema == AB and empty.ts is not None
    assert parse_lines(TEXT, b"", 0, first_line_is_header=False).offered == 0
    assert parse_lines(TEXT, b"\n", 0, first_line_is_header=False).offered == 1


def test_truncated_or_missing_file(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b"one\n")
    with pytest.raises(RunError, match="truncated"):
        list(read_split(TEXT, Split(0, 0, path, 0, 100)))
    gone = str(tmp_path / "gone")
    for action in (
        lambda: list(read_split(TEXT, Split(0, 0, gone, 0, 4))),
        lambda: available_end(gone, "text", complete=False),
        lambda: plan_splits("text", 0, 0, gone, 0, 4, 1),
        lambda: available_end(gone, "parquet", complete=True),
    ):
        with pytest.raises(RunError, match="gone"):
            action()


def parquet_file(folder: Path, rows: int = 100) -> str:
    stamps = pa.array(
        [None if i % 10 == 3 else i * 1000 + 1 for i in range(rows)], pa.timestamp("ns")
    )
    names = pa.array([f"n{i % 3}" for i in range(rows)]).dictionary_encode()
    table = pa.table({"t": stamps, "x": list(range(rows)), "name": names, "extra": [0.5] * rows})
    pq.write_table(table, str(folder / "p.parquet"), row_group_size=30)
    return str(folder / "p.parquet")


@pytest.mark.parametrize("max_bytes", [1, 50, 200, 1000, 1 << 20])
def test_parquet(tmp_path: Path, max_bytes: int) -> None:
    path = parquet_file(tmp_path)
    fmt = infer_format("parquet", [path], time="t", zone="UTC")
    assert available_end(path, "parquet", complete=False) == 100
    good, dead = read(fmt, path, max_bytes, max_rows=17)
    assert [p for p, _ in good] == [i for i in range(100) if i % 10 != 3]
    assert [p for p, _ in dead] == list(range(3, 100, 10))
    assert '"x": 3' in dead[0][1] and '"t": null' in dead[0][1]
    assert "'name': 'n1'" in good[1][1]


def test_parquet_part_and_projection(tmp_path: Path) -> None:
    path = parquet_file(tmp_path)
    fmt = Format("parquet", parse_schema("x int, t timestamp"), time="t", zone="UTC", columns=())
    parts = list(read_split(fmt, Split(0, 0, path, 25, 65)))
    positions = np.concatenate([p.positions for p in parts])
    assert positions.tolist() == [i for i in range(25, 65) if i % 10 != 3]
    assert parts[0].table.schema.names == ["t"]
    assert parts[0].ts is not None and parts[0].ts[0] == 25
    assert parts[0].table["t"][0].as_py() == datetime(1970, 1, 1, 0, 0, 0, 25, UTC)


def test_parquet_faults(tmp_path: Path) -> None:
    path = parquet_file(tmp_path)
    split = Split(0, 0, path, 0, 100)
    for ddl, part in [
        ("t timestamp", 'add zone="UTC"'),
        ("nope int", "no column 'nope'; it has t, x, name, extra"),
        ("x binary", "stored as int64, which cannot be read as binary"),
        ("x timestamp", "stored as int64, which cannot be read as timestamp"),
        ("x array<int>", "cannot be read as list"),
    ]:
        with pytest.raises(ConfigError) as caught:
            list(read_split(Format("parquet", parse_schema(ddl)), split))
        assert part in str(caught.value) and path in str(caught.value)
    junk = write(tmp_path, "junk.parquet", b"PAR1 this is none")
    assert available_end(junk, "parquet", complete=False) == 0
    with pytest.raises(RunError, match=r"junk\.parquet"):
        available_end(junk, "parquet", complete=True)
    with pytest.raises(RunError, match=r"junk\.parquet"):
        list(read_split(Format("parquet", AB), Split(0, 0, junk, 0, 1)))
    tight = Format("parquet", parse_schema("x tinyint, name string"))
    pq.write_table(pa.table({"x": [1, 300], "name": ["a", "b"]}), path)
    (parsed,) = read_split(tight, Split(0, 0, path, 0, 2))
    assert parsed.table.num_rows == 1 and parsed.dead[0].error == "column 'x': 300 is not a tinyint"


def test_parquet_nested(tmp_path: Path) -> None:
    path = str(tmp_path / "n.parquet")
    rows: list[dict[str, Any]] = [
        {"l": [1, 2], "o": {"u": "x"}},
        {"l": None, "o": None},
        {"l": [], "o": {"u": None}},
    ] * 4
    table = pa.Table.from_pylist(rows)
    m = pa.array([[("k", 1)], None, []] * 4, pa.map_(pa.string(), pa.int64()))
    pq.write_table(table.append_column("m", m), path, row_group_size=5)
    fmt = infer_format("parquet", [path])
    got = [r for p in read_split(fmt, Split(0, 0, path, 1, 11), 4) for r in p.table.to_pylist()]
    maps = [[("k", 1)], None, []] * 4
    assert got == [{**r, "m": v} for r, v in zip(rows, maps, strict=True)][1:11]


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=4).filter(lambda name: name != "in"),
        st.integers(0, 9),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
@example({"größe": 1, "名": 2}, True)
@example({".": 1, ".a": 2, "[0]": 3}, True)
@example({'say "a"': 1, "\\": 2, "\n": 3, "\0": 4}, False)
def test_names_in_json_may_be_any_text(values: dict[str, int], escaped: bool) -> None:
    """Those of a record's fields, and those in an object that is one of them."""
    names = [(name, pa.int64()) for name in values]
    fmt = Format("json", pa.schema([*names, ("in", pa.struct(names))]))
    record = {**values, "in": values}
    line = json.dumps(record, ensure_ascii=escaped).encode() + b"\n"
    for data in (line, line + b"{"):  # all at once, and line by line
        parsed = parse_lines(fmt, data, 0, first_line_is_header=False)
        assert parsed.table.to_pylist() == [record]


def test_one_bad_line_among_many_costs_only_itself() -> None:
    rows = 2_500
    schema = parse_schema("ts timestamp, sym string, price double, n bigint")
    stamps = [f"2024-01-01T10:{i // 60 % 60:02}:{i % 60:02}.{i:06}Z" for i in range(rows)]
    csv = "".join(f"{t},S{i % 500},{i / 8},{i}\n" for i, t in enumerate(stamps)).encode()
    objects = "".join(
        f'{{"ts":"{t}","sym":"S{i % 500}","price":{i / 8},"n":{i}}}\n' for i, t in enumerate(stamps)
    ).encode()
    for kind, data in (
        ("csv", csv),
        ("json", objects),
        ("csv", csv + b'x,"\n'),
        ("json", objects + b"{"),
    ):
        parsed = parse_lines(Format(kind, schema, time="ts"), data, 0, first_line_is_header=False)
        assert parsed.table.num_rows == rows
        assert len(parsed.dead) == (len(data) > len(csv if kind == "csv" else objects))

"""csv whose quoted fields run over line ends, against Python's csv module, pandas and DuckDB."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import ConfigError
from millstream.io import multiline, readers
from millstream.io.formats import Format, infer_format, parse_schema
from millstream.io.multiline import Records, whole_records
from millstream.io.readers import Split, read_split
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.resolving import resolve_format
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from millstream.testing import run_in_process

TEXTS = 'id,said,n\n1,"one\ntwo",7\n2,plain,8\n3,"a ""b""\r\n\n,x\n",9\n'
SAID = ["one\ntwo", "plain", 'a "b"\r\n\n,x\n']


def read(path: Path, fmt: Format, max_rows: int = 1000) -> tuple[list[Any], list[Any]]:
    rows, dead = [], []
    for parsed in read_split(fmt, Split(0, 0, str(path), 0, -1), max_rows):
        rows += list(zip(parsed.positions.tolist(), parsed.table.to_pylist(), strict=True))
        dead += parsed.dead
    return rows, dead


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_rows", [1, 1000])
def test_fields_over_several_lines(tmp_path: Path, packed: bool, max_rows: int) -> None:
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(TEXTS.encode()) if packed else TEXTS.encode())
    fmt = infer_format("csv", [str(path)], multiline=True)
    assert fmt.schema == parse_schema("id bigint, said string, n bigint")
    rows, dead = read(path, fmt, max_rows)
    assert [row["said"] for _, row in rows] == SAID
    assert [position for position, _ in rows] == [TEXTS.index(f"{n},") for n in (1, 2, 3)]
    assert not dead
    theirs = duckdb.sql(f"SELECT said FROM read_csv('{path}', header=true, quote='\"')").fetchall()
    assert [row["said"] for _, row in rows] == [said for (said,) in theirs]


def test_the_sample_shows_that_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TEXTS)
    with pytest.raises(ConfigError, match=r"run over line ends.*'1,\"one'.*multiline=True"):
        infer_format("csv", [str(path)])
    path.write_text('a,b\n1,x\n2,"y\n3,z\n')  # one broken line among good ones is a dead letter
    assert infer_format("csv", [str(path)]).schema == parse_schema("a bigint, b string")


fields = st.text(alphabet='ab,"\n\r;# ', max_size=6)
tables = st.lists(st.tuples(fields, fields), min_size=1, max_size=6)


@settings(max_examples=50)
@given(tables, st.integers(1, 9), st.sampled_from(["\n", "\r\n"]))
def test_whatever_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, table: list[Any], piece: int, end: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end)
    writer.writerows([("a\nx", "b"), *table])
    data = text.getvalue().encode()
    path = tmp_path_factory.mktemp("x") / "a.csv"
    path.write_bytes(data)
    fmt = Format("csv", parse_schema({"a\nx": "string", "b": "string"}), multiline=True)
    window, readers.WINDOW = readers.WINDOW, piece  # type: ignore[misc]
    try:
        rows, dead = read(path, fmt)
    finally:
        readers.WINDOW = window  # type: ignore[misc]
    assert [tuple(row.values()) for _, row in rows] == table
    assert not dead
    frame = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
    assert len(frame) == len(rows)
    for (position, _), row in zip(rows, table, strict=True):
        one = io.StringIO()
        csv.writer(one, quoting=csv.QUOTE_ALL, lineterminator=end).writerow(row)
        assert data[position:].startswith(one.getvalue().encode())


@settings(max_examples=200)
@given(st.text(alphabet='a,"\n', max_size=30), st.integers(1, 8))
def test_where_blocks_are_cut_does_not_matter(text: str, piece: int) -> None:
    data = text.encode()
    lines = data.splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
    cuts = [*starts[::piece], len(data)]
    blocks = [(a, data[a:b]) for a, b in itertools.pairwise(cuts) if a < b]

    def found(blocks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        records = Records(",")
        return [
            (base + int(start), part[int(start) : int(end)])
            for base, part in whole_records(blocks, records)
            for start, end in zip(*records.edges(part), strict=True)
        ]

    assert found(blocks) == found([(0, data)] if data else [])


def test_an_unclosed_quote_costs_its_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    good = '1,"x\ny"\n'
    path.write_text("a,b\n" + good + '2,"open\n3,z\n' + "4,w\n" * 30)
    fmt = Format("csv", parse_schema("a bigint, b string"), multiline=True)
    rows, dead = read(path, fmt)
    assert [row["a"] for _, row in rows] == [1, 3, *[4] * 30]
    assert [(d.position, d.raw, d.error) for d in dead] == [
        (4 + len(good), '2,"open', "a quoted field is not closed")
    ]
    monkeypatch.setattr(multiline, "MAX_LINE", 20)  # the same if it is given up before the end
    monkeypatch.setattr(readers, "WINDOW", 8)
    assert read(path, fmt) == (rows, dead)


def test_comments_may_have_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('#,"\na,b\n1,"x\n#y"\n#,"\n2,z\n')
    fmt = infer_format("csv", [str(path)], multiline=True, comment="#")
    rows, dead = read(path, fmt)
    assert [tuple(row.values()) for _, row in rows] == [(1, "x\n#y"), (2, "z")]
    assert not dead


def written(tmp_path: Path) -> Path:
    into = tmp_path / "in"
    into.mkdir()
    for name in "ab":
        (into / f"{name}.csv").write_text(TEXTS, newline="")
    (into / "c.csv.gz").write_bytes(gzip.compress(TEXTS.encode()))
    return into


def test_a_flow_reads_them(tmp_path: Path) -> None:
    flow, out = ms.Flow("said"), ms.Memory()
    source = ms.Files(written(tmp_path), multiline=True)
    flow.source(source).select("said", "n").sink(out)
    run_in_process(flow, tmp_path / "ck")
    wanted = sorted([*zip([7, 8, 9], SAID, strict=True)] * 3)
    assert sorted((row["n"], row["said"]) for row in out.rows) == wanted


def test_followed_files_are_taken_whole_once(tmp_path: Path) -> None:
    into = written(tmp_path)
    spec = ms.Files(into, "csv", multiline=True, follow=True)
    state = SourceState()
    tracker = FilesTracker(0, spec, resolve_format("s", spec), open_storage(tmp_path), "r", state)
    tracker.poll()
    taken = tracker.take(1 << 30, 1 << 30, 8)
    assert sorted((Path(s.path).name, s.start, s.end) for s in taken) == [  # type: ignore[union-attr]
        (name, 0, -1) for name in ("a.csv", "b.csv", "c.csv.gz")
    ]
    tracker._next_look = 0.0
    tracker.poll()
    assert tracker.take(1 << 30, 1 << 30, 8) == []

"""csv as other programs write it: unnamed columns, NA, odd delimiters, encodings, comments."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.io.formats import infer_format, parse_schema
from millstream.io.readers import available_end, plan_splits, read_split
from millstream.io.records import Dead
from millstream.run.sources.resolving import resolve_format


def read(path: Path, max_bytes: int = 1 << 30, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """All records of a file with their positions, and its dead letters."""
    fmt = infer_format("csv", [str(path)], **{"delimiter": None, **options})
    end = available_end(str(path), "csv", complete=True)
    rows: list[dict[str, Any]] = []
    dead: list[Dead] = []
    for split in plan_splits("csv", 0, 0, str(path), 0, end, max_bytes):
        for parsed in read_split(fmt, split):
            positions = parsed.positions.tolist()
            pairs = zip(positions, parsed.table.to_pylist(), strict=True)
            rows += [{**row, "@": position} for position, row in pairs]
            dead += parsed.dead
    return rows, dead


def written(tmp_path: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("first", ["", '""'])
def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path, first: str) -> None:
    path = written(tmp_path, f"{first},x,\n0,a,7\n1,b,8\n")
    rows, dead = read(path)
    assert [(row["_0"], row["x"], row["_2"]) for row in rows] == [(0, "a", 7), (1, "b", 8)]
    assert not dead


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1.5, None, 3.0], "word": ["a", "b,c", 'd"e']})
    text = frame.to_csv()
    rows, dead = read(written(tmp_path, text))
    assert [row["n"] for row in rows] == [1.5, None, 3.0]
    assert [row["word"] for row in rows] == frame["word"].to_list()
    assert [row["_0"] for row in rows] == [0, 1, 2]
    assert not dead


ABSENT = "n,word,day\n1,NA,2024-01-01\nNA,x,NULL\n,,\n 3,N/A,2024-01-02\n"


def test_usual_words_for_nothing_are_null_but_in_texts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, ABSENT)
    fmt = infer_format("csv", [str(path)])
    assert fmt.schema == parse_schema("n bigint, word string, day date")
    with caplog.at_level(logging.WARNING, "millstream.sources"):
        rows, dead = read(path)
    oracle = pd.read_csv(io.StringIO(ABSENT), keep_default_na=False, dtype=str)
    assert [row["word"] for row in rows] == oracle["word"].to_list()
    assert [row["n"] for row in rows] == [1, None, None, 3]
    assert [str(row["day"]) for row in rows] == ["2024-01-01", "None", "None", "2024-01-02"]
    assert not dead
    assert "'NA' and 'NULL' read as null in n, day" in caplog.text


def test_words_that_are_given_are_null_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, dead = read(written(tmp_path, ABSENT), nulls=["NA", "NULL", "N/A", ""])
    assert [row["word"] for row in rows] == [None, "x", None, None]
    assert [row["n"] for row in rows] == [1, None, None, 3]
    assert not dead and not caplog.text
    rows, dead = read(written(tmp_path, ABSENT), nulls=["NULL"])
    assert [row["n"] for row in rows] == ["1", "NA", "", " 3"]  # NA is a text now, as asked for


def test_a_schema_says_what_is_null(tmp_path: Path) -> None:
    path = written(tmp_path, "n,word\n1,NA\nNA,b\n")
    _, dead = read(path, schema="n int, word string")
    assert [d.error for d in dead] == [
        "column 'n': 'NA' is not a int; to read it as null, give nulls=['NA']"
    ]
    rows, dead = read(path, schema="n int, word string", nulls=["NA"])
    assert [(row["n"], row["word"]) for row in rows] == [(1, None), (None, "b")]
    assert not dead


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(tmp_path: Path, mark: str) -> None:
    body = [["a", "b", "c"], ["1,5", "x;y", "2"], ["2,5", "p|q", "3"], ["3\t5", "", "4"]]
    text = "\n".join(mark.join(f'"{f}"' for f in row) for row in body)
    rows, dead = read(written(tmp_path, text))
    assert [[row[n] for n in "abc"] for row in rows] == [[a, b, int(c)] for a, b, c in body[1:]]
    assert not dead
    unquoted = f"a{mark}b\n" + "".join(f"{n}{mark}{n / 2}\n" for n in range(9))
    rows, dead = read(written(tmp_path, unquoted))
    assert [row["b"] for row in rows] == [n / 2 for n in range(9)]


def test_one_column_of_texts_has_no_delimiter(tmp_path: Path) -> None:
    rows, dead = read(written(tmp_path, "said\nyes; no\nwell\n"))
    assert [row["said"] for row in rows] == ["yes; no", "well"]
    assert not dead


@pytest.mark.parametrize("max_bytes", [1 << 30, 5])
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "shift_jis", "koi8-r", "utf-8-sig"])
def test_encodings_keep_positions(tmp_path: Path, encoding: str, max_bytes: int) -> None:
    words = {"shift_jis": ["ソ表,能", "日本"], "koi8-r": ["привет", "мир"]}.get(
        encoding, ["caf\xe9", "na\xefve \xa0x"]
    )
    plain = encoding.removesuffix("-sig")
    lines = [f'"{word}",{n}\n'.encode(plain) for n, word in enumerate(words)]
    head = "слово,n\n" if encoding == "koi8-r" else "w,n\n"
    data = head.encode(encoding) + b"".join(lines)
    rows, dead = read(written(tmp_path, data), max_bytes, encoding=encoding)
    assert [next(iter(row.values())) for row in rows] == words
    assert [data[row["@"] :].startswith(lines[row["n"]]) for row in rows] == [True, True]
    assert not dead


def test_bytes_that_are_not_of_the_encoding_are_dead_letters(tmp_path: Path) -> None:
    path = written(tmp_path, b"w,n\ncaf\xe9,1\nx\x81y,2\nz,3\n")
    rows, dead = read(path, encoding="cp1252")
    assert [row["w"] for row in rows] == ["caf\xe9", "z"]
    assert [(d.position, d.error[:10]) for d in dead] == [(11, "not cp1252")]


@pytest.mark.parametrize(
    ("content", "options", "parts"),
    [
        (b"w,n\ncaf\xe9,1\n", {}, ["is not UTF-8", "encoding='cp1252'"]),
        ("w,n\nx,1\n".encode("utf-16"), {}, ["is UTF-16", "iconv"]),
        (b"a\n1\n", {"encoding": "klingon"}, ["'klingon'", "does not know"]),
        (b"a\n1\n", {"encoding": "utf-16"}, ["more than one byte", "iconv -f utf-16"]),
        (b"a\n1\n", {"encoding": "cp037"}, ["means something else"]),
        (b"1,2\n3,4\n", {}, ["no names but values", "header=False"]),
        (b" 0  0\n 1  1\n", {}, ["no names but values", "header=False"]),
        (b"# from afar\na,b\n1,2\n", {}, ["comment='#'"]),
        (b"a,b\n1,2,3\n4,5,6\n", {}, ["most have 3", "header=False and schema="]),
        (b"a,b,a\n1,2,3\n", {}, ["names 'a' more than once", "schema="]),
    ],
)
def test_what_is_refused_says_what_to_give(
    tmp_path: Path, content: bytes, options: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(written(tmp_path, content), **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("max_bytes", [1 << 30, 4])
def test_comments_are_skipped_wherever_they_are(tmp_path: Path, max_bytes: int) -> None:
    text = "# from afar\n\n#\na,b\n1,2\n# between\n3,4 #5\n#"
    rows, dead = read(written(tmp_path, text), max_bytes, comment="#")
    assert [(row["a"], row["b"]) for row in rows] == [(1, "2"), (3, "4 #5")]
    assert [row["@"] for row in rows] == [text.index("1,2"), text.index("3,4")]
    assert not dead


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('[{"a": 1}, {"a": 2}]', "an array"),
        ('[\n {"a": 1},\n {"a": 2}\n]\n', "one array over several lines"),
        ('{\n "a": 1\n}\n', "an object over several lines"),
    ],
)
def test_json_that_is_not_lines_is_refused_by_what_it_is(
    tmp_path: Path, content: str, what: str
) -> None:
    path = written(tmp_path, content, "a.json")
    with pytest.raises(ConfigError, match=what) as caught:
        infer_format("json", [str(path)])
    assert "one object per line" in str(caught.value) and "jq" in str(caught.value)


def test_options_of_a_source_arrive(tmp_path: Path) -> None:
    written(tmp_path, b"; x\nw;n\ncaf\xe9;-\n")
    source = ms.Files(tmp_path, comment="; ", encoding="latin-1", nulls=["-"])
    fmt = resolve_format("s", source)
    assert (fmt.delimiter, fmt.comment, fmt.encoding, fmt.nulls) == (
        ";",
        "; ",
        "iso8859-1",
        ("-",),
    )
    for wrong in ({"nulls": "NA"}, {"nulls": [1]}, {"comment": ""}):
        with pytest.raises(ConfigError, match=f"Files\\({next(iter(wrong))}="):
            ms.Files(tmp_path, **wrong)


@pytest.mark.parametrize("delimiter", ["\t", " ", ","])
def test_a_record_of_empty_fields_is_none_that_is_skipped(tmp_path: Path, delimiter: str) -> None:
    lines = ["a|b|c", "1|2|3", "||", "", "4||6", "||"]
    path = tmp_path / "a.csv"
    path.write_text("".join(line.replace("|", delimiter) + "\n" for line in lines))
    found = ms.Flow("empty").source(ms.Files(path, delimiter=delimiter)).head().table
    wanted = pd.read_csv(path, sep=delimiter)
    assert found.to_pandas().astype(float).equals(wanted.astype(float))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_numbers_beyond_64_bits_stay_different(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    ids = [2**64 - 1, 2**64 - 2, 5, -(2**64)]
    if kind == "csv":
        path.write_text("id,n\n" + "".join(f"{one},1\n" for one in ids))
    else:
        path.write_text("".join(f'{{"id": {one}, "in": [{one}]}}\n' for one in ids))
    stream = ms.Flow("large").source(ms.Files(path))
    assert [int(row["id"]) for row in stream.head()] == ids
    counts = stream.key_by("id").agg(n=ms.count())
    assert sorted((int(row["id"]), row["n"]) for row in counts.head()) == sorted(
        (one, 1) for one in ids
    )
    if kind == "json":
        assert [row["in"] for row in stream.head()] == [[str(one)] for one in ids]


def test_a_broken_time_does_not_make_others_inexact(tmp_path: Path) -> None:
    path = written(tmp_path, f"at,n\n1700000000,1\n{10**25},2\n")
    found = ms.Flow("times").source(ms.Files(path, time="at")).head()
    assert [row["n"] for row in found] == [1] and found.dead == 1

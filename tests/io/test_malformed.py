"""Every kind of malformed record becomes one dead letter and leaves its neighbours alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.io.formats import Format, parse_schema
from millstream.io.lines import scan
from millstream.io.readers import Parsed, parse_lines
from millstream.io.records import MAX_LINE, MAX_RAW
from millstream.io.textkinds import parse_scanned

SCHEMA = parse_schema("ts timestamp, i bigint, d double, s string, b boolean, day date, n tinyint")
CSV = Format("csv", SCHEMA, time="ts")
JSON = Format("json", SCHEMA, time="ts")
TEXT = Format("text", pa.schema([("value", pa.string())]))
T = b'"ts":"2024-01-01T00:00:00Z"'
GOOD_CSV = b"2024-01-01T00:00:00Z,1,1.5,x,true,2024-01-01,7"
GOOD_JSON = b"{" + T + b',"i":1,"d":1.5,"s":"x","b":true,"day":"2024-01-01","n":7}'


def between(fmt: Format, good: bytes, bad: bytes) -> Parsed:
    data = b"\n".join([good, bad, good, good]) + b"\n"
    parsed = parse_lines(fmt, data, 100, first_line_is_header=False)
    assert parsed.offered == 4 == parsed.table.num_rows + len(parsed.dead)
    step = len(good) + 1
    second = 100 + step + len(bad) + 1
    if parsed.dead:
        assert parsed.positions.tolist() == [100, second, second + step]
        assert parsed.dead[0].position == 100 + step
        assert parsed.table.slice(0, 1).to_pylist() == parsed.table.slice(1, 1).to_pylist()
    return parsed


def deep(n: int) -> bytes:
    return b"{" + T + b',"extra":' + b"[" * n + b"]" * n + b"}"


BAD_JSON = {
    "not an object": b"[1,2]",
    "number": b"17",
    "null": b"null",
    "word": b"hello",
    "half object": b"{" + T + b',"i":',
    "half string": b"{" + T + b',"s":"abc',
    "two objects": b"{" + T + b"}{" + T + b"}",
    "two spaced objects": b"{" + T + b"} {" + T + b"}",
    "trailing comma": b"{" + T + b",}",
    "comment": b"{" + T + b"} // hi",
    "single quotes": b"{'ts':'2024-01-01T00:00:00Z'}",
    "text for double": b"{" + T + b',"d":"abc"}',
    "numeric text for double": b"{" + T + b',"d":"1.5"}',
    "fraction for bigint": b"{" + T + b',"i":1.5}',
    "float for bigint": b"{" + T + b',"i":1.0}',
    "1e400": b"{" + T + b',"d":1e400}',
    "beyond int64": b"{" + T + b',"i":9223372036854775808}',
    "beyond tinyint": b"{" + T + b',"n":128}',
    "NaN": b"{" + T + b',"d":NaN}',
    "Infinity in ignored field": b"{" + T + b',"zz":-Infinity}',
    "number for string": b"{" + T + b',"s":5}',
    "bool for bigint": b"{" + T + b',"i":true}',
    "object for string": b"{" + T + b',"s":{}}',
    "bad utf-8": b"{" + T + b',"s":"\xff"}',
    "bad utf-8 in ignored field": b"{" + T + b',"zz":"\xc3("}',
    "nul": b"{" + T + b',"i":1\x00}',
    "nul in string": b"{" + T + b',"s":"a\x00b"}',
    "control character": b"{" + T + b',"s":"a\tb"}',
    "lone surrogate": b"{" + T + b',"s":"\\ud800"}',
    "bad escape": b"{" + T + b',"s":"\\q"}',
    "deep": deep(300),
    "bomb": deep(10_000),
    "unclosed bomb": b"[" * 10_000,
    "time missing": b'{"i":1}',
    "time null": b'{"ts":null}',
    "time rubbish": b'{"ts":"yesterday"}',
    "time naive": b'{"ts":"2024-01-01T00:00:00"}',
    "time date only": b'{"ts":"2024-01-01"}',
    "time number": b'{"ts":1700000000}',
    "time 30 Feb": b'{"ts":"2024-02-30T00:00:00Z"}',
    "time year 0": b'{"ts":"0000-06-01T00:00:00Z"}',
    "time before year 1": b'{"ts":"0001-01-01T00:00:00+05:00"}',
    "bad date": b"{" + T + b',"day":"2024-13-01"}',
    "leading zero": b"{" + T + b',"i":01}',
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json(name: str) -> None:
    parsed = between(JSON, GOOD_JSON, BAD_JSON[name])
    assert len(parsed.dead) == 1 and parsed.dead[0].error
    assert parsed.dead[0].raw == BAD_JSON[name].decode("utf-8", "backslashreplace")


BAD_CSV = {
    "too few": b"2024-01-01T00:00:00Z,1",
    "too many": GOOD_CSV + b",9",
    "open quote": b'2024-01-01T00:00:00Z,1,1.5,"x,true,2024-01-01,7',
    "open quote at the end": b'2024-01-01T00:00:00Z,1,1.5,x,true,2024-01-01,"7',
    "open quote after literal": b'2024-01-01T00:00:00Z,1,1.5,x"y,"true,2024-01-01,7',
    "text for bigint": GOOD_CSV.replace(b",1,", b",one,"),
    "fraction for bigint": GOOD_CSV.replace(b",1,", b",1.5,"),
    "hex for bigint": GOOD_CSV.replace(b",1,", b",0x1F,"),
    "beyond int64": GOOD_CSV.replace(b",1,", b",9223372036854775808,"),
    "text for double": GOOD_CSV.replace(b"1.5", b"abc"),
    "1e400": GOOD_CSV.replace(b"1.5", b"1e400"),
    "bad boolean": GOOD_CSV.replace(b"true", b"yes"),
    "bad date": GOOD_CSV.replace(b"2024-01-01,7", b"2024-1-1,7"),
    "year 0 date": GOOD_CSV.replace(b"2024-01-01,7", b"0000-01-01,7"),
    "beyond tinyint": GOOD_CSV.replace(b",7", b",300"),
    "bad utf-8": GOOD_CSV.replace(b"x", b"\xe9"),
    "lone cr": GOOD_CSV + b"\r" + GOOD_CSV,
    "time empty": GOOD_CSV.replace(b"2024-01-01T00:00:00Z", b""),
    "time rubbish": GOOD_CSV.replace(b"2024-01-01T00:00:00Z", b"noon"),
    "time naive": GOOD_CSV.replace(b"00Z", b"00"),
    "time hour 24": GOOD_CSV.replace(b"T00", b"T24"),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_bad_csv(name: str) -> None:
    parsed = between(CSV, GOOD_CSV, BAD_CSV[name])
    assert len(parsed.dead) == 1 and parsed.dead[0].error
    assert parsed.dead[0].raw == BAD_CSV[name].decode("utf-8", "backslashreplace")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_bad_line_may_be_the_last(kind: str) -> None:
    fmt, good, bad = (
        (CSV, GOOD_CSV, BAD_CSV["open quote at the end"])
        if kind == "csv"
        else (JSON, GOOD_JSON, BAD_JSON["half object"])
    )
    for end in (b"", b"\n", b"\r\n"):
        parsed = parse_lines(fmt, good + b"\n" + bad + end, 0, first_line_is_header=False)
        assert (parsed.table.num_rows, len(parsed.dead)) == (1, 1)


def test_error_texts() -> None:
    def error(fmt: Format, good: bytes, bad: bytes) -> str:
        return between(fmt, good, bad).dead[0].error

    assert error(CSV, GOOD_CSV, BAD_CSV["too few"]) == "expected 7 fields, found 2"
    assert "not closed" in error(CSV, GOOD_CSV, BAD_CSV["open quote"])
    assert error(CSV, GOOD_CSV, BAD_CSV["text for bigint"]) == "column 'i': 'one' is not a bigint"
    assert error(CSV, GOOD_CSV, BAD_CSV["time empty"]) == "time column 'ts' is null"
    assert "no zone= is set" in error(CSV, GOOD_CSV, BAD_CSV["time naive"])
    assert "years 1 to 9999" in error(JSON, GOOD_JSON, BAD_JSON["time year 0"])
    assert "nested more than 256" in error(JSON, GOOD_JSON, BAD_JSON["bomb"])
    assert "not UTF-8" in error(JSON, GOOD_JSON, BAD_JSON["bad utf-8"])
    assert "$.i" in error(JSON, GOOD_JSON, BAD_JSON["bool for bigint"])


@pytest.mark.parametrize("fmt", [CSV, JSON, TEXT], ids=lambda f: f.kind)
def test_huge_line(fmt: Format) -> None:
    good = {"csv": GOOD_CSV, "json": GOOD_JSON, "text": b"hello"}[fmt.kind]
    parsed = between(fmt, good, b"x" * (MAX_LINE + 1))
    assert len(parsed.dead[0].raw) == MAX_RAW and "limit" in parsed.dead[0].error


def test_text() -> None:
    data = b"caf\xc3\xa9\r\n\n \t\n\xff\n  padded \nlast"
    parsed = parse_lines(TEXT, data, 0, first_line_is_header=False)
    assert parsed.table.to_pydict() == {"value": ["café", "", " \t", "  padded ", "last"]}
    assert parsed.positions.tolist() == [0, 7, 8, 13, 23]
    assert [(d.position, d.raw) for d in parsed.dead] == [(11, "\\xff")]
    assert parsed.ts is None


OK_JSON: list[tuple[bytes, dict[str, Any]]] = [
    (b"{" + T + b',"d":3}', {"d": 3.0}),
    (b"  {" + T + b',"i":-9223372036854775808} ', {"i": -(2**63)}),
    (b"{" + T + b',"i":1,"i":2}', {"i": 2}),
    (b"{" + T + b',"zz":[{"q":[]}]}', {"i": None}),
    (b"{" + T + b',"s":"\\u0000\\ud83d\\ude00"}', {"s": "\0😀"}),
    (deep(200), {"i": None}),
    (b"{" + T + b',"s":"' + b"[" * 2000 + b'"}', {"s": "[" * 2000}),
]


@pytest.mark.parametrize(("line", "expected"), OK_JSON)
def test_good_json(line: bytes, expected: dict[str, Any]) -> None:
    parsed = between(JSON, GOOD_JSON, line)
    row = parsed.table.to_pylist()[1]
    assert {k: row[k] for k in expected} == expected


def test_good_csv_values() -> None:
    fmt = Format("csv", parse_schema("s string, d double, i int, m decimal(6,2), y binary"))
    data = b'"a ""q"", b",nan,+5,1.50,hi\n"",inf, 6 ,-2,\n,,,,\nx"y"z,-Infinity,7,1e2,z\n'
    parsed = parse_lines(fmt, data, 0, first_line_is_header=False)
    columns = parsed.table.to_pydict()
    assert not parsed.dead
    assert columns["s"] == ['a "q", b', "", "", 'x"y"z']
    assert np.isnan(columns["d"][0]) and columns["d"][1:] == [np.inf, None, -np.inf]
    assert columns["i"] == [5, 6, None, 7]
    assert [None if v is None else str(v) for v in columns["m"]] == [
        "1.50",
        "-2.00",
        None,
        "100.00",
    ]


def test_nested_json() -> None:
    fmt = Format(
        "json",
        parse_schema(
            "l array<timestamp>, o struct<a: int, t: date>, m map<int, float>, x decimal(5,2)"
        ),
    )
    good = (
        b'{"l":["2024-01-01T00:00:00Z",null],"o":{"a":1,"t":"2024-02-03","zz":0},'
        b'"m":{"5":1.5},"x":1.25}'
    )
    lines = [
        good,
        b'{"l":["2024-01-01"]}',
        b'{"o":{"t":"x"}}',
        b'{"m":{"k":1}}',
        b'{"m":{"1":1e39}}',
        b'{"x":1.234}',
        b'{"o":{"a":1.5}}',
        b'{"l":[],"o":null}',
        good,
    ]
    parsed = parse_lines(fmt, b"\n".join(lines), 0, first_line_is_header=False)
    assert len(parsed.dead) == 6 and parsed.offered == 9
    rows = parsed.table.to_pylist()
    assert rows[0] == rows[2] and rows[1]["l"] == [] and rows[1]["o"] is None
    assert rows[0]["l"] == [datetime(2024, 1, 1, tzinfo=UTC), None]
    assert rows[0]["m"] == [(5, 1.5)] and str(rows[0]["x"]) == "1.25"


# ---------------------------------------------------------------- the two parsers agree

CSV_PIECES = st.sampled_from(
    [b",", b'"', b'""', b"\n", b"\r", b"\r\n", b" ", b"a", b"1", b"-1.5", b"\xef\xbb\xbf", b"\xff",
     b"2024-01-01T00:00:00Z", b"2024-03-31 02:30:00", b"nan", b"\x00", b"0x1", b"true", b"\xc3\xa9",
     b"2024-01-01T00:00:00.123456789+05:30,1,x\n", b'2024-01-01T00:00:00Z,2,"y"\n']
)  # fmt: skip
JSON_PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\n", b"\r\n", b" ", b'"t"', b'"i"', b'"s"', b"1",
     b"-0", b"1e400", b"NaN", b"null", b'"2024-01-01T00:00:00Z"', b'"t":"2024-03-31T02:30:00"',
     b"\\u00e9", b"\\ud800", b"\xff", b"\x00", b'{"t":"2024-01-01T00:00:00Z","i":5,"s":"a"}\n',
     b'{"t":"2024-01-01T00:00:00Z","i":', b'"s":"x"}', b"{}\n", b"/**/", b"\t", b"\x0b"]
)  # fmt: skip


def same(a: Parsed, b: Parsed) -> None:
    assert a.positions.tolist() == b.positions.tolist()
    assert a.dead == b.dead and a.offered == b.offered
    assert repr(a.table.to_pylist()) == repr(b.table.to_pylist())
    assert (a.ts is None and b.ts is None) or np.array_equal(a.ts, b.ts)  # type: ignore[arg-type]


def check_agreement(fmt: Format, data: bytes, base: int) -> None:
    lines = scan(data, base, blanks=fmt.kind == "text")
    layout = tuple(fmt.schema.names)
    fast, careful = (parse_scanned(fmt, lines, layout, careful=c) for c in (False, True))
    same(fast, careful)
    assert fast.offered == len(lines)
    # ... and with each line parsed on its own: no line depends on its neighbours.
    alone = [
        parse_lines(
            fmt, lines.line(i) + b"\n", int(lines.positions[i]) or 1, first_line_is_header=False
        )
        for i in range(len(lines))
    ]
    assert [r for p in alone for r in map(repr, p.table.to_pylist())] == [
        repr(r) for r in fast.table.to_pylist()
    ]
    assert sum(len(p.dead) for p in alone) == len(fast.dead)


@settings(max_examples=60)
@given(
    st.lists(CSV_PIECES, max_size=40).map(b"".join),
    st.sampled_from([None, "Europe/Berlin"]),
    st.sampled_from([0, 50]),
)
def test_csv_parsers_agree(data: bytes, zone: str | None, base: int) -> None:
    for ddl in ("t timestamp, d double, s string", "s string, i bigint", "b boolean"):
        schema = parse_schema(ddl)
        time = "t" if "t" in schema.names else None
        check_agreement(Format("csv", schema, time=time, zone=zone), data, base)


@settings(max_examples=60)
@given(st.lists(JSON_PIECES, max_size=40).map(b"".join), st.sampled_from([None, "Europe/Berlin"]))
def test_json_parsers_agree(data: bytes, zone: str | None) -> None:
    fmt = Format("json", parse_schema("t timestamp, i bigint, s string"), time="t", zone=zone)
    check_agreement(fmt, data, 0)
    check_agreement(Format("json", parse_schema("i double, s string")), data, 0)


@settings(max_examples=80)
@given(
    st.sampled_from(["csv", "json"]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=60),
)
def test_good_lines_survive_any_mixture(kind: str, plan: list[tuple[bool, int]]) -> None:
    fmt, good, bads = (
        (CSV, GOOD_CSV, list(BAD_CSV.values()))
        if kind == "csv"
        else (JSON, GOOD_JSON, list(BAD_JSON.values()))
    )
    lines = [good if fine else bads[k % len(bads)] for fine, k in plan]
    parsed = parse_lines(fmt, b"\n".join(lines), 0, first_line_is_header=False)
    assert parsed.table.num_rows == sum(fine for fine, _ in plan)
    assert parsed.offered == len(plan)

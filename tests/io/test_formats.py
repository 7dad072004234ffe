"""Formats: schemas as users write them, inference, and the text of every refusal."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.errors import ConfigError
from millstream.io.formats import Format, infer_format, parse_schema

UTC = pa.timestamp("us", "UTC")


def write(tmp_path: Path, name: str, data: bytes | str) -> str:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def test_ddl_types() -> None:
    text = (
        "a string, b INT, c bigint, d long, e smallint, f tinyint, g double, h float, i boolean, "
        "j date, k timestamp, l binary, m decimal(10,2), n array<int>, "
        "o struct<x: int, y: array<string>>, p map<string, bigint>, `odd name` int, q decimal"
    )
    schema = parse_schema(text)
    assert schema.field("k").type == UTC
    assert schema.field("m").type == pa.decimal128(10, 2)
    assert schema.field("o").type == pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    assert schema.field("p").type == pa.map_(pa.string(), pa.int64())
    assert schema.field("odd name").type == pa.int32()
    assert len(schema) == 18


def test_other_schema_forms() -> None:
    assert parse_schema({"a": "bigint", "b": pa.float64()}) == parse_schema("a bigint, b double")
    given = pa.schema([("a", pa.timestamp("ns", "Europe/Paris")), ("b", pa.large_string())])
    assert parse_schema(given) == pa.schema([("a", UTC), ("b", pa.string())])


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ("a strin", ["'strin' where a type should be", "known types: string, int"]),
        ("a int b int", ["'b' where ',' should be"]),
        ("a", ["the end where a type should be"]),
        ("a int,", ["the end where a column name should be"]),
        ("a array<int", ["the end where '>' should be"]),
        ("a decimal(50,2)", ["decimal(50,2)"]),
        ("a decimal(x)", ["'x' where a number should be"]),
        ("a int, a int", ["'a' more than once"]),
        ("", ["no columns"]),
        ({"a": "nope"}, ["column 'a'", "'nope'"]),
        ({"a": "int int"}, ["'int' after the type"]),
        ({"a": 3}, ["the type of column 'a' is 3"]),
        (42, ["not int"]),
    ],
)
def test_bad_schema(schema: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schema(schema)
    for part in parts:
        assert part in str(caught.value)


def test_infer_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.csv",
        "ts,n,x,ok,day,name,none\n2024-01-01T00:00:00Z,1,1.5,true,2024-01-01,bob,\n"
        "2024-01-01T00:00:01Z,2,nan,false,,,\n2024-01-01T00:00:02Z,half line",
    )
    fmt = infer_format("csv", [path], time="ts")
    assert fmt.schema == parse_schema(
        "ts timestamp, n bigint, x double, ok boolean, day date, name string, none string"
    )
    assert pickle.loads(pickle.dumps(fmt)) == fmt


def test_infer_csv_without_header_and_other_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "1;a\n2;b\n")
    fmt = infer_format("csv", [path], header=False, delimiter=";")
    assert fmt.schema == parse_schema("_c0 bigint, _c1 string")


def test_infer_json_gz_and_skipping_empty_files(tmp_path: Path) -> None:
    empty = write(tmp_path, "a.json", "")
    full = write(
        tmp_path,
        "b.json.gz",
        gzip.compress(
            b'{"a":1,"b":1.5,"s":"x","l":[1,2],"o":{"k":true}}\nrubbish\n{"b":2,"z":null}\n'
        ),
    )
    fmt = infer_format("json", [empty, full])
    assert fmt.schema == parse_schema(
        "a bigint, b double, s string, l array<bigint>, o struct<k: boolean>, z string"
    )


def test_naive_texts_without_zone_stay_strings_unless_event_time(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '{"t":"2024-01-01T00:00:00"}\n')
    assert infer_format("json", [path]).schema == parse_schema("t string")
    assert infer_format("json", [path], zone="UTC").schema == parse_schema("t timestamp")


def test_infer_parquet(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    naive = pa.array([0], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": naive, "u": pa.array([1], pa.uint32())}), path)
    assert infer_format("parquet", [path]).schema.field("t").type == pa.timestamp("us")
    zoned = infer_format("parquet", [path], zone="Europe/Paris", time="t")
    assert zoned.schema == parse_schema("t timestamp, u bigint")


def test_projection_keeps_time() -> None:
    fmt = Format("csv", parse_schema("a int, ts bigint, b int"), time="ts", columns=("b",))
    assert fmt.delivered.names == ["ts", "b"]
    assert Format("csv", parse_schema("a int, b int"), columns=()).delivered.names == ["a"]


NAIVE_CSV = "ts,a\n2024-01-01 10:00:00,1\n"


@pytest.mark.parametrize(
    ("kind", "content", "options", "parts"),
    [
        ("cvs", "", {}, ["unknown kind 'cvs' (did you mean 'csv'?)", "csv, json, parquet, text"]),
        ("csv", "", {}, ["no file holds a record", "Give schema="]),
        ("csv", "a,b\n", {}, ["has a header and no record", "Give schema="]),
        ("json", None, {}, ["there is no file yet", "Give schema="]),
        ("parquet", "junk", {}, ["cannot read", "Give schema="]),
        ("csv", "price,b\n1,2\n", {"time": "prise"}, ["price, b", "did you mean 'price'?"]),
        ("csv", "a\ntrue\n", {"time": "a"}, ["'a' is of type bool", "must be a timestamp"]),
        ("csv", NAIVE_CSV, {"time": "ts"}, ["'2024-01-01 10:00:00'", 'add zone="UTC"']),
        ("csv", NAIVE_CSV, {"time": "ts", "schema": "ts string, a int"}, ['add zone="UTC"']),
        ("json", '{"t":"2024-01-01T10:00"}\n', {"time": "t"}, ['add zone="UTC"']),
        ("csv", "d\n2024-01-01\n", {"time": "d"}, ['add zone="UTC"']),
        ("csv", NAIVE_CSV, {"zone": "Mars/Base"}, ["'Mars/Base'", "IANA"]),
        ("csv", NAIVE_CSV, {"time_unit": "h"}, ["'h'", "'ms'"]),
        ("csv", NAIVE_CSV, {"delimiter": "||"}, ["'||'", "one ASCII character"]),
        ("csv", "a,a\n1,2\n", {}, ["names 'a' more than once", "schema="]),
        ("csv", "a\n1\n", {"schema": "a array<int>"}, ["cannot be nested"]),
        ("json", "{}\n", {"schema": "a array<decimal(5,2)>"}, ["decimal inside"]),
        ("text", "a\n", {"schema": "a int"}, ["'value string'"]),
        ("csv", "a\n1\n", {"schema": pa.schema([("a", pa.timestamp("us"))])}, ["without a zone"]),
    ],
)
def test_config_errors(
    tmp_path: Path, kind: str, content: str | None, options: dict[str, Any], parts: list[str]
) -> None:
    paths = [] if content is None else [write(tmp_path, "f", content)]
    with pytest.raises(ConfigError) as caught:
        infer_format(kind, paths, **options)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value).split("cannot be read")[0]


def test_naive_parquet_time(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"t": pa.array([0], pa.timestamp("ms"))}), path)
    for schema in (None, "t timestamp"):
        with pytest.raises(ConfigError, match='add zone="UTC"'):
            infer_format("parquet", [path], time="t", schema=schema)

"""Json whose fields hold values of several types: what Spark's reader gives for the same files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.io import sampling
from millstream.testing import run_in_process

# What Spark 4.3 gives for these lines (`test_spark_gives_the_same` asks it).
LINES = [
    '{"n": 1, "x": 1, "tags": [1, "a"], "o": {"v": 1, "w": "q"}}',
    '{"n": 2, "x": "two", "tags": ["b", null], "o": {"v": "one", "w": "r"}}',
    '{"n": 3, "x": 1.50, "tags": [], "o": {"v": [1, 2]}}',
    '{"n": 4, "x": true, "o": {"v": {"z": 0}}}',
    '{"n": 5, "x": {"a": 1, "b": [true,  null]}, "tags": [{"k": 1}]}',
    '{"n": 6, "x": [1, "ä"], "o": {}}',
    '{"n": 7, "x": null}',
    '{"n": 8}',
    '{"n": 9, "x": "null", "tags": ["null"]}',
    '{"n": 10, "x": "say \\"hi\\" \\u00e4\\n", "tags": [1e3]}',
    '{"n": 11, "x": 12345678901234567890, "tags": [false]}',
    '{"n": 12, "x": "", "tags": [[1]]}',
]


def read(path: Path, sink: Any = None, **options: Any) -> list[dict[str, Any]]:
    memory = sink or ms.Memory()
    flow = ms.Flow("mixed")
    flow.source(ms.Files(path, **options), name="in").sink(memory, name="sink")
    ledger = run_in_process(flow, path.parent / f"ck-{len(list(path.parent.iterdir()))}")
    assert not ledger["in"].get("dead")
    return list(memory.rows)


def written(folder: Path, lines: list[str], name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_a_value_of_another_type_is_its_text(tmp_path: Path) -> None:
    rows = read(written(tmp_path, LINES))
    assert [row["x"] for row in rows] == [
        *("1", "two", "1.50", "true", '{"a": 1, "b": [true,  null]}', '[1, "ä"]', None, None),
        *("null", 'say "hi" ä\n', "12345678901234567890", ""),
    ]
    assert rows[0]["tags"] == ["1", "a"] and rows[1]["tags"] == ["b", None]
    assert rows[4]["tags"] == ['{"k": 1}'] and rows[9]["tags"] == ["1e3"]
    assert [row["o"] and row["o"]["v"] for row in rows[:4]] == ["1", "one", "[1, 2]", '{"z": 0}']


def test_it_is_so_wherever_the_value_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sample, after it, and in a file that nobody looked into before."""
    texts = [f'{{"x": "{n}"}}' for n in range(50)]
    other = '{"x": {"a": 1}}'
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 100)
    for number, lines in enumerate(([other, *texts], [*texts, other])):
        rows = read(written(tmp_path, lines, f"{number}.jsonl"))
        assert sorted(row["x"] for row in rows) == sorted([*map(str, range(50)), '{"a": 1}'])
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder, texts, "a.jsonl")
    written(folder, [other], "b.jsonl")
    memory = ms.Memory()
    flow = ms.Flow("two")
    flow.source(ms.Files(folder, format="json"), name="in").sink(memory, name="sink")
    run_in_process(flow, tmp_path / "ck")
    assert sorted(row["x"] for row in memory.rows) == sorted([*map(str, range(50)), '{"a": 1}'])


def test_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, ['{"x": 1, "y": 1}', '{"x": "two", "y": 2.5}', '{"x": 3}'])
    with caplog.at_level(logging.WARNING, "millstream.sources"):
        read(path)
    (record,) = [one.getMessage() for one in caplog.records if "column" in one.getMessage()]
    assert "column 'x' has numbers and texts (1, \"two\"), so it is read as text" in record


def test_a_schema_that_was_given_is_kept_to(tmp_path: Path) -> None:
    memory = ms.Memory()
    flow = ms.Flow("strict")
    path = written(tmp_path, ['{"x": 1}', '{"x": "two"}'])
    flow.source(ms.Files(path, schema="x string"), name="in").sink(memory, name="sink")
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)
    assert memory.rows == [{"x": "two"}] and ledger["in"]["dead"] == 1


def test_what_does_not_parse_is_a_dead_letter_still(tmp_path: Path) -> None:
    good = ['{"x": 1}', '{"x": "zwö"}']
    bad = ['{"x": [1,}', '{"x": 01}', '{"x": NaN}', '{"x": "\\ud800"}', '{"x": "a', "[1]", "1"]
    path = written(tmp_path, [*good, *bad])
    with path.open("ab") as file:
        file.write(b'{"x": "\xff"}\n{"x": {"a": "\xff"}}\n')
    memory = ms.Memory()
    flow = ms.Flow("bad")
    flow.source(ms.Files(path), name="in").sink(memory, name="sink")
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)
    assert [row["x"] for row in memory.rows] == ["1", "zwö"]
    assert ledger["in"]["dead"] == len(bad) + 2


def test_names_that_no_struct_may_have(tmp_path: Path) -> None:
    rows = read(written(tmp_path, ['{"a\\"b": 1, "ä": 1}', '{"a\\"b": "x", "ä": [1]}']))
    assert rows == [{'a"b': "1", "ä": "1"}, {'a"b': "x", "ä": "[1]"}]


@pytest.mark.spark
def test_spark_gives_the_same(tmp_path: Path, spark: Any) -> None:
    from pyspark.sql import SparkSession

    path = written(tmp_path, LINES)
    frame = SparkSession(spark).read.json(str(path))
    theirs = [row.asDict(recursive=True) for row in frame.collect()]
    ours = read(path)
    assert sorted(map(json.dumps, _plain(ours))) == sorted(map(json.dumps, _plain(theirs)))


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("n", "x", "tags", "o")
    return [{name: row.get(name) for name in names} for row in rows]


def test_types_of_the_sample_are_as_they_were(tmp_path: Path) -> None:
    flow = ms.Flow("types")
    path = written(tmp_path, ['{"i": 1, "f": 1, "s": "a"}', '{"i": 2, "f": 2.5, "s": null}'])
    schema = flow.source(ms.Files(path), name="in").schema
    assert schema == pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())])

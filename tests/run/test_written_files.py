"""Files other programs read: comma-separated values, and Parquet in folders named by values."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import millstream as ms
from millstream.run import faults
from millstream.testing import run_in_process

HARD = ["a/b", "..", "x=y", "ä ö", "%2F", "", 'a,b"c', None]


class Crash(BaseException):
    """The end of a process."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(count: int = 48) -> list[dict[str, Any]]:
    return [{"n": n, "who": HARD[n % len(HARD)], "year": 2020 + n % 3} for n in range(count)]


def flow_to(sink: Any) -> ms.Flow:
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    flow = ms.Flow("files")
    schema = "n bigint, who string, year bigint"
    flow.source(ms.Files("in.jsonl", schema=schema), name="in").sink(sink, name="sink")
    return flow


EXPECTED = Counter((row["n"], row["who"], row["year"]) for row in rows())


def test_folders_are_read_back_by_duckdb_and_pandas() -> None:
    run_in_process(flow_to(ms.Parquet("out", partition_by=("who", "year"))), "ck", parallelism=2)
    read = "read_parquet('out/**/*.parquet', hive_partitioning=true, hive_types_autocast=false)"
    found = duckdb.sql(f"SELECT n, who, CAST(year AS BIGINT) FROM {read}").fetchall()
    assert Counter(found) == EXPECTED
    run_in_process(flow_to(ms.Parquet("years", partition_by="year")), "ck-2")
    frame = pd.read_parquet("years")  # which does not take null for the value of a folder
    assert sorted(frame.n) == list(range(48)) and {*frame.columns} == {"n", "who", "year"}
    assert {path.parent.name for path in Path("out").glob("who=*/*/*")} == {
        f"year={year}" for year in (2020, 2021, 2022)
    }
    assert all(
        path.is_relative_to(Path("out").resolve()) for path in Path("out").resolve().rglob("*")
    )


@pytest.mark.parametrize(
    "made", [lambda: ms.Parquet("out", partition_by="year"), lambda: ms.Csv("out")]
)
@pytest.mark.parametrize(
    "point", ["tasks-done", "before-manifest", "after-manifest", "half-published", "published"]
)
def test_every_row_is_there_once_wherever_a_run_was_killed(
    made: Callable[[], Any], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(at: str, batch: int) -> None:
        if at == point and batch == 1:
            raise Crash

    flow = flow_to(made())
    with monkeypatch.context() as patch:
        patch.setattr(faults, "crash_point", crash)
        with pytest.raises(Crash):
            run_in_process(flow, "ck", batch_rows=1, batch_bytes=400, parallelism=2)
    run_in_process(flow, "ck", batch_rows=1, batch_bytes=400, parallelism=2)
    if isinstance(flow.nodes[-1].spec, ms.Csv):  # type: ignore[attr-defined]
        read = "read_csv('out/*.csv', types={'who': 'VARCHAR'})"
    else:
        read = "read_parquet('out/*/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(f"SELECT n FROM {read}").fetchall()
    assert sorted(found) == [(n,) for n in range(48)]


def test_folders_belong_to_a_checkpoint_as_directories_do() -> None:
    run_in_process(flow_to(ms.Parquet("out", partition_by="year")), "ck")
    with pytest.raises(ms.ConfigError, match="holds results of another checkpoint"):
        run_in_process(flow_to(ms.Parquet("out", partition_by="year")), "other")


def test_columns_that_name_folders_must_be_there() -> None:
    with pytest.raises(
        ms.ConfigError, match="partition_by: there is no column 'yaer'; did you mean"
    ):
        run_in_process(flow_to(ms.Parquet("out", partition_by="yaer")), "ck")
    with pytest.raises(ms.ConfigError, match="names all columns"):
        run_in_process(flow_to(ms.Parquet("out", partition_by=("n", "who", "year"))), "ck")
    with pytest.raises(ms.ConfigError, match="expected names of columns"):
        ms.Parquet("out", partition_by=("",))
    with pytest.raises(ms.ConfigError, match="is named twice"):
        ms.Parquet("out", partition_by=("a", "a"))


def test_csv_is_read_back_as_it_was() -> None:
    run_in_process(flow_to(ms.Csv("out")), "ck")
    (path,) = Path("out").glob("*.csv")
    with path.open(newline="") as file:
        found = [(int(row["n"]), row["who"], int(row["year"])) for row in csv.DictReader(file)]
    assert Counter(found) == Counter((n, who or "", year) for n, who, year in EXPECTED)
    assert "7,,2021" in path.read_text() and '5,"",2022' in path.read_text()


def test_csv_holds_times_decimals_and_nested_values() -> None:
    flow = ms.Flow("kinds")
    record = {
        "ts": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "list": [1, 2],
        "map": {"a": "x"},
        "f": 0.5,
    }
    flow.source(ms.Generator(lambda: [record])).sink(ms.Csv("out"))
    run_in_process(flow, "ck")
    (path,) = Path("out").glob("*.csv")
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert datetime.fromisoformat(row["ts"]) == record["ts"]
    assert (json.loads(row["list"]), json.loads(row["map"]), row["f"]) == (
        [1, 2],
        {"a": "x"},
        "0.5",
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["a", None, "b", ""]),
        ("bigint", [None, 7]),
        ("double", [None, 0.5, float("nan")]),
        ("timestamp", [None, datetime(2026, 1, 5, tzinfo=UTC)]),
    ],
)
def test_no_row_of_a_single_column_is_an_empty_line(kind: str, values: list[Any]) -> None:
    """Readers skip lines that hold nothing; a null that is one would be lost."""
    flow = ms.Flow("one")
    given = [{"x": value} for value in values]
    flow.source(ms.Generator(lambda: given, schema=f"x {kind}")).sink(ms.Csv("out/"))
    run_in_process(flow, "ck")
    (path,) = Path("out").glob("*.csv")
    assert len(pd.read_csv(path)) == len(values)
    with path.open(newline="") as file:
        found = list(csv.reader(file))[1:]
    assert [bool(row[0]) for row in found] == [bool(value) for value in values]
    again, memory = ms.Flow("again"), ms.Memory()
    again.source(ms.Files("out/", schema=f"x {kind}")).sink(memory)
    run_in_process(again, "ck-again")
    assert len(memory.rows) == len(values)


def test_lines_are_read_back_as_they_were_or_are_dead_letters() -> None:
    given = ["a", "two\nlines", "", "b\rc", "\u2028", "end\n"]
    flow, again, memory = ms.Flow("lines"), ms.Flow("again"), ms.Memory()
    records = [{"line": one} for one in given]
    flow.source(ms.Generator(lambda: records, schema="line string")).sink(ms.Text("out"), name="to")
    ledger = run_in_process(flow, "ck", dead_letter_limit=1.0)
    assert (ledger["to"]["aggregated"], ledger["to"]["dead"]) == (4, 2)
    again.source(ms.Files("out/", format="text")).sink(memory)
    run_in_process(again, "ck-again")
    assert [row["value"] for row in memory.rows] == [one for one in given if "\n" not in one]
    (letters,) = Path("ck/dead").glob("*.jsonl")
    told = [json.loads(line)["error"] for line in letters.read_text().splitlines()]
    assert len(told) == 2 and "'two\\nlines' has a line break; take it out" in told[0]


def test_bytes_in_csv_are_plain_base64() -> None:
    flow = ms.Flow("bytes")
    given = [{"n": 1, "b": b"\0\xff"}, {"n": 2, "b": b""}, {"n": 3, "b": None}]
    flow.source(ms.Generator(lambda: given, schema="n int, b binary")).sink(ms.Csv("out/"))
    run_in_process(flow, "ck")
    (path,) = Path("out").glob("*.csv")
    with path.open(newline="") as file:
        assert [row["b"] for row in csv.DictReader(file)] == ["AP8=", "", ""]


def test_a_text_that_is_the_mark_of_null_is_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = [None, "__HIVE_DEFAULT_PARTITION__", "", "..", "a/b", "%41", "A"]
    rows = [{"k": value, "n": n} for n, value in enumerate(values)]
    flow = ms.Flow("folders")
    stream = flow.source(ms.Generator(lambda: rows, schema="k string, n int"))
    stream.sink(ms.Parquet("out", partition_by="k"))
    run_in_process(flow, "ck")
    found = duckdb.sql(
        "SELECT k FROM read_parquet('out/*/*.parquet', hive_types_autocast=false) ORDER BY n"
    )
    assert [row[0] for row in found.fetchall()] == values


@pytest.mark.parametrize("kind", [ms.Jsonl, ms.Csv, ms.Parquet])
def test_names_that_are_one_in_json_are_dead_letters(kind: Any) -> None:
    """A dict has 1 and "1" beside each other, JSON has not; a function gets both."""
    given = [{1: "a", "2": "b"}, [{"n": {1: "a", "1": "b"}}], {None: 1, "None": 2}, {1: 2}]
    flow, memory = ms.Flow("names"), ms.Memory()
    stream = flow.source(ms.Generator(lambda: [{"n": n} for n in range(4)], schema="n long"))
    made = stream.map(lambda row: {"v": given[row["n"]]})
    made.sink(kind("out"), name="to")
    made.sink(memory, name="here")
    ledger = run_in_process(flow, "ck", dead_letter_limit=1.0)
    assert (ledger["to"]["aggregated"], ledger["to"]["dead"]) == (2, 2)
    assert [row["v"] for row in memory.rows] == given
    (letters,) = Path("ck/dead").glob("*.jsonl")
    told = [json.loads(line)["error"] for line in letters.read_text().splitlines()]
    assert "{1: 'a', '1': 'b'} in 'v' has several that are the same text" in told[0]

"""Slates as tables of other programs, against a dict."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import millstream as ms
from millstream.serve.slates import Unknown
from tests.serve.writing import GONE, Put, Writer

AT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
MICROS = int(AT.timestamp() * 1e6)


def written(path: Path, slates: dict[Any, Any], **about: Any) -> ms.Slates:
    """These slates, committed over some batches."""
    writer = Writer(path, about=about)
    writer.commit(*(Put(key, {"old": 1}) for key in slates), Put("deleted", {"x": 1}))
    writer.commit(*(Put(key, slate, ts=MICROS) for key, slate in slates.items()))
    writer.commit(Put("deleted", GONE))
    return ms.slates(path, "counts")


def rows(table: pa.Table) -> dict[Any, dict[str, Any]]:
    """Rows by key."""
    return {row.pop("key"): row for row in table.to_pylist()}


def test_single_slates(tmp_path: Path) -> None:
    slates = written(tmp_path, {"a": {"n": 1}, 7: {"n": 2}, ("x", 1): {"n": 3}})
    assert slates.get("a") == {"n": 1}
    assert slates.get(7) == {"n": 2}
    assert slates.get("7") is None
    assert slates.get(("x", 1)) == {"n": 3}
    assert slates.get("b", "none") == "none"
    assert "a" in slates
    assert "deleted" not in slates
    assert dict(slates) == {"a": {"n": 1}, 7: {"n": 2}, ("x", 1): {"n": 3}}
    assert slates.batch == 2


def test_reading_follows_what_is_committed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.commit(Put("a", {"n": 1}))
    slates = ms.slates(tmp_path, "counts")
    for number in range(2, 30):
        writer.commit(Put("a", {"n": number}))
        assert slates.get("a") == {"n": number}
        assert slates.arrow().column("n").to_pylist() == [number]


def test_a_table_has_the_union_of_all_fields(tmp_path: Path) -> None:
    table = written(
        tmp_path, {"a": {"n": 1, "s": "x"}, "b": {"f": 1.5, "l": [1, 2]}, "c": {}}
    ).arrow()
    assert set(table.column_names) == {"key", "n", "s", "f", "l", "ts"}
    assert table.column_names[0] == "key"
    assert table.column_names[-1] == "ts"
    assert table.schema.field("ts").type == pa.timestamp("us", "UTC")
    nothing = {"n": None, "s": None, "f": None, "l": None, "ts": AT}
    assert rows(table) == {
        "a": nothing | {"n": 1, "s": "x"},
        "b": nothing | {"f": 1.5, "l": [1, 2]},
        "c": nothing,
    }


MIXED: list[tuple[list[Any], list[Any]]] = [
    ([1, "a"], ["1", '"a"']),
    ([True, 1], ["true", "1"]),
    ([1, 1.5], [1.0, 1.5]),
    ([2**60 + 1, 1.5], ["1152921504606846977", "1.5"]),
    ([2**63, 1], [2**63, 1]),
    ([[1], ["a"]], ["[1]", '["a"]']),
    ([{"x": 1}, {"y": "b"}], [{"x": 1, "y": None}, {"x": None, "y": "b"}]),
    ([{"x": 1}, {"x": "b"}], ['{"x":1}', '{"x":"b"}']),
    ([{"x": 1}, 3], ['{"x":1}', "3"]),
    ([{}, {}], ["{}", "{}"]),
    ([[], []], ["[]", "[]"]),
    ([b"\0", "a"], ['"AA=="', '"a"']),
    ([{1: 2}, None], ['{"1":2}', None]),
    ([AT, "a"], ['"2026-01-05T09:30:00Z"', '"a"']),
    ([AT, None], [AT, None]),
    ([None, None], [None, None]),
]


@pytest.mark.parametrize("shards", [1, 16])
@pytest.mark.parametrize(("given", "expected"), MIXED, ids=lambda one: str(one)[:30])
def test_values_of_different_kinds(
    tmp_path: Path, given: list[Any], expected: list[Any], shards: int
) -> None:
    writer = Writer(tmp_path, shards=shards)
    writer.commit(*(Put(f"k{i}", {"v": value}) for i, value in enumerate(given)))
    found = {k: row["v"] for k, row in rows(ms.slates(tmp_path, "counts").arrow()).items()}
    if given == [2**63, 1]:  # one column, but as what: unsigned, or text where shards differ
        assert {int(value) for value in found.values()} == set(expected)
    else:
        assert found == {f"k{i}": value for i, value in enumerate(expected)}


def test_many_shards_agree_on_a_type(tmp_path: Path) -> None:
    writer = Writer(tmp_path, shards=16)
    writer.commit(*(Put(f"k{i}", {"v": i if i % 2 else i + 0.5}) for i in range(200)))
    found = rows(ms.slates(tmp_path, "counts").arrow())
    assert found == {
        f"k{i}": {"v": i if i % 2 else i + 0.5, "ts": datetime.fromtimestamp(0, UTC)}
        for i in range(200)
    }


def test_fields_named_like_ours(tmp_path: Path) -> None:
    table = written(tmp_path, {"a": {"key": 1, "ts": 2, "slate.key": 3}}).arrow()
    assert rows(table) == {"a": {"slate.key": 1, "slate.ts": 2, "slate.slate.key": 3, "ts": AT}}


def test_keys_keep_their_type_if_all_have_one(tmp_path: Path) -> None:
    assert set(rows(written(tmp_path / "1", {1: {}, 2: {}}).arrow())) == {1, 2}
    assert set(rows(written(tmp_path / "2", {1: {}, "a": {}}).arrow())) == {"1", "a"}
    assert set(rows(written(tmp_path / "3", {("a", 1): {}}).arrow())) == {'["a",1]'}


def test_no_slates_at_all(tmp_path: Path) -> None:
    Writer(tmp_path)
    slates = ms.slates(tmp_path, "counts")
    assert slates.arrow().column_names == ["key", "ts"]
    assert len(slates.pandas()) == 0
    assert dict(slates) == {}


class Letters:
    """A codec: slates are sets of letters."""

    def decode(self, data: bytes) -> set[str]:
        """The letters."""
        return set(data.decode())


def test_slates_of_a_codec(tmp_path: Path) -> None:
    Writer(tmp_path, about={"codec": "Letters"}).commit(Put("a", b"xyz"))
    assert ms.slates(tmp_path, "counts").get("a") == b"xyz"
    assert rows(ms.slates(tmp_path, "counts").arrow())["a"]["slate"] == b"xyz"
    own = ms.slates(tmp_path, "counts", codec=Letters())
    assert own.get("a") == {"x", "y", "z"}
    assert set(rows(own.arrow())["a"]["slate"]) == {"x", "y", "z"}


class Broken:
    """A codec that does not know its own slates."""

    def decode(self, data: bytes) -> Any:
        """Never works."""
        raise KeyError("no")


def test_a_codec_that_fails_gives_bytes(tmp_path: Path) -> None:
    Writer(tmp_path, about={"codec": "Broken"}).commit(Put("a", b"xyz"))
    assert ms.slates(tmp_path, "counts", codec=Broken()).get("a") == b"xyz"


def test_duckdb_and_pandas(tmp_path: Path) -> None:
    slates = written(tmp_path, {f"k{i}": {"n": i} for i in range(100)})
    with duckdb.connect() as connection:
        relation = slates.duckdb(connection)
        assert relation.aggregate("sum(n)").fetchall() == [(4950,)]
        assert connection.sql("SELECT count(*) FROM counts WHERE n >= 50").fetchall() == [(50,)]
        slates.duckdb(connection, 'odd "name"; DROP')
        assert connection.sql('SELECT max(n) FROM "odd ""name""; DROP"').fetchall() == [(99,)]
    frame = slates.pandas()
    assert frame.set_index("key")["n"].to_dict() == {f"k{i}": i for i in range(100)}


@pytest.mark.spark
def test_spark(tmp_path: Path, spark: Any) -> None:
    from pyspark.sql import SparkSession

    slates = written(tmp_path, {"a": {"n": 1, "l": [1], "d": {"x": 1}}, "b": {"m": "x"}})
    found = {
        row["key"]: row.asDict(recursive=True)
        for row in slates.spark(SparkSession(spark)).collect()
    }
    assert found["a"]["n"] == 1
    assert found["a"]["l"] == [1]
    assert found["a"]["d"] == {"x": 1}
    assert found["b"]["m"] == "x"
    assert found["b"]["n"] is None


def test_an_unknown_updater(tmp_path: Path) -> None:
    Writer(tmp_path)
    with pytest.raises(Unknown, match="did you mean 'counts'"):
        ms.slates(tmp_path, "counst")


def test_reading_needs_neither_spark_nor_a_server() -> None:
    code = (
        "import sys, millstream; millstream.slates; "
        "print([m for m in ('pyspark', 'starlette', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

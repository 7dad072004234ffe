"""`ms.sum` and `ms.mean` of decimals, and of expressions over them: exact, as DuckDB adds them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import reference, run_in_process

D = Decimal
ROWS = [
    ("a", "1.10", "3.0"), ("a", "2.25", "0.5"), ("b", None, "1.0"), ("a", "-0.35", "2.0"),
    ("b", "99999999.99", "99999.9"), ("c", None, None), ("a", "0.01", "0.1"), ("b", "0.01", "0.1"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {
        "k": [row[0] for row in ROWS],
        "p": pa.array([row[1] and D(row[1]) for row in ROWS], pa.decimal128(10, 2)),
        "q": pa.array([row[2] and D(row[2]) for row in ROWS], pa.decimal128(6, 1)),
        "ts": pa.array(range(len(ROWS)), pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), "in.parquet")


def source() -> Any:
    return ms.Flow("money").source(ms.Files("in.parquet", time="ts", lateness="0s"), name="in")


AGGS = {"total": ms.sum("p"), "worth": ms.sum("p * q"), "least": ms.min("p"), "most": ms.max("p")}
ASKED = "sum(p), sum(p * q), min(p), max(p)"


@pytest.mark.parametrize("window", [None, ms.tumbling("1d"), ms.sliding("2d", "1d")])
def test_totals_are_exact(window: Any) -> None:
    keyed = source().key_by("k")
    table = (keyed if window is None else keyed.window(window)).agg(**AGGS).collect()
    found = sorted({tuple(row[name] for name in ("k", *AGGS)) for row in table.to_pylist()})
    wanted = duckdb.sql(f"SELECT k, {ASKED} FROM 'in.parquet' GROUP BY k ORDER BY k").fetchall()
    assert found == wanted
    assert table.schema.field("total").type == pa.decimal128(20, 2)  # as in Spark
    assert table.schema.field("worth").type == pa.decimal128(27, 3)


def test_a_mean_has_four_digits_more_than_its_values() -> None:
    table = source().key_by("k").agg(m=ms.mean("p")).collect()
    assert table.schema.field("m").type == pa.decimal128(14, 6)
    assert {row["k"]: row["m"] for row in table.to_pylist()} == {
        "a": D("0.752500"), "b": D("50000000.000000"), "c": None,
    }  # fmt: skip


def test_totals_of_totals_and_totals_that_change_are_exact() -> None:
    flow, days, changes = ms.Flow("money"), ms.Memory(), ms.Memory()
    rows = flow.source(ms.Files("in.parquet", time="ts", lateness="0s"), name="in")
    by_key = rows.key_by("k").window(ms.tumbling("1d")).agg(total=ms.sum("p"))
    by_key.key_by().window(ms.tumbling("1d")).agg(total=ms.sum("total")).sink(days)
    rows.key_by("k").agg(total=ms.sum("p * q"), emit="delta").sink(changes)
    run_in_process(flow, "ck")
    assert [row["total"] for row in days.rows] == [sum(D(row[1]) for row in ROWS if row[1])]
    worth = dict(duckdb.sql("SELECT k, sum(p * q) FROM 'in.parquet' GROUP BY k").fetchall())
    assert {row["k"]: row["total"] for row in changes.rows if row["op"] != "-"} == worth


def test_the_reference_adds_decimals_as_they_are() -> None:
    flow = ms.Flow("money")
    rows = flow.source(ms.Generator(list, schema="p decimal(10,2)"), name="in")
    rows.key_by().agg(total=ms.sum("p")).sink(ms.Memory(), name="out")
    given = [{"p": D("0.75")}, {"p": D("0.75")}]
    assert [row["total"] for row in reference(flow, {"in": given})["out"]] == [D("1.50")]


@pytest.mark.parametrize("agg", [ms.var("p"), ms.std("p * q"), ms.quantile("p + q", 0.5)])
def test_what_decimals_do_not_have_is_refused_before_the_run(agg: Any) -> None:
    with pytest.raises(ms.ConfigError, match=r"needs numbers, but .* is decimal128"):
        source().key_by("k").agg(x=agg).collect()


def test_an_empty_result_has_its_columns_and_types() -> None:
    none = source().where("p > 1000000000")
    table = none.key_by("k").window(ms.tumbling("1d")).agg(**AGGS, n=ms.count()).collect()
    at = pa.timestamp("us", "UTC")
    names = ["k", "window_start", "window_end", "total", "worth", "least", "most", "n"]
    kinds = [pa.string(), at, at, pa.decimal128(20, 2), pa.decimal128(27, 3)]
    kinds += [pa.decimal128(10, 2), pa.decimal128(10, 2), pa.int64()]
    assert table.schema == pa.schema(list(zip(names, kinds, strict=True))) and not len(table)
    assert none.select("k", "p + 1 AS more").collect().schema.names == ["k", "more"]
    assert none.collect().schema.names == ["k", "p", "q", "ts"]

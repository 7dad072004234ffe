"""Early answers for sums and means of decimals: estimates on the way, exact at the end."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.serve.drawing import drawn
from millstream.testing import run_in_process, snapshots_in_process

MONEY = pa.decimal128(12, 2)


def write(folder: Path) -> dict[str, list[Decimal]]:
    """Prices per shop in eight files."""
    folder.mkdir()
    chance = random.Random(6)
    prices: dict[str, list[Decimal]] = {"a": [], "b": []}
    for number in range(8):
        shops = [chance.choice("ab") for _ in range(2_500)]
        some = [Decimal(chance.randrange(-500, 90_000)).scaleb(-2) for _ in shops]
        for shop, price in zip(shops, some, strict=True):
            prices[shop].append(price)
        table = pa.table({"shop": shops, "price": pa.array(some, MONEY)})
        pq.write_table(table, folder / f"{number}.parquet")
    return prices


def sales(folder: Path, emit: object = None) -> tuple[ms.Flow, ms.Memory]:
    flow, seen = ms.Flow("sales"), ms.Memory()
    rows = flow.source(ms.Files(folder, format="parquet"), name="rows").key_by("shop")
    more = {} if emit is None else {"emit": emit}
    answer = rows.agg(total=ms.sum("price"), each=ms.mean("price"), **more)  # type: ignore[arg-type]
    answer.sink(seen)
    return flow, seen


def test_sums_and_means_of_decimals_have_bounds_and_end_exact(tmp_path: Path) -> None:
    prices = write(tmp_path / "in")
    flow, _ = sales(tmp_path / "in")
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.6])
    for row in first.table.to_pylist():
        total = float(sum(prices[row["shop"]]))
        assert row["total_lower"] < total < row["total_upper"]
        assert row["total"] == pytest.approx(total, rel=0.05)
        assert row["each_lower"] < total / len(prices[row["shop"]]) < row["each_upper"]
    assert {r["shop"]: r["total"] for r in last.table.to_pylist()} == {
        shop: sum(some) for shop, some in prices.items()
    }
    assert first.notes == last.notes == ()
    points = [one["points"] for one in drawn("agg", [first, last], 2)["values"]["total"]]
    assert all(isinstance(number, float) for group in points for look in group for number in look)


def test_rows_of_a_stream_of_them_have_one_type(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow, seen = sales(tmp_path / "in", emit=ms.snapshot(at=[0.6]))
    run_in_process(flow, tmp_path / "ck")
    assert [row["exact"] for row in seen.rows] == [False, False, True, True]
    for row in seen.rows:
        assert row["total_lower"] <= row["total"] <= row["total_upper"]
        for name in ("total", "each"):
            ends = [row[name + end] for end in ("", "_lower", "_upper")]
            assert {one.as_tuple().exponent for one in ends} == {-2 if name == "total" else -6}

"""The MACD example without Spark: against DuckDB, on its plan, and on its picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from millstream.cli.loading import load_application
from millstream.testing import run_in_process

ROOT = Path(__file__).parents[2]
EXPECTED = """
    WITH ticks AS (
        SELECT symbol, price, epoch_us(ts::TIMESTAMPTZ) AS us FROM read_csv('ticks/*.csv')
    ),
    ends AS (
        SELECT DISTINCT symbol, (us // 60000000 + i + 1) * 60000000 AS until
        FROM ticks, range(10) AS back(i)
    ),
    averages AS (
        SELECT symbol, until, avg(price) AS slow,
               avg(price) FILTER (us >= until - 300000000) AS fast
        FROM ends JOIN ticks USING (symbol)
        WHERE us >= until - 600000000 AND us < until
        GROUP BY ALL
    )
    SELECT symbol, until, fast, slow FROM averages WHERE fast IS NOT NULL
"""


@pytest.fixture
def macd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flow, in an empty directory with invented ticks."""
    monkeypatch.chdir(tmp_path)
    for name in ("TICKS", "OUT"):
        monkeypatch.delenv(name, raising=False)
    return load_application(ROOT / "examples" / "macd.py").flow


@pytest.mark.parametrize("batch_rows", [1_000_000, 1_500])
def test_macd_is_what_duckdb_says(macd: Any, batch_rows: int) -> None:
    ledger = run_in_process(macd, "ck", parallelism=2, batch_rows=batch_rows)
    assert ledger["ticks"]["aggregated"] == 20_000
    assert ledger["fast"]["late"] == ledger["slow"]["late"] == 0
    found = {
        (row["symbol"], round(row["window_end"].timestamp() * 1e6)): row
        for row in pq.read_table("out/macd").to_pylist()
    }
    expected = duckdb.sql(EXPECTED).fetchall()
    assert len(found) == len(expected) > 600
    for symbol, until, fast, slow in expected:
        row = found[symbol, until]
        assert row["fast"] == pytest.approx(fast, rel=1e-12)
        assert row["slow"] == pytest.approx(slow, rel=1e-12)
        assert row["macd"] == row["fast"] - row["slow"]


def test_the_plan_shares_panes(macd: Any) -> None:
    told = macd.explain()
    assert "panes of 1m by symbol <- ticks: computed once, shared by fast, slow" in told
    assert "fast = key by symbol, window sliding(5m, 1m)" in told


def test_the_picture_in_the_docs_is_drawn_by_this_version(macd: Any, tmp_path: Path) -> None:
    """After a wanted change run this test with MILLSTREAM_WRITE_PLANS=1, and look at the file."""
    shown = ROOT / "docs" / "images" / "plan-macd.svg"
    drawn = macd.picture(tmp_path / "macd.svg").read_text(encoding="utf-8")
    if os.environ.get("MILLSTREAM_WRITE_PLANS"):
        shown.write_text(drawn, encoding="utf-8")
    assert shown.read_text(encoding="utf-8") == drawn

"""The demonstration: its trades, its parts, and the whole of it in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millstream.demo.check import compare
from millstream.demo.screen import bar, sparkline
from millstream.demo.trades import SYMBOLS, invent

COMMAND = str(Path(sys.executable).parent / "millstream")


def test_trades_are_seeded_skewed_and_slightly_out_of_order(tmp_path: Path) -> None:
    invent(tmp_path / "a", 50_000, seed=1)
    invent(tmp_path / "b", 50_000, seed=1)
    invent(tmp_path / "c", 50_000, seed=2)
    trades = pq.read_table(tmp_path / "a")
    assert trades.equals(pq.read_table(tmp_path / "b"))
    assert not trades.equals(pq.read_table(tmp_path / "c"))
    assert len(trades) == 50_000 and pc.min(trades["price"]).as_py() > 0
    counts = sorted(pc.value_counts(trades["symbol"]).field("counts").to_pylist())
    assert len(counts) == SYMBOLS and counts[-1] > 30 * counts[len(counts) // 2]
    at = trades["ts"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(at) - at
    assert 0 < behind.max() < 5_000_000  # the flow's lateness


def test_curves_and_bars() -> None:
    assert sparkline([1.0, 2.0, 3.0], 10) == "▁▅█"  # round half to even: 3.5 is 4
    assert sparkline([5.0], 10) == "▁"
    assert len(sparkline(list(map(float, range(1000))), 28)) == 28
    assert bar(1.0, 4) == "████" and bar(0.5, 4) == "██" and bar(0.0, 4) == "▏"


@pytest.mark.spark
def test_the_whole_without_a_terminal(tmp_path: Path) -> None:
    command = [COMMAND, "demo", "--trades", "10000", "--seed", "5", "--out", "here"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "\x1b" not in done.stdout
    found = re.search(r"DuckDB agrees: ([\d,]+) of ([\d,]+) rows, largest relative", done.stdout)
    assert found is not None and found[1] == found[2]
    assert "10,000 trades" in done.stdout and "0 dead letters, 0 late" in done.stdout
    assert (tmp_path / "here" / "demo.png").stat().st_size > 50_000
    averages = pq.read_table(tmp_path / "here" / "averages")
    assert len(averages) > 50_000

    # The comparison notices one wrong row, one row too many and one too few.
    part = next((tmp_path / "here" / "averages").glob("part-*"))
    good = pq.read_table(part)
    size, slide = timedelta(minutes=5), timedelta(seconds=15)
    pq.write_table(good.slice(1), part)
    assert not compare(tmp_path / "here", size, slide).good
    pq.write_table(pa.concat_tables([good, good.slice(0, 1)]), part)
    assert not compare(tmp_path / "here", size, slide).good
    low = pc.add(good["low"], pa.array(np.r_[1.0, np.zeros(len(good) - 1)]))
    pq.write_table(good.set_column(good.column_names.index("low"), "low", low), part)
    assert not compare(tmp_path / "here", size, slide).good
    pq.write_table(good, part)
    assert compare(tmp_path / "here", size, slide).good


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [COMMAND, "demo", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": "/nowhere"},
    )
    assert done.returncode == 2 and "did not make" in done.stderr
    assert (tmp_path / "mine").read_text() == "precious"

"""Ratios of two totals with bounds, and what a group that was not seen can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import run_in_process, snapshots_in_process

RATES = {"rate": ("clicks", "shown"), "each": ("shown", "n")}


def write(folder: Path) -> None:
    """Pages with clicks and how often they were shown; days differ, and so do sites in size."""
    rng = np.random.default_rng(21)
    folder.mkdir()
    for day in range(12):
        site = rng.choice(40, 1_500, p=np.array(z := 1 / np.arange(1, 41) ** 2) / z.sum())
        shown = rng.poisson(30, len(site)) + 1
        clicks = rng.binomial(shown, 0.05 + 0.01 * (day % 3) + 0.002 * site)
        rows = zip(site.tolist(), shown.tolist(), clicks.tolist(), strict=True)
        lines = [f"s{s},{n},{c},{'.' * 70}" for s, n, c in rows]
        (folder / f"{day}.csv").write_text("\n".join(["site,shown,clicks,pad", *lines]) + "\n")


def sites(folder: Path, sink: ms.Memory | None = None, **emit: Any) -> ms.Flow:
    flow = ms.Flow("sites")
    read = flow.source(ms.Files(folder, format="csv"), name="pages")
    read.key_by("site").agg(
        **emit, clicks=ms.sum("clicks"), shown=ms.sum("shown"), n=ms.count()
    ).sink(sink or ms.Memory())
    return flow


def exact(folder: Path) -> dict[str, tuple[float, float, int]]:
    found = duckdb.sql(
        "SELECT site, sum(clicks) / sum(shown), sum(shown) / count(*), count(*) "
        f"FROM '{folder}/*.csv' GROUP BY site"
    ).fetchall()
    return {row[0]: row[1:] for row in found}


def test_ratios_have_bounds_and_end_exact(tmp_path: Path) -> None:
    write(tmp_path / "in")
    true = exact(tmp_path / "in")
    inside = []
    for seed in range(2):
        *found, last = snapshots_in_process(
            sites(tmp_path / "in"), tmp_path / f"ck{seed}", [0.3, 0.6], ratios=RATES, seed=seed
        )
        for one in found:
            for row in one.table.to_pylist():
                for name, value in zip(RATES, true[row["site"]], strict=False):
                    if row[f"{name}_lower"] is not None:
                        inside.append(row[f"{name}_lower"] <= value <= row[f"{name}_upper"])
            busy = next(row for row in one.table.to_pylist() if row["site"] == "s0")
            assert busy["rate"] == pytest.approx(true["s0"][0], rel=0.2)
        for row in last.table.to_pylist():
            rate, each, _ = true[row["site"]]
            assert row["rate"] == row["rate_lower"] == pytest.approx(rate)
            assert row["each"] == pytest.approx(each)
    assert len(inside) > 20
    assert np.mean(inside) >= 0.95


def test_sinks_get_ratios_too(tmp_path: Path) -> None:
    write(tmp_path / "in")
    sink = ms.Memory()
    run_in_process(
        sites(tmp_path / "in", sink, emit=ms.snapshot([0.5], ratios=RATES)), tmp_path / "ck"
    )
    rows = {row["exact"]: row for row in sink.rows if row["site"] == "s0"}
    assert rows[True]["rate_upper"] == pytest.approx(exact(tmp_path / "in")["s0"][0])
    assert rows[False]["rate_lower"] < rows[False]["rate"] < rows[False]["rate_upper"]


def test_a_group_that_was_not_seen_is_below_its_bounds(tmp_path: Path) -> None:
    write(tmp_path / "in")
    true = exact(tmp_path / "in")
    first, *_ = snapshots_in_process(sites(tmp_path / "in"), tmp_path / "ck", [0.1])
    assert first.unseen is not None
    assert {*first.unseen.holds} == {"clicks", "shown", "n"}
    missing = {*true} - {*first.table.column("site").to_pylist()}
    assert missing
    for site in missing:
        assert true[site][2] <= first.unseen.holds["n"]
    assert first.unseen.holds["n"] < 0.1 * sum(one[2] for one in true.values())


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ({"rate": ("clicks", "views")}, "no count or sum"),
        ({"rate": "clicks"}, "not a pair"),
        ({"n": ("clicks", "shown")}, "already a column"),
    ],
)
def test_what_is_no_ratio_is_refused(tmp_path: Path, ratios: Any, message: str) -> None:
    write(tmp_path / "in")
    with pytest.raises(ConfigError, match=message):
        list(snapshots_in_process(sites(tmp_path / "in"), tmp_path / "ck", ratios=ratios))

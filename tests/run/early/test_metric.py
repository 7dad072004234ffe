"""A metric of the user's: the paper's sample fraction, which knows how much of an hour was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import snapshots_in_process

DAYS, HOURS = 8, 3


def write(folder: Path) -> dict[int, int]:
    """A file per hour; every record says which part of its file it is."""
    rng = np.random.default_rng(8)
    folder.mkdir()
    total = dict.fromkeys(range(HOURS), 0)
    for day in range(DAYS):
        for hour in range(HOURS):
            rows = int((600 + 300 * hour) * rng.uniform(0.97, 1.03))
            views = rng.integers(80, 120, rows) * (1 + hour)
            total[hour] += int(views.sum())
            lines = [f"{hour},{v},{1 / rows!r},{'x' * 60}" for v in views.tolist()]
            text = "\n".join(["hour,views,part,pad", *lines]) + "\n"
            (folder / f"{day}-{hour}.csv").write_text(text)
    return total


def hours(folder: Path) -> ms.Flow:
    flow = ms.Flow("hours")
    read = flow.source(ms.Files(folder, format="csv"), name="views")
    read.key_by("hour").agg(views=ms.sum("views"), part=ms.sum("part"), mean=ms.mean("views")).sink(
        ms.Memory()
    )
    return flow


def test_the_sample_fraction_knows_better_than_the_share_of_the_input(tmp_path: Path) -> None:
    total = write(tmp_path / "in")
    errors: dict[str, list[float]] = {"plain": [], "metric": []}
    inside: list[bool] = []
    for seed in range(2):
        for name, metric in (("plain", None), ("metric", lambda row: row["part"] / DAYS)):
            first, last = snapshots_in_process(
                hours(tmp_path / "in"),
                tmp_path / f"{name}{seed}",
                [0.6],
                metric=metric,
                seed=seed,
                interval="pointwise",
            )
            for row in first.table.to_pylist():
                true = total[row["hour"]]
                errors[name].append(abs(row["views"] - true) / true)
                if metric is not None and row["views_upper"] is not None:
                    inside.append(row["views_lower"] <= true <= row["views_upper"])
                    assert row["mean_lower"] <= row["mean"] <= row["mean_upper"]
            assert {row["hour"]: row["views"] for row in last.table.to_pylist()} == total
        assert first.notes == ("views, part: scaled by the metric that was given",)
    assert np.mean(errors["metric"]) < 0.5 * np.mean(errors["plain"])
    assert len(inside) >= 6
    assert np.mean(inside) > 0.85


def test_a_metric_that_knows_nothing_gives_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in")
    first, _ = snapshots_in_process(
        hours(tmp_path / "in"), tmp_path / "ck", [0.5], metric=lambda row: None
    )
    assert {row["views"] for row in first.table.to_pylist()} == {None}


@pytest.mark.parametrize("given", [-0.5, float("nan"), "half", True])
def test_what_is_no_share_is_refused(tmp_path: Path, given: Any) -> None:
    write(tmp_path / "in")
    with pytest.raises(ConfigError, match="the share of a group that was seen"):
        list(
            snapshots_in_process(
                hours(tmp_path / "in"), tmp_path / "ck", [0.5], metric=lambda row: given
            )
        )
    with pytest.raises(ConfigError, match="expected a function"):
        list(snapshots_in_process(hours(tmp_path / "in"), tmp_path / "no", metric=0.5))
    with pytest.raises(ConfigError, match=r"it raised ZeroDivisionError: .* for {'hour'"):
        list(
            snapshots_in_process(
                hours(tmp_path / "in"), tmp_path / "bad", [0.5], metric=lambda row: 1 / 0
            )
        )

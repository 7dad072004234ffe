"""Page views: early answers whose last one is what DuckDB says, and a picture of them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from millstream.cli.loading import load_module
from millstream.testing import snapshots_in_process

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_page_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("DAYS", "1"), ("PAGES", "600"), ("VIEWS", "views"), ("OUT", "out")):
        monkeypatch.setenv(name, value)
    example = load_module(EXAMPLES / "page_views.py")
    found = {}
    for step in ("languages", "hours"):
        flow = example.build(f"out_{step}")
        found[step] = list(snapshots_in_process(flow, f"ck_{step}", [0.5, 0.8], step=step))
    for step, keys in (("languages", "language"), ("hours", "language, hour")):
        exact = duckdb.sql(
            f"SELECT {keys}, count(*) AS pages, sum(views)::BIGINT AS views FROM 'views/*.csv' "
            f"GROUP BY ALL ORDER BY {keys}"
        ).fetchall()
        last = found[step][-1].answer.to_pylist()
        assert sorted(tuple(row.values()) for row in last) == exact
    example.draw(found, "page_views.png")
    assert Path("page_views.png").stat().st_size > 10_000

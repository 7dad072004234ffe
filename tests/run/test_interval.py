"""`interval`: commits are at least so far apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import millstream as ms

pytestmark = pytest.mark.spark


def test_commits_keep_their_distance(spark: Any, tmp_path: Path) -> None:
    flow = ms.Flow("paced")
    flow.source(ms.Rate(200, limit=500)).sink(ms.Memory())
    moments: list[float] = []
    seen: list[int] = []

    def note(progress: Any) -> None:
        if progress.batch not in seen:
            seen.append(progress.batch)
            moments.append(progress.elapsed)

    flow.run(tmp_path / "ck", interval=0.6, on_progress=note, master="local[2]")
    gaps = [after - before for before, after in pairwise(moments)]
    assert len(gaps) >= 2
    assert min(gaps[1:-1], default=0.6) >= 0.5


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ms.ConfigError, match="interval"):
        ms.Settings(interval=-1)

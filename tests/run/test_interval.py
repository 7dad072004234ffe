"""`interval`: batches begin at least so far apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.handle import Handle

pytestmark = pytest.mark.spark


def test_batches_keep_their_distance(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = ms.Flow("paced")
    flow.source(ms.Rate(200, limit=300)).sink(ms.Memory())
    until: list[float] = []
    rest = Handle._pause
    monkeypatch.setattr(Handle, "_pause", lambda self, at: (until.append(at), rest(self, at)))
    flow.run(tmp_path / "ck", interval=0.6, poll=0.6, master="local[2]")
    # A batch begins when the rest after the one before is over, so what it rests until is later.
    assert len(until) >= 2
    assert all(after - before >= 0.6 for before, after in pairwise(until))


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ms.ConfigError, match="interval"):
        ms.Settings(interval=-1)

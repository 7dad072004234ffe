"""Slates at rest: however segments are merged and files are cut, each batch leaves what it said."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.operators import stores
from millstream.testing import Driver
from tests.variants import variants

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def change(event: Any, slate: Any, ctx: Any) -> None:
    if event.value["v"] < 0:
        ctx.delete()
    slate["n"] = slate.get("n", 0) + 1
    slate["sum"] = slate.get("sum", 0) + event.value["v"]


def counting() -> ms.Flow:
    flow = ms.Flow("storage")
    source = ms.Files("in/", schema="ts timestamp, k bigint, v bigint", time="ts", follow=True)
    flow.source(source, name="in").key_by("k").update(change, name="u", order="arrival")
    return flow


@pytest.mark.parametrize("large", [0, 20, 50_000])
@pytest.mark.parametrize("parallelism", variants([3, 1]))
def test_every_batch_leaves_what_it_said(
    large: int, parallelism: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Large merged shards get files of their own, small ones share one."""
    monkeypatch.setattr(stores, "LARGE", large)
    random_ = random.Random(large + parallelism)
    expected: dict[int, dict[str, int]] = {}
    alone = 0
    with Driver(counting(), parallelism=parallelism, shards=4, checkpoint=tmp_path) as driver:
        for number in range(40):
            rows = []
            for _ in range(random_.choice((1, 5, 60))):
                key, value = random_.randrange(80), random_.choice((1, 2, 3, -1))
                rows.append({"ts": NOON + timedelta(seconds=number), "k": key, "v": value})
                if value < 0:
                    expected.pop(key, None)
                else:
                    slate = expected.setdefault(key, {"n": 0, "sum": 0})
                    slate["n"] += 1
                    slate["sum"] += value
            driver.push("in", rows).step()
            assert driver.slates("u") == expected
            names = [Path(name).name for name in driver.engine.manifest.files]
            alone += any(name.count("-") == 3 for name in names)  # the shard is in the name
            if random_.random() < 0.2:
                driver.restart()
    assert (alone > 0) == (large < 50_000)

"""Fast sources are spread over more tasks, slow ones share one, from what was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import millstream as ms
from millstream.operators.batch import Control
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.spreading import Spreading, readers, rows_of
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit, SpoolSplit
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint

START = datetime(2026, 1, 1, tzinfo=UTC)


class Weighed:
    def weigh(self, split: AnySplit) -> float:
        return rows_of(split)


def pieces(source: int, *rows: int) -> list[AnySplit]:
    return [SpoolSplit(source, n, "", "", 0, count) for n, count in enumerate(rows)]


def load(task: list[AnySplit]) -> int:
    return sum(rows_of(split) for split in task)


def spread(by: Spreading, splits: dict[str, list[AnySplit]], parts: int) -> list[list[AnySplit]]:
    return by.spread(splits, {name: Weighed() for name in splits}, parts)


def test_a_fast_source_is_spread_and_slow_ones_share() -> None:
    splits = {
        "fast": pieces(0, 300, 300, 300),
        "slow": pieces(1, 40),
        "slower": pieces(2, 10),
        "slowest": pieces(3, 5),
    }
    tasks = spread(Spreading(), splits, 4)
    assert sorted(load(task) for task in tasks) == [55, 300, 300, 300]
    assert readers(tasks, list(splits)) == {"fast": 3, "slow": 1, "slower": 1, "slowest": 1}
    kept = sorted((split.source, split.file) for task in tasks for split in task)  # type: ignore[union-attr]
    assert kept == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0)]


def test_what_a_row_costs_is_measured_and_followed() -> None:
    by = Spreading()
    splits = {"cheap": pieces(0, 100, 100, 100), "dear": pieces(1, 100)}
    assert sorted(map(load, spread(by, splits, 2))) == [200, 200]
    for _ in range(8):  # a row of the second takes ten times as long
        by.learn([Control(0, 0, "", read={"cheap": (300, 0.3), "dear": (100, 1.0)})])
    tasks = spread(by, splits, 2)
    (alone,) = [task for task in tasks if any(split.source == 1 for split in task)]
    assert load(alone) == 100
    for _ in range(8):  # and no longer
        by.learn([Control(0, 0, "", read={"cheap": (300, 0.3), "dear": (100, 0.1)})])
    assert sorted(map(load, spread(by, splits, 2))) == [200, 200]


def test_nothing_to_read_is_one_task() -> None:
    assert spread(Spreading(), {"a": [], "b": []}, 4) == [[]]


def _write(directory: Path, count: int) -> None:
    directory.mkdir()
    rows = [
        {"ts": (START + timedelta(milliseconds=i)).isoformat(), "k": i % 7} for i in range(count)
    ]
    (directory / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("parallelism", [1, 4])
def test_sources_of_different_speed_in_one_flow(tmp_path: Path, parallelism: int) -> None:
    flow = ms.Flow("speeds")
    out = ms.Memory()
    streams = []
    for name, count in (("fast", 20_000), ("slow", 300), ("slower", 100)):
        _write(tmp_path / name, count)
        source = ms.Files(str(tmp_path / name), format="json", time="ts", lateness="1s")
        streams.append(flow.source(source, name=name))
    streams[0].union(*streams[1:]).key_by("k").agg(n=ms.count()).sink(out)
    plan = plan_flow(flow)
    place = Checkpoint(tmp_path / "ck")
    place.lock()
    engine = Engine(plan, place, Settings(parallelism=parallelism))
    engine.open(parallelism)
    executor = InProcess(plan, parallelism)
    seen = []
    while not engine.done:
        if engine.step(executor):
            seen.append(engine.manifest.readers)
    engine.close()
    assert sum(row["n"] for row in out.rows) == 20_400
    if parallelism == 4:
        assert seen[0]["fast"] >= 3
        assert seen[0]["slow"] == seen[0]["slower"] == 1
        assert set(engine.attempts.spreading.seconds) == {"fast", "slow", "slower"}

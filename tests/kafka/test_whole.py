"""The example on Spark, against a broker."""

from __future__ import annotations

import json
import runpy
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from tests.frames.apps import everywhere
from tests.frames.test_everywhere import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "trades_kafka.py"


@pytest.mark.spark
def test_the_example_gives_every_average_once(
    topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any, capsys: Any
) -> None:
    monkeypatch.setenv("SERVERS", topics.address)
    monkeypatch.setenv("FOLLOW", "no")
    monkeypatch.chdir(tmp_path)
    program = runpy.run_path(str(EXAMPLE))
    program["send"](30_000)
    progress = program["flow"].run(checkpoint="ck", quiet=True)
    assert progress.rows == 30_000 and progress.late == 0
    capsys.readouterr()
    program["show"]()
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = Counter((one["symbol"], one["window_start"], one["n"]) for one in shown)
    trades: dict[tuple[str, int], int] = defaultdict(int)
    for one in topics.committed("trades"):
        trades[one.key().decode(), json.loads(one.value())["ts"] // 10_000] += 1
    wanted = sorted((key, n) for (key, _), n in trades.items())
    assert sorted((key, n) for key, _, n in found) == wanted
    assert set(found.values()) == {1}


@pytest.mark.spark
def test_the_answer_from_a_topic_is_that_from_files(
    topics: Any, tmp_path: Path, spark: Any
) -> None:
    """One more source of `tests/frames/test_everywhere.py`, where there is a broker."""
    topic = topics.make(partitions=3)
    given = [{**row, "ts": int(row["ts"].timestamp())} for row in everywhere.records().to_pylist()]
    for part in range(3):
        topics.send(topic, [json.dumps(row).encode() for row in given[part::3]], part)
    source = ms.Kafka(
        topics.address,
        topic,
        schema="id bigint, k string, v bigint, ts bigint",
        time="ts",
        follow=False,
    )
    flow = everywhere.make_flow(source, tmp_path / "out")
    progress = flow.run(tmp_path / "ck", parallelism=2, shards=4, quiet=True)
    check(tmp_path)
    assert progress.rows == everywhere.ROWS and progress.late == 0

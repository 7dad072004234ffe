"""A whole program on Spark against a broker: the example, killed in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "trades_kafka.py"


def run(topics: Any, place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**os.environ, "SERVERS": topics.address, "FOLLOW": "no", **env},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.spark
def test_the_example_gives_every_average_once_though_it_is_killed(
    topics: Any, tmp_path: Path
) -> None:
    sent = run(topics, tmp_path, str(EXAMPLE), "send", "3000")
    assert sent.returncode == 0, sent.stderr
    killed = run(topics, tmp_path, str(EXAMPLE), MILLSTREAM_CRASH_AT="after-manifest:0")
    assert killed.returncode == -9, killed.stderr
    done = run(topics, tmp_path, str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    shown = run(topics, tmp_path, str(EXAMPLE), "show").stdout.splitlines()
    found = Counter(
        (one["symbol"], one["window_start"], one["n"]) for one in map(json.loads, shown)
    )
    trades: dict[tuple[str, int], int] = defaultdict(int)
    last: dict[int, int] = {}
    for one in topics.committed("trades"):
        at = json.loads(one.value())["ts"]
        assert at > last.get(one.partition(), 0) - 2000, "the topic itself is out of order"
        last[one.partition()] = max(at, last.get(one.partition(), 0))
        trades[one.key().decode(), json.loads(one.value())["ts"] // 10_000] += 1
    wanted = sorted((key, n) for (key, _), n in trades.items())
    assert sorted((key, n) for key, _, n in found) == wanted, (done.stderr, shown)
    assert set(found.values()) == {1}

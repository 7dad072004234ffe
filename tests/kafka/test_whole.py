"""The example on Spark, against a broker."""

from __future__ import annotations

import json
import runpy
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

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

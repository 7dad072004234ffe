"""Times no window can have: dead letters where the record is read, whatever comes after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import run_in_process

GOOD = ["2024-01-01T00:00:00Z", "1950-06-01T00:00:00Z", "2199-12-31T23:59:59Z"]
FAR = ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "1799-12-31T00:00Z"]
WINDOWS: dict[str, Any] = {
    "tumbling": ms.tumbling("1m"),
    "sliding": ms.sliding("1h", "1m"),
    "session": ms.session("1h"),
    "long": ms.tumbling("36500d"),
}


def sinks(tmp: Path, got: list[Any]) -> dict[str, Any]:
    return {
        "jsonl": ms.Jsonl(tmp / "out"),
        "parquet": ms.Parquet(tmp / "out"),
        "call": ms.Call(got.append),
        "console": ms.Console(),
    }


@pytest.mark.parametrize("sink", ["jsonl", "parquet", "call", "console"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_far_time_stops_nothing(tmp_path: Path, window: str, sink: str) -> None:
    lines = [json.dumps({"ts": ts, "k": "a"}) + "\n" for ts in GOOD[:1] + FAR + GOOD[1:]]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    flow = ms.Flow("far")
    source = ms.Files(tmp_path / "in.jsonl", schema="ts timestamp, k string", time="ts")
    counted = flow.source(source, name="in").key_by("k").window(WINDOWS[window])
    got: list[Any] = []
    counted.agg(n=ms.count()).sink(sinks(tmp_path, got)[sink])
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1.0)
    assert (ledger["in"]["offered"], ledger["in"]["dead"]) == (len(lines), len(FAR))
    dead = (tmp_path / "ck" / "dead" / "00000000.jsonl").read_text().splitlines()
    assert len(dead) == len(FAR)
    for line in dead:
        assert "outside of the settings earliest=1800-01-01" in json.loads(line)["error"]
    if sink == "call" and window == "tumbling":
        assert sum(row["n"] for row in got) == len(GOOD)


def test_the_range_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"ts": "1066-10-14T09:00:00Z"}\n')
    flow = ms.Flow("old")
    memory = ms.Memory()
    source = ms.Files(tmp_path / "in.jsonl", schema="ts timestamp", time="ts")
    flow.source(source, name="in").key_by().window(ms.tumbling("1d")).agg(n=ms.count()).sink(memory)
    run_in_process(flow, tmp_path / "ck", earliest="1000-01-01")
    assert [row["n"] for row in memory.rows] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"earliest": "yesterday"}, "earliest='yesterday' is not a time"),
        ({"latest": "9999-01-01"}, "latest='9999-01-01' must lie in the years 1000 to 8999"),
        ({"earliest": "2300-01-01"}, "must lie before latest="),
    ],
)
def test_a_range_that_is_none(options: dict[str, str], message: str) -> None:
    with pytest.raises(ms.ConfigError, match=message):
        ms.Settings(**options)


def test_no_window_is_longer_than_the_calendar_allows() -> None:
    with pytest.raises(ms.ConfigError, match="longer than 900 years"):
        ms.tumbling("400000d")

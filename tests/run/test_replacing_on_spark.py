"""`handle.replace` on Spark: the workers get the new program, and the flow never stops."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms


def rows_of(sink: ms.Memory) -> Counter[tuple[Any, ...]]:
    return Counter((row["k"], row["window_start"].timestamp(), row["n"]) for row in sink.rows)


@pytest.mark.spark
def test_a_running_flow_gets_windows_and_sinks_and_loses_them(tmp_path: Path, spark: Any) -> None:
    kept, added, raw = ms.Memory(), ms.Memory(), ms.Memory()

    def flow(factor: int, *, more: bool, keys: str = "k") -> ms.Flow:
        made = ms.Flow("live")
        files = ms.Files(
            tmp_path / "in", "json", schema="ts bigint, k string", time="ts", follow=True
        )
        rows = made.source(files, name="in")
        mapped = rows.map(lambda row: {**row, "v": factor}, schema="ts bigint, k string, v bigint")
        counted = mapped.key_by(keys).window(ms.tumbling("10s")).agg(n=ms.count())
        counted.named("kept").sink(kept, name="kept out")
        if more:
            longer = mapped.key_by("k").window(ms.tumbling("20s")).agg(n=ms.count())
            longer.named("added").sink(added, name="added out")
            mapped.select("v").sink(raw, name="raw")
        return made

    def write(seconds: range) -> None:  # one log that grows: a second file would wait for the first
        lines = [json.dumps({"ts": s, "k": "ab"[s % 2]}) for s in seconds]
        with open(tmp_path / "in" / "log.jsonl", "a") as out:
            out.write("\n".join(lines) + "\n")

    def until(rows: int) -> None:
        while handle.running and handle.progress.rows < rows:
            time.sleep(0.05)

    (tmp_path / "in").mkdir()
    write(range(45))
    handle = flow(1, more=False).start(tmp_path / "ck", master="local[2]", parallelism=2)
    try:
        until(45)
        said = handle.replace(flow(2, more=True), dry_run=True)
        change = handle.replace(flow(2, more=True))
        assert change == said
        assert change.added == ("added", "added out", "raw")
        assert any("added is new (filled from stored panes)" in note for note in change.notes)
        write(range(45, 90))
        until(90)
        with pytest.raises(ms.CheckpointError, match="operator 'kept': keys was k, is v"):
            handle.replace(flow(3, more=True, keys="v"))
        assert handle.replace(flow(3, more=False)).removed == ("added", "added out", "raw")
        write(range(90, 130))
        until(130)
    finally:
        handle.stop()
    with pytest.raises(ms.RunError, match="has ended; start it again"):
        handle.replace(flow(3, more=False))
    every = Counter(("ab"[s % 2], s // 10 * 10.0) for s in range(120))
    assert rows_of(kept) == Counter((*name, n) for name, n in every.items())
    longer = Counter(("ab"[s % 2], s // 20 * 20.0) for s in range(40, 80))
    assert rows_of(added) == Counter((*name, n) for name, n in longer.items())
    assert [row["v"] for row in raw.rows] == [2] * 45

"""Sorted results come from several tasks, as ordered parts."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.ops.codec import encode
from millstream.ops.keys.ordering import bounds_of, order_of
from millstream.testing import Driver, run_in_process


class Count:
    def map(self, key: Any, value: Any) -> Any:
        yield value, 1

    def reduce(self, key: Any, values: Any) -> Any:
        total = sum(values)
        yield key, total
        yield key, -total  # results of one key stay in order


def words(count: int) -> list[str]:
    dice = random.Random(3)
    return [f"{dice.randrange(500):03d}" for _ in range(count)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_parts_of_a_whole_input_stand_one_after_the_other(tmp_path: Path, parallelism: int) -> None:
    (tmp_path / "in.txt").write_text("\n".join(words(3000)) + "\n")
    flow = ms.Flow("sorted")
    counts = flow.source(ms.Files(tmp_path / "in.txt", "text")).map_reduce(Count, sorted=True)
    seen = ms.Memory()
    counts.sink(ms.Jsonl(tmp_path / "out"))
    counts.select("key", "value").sink(seen)
    run_in_process(flow, tmp_path / "ck", parallelism=parallelism)
    files = sorted((tmp_path / "out").glob("part-*.jsonl"))
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    rows = [(row["key"], row["value"]) for part in parts for row in part]
    want = Counter(words(3000))
    assert rows == [(w, n * s) for w, n in sorted(want.items()) for s in (1, -1)]
    assert [(row["key"], row["value"]) for row in seen.rows] == rows
    assert len(parts) == parallelism
    assert max(map(len, parts)) < 2 * len(rows) / parallelism


def test_windows_are_sorted_each_by_itself_and_feed_others() -> None:
    flow = ms.Flow("sorted")
    source = flow.source(
        ms.Generator(list, schema="ts bigint, value string", time="ts", lateness="0s"), name="in"
    )
    counts = source.select("value").map_reduce(Count, ms.tumbling("10s"), sorted=True)
    counts.sink(ms.Memory(), name="sorted")
    counts.key_by("key").window(ms.tumbling("1m")).agg(n=ms.count()).sink(ms.Memory(), name="next")
    rows = [{"ts": at // 10, "value": word} for at, word in enumerate(words(600))]
    with Driver(flow, parallelism=3) as driver:
        for start in range(0, len(rows), 130):
            driver.push("in", rows[start : start + 130]).step()
        driver.restart()
        driver.end()
        found = [(row["window_end"], row["key"]) for row in driver.output("sorted")]
        assert found == sorted(found)
        assert sum(abs(row["value"]) for row in driver.output("sorted")) == 1200
        per_key = {row["key"]: row["n"] for row in driver.output("next")}
        want = dict.fromkeys(words(600), 0)
        for window in range(6):
            for word in set(words(600)[window * 100 : window * 100 + 100]):
                want[word] += 2
        assert per_key == want


def test_keys_of_all_types_have_one_order() -> None:
    keys = [None, False, True, -1, 2.5, 3, float("nan"), "a", "b", b"a", (1, "x"), (1, "y"), (2,)]
    mixed = random.Random(1).sample(keys, len(keys))
    assert list(map(repr, sorted(mixed, key=order_of))) == list(map(repr, keys))


def test_bounds_part_rows_evenly_whoever_has_them() -> None:
    low, high = [encode(n) for n in range(100)], [encode(n) for n in range(100, 200)]
    assert bounds_of([(100, low), (100, high)], 2) == [order_of(100)]
    assert bounds_of([(300, low), (100, high)], 2) == [order_of(67)]
    assert bounds_of([], 3) == []
    assert bounds_of([(5, low[:1])], 3) == []

"""What jobs do before others have ended: how much tasks combine, and which levels have work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import millstream as ms
from millstream.operators.windows import family
from millstream.operators.windows.combining import Combining, combining_of
from millstream.operators.windows.work import Report
from millstream.testing import Driver, run_in_process


def reports(mappers: list[tuple[int, int, float]], reducers: list[float]) -> list[Report]:
    return [Report(merged=one) for one in mappers] + [Report(took=one) for one in reducers]


EVEN = [0.5, 0.5]


def test_rows_that_fall_together_are_merged_where_they_are_read() -> None:
    # Of 1,000 rows 10 are left: the reduce side is spared 990 for 1 ms of merging.
    seen = Combining().after(reports([(500, 5, 0.0005)] * 2, [0.001, 0.001]), 3)
    assert seen.merges
    assert seen.left == pytest.approx(0.01)
    assert (seen.mappers, seen.reducers) == (2, 2)


def test_rows_of_different_keys_are_sent_as_they_are() -> None:
    # Merging 1,000 rows leaves 990: the reduce side is spared 1 % of its work.
    seen = Combining().after(reports([(500, 495, 0.01)] * 2, EVEN), 3)
    assert not seen.merges
    assert seen.since == 4


def test_a_single_busy_reducer_is_helped() -> None:
    # What does not pay while both sides have as many tasks pays if one reducer does it all.
    half = [(500, 300, 0.01)] * 4
    assert not Combining().after(reports(half, [0.001] * 4), 0).merges
    seen = Combining().after(reports(half, [0.004, 0.0, 0.0, 0.0]), 0)
    assert seen.merges
    assert seen.reducers == 1


def test_it_switches_back_when_keys_come_again() -> None:
    apart = Combining().after(reports([(1000, 990, 0.02)], [0.5]), 0)
    assert not apart.merges
    idle = apart.after(reports([(1000, 1000, 0.0)], [0.5]), 1)  # nothing was merged or measured
    assert (idle.merges, idle.left) == (False, pytest.approx(0.99))
    assert idle.after(reports([(1000, 20, 0.02)], [0.5]), 2).merges


def test_nothing_is_decided_by_a_batch_that_shows_nothing() -> None:
    assert Combining().after([], 0) == Combining()
    alone = Combining().after(reports([(1000, 1000, 0.0)], [0.5]), 0)  # one chunk: not merged
    assert alone.merges and alone.left is None


class Words:
    def map(self, key: Any, line: str) -> Any:
        for word in line.split():
            yield word, 1

    def combine(self, word: str, counts: Any) -> Any:
        yield word, sum(counts)

    def reduce(self, word: str, counts: Any) -> Any:
        yield word, sum(counts)


@pytest.mark.parametrize("coins", ["10", "0", "110"])
def test_forced_switches_change_no_result(coins: str, tmp_path: Path) -> None:
    def tossed(family: Any, manifest: Any) -> bool:
        return coins[(manifest.batch + 1) % len(coins)] == "1"

    words: Counter[str] = Counter()
    for number in range(4):
        lines = [f"w{(n * n + number) % 97} w{n % 5}" for n in range(300)]
        words.update(word for line in lines for word in line.split())
        (tmp_path / f"{number}.txt").write_text("\n".join(lines) + "\n")
    flow, rows = ms.Flow("words"), ms.Memory()
    flow.source(ms.Files(tmp_path, "text")).map_reduce(Words).sink(rows)
    with patch.object(family, "merges_chunks", tossed):
        run_in_process(flow, tmp_path / "ck", parallelism=2, batch_rows=200)
    assert Counter({row["key"]: row["value"] for row in rows.rows}) == words


def test_what_was_decided_is_committed_and_told(tmp_path: Path) -> None:
    # Files of different keys: tasks that read several have nothing to merge.
    flow = ms.Flow("apart")
    events = flow.source(ms.Files("unused", schema="key bigint, value bigint"), name="events")
    events.key_by("key").agg(total=ms.sum("value"), n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for batch in range(3):
            for piece in range(3):
                first = (batch * 3 + piece) * 400
                rows = [{"key": first + n, "value": n} for n in range(400)]
                driver.push("events", rows)
            driver.step()
        known = combining_of(driver.engine.manifest, "events by key for agg")
        told = flow.explain(driver.engine.checkpoint.path)
    assert (known.merges, known.left) == (False, 1.0)
    assert "combines: chunk by chunk since batch 1, because merging leaves 100% of the rows" in told


# -- levels that can have work --------------------------------------------------------------------


def _two(whole: bool) -> ms.Flow:
    flow = ms.Flow("two")
    source = ms.Files("unused", time="ts", time_unit="s", lateness="0s")
    keyed = flow.source(source, name="in").key_by("key")
    first = (keyed if whole else keyed.window(ms.tumbling("10s"))).agg(n=ms.count())
    second = first.key_by("n") if whole else first.key_by("n").window(ms.tumbling("10s"))
    second.agg(keys=ms.count()).sink(ms.Memory(), name="out")
    return flow


@pytest.mark.parametrize(("whole", "before_the_end"), [(True, 1), (False, 2)])
def test_nobody_behind_a_whole_input_is_asked_before_its_end(
    whole: bool, before_the_end: int
) -> None:
    rows = [{"ts": n, "key": n * n % 7} for n in range(90)]
    with Driver(_two(whole), parallelism=2) as driver:
        seen = []
        run = driver._executor.run

        def noted(batch: Any, parts: Any) -> Any:
            seen.append(batch.levels)
            return run(batch, parts)

        with patch.object(driver._executor, "run", noted):
            for start in range(0, 90, 30):
                driver.push("in", rows[start : start + 30]).step()
            driver.end()
        found = driver._sinks["out"].rows
    assert seen == [before_the_end] * 3 + [2]
    windows = [rows] if whole else [rows[start : start + 10] for start in range(0, 90, 10)]
    expected: Counter[int] = Counter()
    for one in windows:
        expected.update(Counter(Counter(row["key"] for row in one).values()))
    assert sum((Counter({row["n"]: row["keys"]}) for row in found), Counter()) == expected


def _noted(event: Any, slate: Any, ctx: Any) -> Any:
    slate["n"] = slate.get("n", 0) + 1
    if slate["n"] == 1:
        ctx.timer(after="5s")
    return {"who": event.key, "n": slate["n"]}


def _rung(event: Any, slate: Any, ctx: Any) -> Any:
    return {"who": event.key, "n": -slate["n"]}


@pytest.mark.parametrize("behind", ["an updater", "a cycle", "last", "dedup", "a join", "top"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_operators_of_a_level_that_was_left_out_are_none_the_worse(
    behind: str, parallelism: int
) -> None:
    flow = ms.Flow("behind")
    files = ms.Files("unused", time="ts", time_unit="s", lateness="0s")
    groups = flow.source(files, name="in").key_by("key").agg(n=ms.count())
    match behind:
        case "an updater":
            rows = groups.key_by("n").update(_noted, on_timer=_rung)
        case "a cycle":
            rows = _around(flow, groups)
        case "last":
            rows = groups.last("5s")
        case "dedup":
            rows = groups.dedup("n", within="1h").select("n")
        case "a join":
            rows = groups.join(groups.select("key", "n AS m"), on="key").where("m = n")
        case _:
            rows = groups.key_by("n").top(1, by="key")
    rows.sink(ms.Memory(), name="out")
    found = []
    for pushes in (1, 3):
        with Driver(flow, parallelism=parallelism, now=1e6) as driver:
            for start in range(0, 90, 90 // pushes):
                some = range(start, start + 90 // pushes)
                driver.push("in", [{"ts": n, "key": n * n % 7} for n in some]).step()
            found.append(sorted(map(repr, driver.end().output())))
    assert found[0] == found[1] != []


def _around(flow: ms.Flow, groups: ms.Stream) -> ms.Stream:
    """Groups that go around a cycle of two updaters a few times."""
    forth, back = flow.stream("forth"), flow.stream("back")

    def there(event: Any, slate: Any, ctx: Any) -> Any:
        if event.value["n"] > 0:
            ctx.publish("forth", event.key, {"n": event.value["n"] - 5})
        return {"key": event.key, "n": event.value["n"]}

    def and_back(event: Any, slate: Any, ctx: Any) -> Any:
        ctx.publish("back", event.key, event.value)

    forth.key_by("key").update(and_back, name="and back")
    return groups.key_by("key").union(back.key_by("key")).update(there, name="there")

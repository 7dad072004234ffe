"""`ms.Parquet(target_size=)`: few large files, and every row in exactly one that can be seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.run import faults
from millstream.run.batches.engine import Engine
from millstream.run.outputs.bundling import Bundle, bundled
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine
from millstream.state.manifests import Waiting
from millstream.testing import run_in_process

ROWS = 48
BATCHES = {"batch_rows": 1, "batch_bytes": 120, "parallelism": 2}
POINTS = (
    *("batch-planned", "tasks-done", "bundled", "before-manifest", "after-manifest"),
    *("half-published", "published", "before-garbage"),
)


class Crash(BaseException):
    """The end of a process."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def flow_to(sink: Any, name: str = "sink", **options: Any) -> ms.Flow:
    path = Path("in.jsonl")
    if not path.exists():
        path.write_text(
            "".join(json.dumps({"n": n, "year": 2020 + n % 3}) + "\n" for n in range(ROWS))
        )
    flow = ms.Flow("files")
    source = flow.source(ms.Files(path, schema="n bigint, year bigint", **options), name="in")
    source.sink(sink, name=name)
    return flow


def seen() -> list[int]:
    """What a reader finds who knows nothing of us: all files of all folders, hidden ones too."""
    tables = (pq.ParquetFile(path).read(["n"]) for path in Path("out").rglob("*.parquet"))
    return sorted(n for table in tables for n in table["n"].to_pylist())


def files() -> list[Path]:
    return sorted(Path("out").glob("**/*.parquet"))


def test_small_files_of_many_batches_become_one_a_folder() -> None:
    run_in_process(
        flow_to(ms.Parquet("out", partition_by="year", target_size="1MB")), "ck", **BATCHES
    )
    assert [path.parent.name for path in files()] == ["year=2020", "year=2021", "year=2022"]
    assert all(pq.ParquetFile(path).num_row_groups == 1 for path in files())
    frame = pd.read_parquet("out")
    assert sorted(frame.n) == list(range(ROWS)) and set(frame.year) == {2020, 2021, 2022}
    for path in files():  # in the order in which they came
        column = pq.ParquetFile(path).read(["n"])["n"].to_pylist()
        assert column == sorted(column)


def test_without_a_target_there_is_a_file_for_every_batch() -> None:
    run_in_process(flow_to(ms.Parquet("out", partition_by="year")), "ck", **BATCHES)
    assert len(files()) > 9 and seen() == list(range(ROWS))


def test_a_file_leaves_once_it_is_large_enough() -> None:
    run_in_process(flow_to(ms.Parquet("out", target_size=1000)), "ck", **BATCHES)
    sizes = [path.stat().st_size for path in files()]
    assert seen() == list(range(ROWS)) and len(sizes) > 1
    assert all(500 <= size < 2000 for size in sizes[:-1])  # half of the target is enough


def test_what_is_large_enough_by_itself_is_not_written_twice() -> None:
    run_in_process(flow_to(ms.Parquet("out", target_size=1)), "ck", **BATCHES)
    assert seen() == list(range(ROWS))
    assert not [path for path in files() if "-9000-" in path.name]


# -- whoever looks, and whenever it dies -----------------------------------------------------------


def watched(look: Callable[[str, int], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "crash_point", look)
        yield


@pytest.mark.parametrize("target", [1000, "1MB"])
def test_no_reader_sees_a_row_twice_or_loses_one(target: int | str) -> None:
    """Every step of every batch is looked at from outside."""
    before: set[int] = set()
    looks = Counter[str]()

    def look(point: str, batch: int) -> None:
        found = seen()
        assert len(found) == len(set(found)), (point, batch)
        assert before <= set(found) <= set(range(ROWS)), (point, batch)
        before.update(found)
        looks[point] += 1

    sink = ms.Parquet("out", partition_by="year", target_size=target)
    for _ in watched(look):
        run_in_process(flow_to(sink), "ck", **BATCHES)
    assert before == set(range(ROWS)) and set(looks) >= set(POINTS)


@pytest.mark.parametrize(
    ("point", "batches"),
    [(point, (1, 5)) for point in POINTS]
    + [pytest.param(point, range(50), marks=pytest.mark.long) for point in POINTS],
)
def test_every_row_is_there_once_wherever_a_run_was_killed(
    point: str, batches: Container[int]
) -> None:
    """One run after the other dies, each in a later batch, until one comes to the end."""
    deaths = Counter[int]()

    def crash(at: str, batch: int) -> None:
        if at == point and batch in batches and not deaths[batch]:
            deaths[batch] += 1
            found = seen()
            assert len(found) == len(set(found))
            raise Crash

    sink = ms.Parquet("out", partition_by="year", target_size=1000)
    for _ in watched(crash):
        for _ in range(100):
            try:
                run_in_process(flow_to(sink), "ck", **BATCHES)
                break
            except Crash:
                continue
    assert seen() == list(range(ROWS)) and len(deaths) >= 2
    frame = duckdb.sql("SELECT n, year FROM read_parquet('out/*/*.parquet')").fetchall()
    assert all(year == 2020 + n % 3 for n, year in frame)


# -- a run without an end --------------------------------------------------------------------------


class Live:
    """An engine over a followed file, with a clock that the test owns."""

    def __init__(self, sink: Any, now: float = 1_800_000_000.0, name: str = "sink") -> None:
        self.now = now
        plan = plan_flow(flow_to(sink, name, follow=True), Path("ck"))
        checkpoint = Checkpoint("ck")
        checkpoint.lock()
        options = Settings.from_options({"parallelism": 1})
        self.engine = Engine(plan, checkpoint, options, clock=lambda: self.now)
        self.executor = InProcess(plan)
        try:
            self.engine.open(1)
        except BaseException:
            self.engine.close()
            raise

    def step(self) -> bool:
        return self.engine.step(self.executor)

    def add(self, n: int) -> None:
        with Path("in.jsonl").open("a") as file:
            file.write(json.dumps({"n": n, "year": 2020}) + "\n")
        (tracker,) = self.engine.trackers.values()
        tracker._next_look = 0.0  # type: ignore[attr-defined]  # however long the last one took
        assert self.step(), "what was added was not read"


def test_nothing_waits_longer_than_it_may_though_nothing_comes() -> None:
    live = Live(ms.Parquet("out", target_size="1GB", at_latest="5m"))
    live.step()
    assert seen() == [] and live.engine.manifest.waiting
    live.now += 299
    assert not live.step() and seen() == []
    live.now += 2
    assert live.step() and seen() == list(range(ROWS)) and not live.engine.manifest.waiting
    assert not live.step()
    live.engine.close()


def test_what_waits_is_seen_when_a_run_ends_and_after_a_start() -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.step()
    live.engine.close()  # as if it had died
    assert seen() == []
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.add(ROWS)
    assert seen() == [] and len(live.engine.manifest.waiting["sink"]) == 2
    live.engine.bring_out(live.executor)
    assert seen() == list(range(ROWS + 1)) and len(files()) == 1
    live.engine.bring_out(live.executor)  # nothing is left
    assert len(files()) == 1
    live.engine.close()


def test_as_many_files_wait_as_there_are_powers_of_their_number() -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    most = 0
    for n in range(ROWS, ROWS + 40):
        live.add(n)
        most = max(most, len(live.engine.manifest.waiting["sink"]))
    assert most < 16 and seen() == []
    live.engine.bring_out(live.executor)
    assert seen() == list(range(ROWS + 40)) and len(files()) == 1
    for n in range(12):  # what one cannot go back to any more is gone
        live.add(1000 + n)
    live.engine.bring_out(live.executor)
    for n in range(20):
        live.add(2000 + n)
    hidden = {path.name for path in Path("out/.millstream").glob("*.staged")}
    assert len(hidden) < 30
    live.engine.close()


def test_without_the_target_what_waits_leaves_at_once() -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.step()
    live.engine.close()
    live = Live(ms.Parquet("out"))
    assert live.step() and seen() == list(range(ROWS))
    live.engine.close()


def test_without_the_target_rows_stay_in_the_order_in_which_they_came() -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.step()
    live.engine.close()
    live = Live(ms.Parquet("out"))
    live.add(ROWS)
    live.add(ROWS + 1)
    live.engine.close()
    rows = [n for path in files() for n in pq.ParquetFile(path).read(["n"])["n"].to_pylist()]
    assert rows == list(range(ROWS + 2))


@pytest.mark.parametrize(
    ("sink", "name", "said"),
    [
        (ms.Jsonl("out"), "sink", "'sink' is gone or no longer writes Parquet, and 48 committed"),
        (ms.Parquet("out"), "other", "'sink' is gone or no longer writes Parquet, and 48"),
        (ms.Parquet("moved"), "sink", "If the sink was moved, start once with its old path"),
    ],
)
def test_a_program_that_would_lose_what_waits_is_refused(sink: Any, name: str, said: str) -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.step()
    live.engine.close()
    with pytest.raises(ms.RunError, match=said):
        Live(sink, name=name)
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.engine.bring_out(live.executor)
    assert seen() == list(range(ROWS))
    live.engine.close()


@pytest.mark.parametrize("damage", ["gone", "another"])
def test_a_damaged_file_that_waits_is_named(damage: str) -> None:
    live = Live(ms.Parquet("out", target_size="1GB"))
    live.step()
    live.engine.close()
    (path,) = Path("out/.millstream").glob("*.staged")
    assert "BAD" not in "\n".join(examine("ck")[0])
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    assert path.name in "\n".join(examine("ck")[0])
    with pytest.raises(ms.RunError, match=path.name):
        live = Live(ms.Parquet("out", target_size="1GB"))
        live.engine.bring_out(live.executor)
    live.engine.close()
    assert seen() == []


# -- columns ---------------------------------------------------------------------------------------


def test_no_value_changes_when_files_are_put_together() -> None:
    """Columns that come later, that had no value at first, and that become wider."""
    made: list[dict[str, Any]] = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "c": [1]}]
    made += [{"a": 2**60 + 1}, {"a": 2.5, "b": "y"}]
    Path("in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(len(made))))
    flow = ms.Flow("kinds")
    source = flow.source(ms.Files("in.jsonl", schema="n bigint"), name="in")
    source.map(lambda row: {"n": row["n"], **made[row["n"]]}).sink(
        ms.Parquet("out", target_size="1GB"), name="sink"
    )
    run_in_process(flow, "ck", batch_rows=1, batch_bytes=9, dead_letter_limit=1)
    rows = [row for path in files() for row in pq.ParquetFile(path).read().to_pylist()]
    plain = [{k: v for k, v in row.items() if v is not None} for row in rows]
    dead = sum(len(p.read_text().splitlines()) for p in Path("ck/dead").glob("*.jsonl"))
    good = [
        {"n": n, **{k: v for k, v in row.items() if v is not None}} for n, row in enumerate(made)
    ]
    assert len(plain) + dead == len(made)
    assert all(row in good for row in plain) and plain[:4] == good[:4]
    assert len(files()) <= 2


# -- which files ----------------------------------------------------------------------------------


def waiting(sizes: list[int]) -> list[Waiting]:
    return [Waiting(f"{n}", 1, size, 0, 0.0) for n, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 10**6), max_size=60), st.integers(1, 10**6), st.booleans())
def test_every_file_stays_in_its_place(sizes: list[int], target: int, due: bool) -> None:
    found = bundled(waiting(sizes), target, due=due)
    flat = [file for one in found for file in (one.files if isinstance(one, Bundle) else [one])]
    assert flat == waiting(sizes)
    large = [one for one in found if isinstance(one, Bundle) and one.leaves]
    assert all(
        sum(file.size for file in one.files) >= target for one in large[: None if not due else -1]
    )
    left = [one for one in found if isinstance(one, Waiting)]
    assert sum(file.size for file in left) < target and not (due and left)


def test_a_row_is_written_once_for_every_power_of_eight() -> None:
    files_now, written = list[Waiting](), 0
    for _ in range(4096):
        files_now = [*files_now, *waiting([1])]
        after = list[Waiting]()
        for one in bundled(files_now, 1 << 40, due=False):
            size = sum(file.size for file in one.files) if isinstance(one, Bundle) else one.size
            written += size if isinstance(one, Bundle) else 0
            after += waiting([size])
        files_now = after
        assert len(files_now) <= 7 * 5
    assert sum(one.size for one in files_now) == 4096
    assert written <= 4096 * 5  # 8**4 = 4096


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_size": "much"}, "'much': expected a size like 500MB or 2GB"),
        ({"target_size": 0}, "expected a size like"),
        ({"target_size": True}, "expected a size like"),
        ({"target_size": 1.5}, "expected a size like"),
        ({"target_size": "4GB"}, "2GB at most"),
        ({"target_size": "1MB", "at_latest": 5}, "expected a duration"),
        ({"target_size": "1MB", "at_latest": "0s"}, "must be longer than zero"),
    ],
)
def test_sizes_and_times_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ms.ConfigError, match=said):
        ms.Parquet("out", **options)

"""Files as participants: in which order they are read, and where each holds the watermark."""

from __future__ import annotations

import gzip
import random
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.api.sources import Files
from millstream.io.firsts import Peek, first_time, first_times, is_glance
from millstream.io.formats import READER, Format, parse_schema
from millstream.ops.times.progress import BEGIN
from millstream.run.sources.files.merging import share
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.tracking import directly
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from millstream.testing import run_in_process

SCHEMA = parse_schema("ts bigint, n bigint")
SECOND = 1_000_000
FAR = 10**15


def records(start: int, stop: int, step: int = 1) -> bytes:
    return b"".join(b'{"ts": %d, "n": %d}\n' % (t, t) for t in range(start, stop, step))


class Followed:
    """A tracker whose batches are read here: it is told how far every file came."""

    def __init__(self, tmp: Path, **options: Any) -> None:
        self.spec = Files(tmp / "in", "json", time="ts", **options)
        self.fmt = Format("json", SCHEMA, "ts")
        self.sources, self.state, self.now = open_storage(tmp), SourceState(), 1000 * SECOND
        (tmp / "in").mkdir(exist_ok=True)
        self.restart()

    def restart(self) -> None:
        self.tracker = FilesTracker(0, self.spec, self.fmt, self.sources, "registry", self.state)

    def step(self, rows: int = 10**9, probe: Any = directly) -> list[str]:
        """One batch; gives the names of the files it read."""
        self.tracker._next_look = 0.0
        self.tracker.poll(probe)
        splits = self.tracker.take(rows, 10**9, 1)
        held = self.horizon()
        seen: dict[int, int] = {}
        for split in splits:
            text = Path(split.path).read_bytes()[split.start : split.end]  # type: ignore[union-attr]
            times = [int(line.split(b":")[1].split(b",")[0]) for line in text.splitlines()]
            if split.file in held.files:  # type: ignore[union-attr]
                at = max(times) * SECOND
                seen[split.file] = max(at, seen.get(split.file, at))  # type: ignore[union-attr]
        self.tracker.reached(seen, self.now)
        self.state = SourceState()
        self.tracker.save(self.state)
        self.tracker.committed()
        return sorted({Path(split.path).name for split in splits})  # type: ignore[union-attr]

    def horizon(self) -> Any:
        return self.tracker.horizon(self.now)

    def holds(self) -> dict[str, int]:
        """Where each file holds the watermark, in seconds."""
        held = {self.tracker.name_of(n): at for n, at in self.horizon().files.items()}
        return {Path(name).name: at // SECOND for name, at in held.items()}


# -- first times ----------------------------------------------------------------------------------


def test_the_first_time_of_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    fmt = Format("csv", parse_schema("n bigint, ts timestamp"), "ts")

    def first(data: bytes, name: str = "a.csv") -> int | None:
        (tmp_path / name).write_bytes(data)
        return first_time(Peek(fmt, FAR), str(tmp_path / name))

    head, one = b"ts,n\n", b"1970-01-01T00:00:05Z,1\n"
    assert first(head + one + b"1970-01-01T00:00:01Z,1\n") == 5 * SECOND
    assert first(head + b"rubbish\n\n1970-01-01T00:00:02Z,x\n" + one) == 5 * SECOND
    assert first(head + b"9999-01-01T00:00:00Z,1\n" + one) == 5 * SECOND  # too far in the future
    assert first(gzip.compress(head + one), "a.csv.gz") == 5 * SECOND
    assert first(head + one[:-1]) == 5 * SECOND
    assert first_time(Peek(fmt, FAR, grows=True), str(path)) is None  # half a line is no record
    assert first(b"") is None
    assert first(head) is None
    assert first(head + b"rubbish\n") is None
    assert first(head + b"rubbish\n" * 10_000 + one) == BEGIN  # it would take too long to find
    path.unlink()
    assert first_time(Peek(fmt, FAR), str(path)) is None


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("kind", "unit"), [("bigint", "s"), ("timestamp", "s"), ("string", "s"), ("double", "s")]
)
def test_the_first_time_of_parquet(tmp_path: Path, statistics: bool, kind: str, unit: str) -> None:
    seconds = [7, 5, 9, 3]
    values: pa.Array = pa.array(seconds)
    if kind == "double":
        values = values.cast(pa.float64())
    elif kind != "bigint":
        values = pa.array([s * SECOND for s in seconds]).cast(pa.timestamp("us", "UTC"))
    if kind == "string":
        values = pa.array([f"1970-01-01T00:00:{s:02d}Z" for s in seconds])
    path = tmp_path / "a.parquet"
    table = pa.table({"ts": values, "n": seconds})
    pq.write_table(table, path, row_group_size=2, write_statistics=statistics)
    fmt = Format("parquet", parse_schema(f"ts {kind}, n bigint"), "ts", unit)
    assert first_time(Peek(fmt, FAR), str(path)) == 7 * SECOND  # statistics would say 5
    pq.write_table(table[:0], path)
    assert first_time(Peek(fmt, FAR), str(path)) is None


def test_files_are_read_in_the_order_of_their_first_records(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s")
    for name, start in (("a", 200), ("b", 100), ("c", 0)):
        (tmp_path / "in" / name).write_bytes(records(start, start + 100))
    (tmp_path / "in" / "empty").write_bytes(b"")
    asked: list[str] = []

    def probe(look: Any, paths: list[str]) -> list[Any]:
        asked.extend(Path(path).name for path in paths)
        return directly(look, paths)

    order = []
    while not kept.tracker.ended:
        order += kept.step(20, probe)
        if kept.tracker.unread.files:
            assert kept.horizon().unread == kept.tracker.unread.files[0].first
    assert list(dict.fromkeys(order)) == ["c", "b", "a"]
    assert asked == ["a", "b", "c"]  # once
    assert kept.state.open == {}


def test_without_lateness_nothing_is_probed(tmp_path: Path) -> None:
    kept = Followed(tmp_path)
    for name, start in (("a", 200), ("b", 100)):
        (tmp_path / "in" / name).write_bytes(records(start, start + 100))
    assert kept.step(20, probe=None) == ["a"]
    assert kept.horizon().files == {}


def test_only_begun_files_are_in_the_manifest(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s")
    for n in range(300):
        (tmp_path / "in" / f"{n:03d}").write_bytes(records(n * 10, n * 10 + 10))
    kept.tracker.row_bytes = 22.0
    order: list[str] = []
    while not kept.tracker.ended:
        order += kept.step(25)
        assert len(kept.state.open) <= 5
        if len(order) % 7 == 0:
            kept.restart()
            kept.tracker.poll()
    assert list(dict.fromkeys(order)) == [f"{n:03d}" for n in range(300)]


# -- which file next ------------------------------------------------------------------------------


def test_share_brings_files_equally_far() -> None:
    assert share([0, 0, 0], [10, 10, 10], [1, 1, 1], 30) == [10, 10, 10]
    assert share([0, 0, 0], [100, 100, 100], [1, 1, 1], 30) == [10, 10, 10]
    assert share([0, 5, 50], [100, 100, 100], [1, 1, 1], 25) == [15, 10, 0]
    assert share([0, 0], [100, 100], [1.0, 3.0], 40) == [30, 10]
    assert share([0, 100], [10, 100], [1, 1], 50) == [10, 40]
    assert share([7, 7], [100, 100], [0, 0], 10) == [5, 5]
    assert share([BEGIN, 0], [100, 100], [1, 1], 10) == [10, 0]
    assert sum(share([0, 1], [100, 100], [1e9, 1e9], 1)) >= 1


def test_logs_of_one_time_are_read_side_by_side(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="10s")
    for name in "abc":
        (tmp_path / "in" / name).write_bytes(records(0, 3000))
    kept.tracker.row_bytes = 24.0
    spread = []
    while not kept.tracker.ended:
        kept.step(300)
        reached = [kept.holds().get(name) for name in "abc"]
        known = [at for at in reached if at is not None]
        spread.append(max(known) - min(known) if len(known) == 3 else 0)
    assert max(spread[3:-1]) < 300  # of 3,000


# -- followed files -------------------------------------------------------------------------------


def test_a_file_at_its_end_holds_until_it_is_idle(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s", follow=True, idle_timeout="10s")
    (tmp_path / "in" / "dead").write_bytes(records(0, 10))
    (tmp_path / "in" / "live").write_bytes(records(0, 50))
    kept.step()
    assert kept.holds() == {"dead": 9, "live": 49}
    kept.now += 11 * SECOND
    assert kept.holds() == {"live": 49}  # it has twice the time: all that waits can leave
    kept.now += 10 * SECOND
    assert kept.holds() == {}
    with open(tmp_path / "in" / "dead", "ab") as out:
        out.write(records(20, 30))
    kept.tracker._next_look = 0.0
    kept.tracker.poll()
    (split,) = kept.tracker.take(10**9, 10**9, 1)
    assert split.after == 9 * SECOND  # type: ignore[union-attr]
    assert kept.holds() == {"dead": 9}  # it goes on
    kept.tracker.reached({0: 29 * SECOND}, kept.now)
    kept.tracker.committed()
    assert kept.holds() == {"dead": 29}


def test_nobody_is_idle_for_the_time_the_flow_was_down(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s", follow=True, idle_timeout="10s")
    for name, end in (("a", 10), ("b", 20)):
        (tmp_path / "in" / name).write_bytes(records(0, end))
    kept.step()
    kept.now += 3600 * SECOND
    kept.restart()
    assert kept.holds() == {"a": 9, "b": 19}
    kept.now += 11 * SECOND
    assert kept.holds() == {"b": 19}


def test_without_an_idle_timeout_a_file_holds_for_ever(tmp_path: Path) -> None:
    kept = Followed(tmp_path, lateness="1s", follow=True, idle_timeout=None)
    (tmp_path / "in" / "a").write_bytes(records(0, 10))
    kept.tracker.horizons.settled = -1.0
    kept.step()
    kept.now += 10**6 * SECOND
    assert kept.holds() == {"a": 9}


def test_a_silent_file_lets_windows_leave(tmp_path: Path) -> None:
    """Nothing is read any more; that time passes is reason enough for a batch."""
    from millstream.run.batches.engine import Engine
    from millstream.run.planning import plan_flow
    from millstream.run.tasks.executors import InProcess
    from millstream.settings import Settings
    from millstream.state.checkpoint import Checkpoint

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "dead").write_bytes(records(0, 10))
    (tmp_path / "in" / "live").write_bytes(records(0, 50))
    flow, memory = ms.Flow("idle"), ms.Memory()
    source = ms.Files(
        tmp_path / "in", "json", schema="ts bigint, n bigint", time="ts", lateness="0s", follow=True
    )
    flow.source(source).key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(memory)
    plan = plan_flow(flow)
    place = Checkpoint(tmp_path / "ck")
    place.lock()
    now = 1000.0
    engine = Engine(plan, place, Settings(), clock=lambda: now)
    engine.open(1)
    executor = InProcess(plan)
    assert engine.step(executor)
    assert not engine.step(executor)
    assert memory.rows == []
    now += 11
    assert engine.step(executor)
    assert [row["n"] for row in memory.rows] == [20, 10, 10, 10]
    assert not engine.step(executor)
    engine.close()


# -- the whole way --------------------------------------------------------------------------------


def three_hosts(tmp_path: Path, rows: int) -> tuple[ms.Flow, ms.Memory, dict[int, tuple[int, int]]]:
    """An hour of three hosts, each log out of order by up to eight seconds."""
    random_ = random.Random(7)
    (tmp_path / "in").mkdir()
    for host in range(3):
        times = [i * 3600 // rows for i in range(rows)]
        times.sort(key=lambda t: t + random_.uniform(0, 8))
        text = "ts,host,n\n" + "".join(f"{t},{host},{i % 7}\n" for i, t in enumerate(times))
        (tmp_path / "in" / f"host-{host}.csv").write_text(text)
    flow, memory = ms.Flow("hosts"), ms.Memory()
    logs = flow.source(ms.Files(tmp_path / "in", time="ts", lateness="10s"), name="logs")
    logs.key_by("host").window(ms.tumbling("1m")).agg(n=ms.count(), s=ms.sum("n")).sink(memory)
    found = duckdb.sql(
        f"select host, ts // 60 * 60 as start, count(*), sum(n) "
        f"from read_csv('{tmp_path}/in/*.csv') group by all"
    ).fetchall()
    return flow, memory, {(host, start): (n, int(s)) for host, start, n, s in found}  # type: ignore[misc]


def results(memory: ms.Memory) -> dict[tuple[int, int], tuple[int, int]]:
    rows = {
        (row["host"], int(row["window_start"].timestamp())): (row["n"], row["s"])
        for row in memory.rows
    }
    assert len(rows) == len(memory.rows)
    return rows


@pytest.mark.parametrize("parallelism", [1, 3])
def test_three_hosts_in_process(tmp_path: Path, parallelism: int) -> None:
    flow, memory, wanted = three_hosts(tmp_path, 1000)
    ledger = run_in_process(flow, tmp_path / "ck", parallelism=parallelism, batch_rows=200)
    assert results(memory) == wanted
    assert ledger["agg"]["late"] == 0


@pytest.mark.spark
def test_three_hosts_on_spark(tmp_path: Path, spark: object) -> None:
    flow, memory, wanted = three_hosts(tmp_path, 3000)
    progress = flow.run(tmp_path / "ck", master="local[2]", batch_rows=2000)
    assert results(memory) == wanted
    assert progress.late == 0
    assert progress.rows == 9000


# -- one sender in several files ------------------------------------------------------------------


def write(path: Path, rows: list[tuple[int, str]]) -> None:
    match path.suffix:
        case ".parquet":
            pq.write_table(
                pa.table({"ts": [t for t, _ in rows], "host": [h for _, h in rows]}), path
            )
        case ".csv":
            path.write_text("ts,host\n" + "".join(f"{t},{host}\n" for t, host in rows))
        case _:
            path.write_text("".join(f'{{"ts": {t}, "host": "{host}"}}\n' for t, host in rows))


@pytest.mark.parametrize("declared", [[], ["x", "y"]])
def test_parquet_and_text_are_read_in_the_same_order(tmp_path: Path, declared: list[str]) -> None:
    """The lowest time of a row group is not that of its first record, which decides."""
    found = []
    for kind in ("parquet", "csv", "json"):
        place = tmp_path / kind
        place.mkdir()
        times = {"a": [10, 3, 60], "b": [5, 40, 39], "c": [5, 31, 90], "y": [80]}
        for name, seconds in times.items():
            host = "y" if name == "y" else "x"
            write(place / f"{name}.{kind}", [(t, host) for t in seconds])
        flow, memory, late = ms.Flow("hosts"), ms.Memory(), ms.Memory()
        options: dict[str, Any] = {"participant": "host", "participants": declared}
        source = ms.Files(
            place, schema="ts bigint, host string", time="ts", lateness="10s", **options
        )
        windows = flow.source(source).key_by("host").window(ms.tumbling("10s")).agg(n=ms.count())
        windows.sink(memory)
        windows.late().sink(late, name="late")
        run_in_process(flow, tmp_path / f"ck-{kind}")
        rows = sorted((r["host"], r["window_start"], r["n"]) for r in memory.rows)
        found.append((rows, sorted(row["ts"] for row in late.rows)))
    # b, c (the same first time: by name), a: 5 40 39, 5 31 90, 10 3 60
    assert found[0][1] == [3, 5, 10, 60]
    assert found == [found[0]] * 3


def test_the_driver_looks_by_itself_unless_a_function_of_the_user_reads() -> None:
    ours, theirs = Format("json", SCHEMA, "ts"), Format(READER, SCHEMA, "ts")
    assert is_glance(partial(first_times, Peek(ours, FAR)))
    assert not is_glance(partial(first_times, Peek(theirs, FAR)))
    assert not is_glance(partial(sorted, key=len))

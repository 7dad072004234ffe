"""Killed at any moment and started again, updaters leave exactly the slates they should."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.ops.codec import as_key
from millstream.run.faults import POINTS
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine
from millstream.state.storage import open_storage
from millstream.state.tables import KeyedTable
from millstream.testing import Driver, reference
from tests.chaos.support import APP, check_readable, finish, kill, spawn, wait_for

UPDATERS = APP.with_name("updaters.py")
PRESSED = APP.with_name("pressed.py")
START = datetime(2024, 1, 1, tzinfo=UTC)
DISORDER = 15_000  # ms, within the lateness
SEED = 20261115
Rows = list[dict[str, Any]]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("chaos_updaters", UPDATERS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


app = _load()


@dataclass(frozen=True)
class Answer:
    """Rows per sink, as text, and slates per updater."""

    rows: dict[str, Counter[str]]
    slates: dict[str, dict[Any, Any]]


def make_visits(count: int, seed: int) -> Rows:
    """Visits out of order within the lateness, no two at the same time."""
    random_ = random.Random(seed)
    return [
        {
            "id": i,
            "ts": START
            + timedelta(milliseconds=i * 40 + random_.randrange(DISORDER), microseconds=i % 997),
            "user": random_.randrange(29),
            "page": random_.randrange(app.PAGES),
            "value": random_.randrange(100),
        }
        for i in range(count)
    ]


def flow_of() -> ms.Flow:
    """The app on records that are pushed."""
    flow = ms.Flow("updaters")
    source = ms.Generator(tuple, time="ts", lateness=app.LATENESS)
    app.build(flow.source(source, name="visits"), {name: ms.Memory() for name in app.SINKS})
    return flow


def _text(row: dict[str, Any]) -> str:
    """A row as a text, whether it comes from a file or from memory."""
    plain = {n: v.isoformat() if isinstance(v, datetime) else v for n, v in row.items()}
    for name in ("window_start", "window_end"):
        if name in plain:
            plain[name] = datetime.fromisoformat(plain[name]).timestamp()
    return json.dumps(plain, sort_keys=True)


def expected(batches: list[Rows]) -> Answer:
    answer = reference(flow_of(), batches=[{"visits": rows} for rows in batches])
    return Answer({n: Counter(map(_text, rows)) for n, rows in answer.items()}, answer.slates)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """Files, and what must come of them: a file is a batch to the reference."""
    path = tmp_path_factory.mktemp("visits")
    visits = make_visits(1_200, seed=11)
    files = [visits[start : start + 300] for start in range(0, len(visits), 300)]
    for number, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(rows), path / f"{number}.parquet")
    right = expected(files)
    assert all(right.rows[name] for name in app.SINKS) and all(right.slates.values())
    return path, right


def found(work: Path) -> Answer:
    rows: dict[str, Counter[str]] = {name: Counter() for name in app.SINKS}
    for name, into in rows.items():
        for path in sorted((work / "out" / name).glob("part-*.jsonl")):
            into.update(_text(json.loads(line)) for line in path.read_bytes().splitlines())
    manifest = Checkpoint(work / "ck").latest()
    assert manifest is not None
    slates: dict[str, dict[Any, Any]] = {}
    for updater in ("users", "pages", "notes"):
        slates[updater] = {}
        stored = manifest.segments.get(updater, {}).get("slates", {})
        for table in KeyedTable(open_storage(work / "ck" / "state"), stored, manifest.files).scan():
            for row in table.to_pylist():
                if row["expires"] > manifest.closed[updater]:
                    key = row["key"] if row["plain"] else msgspec.json.decode(row["key"])
                    slates[updater][as_key(key)] = msgspec.msgpack.decode(row["slate"])
    return Answer(rows, slates)


def check_done(work: Path, right: Answer) -> None:
    left = found(work)
    for name, rows in right.rows.items():
        assert left.rows[name] == rows, (
            f"{name}: {rows - left.rows[name]} missing, {left.rows[name] - rows} too many"
        )
    assert left.slates == right.slates
    lines, sound = examine(work / "ck")
    assert sound, lines
    assert not list((work / "ck").rglob("*.tmp"))


def failed(work: Path) -> str:
    return (work / "stderr.txt").read_text()[-2000:]


def test_undisturbed_it_gives_what_the_reference_gives(
    data: tuple[Path, Answer], tmp_path: Path
) -> None:
    assert finish(spawn(data[0], tmp_path, app=UPDATERS)) == 0, failed(tmp_path)
    check_done(tmp_path, data[1])
    assert int(max(p.stem for p in (tmp_path / "ck" / "manifests").iterdir())) >= len(POINTS)


def test_killed_at_every_named_point(data: tuple[Path, Answer], tmp_path: Path) -> None:
    for batch, point in enumerate(POINTS):
        crash_at = f"{point}:{batch}+"  # not every batch publishes something
        code = finish(spawn(data[0], tmp_path, crash_at=crash_at, app=UPDATERS))
        assert code == -signal.SIGKILL, f"{point}: {code} {failed(tmp_path)}"
        check_readable(tmp_path / "out")
    assert finish(spawn(data[0], tmp_path, app=UPDATERS)) == 0, failed(tmp_path)
    check_done(tmp_path, data[1])


def random_kills(data: tuple[Path, Answer], tmp_path: Path, wanted: int, seed: int) -> int:
    """Kill at random moments, also while recovering, until enough kills have hit."""
    random_ = random.Random(seed)
    print(f"seed {seed}")
    kills = runs = 0
    while kills < wanted:
        work = tmp_path / f"run-{runs}"
        runs += 1
        for attempt in itertools.count():
            process = spawn(data[0], work, app=UPDATERS)
            wait_for(process, "ready")
            if kills >= wanted:
                assert finish(process) == 0, failed(work)
                break
            time.sleep(random_.uniform(0, 0.45) * (1 + attempt / 3))  # slow machines arrive too
            if not kill(process):
                assert process.returncode == 0, failed(work)
                break
            kills += 1
            check_readable(work / "out")
        check_done(work, data[1])
        shutil.rmtree(work)
    print(f"{kills} kills in {runs} runs")
    return kills


def test_killed_at_random_moments(data: tuple[Path, Answer], tmp_path: Path) -> None:
    assert random_kills(data, tmp_path, wanted=4, seed=SEED) >= 4


def test_killed_before_slates_are_flushed(
    data: tuple[Path, Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_FLUSH", "1h")
    for batch in (2, 4):
        crash_at = f"after-manifest:{batch}"
        assert finish(spawn(data[0], tmp_path, crash_at=crash_at, app=UPDATERS)) != 0
        tables = Checkpoint(tmp_path / "ck").latest().segments["users"]  # type: ignore[union-attr]
        assert any(tables["unflushed"].values()) and not any(tables.get("slates", {}).values())
    assert finish(spawn(data[0], tmp_path, app=UPDATERS)) == 0, failed(tmp_path)
    check_done(tmp_path, data[1])


@pytest.mark.long
@pytest.mark.parametrize("flush", ["300ms", "1h"])
def test_killed_very_often_between_flushes(
    data: tuple[Path, Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    monkeypatch.setenv("CHAOS_FLUSH", flush)
    test_killed_at_every_named_point(data, tmp_path / "points")
    seed = random.SystemRandom().randrange(2**32)
    assert random_kills(data, tmp_path / "random", wanted=40, seed=seed) >= 40


@pytest.mark.long
def test_killed_very_often(data: tuple[Path, Answer], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    assert random_kills(data, tmp_path, wanted=300, seed=seed) >= 300


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_very_often_while_operators_are_held_back(
    data: tuple[Path, Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every start has a policy, a room and a budget of its own; the last one has room."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    random_, kills, held = random.Random(seed), 0, 0
    monkeypatch.setenv("CHAOS_PRESSED", str(seed))
    for run in range(10):
        work = tmp_path / f"run-{run}"
        for _ in range(10):
            process = spawn(data[0], work, app=PRESSED)
            wait_for(process, "ready")
            time.sleep(random_.uniform(0, 3))
            kills += kill(process)
            check_readable(work / "out")
        assert finish(spawn(data[0], work, app=UPDATERS)) == 0, failed(work)
        check_done(work, data[1])
        held += len((work / "held").read_bytes().splitlines())
        shutil.rmtree(work)
    print(f"{kills} kills, somebody was held in {held} batches")
    assert kills > 50 and held  # how often depends on the machine


# -- arrival, parallelism and shards ---------------------------------------------------------------


def drive(batches: list[Rows], parallelism: int, shards: int) -> Answer:
    with Driver(flow_of(), parallelism=parallelism, shards=shards) as driver:
        for rows in batches:
            driver.push("visits", rows)
            driver.step()
        driver.end()
        rows_of = {name: Counter(map(_text, driver.output(name))) for name in app.SINKS}
        return Answer(rows_of, {name: driver.slates(name) for name in ("users", "pages", "notes")})


def test_arrival_parallelism_and_shards_do_not_matter() -> None:
    """Any order that lateness permits, any cut, any parallelism, any number of shards."""
    random_ = random.Random(SEED)
    visits = make_visits(250, seed=5)
    right = expected([sorted(visits, key=lambda row: row["ts"])])
    for parallelism, shards in ((1, 8), (3, 1), (2, 16), (3, 3)):
        # Each comes at most 18 s after its time: those at the same place may come in any order.
        arrival = {
            row["id"]: row["ts"] + timedelta(seconds=random_.uniform(0, 18)) for row in visits
        }
        came = sorted(visits, key=lambda row: arrival[row["id"]])
        cuts = sorted(random_.sample(range(1, len(came)), 5))
        batches = [came[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        left = drive(batches, parallelism, shards)
        assert left.slates == right.slates
        assert left.rows == right.rows

"""Compressed files that take several batches: nothing depends on where they are cut."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.api.sources import Files
from millstream.errors import RunError
from millstream.io import unpacking
from millstream.io.formats import Format, parse_schema
from millstream.io.readers import Split, read_split
from millstream.io.unpacking import Measure
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.files import merging
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from millstream.testing import run_in_process

FMT = Format("json", parse_schema("n bigint"))
MUCH = 10**9


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_LEAST_PACKED", 100)


def numbers(*which: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in which)


def tracker(tmp: Path, state: SourceState, **options: Any) -> FilesTracker:
    spec = Files(tmp / "in", "json", **options)
    return FilesTracker(0, spec, FMT, open_storage(tmp), "registry", state)


def records(splits: list[Any]) -> list[int]:
    parsed = [p for split in splits for p in read_split(FMT, split)]
    return [n for p in parsed for n in p.table["n"].to_pylist()]


@pytest.mark.parametrize("follow", [False, True])
def test_pieces_are_bounded_and_kills_in_between_lose_nothing(tmp_path: Path, follow: bool) -> None:
    (tmp_path / "in").mkdir()
    text = numbers(*range(3000))
    members = [text[:7001], text[7001:7001], text[7001:]]  # cut within a line
    (tmp_path / "in" / "a.json.gz").write_bytes(b"".join(map(gzip.compress, members)))
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(numbers(*range(3000, 4000))))
    (tmp_path / "in" / "c.json.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "in" / "d.json").write_bytes(numbers(*range(4000, 4100)))
    random_, state, got = random.Random(5), SourceState(), []
    now = tracker(tmp_path, state, follow=follow)
    for _ in range(1000):
        now._next_look = 0.0
        now.poll()
        if not now.pending():
            break
        size = random_.choice([150, 700, 4000])
        splits = now.take(MUCH, size, 2)
        for split in splits:
            assert isinstance(split, Split) and 0 < split.end - split.start <= size
        read = records(splits)
        killed = random_.random() < 0.3
        if not killed:
            got += read
            state = SourceState()
            now.save(state)
        if killed or random_.random() < 0.3:
            unpacking._kept.clear()
            now = tracker(tmp_path, state, follow=follow)
    assert Counter(got) == Counter(range(4100))
    assert {Path(file.path).name for file in now.open.values()} <= {"d.json"}  # it may grow


def test_a_piece_holds_no_more_lines_than_a_batch_may_have(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = numbers(*range(100_000)) + b"\n" * 2_000_000 + numbers(100_000)
    (tmp_path / "in" / "a.json.gz").write_bytes(gzip.compress(text, 1))
    now, most, at = tracker(tmp_path, SourceState()), 0, 0
    now.poll()
    while not now.ended:
        (split,) = now.take(200_000, MUCH, 1)
        assert isinstance(split, Split) and split.start == at
        at = split.end
        most = max(most, text.count(b"\n", split.start, split.end))
    assert at == len(text) and most <= 201_000


# -- the same results -----------------------------------------------------------------------------


def readings(seed: int) -> list[list[tuple[int, int]]]:
    """Three hosts' records, mostly in order; some far too late."""
    random_ = random.Random(seed)
    hosts = []
    for host in range(3):
        rows = []
        for n in range(150):
            at = n + random_.randrange(-3, 4) - (random_.random() < 0.05) * 60
            rows.append((max(0, at), host * 1000 + n))
        hosts.append(rows)
    return hosts


def build(where: Path, out: Path) -> ms.Flow:
    flow = ms.Flow("hosts")
    source = ms.Files(where, format="csv", schema="ts bigint, n bigint", time="ts", lateness="5s")
    rows = flow.source(source, name="in")
    counted = rows.key_by().window(ms.tumbling("10s")).agg(n=ms.count(), total=ms.sum("n"))
    counted.sink(ms.Jsonl(out))
    return flow


def results(out: Path) -> list[Any]:
    found = [json.loads(line) for p in out.glob("part-*") for line in p.read_bytes().splitlines()]
    return sorted(found, key=lambda row: row["window_start"])


@pytest.mark.parametrize("seed", range(2))
def test_results_and_late_records_do_not_depend_on_the_batches(tmp_path: Path, seed: int) -> None:
    wanted = kept = None
    for name, suffix in (("plain", ""), ("packed", ".gz")):
        (tmp_path / name).mkdir()
        for host, rows in enumerate(readings(seed)):
            text = "ts,n\n" + "".join(f"{ts},{n}\n" for ts, n in rows)
            data = text.encode() if not suffix else gzip.compress(text.encode())
            (tmp_path / name / f"{host}.csv{suffix}").write_bytes(data)
    for case, (name, rows_, parallelism) in enumerate(
        [("plain", MUCH, 1), ("packed", MUCH, 1), ("packed", 20, 1), ("packed", 60, 2)]
    ):
        out = tmp_path / f"out{case}"
        flow = build(tmp_path / name, out)
        options = {"batch_rows": rows_, "parallelism": parallelism}
        ledger = run_in_process(flow, tmp_path / f"ck{case}", **options)
        wanted, kept = wanted or results(out), kept or ledger
        assert (results(out), ledger) == (wanted, kept)
    late = sum(
        ts < max((before for before, _ in rows[:i]), default=0) - 5
        for rows in readings(seed)
        for i, (ts, _) in enumerate(rows)
    )
    assert late > 5 and wanted
    assert sum(row["n"] for row in wanted) == 450 - late


def test_a_killed_run_goes_on_inside_a_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = "ts,n\n" + "".join(f"{n},{n}\n" for n in range(2000))
    (tmp_path / "in" / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    steps = 0
    while True:  # a new process for every batch, as far as the engine can tell
        unpacking._kept.clear()
        plan = plan_flow(build(tmp_path / "in", tmp_path / "out"))
        place = Checkpoint(tmp_path / "ck")
        place.lock()
        engine = Engine(plan, place, Settings(batch_rows=300))
        engine.open(1)
        engine.pace.rows = 300
        engine.step(InProcess(plan))
        engine.close()
        steps += 1
        if engine.done:
            break
    assert steps > 5
    got = results(tmp_path / "out")
    assert [row["n"] for row in got] == [10] * 200
    assert sum(row["total"] for row in got) == sum(range(2000))


# -- damage ---------------------------------------------------------------------------------------


def test_a_truncated_file_is_refused_before_anything_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    whole = gzip.compress(numbers(*range(1000)))
    (tmp_path / "in" / "a.json.gz").write_bytes(whole[:-4])
    now = tracker(tmp_path, SourceState())
    now.poll()
    message = r"a\.json\.gz: it ends in the middle, was it truncated\?.*replace it by an intact one"
    with pytest.raises(RunError, match=message):
        now.take(MUCH, MUCH, 1)
    followed = tracker(tmp_path, SourceState(), follow=True)  # it may still be copied
    followed.poll()
    assert followed.pending() == 0
    (tmp_path / "in" / "a.json.gz").write_bytes(whole)
    followed._next_look = 0.0
    followed.poll()
    assert records(followed.take(MUCH, MUCH, 1)) == [*range(1000)]


# -- who inflates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
def test_the_driver_does_not_inflate(tmp_path: Path, follow: bool) -> None:
    """It believes what tasks say of a file, and cuts that: the file is not even compressed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json.gz").write_bytes(b"not compressed")
    asked: list[str] = []

    def probe(look: Any, paths: list[str]) -> list[Any]:
        asked.extend(paths)
        return [Measure(1000, 10.0) for _ in paths]

    now = tracker(tmp_path, SourceState(), follow=follow)
    now.poll(probe)
    (first,) = now.take(MUCH, 600, 2)
    (second,) = now.take(MUCH, 600, 2)
    assert [(s.start, s.end) for s in (first, second)] == [(0, 600), (600, 1000)]  # type: ignore[union-attr]
    assert asked == [str(tmp_path / "in" / "a.json.gz")]


def test_a_process_inflates_a_file_once_however_many_pieces_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.json.gz")
    text = numbers(*range(200_000))
    with gzip.open(path, "wb", 1) as out:
        out.write(text)
    inflated = 0
    inflate = unpacking.Unpacked._inflate

    def counted(self: unpacking.Unpacked, most: int) -> bytes:
        nonlocal inflated
        piece = inflate(self, most)
        inflated += len(piece)
        return piece

    monkeypatch.setattr(unpacking.Unpacked, "_inflate", counted)
    cuts = [*range(0, len(text), 50_000), len(text)]
    got = [n for low, high in pairwise(cuts) for n in records([Split(0, 0, path, low, high)])]
    assert got == [*range(200_000)]
    assert inflated == len(text)
    assert not unpacking._kept  # it was read to its end

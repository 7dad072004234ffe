"""Sources under overload: each record is kept, dropped or diverted, once, whatever happens."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.ops.chunks import OFFSET_BITS
from millstream.run.tasks.reading import spool_extent
from millstream.run.tasks.splits import SpoolSplit
from millstream.testing import reference
from tests.overload.support import (
    POINTS,
    Numbered,
    balanced,
    rows_in,
    run_killed,
    shed_of,
    twice,
)

WINDOW = ms.tumbling("20s")


def flow_of(data: Path, out: Path, policy: ms.Overload, **options: Any) -> ms.Flow:
    """Records as they are, and counted by window; the same of what is diverted."""
    flow = ms.Flow("shed")
    options = {"format": "json", "time": "ts", "lateness": "30s", **options}
    _ends(flow.source(ms.Files(data, overload=policy, **options), name="in"), out / "kept")
    if policy.stream is not None:
        _ends(flow.stream(policy.stream), out / "diverted")
    return flow


def _ends(stream: ms.Stream, out: Path) -> None:
    stream.sink(ms.Jsonl(out / "rows"))
    counted = stream.key_by("k").window(WINDOW).agg(n=ms.count(), most=ms.max("n"))
    counted.sink(ms.Jsonl(out / "windows"))


def plainly(data: Numbered, numbers: list[int], **options: Any) -> list[Any]:
    """The windows over some of the records, by the reference."""
    flow = ms.Flow("plain")
    options = {"format": "json", "time": "ts", "lateness": "30s", **options}
    stream = flow.source(ms.Files(data.path, **options), name="in")
    counted = stream.key_by("k").window(WINDOW).agg(n=ms.count(), most=ms.max("n"))
    counted.named("counted").sink(ms.Memory())
    rows = reference(flow, {"in": data.only(numbers)})
    (answer,) = rows.values()
    return windows(answer)


def windows(rows: list[dict[str, Any]]) -> list[Any]:
    """Results in an order of their own."""
    return sorted(
        (row["k"], str(row["window_start"])[:19].replace("T", " "), row["n"], row["most"])
        for row in rows
    )


policies = st.builds(
    lambda kind, keep, when, until: (
        ms.drop(keep, when=when, until=until)
        if kind == "drop"
        else ms.divert("overflow", keep=keep, when=when, until=until)
    ),
    st.sampled_from(["drop", "divert"]),
    st.sampled_from(["newest", "oldest"]),
    st.integers(200, 4_000),
    st.sampled_from([0.1, 0.5, 1.0]),
)
kills = st.lists(st.tuples(st.sampled_from(POINTS), st.integers(0, 6)), max_size=3)


@st.composite
def times(draw: st.DrawFn) -> list[list[int]]:
    """Files with times that go on, with disorder; some records are late."""
    files = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.integers(0, 3), min_size=1, max_size=150))
        jitter = draw(st.lists(st.integers(-45, 0), min_size=len(steps), max_size=len(steps)))
        at, found = 1_000, []
        for step, back in zip(steps, jitter, strict=True):
            at += step
            found.append(at + (back if back < -20 else 0))
        files.append(found)
    return files


@settings(max_examples=12)
@given(times(), policies, kills, st.integers(10, 60), st.integers(1, 2))
def test_every_record_is_kept_or_shed_once(
    files: list[list[int]],
    policy: ms.Overload,
    kills: list[tuple[str, int]],
    rows: int,
    parallelism: int,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        check_files(Path(place), files, policy, kills, rows, parallelism)


def check_files(
    place: Path,
    files: list[list[int]],
    policy: ms.Overload,
    kills: list[tuple[str, int]],
    rows: int,
    parallelism: int,
) -> None:
    (place / "in").mkdir()
    data, checkpoint, out = Numbered(place / "in"), place / "ck", place / "out"
    for number, one in enumerate(files):
        data.add(f"{number}.json", one)

    def make() -> ms.Flow:
        return flow_of(data.path, out, policy)

    ledger = run_killed(make, checkpoint, kills, batch_rows=rows, parallelism=parallelism, shards=4)
    balanced(checkpoint)
    account, shed = ledger["in"], shed_of(checkpoint)
    kept = [row["n"] for row in rows_in(out / "kept" / "rows")]
    diverted = [row["n"] for row in rows_in(out / "diverted" / "rows")]
    logged = [n for told in shed for n in data.within(told)]
    gone = logged if policy.stream is None else diverted
    assert sorted(kept + gone) == data.numbers and not twice(kept + gone)
    assert sorted(logged) == sorted(gone)
    assert account["aggregated"] == len(kept)
    assert account["dropped"] == (len(gone) if policy.stream is None else 0)
    assert account["diverted"] == len(diverted)
    assert sum(told.get("dropped", told.get("diverted", 0)) for told in shed) == len(gone)
    if policy.stream is None:  # what was dropped had no time: late is who is late among the kept
        assert windows(rows_in(out / "kept" / "windows")) == plainly(data, kept)
    else:
        assert ledger.get("overflow", {}).get("offered", 0) == len(diverted)


@pytest.mark.parametrize("kind", ["drop", "divert"])
@pytest.mark.parametrize("keep", ["newest", "oldest"])
def test_it_sets_in_and_is_over(tmp_path: Path, kind: str, keep: str) -> None:
    """Nobody is late here, so windows over what was diverted are known as well."""
    (tmp_path / "in").mkdir()
    data = Numbered(tmp_path / "in")
    data.add("a.json", range(1_000, 1_600))
    data.add("b.json", range(1_000, 1_300))
    shared = {"when": 4_000, "until": 0.25}
    policy = ms.drop(keep, **shared) if kind == "drop" else ms.divert("more", keep=keep, **shared)
    ledger = run_killed(
        lambda: flow_of(data.path, tmp_path / "out", policy), tmp_path / "ck", [], batch_rows=50
    )
    gone = "dropped" if kind == "drop" else "diverted"
    assert ledger["in"][gone] > 400 and ledger["in"]["late"] == 0
    kept = [row["n"] for row in rows_in(tmp_path / "out" / "kept" / "rows")]
    assert windows(rows_in(tmp_path / "out" / "kept" / "windows")) == plainly(data, kept)
    if kind == "divert":
        rest = [n for n in data.numbers if n not in set(kept)]
        assert windows(rows_in(tmp_path / "out" / "diverted" / "windows")) == plainly(data, rest)
    assert (max if keep == "newest" else min)(data.numbers[:600]) in kept


def test_the_log_tells_where_what_was_received_begins_and_ends(tmp_path: Path) -> None:
    (tmp_path / "1.lines").write_bytes(b"one\ntwo\n")
    (tmp_path / "2.lines").write_bytes(b"three\n")
    table = pa.table({"n": [1, 2, 3]})
    with pa.ipc.new_file(tmp_path / "3.arrow", table.schema) as out:
        out.write_table(table)
    second = SpoolSplit(0, 2, str(tmp_path), "2.lines", 0, 1, base=108)
    first = SpoolSplit(0, 1, str(tmp_path), "1.lines", 0, 2, base=100, more=(second,))
    assert spool_extent(first) == (100, 114)
    rows = SpoolSplit(0, 3, str(tmp_path), "3.arrow", 0, 3)
    assert spool_extent(rows) == (3 << OFFSET_BITS, (3 << OFFSET_BITS) + 3)


def test_what_fits_into_a_batch_is_never_shed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = Numbered(tmp_path / "in")
    data.add("a.json", range(1_000, 1_400))
    ledger = run_killed(
        lambda: flow_of(data.path, tmp_path / "out", ms.drop(when=1)), tmp_path / "ck", []
    )
    assert ledger["in"]["aggregated"] == 400 and not shed_of(tmp_path / "ck")


@pytest.mark.long
@settings(max_examples=600)
@given(times(), policies, kills, st.integers(10, 60), st.integers(1, 2))
def test_every_record_is_kept_or_shed_once_in_many_runs(
    files: list[list[int]],
    policy: ms.Overload,
    kills: list[tuple[str, int]],
    rows: int,
    parallelism: int,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        check_files(Path(place), files, policy, kills, rows, parallelism)

"""Publishing: files by rename, rows by hand-over, both repeatable after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import RunError
from millstream.io.writers import STAGING, check_staged, publish_file, stage_file
from millstream.run import faults
from millstream.run.outputs.publishing import publish, recover, stage_delivery
from millstream.state.manifests import Manifest, Output, Place
from millstream.state.storage import open_storage
from millstream.testing import run_in_process


class Crash(BaseException):
    """The end of a process."""


def flow_to(tmp: Path, sink: Any, rows: int = 30) -> ms.Flow:
    flow = ms.Flow("publish")
    path = tmp / "in.jsonl"
    if not path.exists():
        path.write_text("".join(f'{{"ts": {i}, "n": {i}}}\n' for i in range(rows)))
    source = flow.source(ms.Files(path, schema="ts bigint, n bigint", time="ts"), name="in")
    source.select("n").sink(sink, name="sink")
    return flow


OPTIONS = {"batch_rows": 1, "batch_bytes": 34}  # for each of three tasks


# -- files ----------------------------------------------------------------------------------------


def test_a_file_is_published_once_and_the_second_time_does_nothing(tmp_path: Path) -> None:
    name, check = stage_file(open_storage(tmp_path), "1-a", "parquet", pa.table({"n": [1]}))
    staged, final = tmp_path / STAGING / name, tmp_path / "part-1.parquet"
    place = Place(open_storage(tmp_path), f"{STAGING}/{name}", final.name)
    assert check[0] == staged.stat().st_size
    check_staged(place, *check)
    publish_file(place, *check)
    publish_file(place, *check)
    check_staged(place, *check)
    assert not staged.exists()
    assert pq.read_table(final).to_pylist() == [{"n": 1}]
    final.unlink()
    with pytest.raises(RunError, match="somebody removed committed output"):
        publish_file(place, *check)


def test_a_damaged_staged_file_is_not_published(tmp_path: Path) -> None:
    stem = "00000001-0-0000"
    staged, check = stage_file(
        open_storage(tmp_path), f"{stem}-ab", "jsonl", pa.table({"n": [1, 2]})
    )
    (tmp_path / STAGING / staged).write_text('{"n":1}\n{"n":3}\n')
    final = tmp_path / f"part-{stem}.jsonl"
    manifest = Manifest(1, outputs=[Output("sink", staged, final.name, 2, *check)])
    with pytest.raises(RunError, match="is damaged and was not published"):
        recover(manifest, {"sink": ms.Jsonl(tmp_path)}, open_storage(tmp_path), known=True)
    assert not final.exists()


# -- rows handed over in this process -------------------------------------------------------------


def test_memory_gets_rows_in_order(tmp_path: Path) -> None:
    memory = ms.Memory()
    run_in_process(flow_to(tmp_path, memory), tmp_path / "ck", parallelism=3, **OPTIONS)
    assert [row["n"] for row in memory.rows] == list(range(30))
    assert memory.table()["n"].to_pylist() == list(range(30))
    assert len(memory.tables) > 5
    assert not list((tmp_path / "ck" / "staged").iterdir())


def test_call_gets_every_row_in_order(tmp_path: Path) -> None:
    got: list[int] = []
    run_in_process(flow_to(tmp_path, ms.Call(lambda row: got.append(row["n"]))), tmp_path / "ck")
    assert got == list(range(30))


@pytest.mark.parametrize("at", [0, 7, 29])
def test_a_call_that_fails_is_made_again(tmp_path: Path, at: int) -> None:
    got: list[int] = []
    broken = True

    def call(row: dict[str, int]) -> None:
        if broken and row["n"] == at:
            raise ConnectionError("away")
        got.append(row["n"])

    with pytest.raises(RunError, match=r"sink 'sink': ConnectionError: away on \{'n': \d+\}"):
        run_in_process(flow_to(tmp_path, ms.Call(call)), tmp_path / "ck", **OPTIONS)
    broken = False
    run_in_process(flow_to(tmp_path, ms.Call(call)), tmp_path / "ck", **OPTIONS)
    assert set(got) == set(range(30))
    doubled = [n for n in range(30) if got.count(n) > 1]
    assert all(n < at and at - n < 5 for n in doubled)  # only of the batch that failed


@pytest.mark.parametrize("point", ["before-manifest", "after-manifest", "published"])
def test_a_crash_gives_each_row_at_least_once(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    flow = flow_to(tmp_path, ms.Call(lambda row: got.append(row["n"])))

    def crash(at: str, batch: int) -> None:
        if (at, batch) == (point, 3):
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(faults, "crash_point", crash)
        with pytest.raises(Crash):
            run_in_process(flow, tmp_path / "ck", **OPTIONS)
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    # Handed over and noted as such, only the mark for the whole batch was missing: not again.
    assert got == list(range(30))


def test_a_sink_that_had_its_rows_does_not_get_them_again(tmp_path: Path) -> None:
    """Two sinks; the second one fails, and the first is not bothered when it is repeated."""
    first: list[int] = []
    second: list[int] = []
    broken = True

    def call(row: dict[str, int]) -> None:
        if broken:
            raise ConnectionError("away")
        second.append(row["n"])

    def made() -> ms.Flow:
        flow = flow_to(tmp_path, ms.Call(lambda row: first.append(row["n"])))
        stream = ms.Stream(flow, next(n for n in flow.nodes if n.name == "select"))
        stream.sink(ms.Call(call), name="other")
        return flow

    with pytest.raises(RunError, match="sink 'other'"):
        run_in_process(made(), tmp_path / "ck")
    broken = False
    run_in_process(made(), tmp_path / "ck")
    assert first == second == list(range(30))


def test_staged_rows_that_vanished_are_not_passed_over(tmp_path: Path) -> None:
    memory = ms.Memory()
    output = stage_delivery(open_storage(tmp_path), 1, "a sink", pa.table({"n": [1, 2]}))
    manifest = Manifest(1, outputs=[output])
    (tmp_path / output.staged).unlink()
    with pytest.raises(RunError, match="it is not known whether sink 'a sink' got its 2 rows"):
        recover(manifest, {"a sink": memory}, open_storage(tmp_path), known=True)
    recover(manifest, {"a sink": memory}, open_storage(tmp_path), known=False)
    assert memory.rows == []


def test_a_sink_that_is_no_longer_there(tmp_path: Path) -> None:
    output = stage_delivery(open_storage(tmp_path), 1, "gone", pa.table({"n": [1, 2]}))
    publish(Manifest(1, outputs=[output]), {}, open_storage(tmp_path))
    assert not (tmp_path / output.staged).exists()


def test_console_shows_a_table_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"name": ["[red]a", None, "c"], "x": [1.5, 2.0, None]})
    output = stage_delivery(open_storage(tmp_path), 4, "shown", table)
    publish(Manifest(4, outputs=[output]), {"shown": ms.Console(limit=2)}, open_storage(tmp_path))
    text = capsys.readouterr().out
    assert "shown, batch 4: 3 rows" in text
    assert "[red]a" in text
    assert "1.5000" in text
    assert "... and 1 more" in text

"""Outputs never overwrite each other, nor what others wrote."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import millstream as ms
from millstream.run import faults
from millstream.run.planning import plan_flow
from millstream.testing import run_in_process
from tests.security.hostile import OPTIONS, ROWS, flow_to, rows_in


def two_sinks(tmp: Path, first: Path, second: Path) -> ms.Flow:
    flow = flow_to(tmp, first)
    stream = ms.Stream(flow, next(node for node in flow.nodes if node.name == "select"))
    stream.sink(ms.Jsonl(second), name="other")
    return flow


@pytest.mark.parametrize("how", ["dots", "link", "link to be"])
def test_two_sinks_on_one_directory_are_refused(tmp_path: Path, how: str) -> None:
    out, second = tmp_path / "out", tmp_path / "x" / ".." / "out"
    if how != "dots":
        second = tmp_path / "linked"
        second.symlink_to(out)
    if how == "link":
        out.mkdir()
    with pytest.raises(ms.ConfigError, match="both write to"):
        plan_flow(two_sinks(tmp_path, out, second))
    plan_flow(two_sinks(tmp_path, out, tmp_path / "out2"))


@pytest.mark.parametrize("read", ["in", "in/*.jsonl", "**/*.jsonl", "./in/../in", "linked"])
def test_results_are_not_read_as_input(tmp_path: Path, read: str) -> None:
    """A second start, or one that follows, would go on with its own results for ever."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"ts": 1, "n": 1}\n')
    if read == "linked":
        (tmp_path / "linked").symlink_to(tmp_path / "in")

    def flow(out: str) -> ms.Flow:
        made = ms.Flow("loop")
        source = ms.Files(f"{tmp_path}/{read}", schema="ts bigint, n bigint", time="ts")
        made.source(source, name="in").select("n").sink(ms.Jsonl(tmp_path / out), name="sink")
        return made

    with pytest.raises(ms.ConfigError, match="would read its results as input"):
        plan_flow(flow("in"))
    if read != "**/*.jsonl":
        plan_flow(flow("in/out"))
    plan_flow(flow("in/.out"))


@pytest.mark.parametrize("part", ["", "staged", "spark", "out"])
def test_a_sink_in_the_checkpoint_is_refused(tmp_path: Path, part: str) -> None:
    """What lies there and is not known is removed: of 60 rows in `staged` none was left."""
    (tmp_path / "linked").symlink_to(tmp_path / "ck")
    for place in ("ck", "linked"):
        with pytest.raises(ms.ConfigError, match="which is in the checkpoint"):
            run_in_process(flow_to(tmp_path, tmp_path / place / part), tmp_path / "ck", **OPTIONS)


def test_what_another_flow_has_not_published_yet_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its first commit, its only rows are staged ones."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    def crash(at: str, batch: int) -> None:
        if at == "after-manifest":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(faults, "crash_point", crash)
        with pytest.raises(KeyboardInterrupt):
            run_in_process(flow_to(first, tmp_path / "out"), first / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == []
    with pytest.raises(ms.ConfigError, match="holds results of another checkpoint"):
        run_in_process(flow_to(second, tmp_path / "out"), second / "ck", **OPTIONS)
    run_in_process(flow_to(first, tmp_path / "out"), first / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))


def test_two_flows_that_start_together(tmp_path: Path) -> None:
    """Each has its rows, or is told that the directory is another's."""
    ended: dict[str, object] = {}

    def run(name: str) -> None:
        (tmp_path / name).mkdir()
        try:
            flow = flow_to(tmp_path / name, tmp_path / "out")
            run_in_process(flow, tmp_path / name / "ck", **OPTIONS)
            ended[name] = None
        except ms.MillstreamError as error:
            ended[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(ended.values()).count(None) == 1, ended
    assert all(error is None or "out" in str(error) for error in ended.values())
    assert rows_in(tmp_path / "out") == list(range(ROWS))


def test_a_strangers_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    foreign = tmp_path / "out" / "part-00000000-0-0000.jsonl"
    foreign.write_text("theirs\n")
    with pytest.raises(ms.ConfigError, match="which this flow did not write"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert foreign.read_text() == "theirs\n"


def test_a_strangers_file_that_comes_later_is_not_replaced(tmp_path: Path) -> None:
    foreign = tmp_path / "out" / "part-00000000-0-0000.jsonl"

    def appear(row: dict[str, int]) -> dict[str, int]:
        if not foreign.exists():
            foreign.write_text("theirs\n")
        return row

    flow = ms.Flow("hostile")
    flow_to(tmp_path)
    source = flow.source(
        ms.Files(tmp_path / "in.jsonl", schema="ts bigint, n bigint", time="ts"), name="in"
    )
    source.map(appear).select("n").sink(ms.Jsonl(tmp_path / "out"), name="sink")
    with pytest.raises(ms.RunError, match="move it away and start again"):
        run_in_process(flow, tmp_path / "ck", **OPTIONS)
    assert foreign.read_text() == "theirs\n"
    foreign.unlink()
    foreign.parent.joinpath("mine").write_text("kept")  # so that it does not come again
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "circle"])
def test_a_path_that_cannot_be_is_refused_with_its_sink(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ms.ConfigError, match=r"^Jsonl\(path\): expected a directory, got .*: "):
        ms.Jsonl(f"{tmp_path}/{name}")

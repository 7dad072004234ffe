"""Snapshots of programs of lines: what a program gives for what was read, also after a kill."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from millstream.adapters.early import answer_of, stored_runs
from millstream.adapters.flows import Reading, build_flow
from millstream.adapters.streaming import streaming_stage
from millstream.api.flow import Flow
from millstream.cli.jobs import SNAPSHOTS, Glimpses
from millstream.cli.running import watch
from millstream.state.checkpoint import Checkpoint
from millstream.testing import snapshots_in_process
from tests.adapters.programs import lines_in, run_stages
from tests.adapters.test_streaming import AWK_MAP, AWK_SUM

FILES, LINES = 12, 1500


def test_a_snapshot_is_what_the_program_gives_for_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        text = "".join(f"word{n % 7} of file{number}\n" for n in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    stage = streaming_stage(AWK_MAP, AWK_SUM, AWK_SUM, reducers=2, combine_files=True)
    flow = build_flow("lines", [stage], Reading([str(tmp_path / "in")]), tmp_path / "out")
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    assert last.exact
    whole = _counts(list(lines_in(tmp_path / "out")))
    assert whole[b"of"] == FILES * LINES
    assert sum(whole.values()) == 3 * FILES * LINES

    again = snapshots_in_process(flow_of(tmp_path, "two"), tmp_path / "two", [0.5])
    begun = next(again)
    again.close()  # a kill
    assert begun.progress == first.progress
    manifest = Checkpoint(tmp_path / "two", create=False).latest()
    assert manifest is not None
    part = _counts(answer_of([stage], stored_runs(tmp_path / "two", "job", manifest.batch) or {}))
    assert 0.4 < part[b"of"] / whole[b"of"] < 0.6
    assert part[b"of"] == sum(n for word, n in part.items() if word.startswith(b"file"))

    late = stored_runs(tmp_path / "ck", "job", manifest.batch)  # of a run that has ended since
    assert _counts(answer_of([stage], late or {})) == part
    assert stored_runs(tmp_path / "ck", "job", -1) is None  # not kept: not the same as nothing

    peek = Glimpses([stage], tmp_path / "two", tmp_path / "shown")
    peek(begun.progress, manifest.batch)
    (path,) = (tmp_path / "shown" / SNAPSHOTS).iterdir()
    assert path.name == f"{100 * begun.progress:05.1f}%.txt"
    assert _counts(path.read_bytes().split(b"\n")[:-1]) == part
    path.write_bytes(b"taken before\n")
    peek(begun.progress, manifest.batch)  # an earlier run has read it
    assert path.read_bytes() == b"taken before\n"


def test_a_combiner_without_a_reducer_is_not_run(tmp_path: Path) -> None:
    """Neither by a run nor in its snapshots, as with Hadoop: there is nothing to combine for."""
    lines = [b"2020-01-01T00:00:00Z b", b"2020-01-01T00:00:01Z a"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines) + b"\n")
    first = streaming_stage("cat", "cat")
    only = replace(streaming_stage("cat", None, "sed s/^/combined/"), name="only")
    assert Counter(answer_of([first, only], {0: lines})) == Counter(lines)
    for window in (None, "1h"):
        time = {"window": window, "time": r"\S+"} if window else {}
        found = run_stages([first, only], [tmp_path / "in.txt"], tmp_path / str(window), **time)
        assert Counter(line.split(b"\t")[-1] for line in found) == Counter(lines)


def test_looks_that_come_while_one_is_taken_are_not_left_out() -> None:
    """Also if the run has ended by then."""

    class Run:
        progress, snapshot, overdue, running = SimpleNamespace(notes=()), None, False, True
        looks: tuple[tuple[float, int], ...] = ((0.1, 0),)

    def slow(share: float, batch: int) -> None:
        taken.append((share, batch))
        Run.looks, Run.running = ((0.1, 0), (0.25, 1), (0.5, 2)), False

    taken: list[tuple[float, int]] = []
    display = SimpleNamespace(update=lambda _: None)
    watch(Run(), display, SimpleNamespace(asked=False), lambda: None, slow)  # type: ignore[arg-type]
    assert taken == [(0.1, 0), (0.25, 1), (0.5, 2)]


def flow_of(place: Path, out: str) -> Flow:
    stage = streaming_stage(AWK_MAP, AWK_SUM, AWK_SUM, reducers=2, combine_files=True)
    return build_flow("lines", [stage], Reading([str(place / "in")]), place / f"{out}-out")


def _counts(lines: list[bytes]) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for line in lines:
        word, _, number = line.partition(b"\t")
        found[word] += int(number)
    return found

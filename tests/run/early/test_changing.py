"""Inputs that change while their blocks are read, and numbers that no float or 64 bits hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.testing import run_in_process, snapshots_in_process


def write(folder: Path, largest: int = 90) -> int:
    """Groups and values in ten files; gives their sum."""
    folder.mkdir()
    chance, total = random.Random(4), 0
    for number in range(10):
        values = [chance.randrange(largest // 2, largest) for _ in range(2_000)]
        lines = "".join(f"{chance.choice('ab')},{value}\n" for value in values)
        (folder / f"{number}.csv").write_text("g,v\n" + lines)
        total += sum(values)
    return total


def sums(folder: Path, emit: object = None) -> tuple[ms.Flow, ms.Memory]:
    flow, seen = ms.Flow("sums"), ms.Memory()
    rows = flow.source(ms.Files(folder, format="csv"), name="rows").key_by("g")
    more = {} if emit is None else {"emit": emit}
    rows.agg(total=ms.sum("v"), n=ms.count(), **more).sink(seen)  # type: ignore[arg-type]
    return flow, seen


def test_a_file_that_is_rewritten_while_it_is_read_has_no_exact_answer(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow, _ = sums(tmp_path / "in")
    found = snapshots_in_process(flow, tmp_path / "ck", [0.3])
    next(found)
    file = tmp_path / "in" / "3.csv"
    file.write_text(file.read_text().replace("a,", "b,"))
    with pytest.raises(RunError, match=r"1 file changed while .*3\.csv.* no exact answer"):
        list(found)
    with pytest.raises(RunError, match=r"3\.csv was changed"):  # nor after another start
        list(snapshots_in_process(flow, tmp_path / "ck"))


def test_what_is_added_to_a_file_meanwhile_is_said_not_to_be_in_the_answer(tmp_path: Path) -> None:
    total = write(tmp_path / "in")
    flow, _ = sums(tmp_path / "in")
    found = snapshots_in_process(flow, tmp_path / "ck", [0.3])
    assert next(found).notes == ()
    with (tmp_path / "in" / "3.csv").open("a") as file:
        file.write("c,5\n" * 1_000)
    *_, last = found
    assert sum(row["total"] for row in last.table.to_pylist()) == total
    assert any("3.csv grew" in note for note in last.notes)


def test_a_file_that_is_gone_or_cut_off_is_no_end_of_its_input(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow, _ = sums(tmp_path / "in")
    for at, harm in enumerate((Path.unlink, lambda file: file.write_text("g,v\n"))):
        found = snapshots_in_process(flow, tmp_path / f"ck-{at}", [0.3])
        next(found)
        files = [(file, file.read_text()) for file in sorted((tmp_path / "in").iterdir())]
        for file, _ in files:
            harm(file)
        with pytest.raises(RunError, match=r"0\.csv"):
            list(found)
        for file, text in files:
            file.write_text(text)


def test_sums_too_large_for_a_float_to_hold_each_of_them_are_estimated(tmp_path: Path) -> None:
    total = write(tmp_path / "in", 10**14)  # of a block more than 2^53
    flow, _ = sums(tmp_path / "in")
    ratios = {"each": ("total", "n")}
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5], ratios=ratios)
    for table in (first.table, last.table):
        rows = table.to_pylist()
        assert sum(row["total"] for row in rows) == pytest.approx(total, rel=0.05)
        assert all(row["each"] == pytest.approx(row["total"] / row["n"]) for row in rows)


def test_sums_beyond_64_bits_are_estimated_and_have_no_whole_answer(tmp_path: Path) -> None:
    total = write(tmp_path / "in", 10**18)
    flow, _ = sums(tmp_path / "in")
    found = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    rows = next(found).table.to_pylist()
    assert sum(row["total"] for row in rows) == pytest.approx(total, rel=0.05)
    with pytest.raises(RunError, match="does not fit in 64 bits"):
        list(found)
    stream, seen = sums(tmp_path / "in", emit=ms.snapshot(at=[0.5]))
    run_in_process(stream, tmp_path / "ck-stream", dead_letter_limit=1)
    assert [row["total"] for row in seen.rows if not row["exact"]] == [None, None]


@pytest.mark.parametrize("confidence", ["95%", None, 1, 0.49, float("nan")])
def test_what_is_no_confidence_is_refused(confidence: object) -> None:
    with pytest.raises(ConfigError, match=r"confidence=.*from 0\.5 to below 1"):
        ms.snapshot(at=[0.5], confidence=confidence)  # type: ignore[arg-type]

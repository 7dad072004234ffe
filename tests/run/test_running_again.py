"""Running again: totals go on, what is new alone if asked, and what changed under us is noticed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.console import told_work
from millstream.run.reporting import Progress
from millstream.testing import Driver, reference, run_in_process
from tests.variants import variants

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()


def put(name: str, rows: Rows) -> None:
    lines = [f"{row['who']},{row['x']}" for row in rows]
    Path(f"in/{name}.csv").write_text("\n".join(["who,x", *lines]) + "\n")


def written(directory: str = "out") -> list[list[dict[str, Any]]]:
    """The rows of every file, in the order of batches."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(Path(directory).glob("part-*.jsonl"))
    ]


def totals() -> ms.Flow:
    flow = ms.Flow("totals")
    groups = flow.source(ms.Files("in/"), name="files").key_by("who", nulls="keep")
    groups.agg(n=ms.count(), total=ms.sum("x"), all=ms.collect("x")).sink(ms.Jsonl("out/"))
    return flow


def as_they_are(files: list[list[dict[str, Any]]]) -> dict[Any, Any]:
    """What somebody knows who reads the files one after the other: the newest row of a group."""
    known = {}
    for rows in files:
        for row in rows:
            assert row.pop("op", "+") == ("u" if row["who"] in known else "+")
            known[row["who"]] = row
    return known


@pytest.mark.parametrize("seed", variants(range(4)))
def test_totals_are_of_everything_however_many_runs_it_took(seed: int) -> None:
    draw = random.Random(seed)
    everything: Rows = []
    for run in range(4):
        for part in range(draw.randint(0, 2)):
            rows = [
                {"who": draw.choice("ABCDEFGH"), "x": draw.randint(0, 9)}
                for _ in range(draw.randint(1, 20))
            ]
            put(f"{run}{part}", rows)
            everything += rows
        if not everything:
            put("first", [{"who": "A", "x": 1}])
            everything.append({"who": "A", "x": 1})
        cut = {"batch_rows": draw.choice([1, 7, 1000]), "parallelism": draw.choice([1, 2, 3])}
        run_in_process(totals(), "ck", **cut)
        expected = {row["who"]: row for row in reference(totals(), {"files": everything})["jsonl"]}
        found = as_they_are(written())
        for rows_of in (expected, found):  # files are read by name: their order is not ours
            for row in rows_of.values():
                row["all"] = sorted(row["all"])
        assert found == expected


def test_only_groups_that_changed_are_given_again() -> None:
    put("a", [{"who": "A", "x": 1}, {"who": "B", "x": 2}])
    run_in_process(totals(), "ck")
    put("b", [{"who": "B", "x": 3}, {"who": "C", "x": 4}])
    run_in_process(totals(), "ck")
    first, again = written()
    assert not any("op" in row for row in first)
    assert sorted((row["who"], row["total"], row["op"]) for row in again) == [
        ("B", 5, "u"),
        ("C", 4, "+"),
    ]
    run_in_process(totals(), "ck")
    assert len(written()) == 2


def test_an_incremental_run_gives_what_is_new_and_forgets_nothing() -> None:
    put("a", [{"who": "A", "x": 1}])
    run_in_process(totals(), "ck")
    put("b", [{"who": "A", "x": 10}])
    run_in_process(totals(), "ck", incremental=True)
    put("c", [{"who": "A", "x": 100}])
    run_in_process(totals(), "ck")
    rows = [row for rows in written() for row in rows]
    assert [(row["total"], row.get("op")) for row in rows] == [(1, None), (10, None), (111, "u")]


def test_steps_behind_totals_see_both_sides_of_a_change() -> None:
    def flow() -> ms.Flow:
        made = ms.Flow("above")
        groups = made.source(ms.Files("in/")).key_by("who").agg(total=ms.sum("x"))
        groups.where("total < 5").map(lambda row: {**row, "small": True}).sink(ms.Jsonl("out/"))
        return made

    put("a", [{"who": "A", "x": 1}, {"who": "B", "x": 7}])
    run_in_process(flow(), "ck")
    put("b", [{"who": "A", "x": 9}, {"who": "B", "x": -4}])
    run_in_process(flow(), "ck")
    first, again = written()
    assert first == [{"who": "A", "total": 1, "small": True}]
    assert sorted((row["who"], row["total"], row["op"]) for row in again) == [
        ("A", 1, "-"),
        ("B", 3, "+"),
    ]


def test_reduce_functions_and_jobs_go_on_too() -> None:
    class Words(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: int) -> Any:
            yield value["who"], 1

        def combine(self, key: Any, values: Any) -> int:
            return sum(values)

        def reduce(self, key: Any, values: Any, window: Any) -> Any:
            yield key, sum(values)

    def flow() -> ms.Flow:
        made = ms.Flow("jobs")
        files = made.source(ms.Files("in/"))
        files.map_reduce(Words()).sink(ms.Jsonl("words/"))
        files.key_by("who").reduce(
            lambda who, rows, _: {"who": who, "xs": [r["x"] for r in rows]}
        ).sink(ms.Jsonl("lists/"))
        return made

    put("a", [{"who": "A", "x": 1}, {"who": "B", "x": 2}])
    run_in_process(flow(), "ck")
    put("b", [{"who": "A", "x": 3}])
    run_in_process(flow(), "ck")
    assert written("words")[1] == [{"key": "A", "value": 2, "op": "u"}]
    assert written("lists")[1] == [{"who": "A", "xs": [1, 3], "op": "u"}]


def test_totals_that_other_steps_used_are_refused() -> None:
    def flow() -> ms.Flow:
        made = ms.Flow("chain")
        per_who = made.source(ms.Files("in/")).key_by("who").agg(n=ms.count()).named("per who")
        per_who.key_by("n").agg(groups=ms.count()).sink(ms.Jsonl("out/"))
        return made

    put("a", [{"who": "A", "x": 1}])
    run_in_process(flow(), "ck")
    put("b", [{"who": "A", "x": 3}])
    with pytest.raises(ms.RunError, match="'per who' works on the whole input: its totals cannot"):
        run_in_process(flow(), "ck")
    run_in_process(flow(), "ck", incremental=True)
    assert written() == [[{"n": 1, "groups": 1}], [{"n": 1, "groups": 1}]]


def _beside() -> ms.Flow:
    """Totals of one source that meet the records of another."""
    made = ms.Flow("beside")
    groups = made.source(ms.Files("in/"), name="in").key_by("who").agg(n=ms.count()).named("groups")
    others = made.source(ms.Files("others/", schema="who string, y bigint"), name="others")
    groups.join(others, on="who").sink(ms.Jsonl("out/"))
    return made


def put_other(name: str, rows: Rows) -> None:
    Path("others").mkdir(exist_ok=True)
    Path(f"others/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_totals_whose_own_input_is_as_it_was_hold_up_nothing() -> None:
    put("a", [{"who": "A", "x": 1}])
    put_other("a", [{"who": "A", "y": 1}])
    run_in_process(_beside(), "ck")
    put_other("b", [{"who": "A", "y": 2}])
    run_in_process(_beside(), "ck")
    assert written() == [[{"who": "A", "n": 1, "y": 1}], [{"who": "A", "n": 1, "y": 2}]]


def test_totals_that_were_used_are_refused_though_another_source_was_not_done() -> None:
    with Driver(_beside(), checkpoint="ck") as driver:
        driver.push("in", [{"who": "A"}]).end("in")
        driver.push("others", [{"who": "A", "y": 1}]).step()
        assert driver.output() == [{"who": "A", "n": 1, "y": 1}]
        driver.restart()
        driver.push("in", [{"who": "A"}])
        with pytest.raises(ms.RunError, match="'groups' works on the whole input"):
            driver.step()


def test_an_incremental_run_that_was_killed_is_not_gone_on_with_as_another() -> None:
    put("a", [{"who": "A", "x": 1}])
    put_other("a", [{"who": "A", "y": 1}])
    run_in_process(_beside(), "ck")
    with Driver(_beside(), checkpoint="ck", incremental=True) as driver:
        driver._tracker("in").ended = False
        driver.push("in", [{"who": "A"}]).step()
        assert not driver.engine.manifest.complete
    with Driver(_beside(), checkpoint="ck") as driver:
        driver.push("in", [{"who": "A"}])
        with pytest.raises(ms.RunError, match="'groups' works on the whole input"):
            driver.step()


@pytest.mark.parametrize("incremental", [False, True])
def test_shards_that_are_dealt_anew_in_between_keep_what_was_given_apart(
    incremental: bool,
) -> None:
    flow = ms.Flow("dealt")
    source = flow.source(ms.Generator(tuple, schema="who string, x bigint"), name="given")
    source.key_by("who").agg(n=ms.count(), all=ms.collect("x")).sink(ms.Memory())
    with Driver(flow, shards=8, incremental=incremental) as driver:
        driver.push("given", [{"who": who, "x": 1} for who in "ABCDEFGH"]).end()
        driver.restart()
        driver._tracker("given").ended = False
        driver.push("given", [{"who": "A", "x": 2}, {"who": "Z", "x": 2}]).step()
        driver.reshard(2)
        given = len(driver.output())
        driver.push("given", [{"who": "B", "x": 3}]).end()
        driver.restart()
        driver.push("given", [{"who": "A", "x": 4}]).end()
        found = [(r["who"], r["all"], r.get("op")) for r in driver.output()[given:]]
    after, last = sorted(found[:3]), found[3:]
    if incremental:
        assert after == [("A", [2], None), ("B", [3], None), ("Z", [2], None)]
        assert last == [("A", [4], None)]
    else:
        assert after == [("A", [1, 2], "u"), ("B", [1, 3], "u"), ("Z", [2], "+")]
        assert last == [("A", [1, 2, 4], "u")]


def test_a_run_says_that_totals_go_on() -> None:
    flow = ms.Flow("told")
    source = flow.source(ms.Generator(tuple, schema="who string"), name="given")
    source.key_by("who").agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("given", [{"who": "A"}]).end()
        driver.restart()
        driver.push("given", [{"who": "A"}]).end()
        assert [(row["n"], row.get("op")) for row in driver.output()] == [(1, None), (2, "u")]
        (note,) = driver.engine.notes
        assert note.startswith("there is more input than the last run had: 'agg' go on")


# -- files that changed under us -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_a_file_that_was_corrected_in_its_middle_is_told(how: str) -> None:
    put("a", [{"who": "A", "x": x} for x in range(1000)])
    put("b", [{"who": "B", "x": x} for x in range(1000)])
    run_in_process(totals(), "ck")
    path = Path("in/a.csv")
    text, at = path.read_text(), path.stat().st_mtime_ns
    if how == "by another file":
        path.rename("elsewhere.csv")
    path.write_text(text.replace("A,500\n", "A,900\n"))
    os.utime(path, ns=(at, at + 10**10))
    with pytest.warns(RuntimeWarning, match=r"a\.csv was written since it was read"):
        run_in_process(totals(), "ck")
    assert len(written()) == 1


def test_a_file_that_was_emptied_is_noticed() -> None:
    put("a", [{"who": "A", "x": 1}])
    put("b", [{"who": "B", "x": 1}])
    run_in_process(totals(), "ck")
    Path("in/a.csv").write_text("")
    with pytest.raises(ms.RunError, match=r"a\.csv was read before and is another file now"):
        run_in_process(totals(), "ck")


@pytest.mark.parametrize("how", ["in place", "by another file"])
@pytest.mark.parametrize("longer", [True, False])
def test_a_file_that_was_overwritten_is_noticed(how: str, longer: bool) -> None:
    put("a", [{"who": "A", "x": 1}, {"who": "B", "x": 2}])
    run_in_process(totals(), "ck")
    if how == "by another file":
        Path("in/a.csv").rename("elsewhere.csv")
    put("a", [{"who": "Z", "x": 7}] * (5 if longer else 1))
    with pytest.raises(ms.RunError, match=r"a\.csv was read before and is another file now"):
        run_in_process(totals(), "ck")
    assert len(written()) == 1


def test_a_file_that_grew_is_noticed_and_one_that_was_touched_is_not() -> None:
    put("a", [{"who": "A", "x": 1}])
    run_in_process(totals(), "ck")
    os.utime("in/a.csv", (1, 1))
    run_in_process(totals(), "ck")
    with Path("in/a.csv").open("a") as file:
        file.write("B,2\n")
    with pytest.raises(ms.RunError, match=r"read to its end at byte 10 .* and has 14 bytes now"):
        run_in_process(totals(), "ck")


def test_a_log_that_was_rotated_is_not_overwritten() -> None:
    put("a", [{"who": "A", "x": 1}])
    run_in_process(totals(), "ck")
    Path("in/a.csv").rename("in/a.old.csv")
    put("a", [{"who": "A", "x": 5}])
    run_in_process(totals(), "ck")
    assert [row["total"] for rows in written() for row in rows] == [1, 6]


# -- programs and reports --------------------------------------------------------------------------


def test_a_checkpoint_without_a_batch_takes_any_program() -> None:
    put("a", [{"who": "A", "x": 1}])
    flow = ms.Flow("totals")
    broken = flow.source(ms.Files("in/"), name="other").map(lambda row: {"y": 1 // 0})
    broken.key_by("y").agg(n=ms.count()).sink(ms.Jsonl("out/"))
    with pytest.raises(ms.RunError, match="ZeroDivisionError"):
        run_in_process(flow, "ck", dead_letter_grace=1)
    run_in_process(totals(), "ck")
    assert [row["total"] for rows in written() for row in rows] == [1]
    other = ms.Flow("totals")
    other.source(ms.Files("in/"), name="files").key_by("x").agg(n=ms.count()).sink(ms.Jsonl("out/"))
    with pytest.raises(ms.CheckpointError, match="the program has changed since batch 0"):
        run_in_process(other, "ck")


def test_a_run_tells_what_it_did_itself() -> None:
    first = Progress(batch=1, rows=10, windows=3, new_batches=2, new_rows=10, new_windows=3)
    assert told_work(first) == "2 batches, 10 records, 3 results"
    nothing = Progress(batch=1, rows=10, windows=3)
    assert told_work(nothing) == "nothing new; 2 batches, 10 records, 3 results in earlier runs"
    more = Progress(batch=2, rows=15, windows=4, new_batches=1, new_rows=5, new_windows=1)
    assert told_work(more) == (
        "1 batch, 5 records, 1 results; 3 batches, 15 records, 4 results with earlier runs"
    )

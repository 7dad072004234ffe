"""Another program takes the place of a running one; what stays goes on as if nothing were."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import CheckpointError
from millstream.plan.stages import Plan
from millstream.run import faults
from millstream.run.batches import engine
from millstream.run.faults import SWITCHING
from millstream.run.planning import plan_flow
from millstream.run.replacing import replace_program
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import Driver

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, k string, v bigint"
Build = Callable[[ms.Stream], Any]


def records(seconds: range, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(f"{seed} {seconds.start}")
    return [
        {"ts": BEGIN + timedelta(seconds=s), "k": rng.choice("abc"), "v": rng.randint(0, 9)}
        for s in seconds
    ]


def window(name: str, shape: Any, **aggs: Any) -> Build:
    return lambda rows: (
        rows.key_by("k").window(shape).agg(**aggs).named(name).sink(ms.Memory(), name=f"{name} out")
    )


def counter(name: str) -> Build:
    def count(event: ms.Event, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        slate["path"] = (*slate.get("path", ()), event.value["v"])[-5:]

    return lambda rows: rows.key_by("k").update(count, name=name)


def flow(*parts: Build, name: str = "runs", **source: Any) -> ms.Flow:
    made = ms.Flow(name)
    options = {"time": "ts", "lateness": "5s", **source}
    files = ms.Files("x", schema=SCHEMA, follow=True, **options)
    rows = made.source(files, name="in")
    rows.sink(ms.Memory(), name="raw")
    for part in parts:
        part(rows)
    return made


PARTS: dict[str, Build] = {
    "short": window("short", ms.sliding("20s", "10s"), n=ms.count(), total=ms.sum("v")),
    "long": window("long", ms.sliding("120s", "10s"), n=ms.count(), high=ms.max("v")),
    "tumbling": window("tumbling", ms.tumbling("30s"), mean=ms.mean("v")),
    "hopping": window("hopping", ms.hopping("10s", "30s"), n=ms.count()),
    "odd": window("odd", ms.tumbling("7s"), n=ms.count()),
    "lists": window("lists", ms.tumbling("40s"), all=ms.collect("v"), n=ms.count()),
    "sessions": window("sessions", ms.session("3s"), n=ms.count()),
    "deltas": lambda rows: (
        rows.key_by("k")
        .window(ms.tumbling("20s"), emit="delta")
        .agg(n=ms.count())
        .named("deltas first")
        .key_by("k")
        .window(ms.tumbling("60s"))
        .agg(total=ms.sum("n"))
        .named("deltas")
        .sink(ms.Memory(), name="deltas out")
    ),
    "counter": counter("counter"),
    "other": counter("other"),
}


def shuffled(pieces: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Records out of order by less than the lateness."""
    rng = random.Random(3)
    return [sorted(one, key=lambda r: r["ts"].timestamp() + rng.uniform(0, 4)) for one in pieces]


def seen(driver: Driver, part: str) -> Any:
    if part in ("counter", "other"):
        return driver.slates(part)
    return sorted(driver.output(f"{part} out"), key=repr)


def undisturbed(parts: list[str], pieces: list[list[dict[str, Any]]]) -> dict[str, Any]:
    with Driver(flow(*(PARTS[part] for part in parts))) as driver:
        for piece in pieces:
            driver.push("in", piece).step()
        driver.end()
        return {part: seen(driver, part) for part in parts}


SUBSETS = st.lists(st.sampled_from(list(PARTS)), unique=True, max_size=4)


CHANGES = {
    "kept": st.lists(st.sampled_from(list(PARTS)), unique=True, min_size=1, max_size=3),
    "others": st.lists(st.tuples(SUBSETS, st.booleans(), st.booleans()), min_size=2, max_size=6),
    "parallelism": st.integers(1, 2),
}


@settings(max_examples=3)
@given(**CHANGES)
def test_what_stays_goes_on_as_if_nothing_had_happened(**changes: Any) -> None:
    check_what_stays(**changes)


@pytest.mark.long
@settings(max_examples=300)
@given(**CHANGES)
def test_what_stays_goes_on_as_if_nothing_had_happened_at_length(**changes: Any) -> None:
    check_what_stays(**changes)


def check_what_stays(
    kept: list[str], others: list[tuple[list[str], bool, bool]], parallelism: int
) -> None:
    pieces = shuffled([records(range(at * 37, at * 37 + 37)) for at in range(len(others))])
    want = undisturbed(list(PARTS), pieces)
    with Driver(flow(*(PARTS[part] for part in kept)), parallelism=parallelism) as driver:
        for (more, restart, first), piece in zip(others, pieces, strict=True):
            more = [part for part in more if part not in kept]
            parts = [*more, *kept] if first else [*kept, *more]
            change = driver.replace(flow(*(PARTS[part] for part in parts)))
            assert set(kept) <= {*change.kept, *(p for p in kept if p == "deltas")}
            if restart:
                driver.restart()
            driver.push("in", piece).step()
        driver.end()
        for part in kept:
            assert seen(driver, part) == want[part], part
        for part in ("short", "long", "tumbling", "hopping", "odd", "lists"):
            if part not in kept and any(part in more for more, _, _ in others):
                for row in driver.output(f"{part} out"):  # whole windows, or none
                    assert row in want[part] or None in row.values(), (part, row)
        assert driver.ledger["in"]["offered"] == sum(map(len, pieces))


def test_what_is_added_is_said_and_whole_from_its_first_window_on() -> None:
    pieces = [records(range(100)), records(range(100, 200))]
    with Driver(flow(PARTS["long"])) as driver:
        driver.push("in", pieces[0]).step()
        change = driver.replace(flow(PARTS["long"], PARTS["short"], PARTS["counter"]))
        assert change.added == ("short", "short out", "counter")
        assert change.removed == ()
        assert change.kept == ("in", "raw", "long", "long out")
        assert change.batch == 0
        assert any("counter is new and begins with what comes" in note for note in change.notes)
        driver.push("in", pieces[1]).step()
        driver.end()
        found = driver.output("short out")
        assert sum(slate["n"] for slate in driver.slates("counter").values()) == 100
    every = [row for piece in pieces for row in piece]
    for row in found:
        inside = [
            one["v"]
            for one in every
            if one["k"] == row["k"] and row["window_start"] <= one["ts"] < row["window_end"]
        ]
        assert (row["n"], row["total"]) == (len(inside), sum(inside))
    assert max(row["window_end"] for row in found) == BEGIN + timedelta(seconds=210)


def test_what_is_removed_is_dropped_and_what_comes_again_begins_afresh(tmp_path: Path) -> None:
    def files() -> set[str]:
        return {path.split("/")[0] for path in driver.engine.manifest.files}

    with Driver(flow(PARTS["short"], PARTS["counter"]), checkpoint=tmp_path) as driver:
        driver.push("in", records(range(50))).step()
        assert any("counter" in name for name in files())
        change = driver.replace(flow(PARTS["short"]))
        assert change.removed == ("counter",)
        assert "counter is removed, and what was stored for it is dropped" in change.notes
        assert driver.step() and not driver.step()  # a manifest says so, although nothing came
        assert not any("counter" in name for name in files())
        driver.replace(flow(PARTS["short"], PARTS["counter"]))
        assert driver.slates("counter") == {}
        driver.push("in", records(range(50, 60))).end()
        assert sum(slate["n"] for slate in driver.slates("counter").values()) == 10


def test_removed_and_added_again_between_two_batches_begins_afresh_also_after_a_crash() -> None:
    with Driver(flow(PARTS["short"], PARTS["counter"], PARTS["long"])) as driver:
        driver.push("in", records(range(50))).step()
        driver.replace(flow(PARTS["short"]))
        driver.replace(flow(PARTS["short"], PARTS["counter"]))
        driver.restart()
        assert driver.slates("counter") == {}
        driver.push("in", records(range(50, 60))).end()
        assert sum(slate["n"] for slate in driver.slates("counter").values()) == 10


def test_sinks_come_and_go() -> None:
    def of(*names: str) -> ms.Flow:
        made = ms.Flow("sinks")
        files = ms.Files("x", schema=SCHEMA, follow=True, time="ts", lateness="0s")
        rows = made.source(files, name="in")
        for name in names:
            rows.where("v >= 0").sink(ms.Memory(), name=name)
        return made

    with Driver(of("one", "two")) as driver:
        driver.push("in", records(range(10))).step()
        change = driver.replace(of("two", "three"))
        assert (change.added, change.removed, change.kept) == (("three",), ("one",), ("in", "two"))
        driver.push("in", records(range(10, 15))).step()
        assert [len(driver.output(name)) for name in ("one", "two", "three")] == [10, 15, 5]


def test_a_column_that_was_not_read_before_can_be_used() -> None:
    def of(column: str) -> ms.Flow:
        made = ms.Flow("columns")
        files = ms.Files("x", schema=SCHEMA, follow=True, time="ts", lateness="0s")
        rows = made.source(files, name="in")
        counted = rows.key_by(column).window(ms.tumbling("10s")).agg(n=ms.count())
        counted.named(f"by {column}").sink(ms.Memory(), name=column)
        return made

    with Driver(of("k")) as driver:
        driver.push("in", records(range(20))).step()
        driver.replace(of("v"))
        driver.push("in", records(range(20, 60))).end()
        assert sum(row["n"] for row in driver.output("v")) == 40


CHANGED: dict[str, tuple[ms.Flow, str]] = {
    "flow": (flow(PARTS["short"], name="other"), "it belongs to flow 'runs', this is 'other'"),
    "lateness": (flow(PARTS["short"], lateness="1m"), "source 'in': lateness was 5s, is 1m"),
    "time": (flow(PARTS["short"], time=None), "source 'in': time was ts, is None"),
    "window": (
        flow(window("short", ms.tumbling("20s"), n=ms.count(), total=ms.sum("v"))),
        r"operator 'short': window was sliding\(20s, 10s\), is tumbling\(20s\)",
    ),
    "aggregate": (
        flow(window("short", ms.sliding("20s", "10s"), n=ms.count(), total=ms.max("v"))),
        r"operator 'short': aggregates was .*total=sum\(v\), is .*total=max\(v\)",
    ),
    "kind": (flow(counter("short")), "operator 'short': kind was agg, is update"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_is_not_possible_is_said_and_the_flow_goes_on(change: str) -> None:
    pieces = [records(range(50)), records(range(50, 100))]
    changed, says = CHANGED[change]
    with Driver(flow(PARTS["short"])) as driver:
        driver.push("in", pieces[0]).step()
        before = driver.engine.checkpoint.read_program()
        for dry_run in (True, False):
            with pytest.raises(CheckpointError, match=says) as caught:
                driver.replace(changed, dry_run=dry_run)
            assert "Nothing was changed, and the flow goes on" in str(caught.value)
        assert driver.engine.checkpoint.read_program() == before
        driver.push("in", pieces[1]).end()
        assert seen(driver, "short") == undisturbed(["short"], pieces)["short"]


def over(made: ms.Flow, second: Any) -> ms.Flow:
    files = ms.Files("x", schema=SCHEMA, follow=True, time="ts", lateness="0s")
    log = made.source(files, name="log")
    for name, stream in (("one", log), ("two", second(log))):
        counted = stream.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count())
        counted.named(name).sink(ms.Memory(), name=f"{name} out")
    return made


def test_a_window_that_reads_another_step_is_told_so() -> None:
    with Driver(over(ms.Flow("moved"), lambda log: log)) as driver:
        moved = over(ms.Flow("moved"), lambda log: log.where("v > 1").named("some"))
        with pytest.raises(CheckpointError) as caught:
            driver.replace(moved)
        assert "operator 'two': its input was 'log', is 'some'" in str(caught.value)
        assert "family" not in str(caught.value)


def test_everything_that_is_not_possible_is_said_at_once() -> None:
    with Driver(flow(PARTS["short"], PARTS["counter"])) as driver:
        wrong = flow(window("short", ms.tumbling("20s"), n=ms.sum("v")), PARTS["long"])
        with pytest.raises(CheckpointError) as caught:
            driver.replace(wrong)
        assert "window was" in str(caught.value) and "aggregates was" in str(caught.value)


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    pieces = [records(range(50)), records(range(50, 100))]
    with Driver(flow(PARTS["short"])) as driver:
        driver.push("in", pieces[0]).step()
        before = driver.engine.checkpoint.read_program()
        said = driver.replace(flow(PARTS["long"]), dry_run=True)
        assert driver.engine.checkpoint.read_program() == before
        assert said == driver.replace(flow(PARTS["long"]))


SHAPES = {
    "sessions": ms.session("3s"),
    "landmark": ms.landmark("10s"),
    "rows": ms.count_window(5),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_aggregate_is_not_added_where_open_windows_could_not_tell(shape: str) -> None:
    one = window("w", SHAPES[shape], n=ms.count())
    two = window("w", SHAPES[shape], n=ms.count(), high=ms.max("v"))
    with Driver(flow(one)) as driver:
        driver.push("in", records(range(50))).step()
        with pytest.raises(CheckpointError, match=r"'w': high cannot be added to it: .* another"):
            driver.replace(flow(two))


def test_values_are_not_added_to_panes() -> None:
    one = window("w", ms.tumbling("40s"), n=ms.count())
    two = window("w", ms.tumbling("40s"), n=ms.count(), all=ms.collect("v"))
    with Driver(flow(one)) as driver:
        driver.push("in", records(range(50))).step()
        with pytest.raises(CheckpointError, match="'w': all cannot be added to it: values and"):
            driver.replace(flow(two))
        driver.replace(flow(one, window("w2", ms.tumbling("40s"), all=ms.collect("v"))))
        driver.push("in", records(range(50, 130))).end()
        assert {len(r["all"]) for r in driver.output("w2 out")} - {0}


def test_an_aggregate_comes_and_goes() -> None:
    shape = ms.sliding("80s", "10s")
    one = window("w", shape, n=ms.count(), low=ms.min("v"))
    two = window("w", shape, n=ms.count())
    with Driver(flow(one)) as driver:
        driver.push("in", records(range(100))).step()
        assert "w: low is no longer computed" in driver.replace(flow(two)).notes
        driver.push("in", records(range(100, 150))).step()
        assert any("low is null for windows" in note for note in driver.replace(flow(one)).notes)
        driver.push("in", records(range(150, 300))).end()
        rows = driver.output("w out")
    every = [r for span in (range(100), range(100, 150), range(150, 300)) for r in records(span)]
    for row in rows:
        inside = [
            r["v"]
            for r in every
            if r["k"] == row["k"] and row["window_start"] <= r["ts"] < row["window_end"]
        ]
        assert row["n"] == len(inside)
        assert row.get("low") in (None, min(inside))
    assert rows[-1]["low"] is not None


def test_families_of_panes_stay_apart_when_others_are_gone() -> None:
    fine = window("fine", ms.tumbling("1s"), n=ms.count())
    day = window("day", ms.tumbling("1d"), n=ms.count())  # too long for panes of a second
    again = window("again", ms.tumbling("1s"), n=ms.count())
    with Driver(flow(fine, day)) as driver:
        driver.push("in", records(range(10))).step()
        driver.replace(flow(day))
        driver.push("in", records(range(10, 20))).step()
        driver.replace(flow(day, again))
        driver.push("in", records(range(20, 30))).end()
        assert sum(row["n"] for row in driver.output("day out")) == 30
        assert sum(row["n"] for row in driver.output("again out")) == 10


def test_a_step_in_between_takes_the_panes_along() -> None:
    def filtered(name: str) -> Build:
        return lambda rows: window(name, ms.tumbling("10s"), n=ms.count())(rows.where("v >= 0"))

    with Driver(flow(window("a", ms.tumbling("10s"), n=ms.count()))) as driver:
        driver.push("in", records(range(5))).step()
        driver.replace(flow(filtered("a"), window("b", ms.tumbling("10s"), n=ms.count())))
        driver.push("in", records(range(5, 30))).end()
        assert sum(row["n"] for row in driver.output("a out")) == 30
        assert sum(row["n"] for row in driver.output("b out")) == 20


@pytest.mark.parametrize("point", SWITCHING)
@pytest.mark.parametrize("started", ["old", "new"])
def test_a_crash_finds_one_program_or_the_other(
    point: str, started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is started then, what both have goes on, and what one has is whole or afresh."""

    def crash(here: str, batch: int) -> None:
        if here == point:
            raise KeyboardInterrupt

    pieces = [records(range(50)), records(range(50, 100)), records(range(100, 150))]
    both, old, new = PARTS["long"], PARTS["counter"], PARTS["tumbling"]
    flows = {"old": flow(both, old), "new": flow(both, new)}
    with Driver(flows["old"], checkpoint=tmp_path) as driver:
        driver.push("in", pieces[0]).step()
        driver.push("in", pieces[1]).step()
        monkeypatch.setattr(faults, "crash_point", crash)
        with pytest.raises(KeyboardInterrupt):
            driver.replace(flows["new"])
        out = driver.output("long out")
    monkeypatch.undo()
    switched = point == "after-switch"
    remove = {("new", False): ("counter",), ("old", True): ("tumbling",)}
    gone = remove.get((started, switched), ())
    if gone:
        with pytest.raises(CheckpointError, match=f"operator '{gone[0]}' is gone"):
            Driver(flows[started], checkpoint=tmp_path)
    with Driver(flows[started], checkpoint=tmp_path, remove=gone) as driver:
        driver.push("in", pieces[2]).end()
        out = sorted([*out, *driver.output("long out")], key=repr)
        want = undisturbed(["long", "counter", "tumbling"], pieces)
        assert out == want["long"]
        if started == "old":
            slates = driver.slates("counter")
            assert sum(slate["n"] for slate in slates.values()) == (50 if switched else 150)
        else:
            found = driver.output("tumbling out")
            assert found and all(row in want["tumbling"] for row in found)


def test_an_updater_does_not_join_a_cycle() -> None:
    def hop(event: ms.Event, slate: Any, ctx: Any) -> None:
        if event.value["v"] > 0:
            ctx.publish("again", event.key, {"v": event.value["v"] - 1})

    def of(*names: str) -> ms.Flow:
        made = ms.Flow("cycle")
        files = ms.Files("x", schema=SCHEMA, follow=True, time="ts", lateness="0s")
        rows = made.source(files, name="in")
        again = made.stream("again")
        for name in names:
            rows.key_by("k").union(again.key_by("key")).update(
                lambda event, slate, ctx: hop(event, slate, ctx), name=name, publishes=["again"]
            )
        return made

    with (
        Driver(of("one")) as driver,
        pytest.raises(CheckpointError, match="'one': its cycle was one, is one, two, and"),
    ):
        driver.replace(of("one", "two"))


class Running:
    """A flow with real sinks on its engine, without Spark."""

    def __init__(self, made: ms.Flow, checkpoint: Path) -> None:
        plan = plan_flow(made, checkpoint)
        place = Checkpoint(checkpoint)
        place.lock()
        self.engine = engine.Engine(plan, place, Settings())
        self.engine.open(1)
        self.executor = InProcess(plan)

    def replace(self, made: ms.Flow) -> None:
        def prepare(plan: Plan) -> None:
            ready.append(InProcess(plan))

        ready: list[InProcess] = []
        replace_program(self.engine, made.name, made.nodes, prepare, dry_run=False)
        (self.executor,) = ready


def test_output_directories_are_taken_and_let_go(tmp_path: Path) -> None:
    def of(name: str, *sinks: str) -> ms.Flow:
        made = ms.Flow(name)
        rows = made.source(ms.Files(tmp_path / "in", "text", follow=True), name="in")
        for sink in sinks:
            rows.sink(ms.Jsonl(tmp_path / sink), name=sink)
        return made

    def more(text: str) -> None:
        (tmp_path / "in" / f"{text}.txt").write_text(f"{text}\n")
        while text not in found("a"):  # a directory may be looked at too soon to see a new file
            running.engine.step(running.executor)

    def found(sink: str) -> str:
        parts = sorted((tmp_path / sink).glob("part-*"))
        return "".join(
            row["value"] for p in parts for row in map(json.loads, p.read_text().splitlines())
        )

    (tmp_path / "in").mkdir()
    other = Running(of("theirs", "other"), tmp_path / "other ck")
    running = Running(of("ours", "a"), tmp_path / "ck")
    try:
        more("1")
        running.replace(of("ours", "a", "b"))
        more("2")
        with pytest.raises(ms.ConfigError, match="is being written by flow theirs"):
            running.replace(of("ours", "a", "other"))
        more("3")
        running.replace(of("ours", "a"))
        more("4")
        running.replace(of("ours", "a", "b"))
        more("5")
    finally:
        running.engine.close()
        other.engine.close()
    assert (found("a"), found("b"), found("other")) == ("12345", "235", "")


def test_a_directory_is_let_go_if_the_new_program_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(*sinks: str) -> ms.Flow:
        made = ms.Flow("ours")
        rows = made.source(ms.Files(tmp_path / "in", "text", follow=True), name="in")
        for sink in sinks:
            rows.sink(ms.Jsonl(tmp_path / sink), name=sink)
        return made

    def fails(program: dict[str, Any]) -> None:
        raise PermissionError("no")

    (tmp_path / "in").mkdir()
    running = Running(of("a"), tmp_path / "ck")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(running.engine.checkpoint, "write_program", fails)
            with pytest.raises(PermissionError):
                running.replace(of("a", "b"))
        running.replace(of("a", "b"))
    finally:
        running.engine.close()

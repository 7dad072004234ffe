"""Counts, notes and figures that a person looks at after a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.serving import _ADDRESS
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.reporting import Reporter
from millstream.serve.following import Follower
from millstream.serve.server import parse_address
from millstream.serve.status import Served
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import Driver, run_in_process


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("ts,x\n2026-01-01T00:00:10Z,1\n2026-01-01T00:05:00Z,2\n")


def status() -> dict[str, Any]:
    return Served(Follower("ck")).status()


def windows(sink: str) -> ms.Flow:
    flow = ms.Flow("figures")
    source = flow.source(ms.Files("in.csv", time="ts", lateness="0s"), name="in")
    counts = source.key_by().window(ms.tumbling("1m")).agg(n=ms.count())
    counts.sink(ms.Memory(), name=sink)
    return flow


def test_a_run_that_waits_before_its_start_is_over_can_be_looked_at(tmp_path: Path) -> None:
    """As one whose sink is away: whoever has the page open is shown that it waits."""
    engine = Engine(plan_flow(windows("out")), Checkpoint(tmp_path / "ck"), Settings())
    reporter = Reporter(engine)
    engine.patience.pause("the server is away")
    live = reporter.live(reporter.progress(), None)
    assert live.paused == "the server is away" and live.pending == {}


def test_results_of_a_flow_without_keys_are_the_rows_of_its_sinks() -> None:
    flow = ms.Flow("plain")
    flow.source(ms.Files("in.csv", time="ts")).where("x > 1").sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("files", [{"ts": 1, "x": 1}, {"ts": 2, "x": 2}]).end()
        assert driver.engine.manifest.windows == 1


def test_a_union_of_unlike_streams_says_so() -> None:
    flow = ms.Flow("union")
    left = flow.source(ms.Generator(tuple, schema="x bigint"), name="left")
    right = flow.source(ms.Generator(tuple, schema="x bigint, y string"), name="right")
    left.union(right).sink(ms.Memory())
    with Driver(flow) as driver:
        assert driver.engine.notes == ["union: 'left' has no column 'y'; null stands there"]


def test_the_watermark_is_known_right_after_a_restart() -> None:
    flow = ms.Flow("restart")
    source = flow.source(ms.Generator(tuple, time="ts", schema="ts bigint"), name="in")
    source.key_by().window(ms.tumbling("1m")).agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow, now=1_000.0) as driver:
        driver.push("in", [{"ts": 130}]).step()
        before = driver.watermarks
        assert before == {"agg": 130_000_000}
        assert driver.restart().watermarks == before


def test_a_stopped_flow_has_its_sources_and_the_steps_it_has_now() -> None:
    run_in_process(windows("old"), "ck")
    assert [one["name"] for one in status()["sources"]] == ["in"]
    assert status()["sources"][0]["rows"] == 2
    assert "old" in status()["ledger"]
    run_in_process(windows("new"), "ck")
    assert "old" not in status()["ledger"] and "agg" in status()["ledger"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0.0.0.0", ("0.0.0.0", 8321)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("localhost", ("localhost", 8321)),
        ("[::1]", ("::1", 8321)),
        ("9000", ("127.0.0.1", 9000)),
    ],
)
def test_an_address_may_stand_without_a_port(given: str, found: tuple[str, int]) -> None:
    assert _ADDRESS.fullmatch(given) and parse_address(given) == found

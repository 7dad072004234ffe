"""What a run tells: warnings with reasons and examples, through logging, silent when asked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.console import follow, warnings_of
from millstream.run.reporting import Progress, Reporter
from millstream.state.storage import open_storage
from millstream.testing import Driver, run_in_process


class Ended:
    """A run that is over."""

    error = None

    def __init__(self, progress: Progress, *warnings: str) -> None:
        self.progress, self.warnings = progress, warnings

    def ended_within(self, seconds: float) -> bool:
        return True

    def wait(self) -> Progress:
        return self.progress


def test_dead_letters_are_told_with_the_most_frequent_reason_and_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("x\n" + "1\n" * 20 + "one\n" + "two\x07\ntwo\n")
    flow = ms.Flow("dead")
    flow.source(ms.Files("in.csv", schema="x int"), name="in").sink(ms.Memory())
    ledger = run_in_process(flow, "ck", dead_letter_limit=1.0)
    progress = Progress(rows=23, dead=3, ledger=ledger)
    (told,) = warnings_of(progress, ["in"], open_storage("ck/dead"))
    assert told.startswith("3 dead letters (with reasons, they are in ")
    assert "in 'in': column 'x': 'one' is not a" in told and told.endswith("for example one")
    (gone,) = warnings_of(progress, ["in"], open_storage("ck/dead"), kept=False)
    assert "would be kept if checkpoint= named a place" in gone


def test_python_gets_warnings_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    done = Progress(batch=0, rows=5, new_batches=1, new_rows=5, done=True)
    ended: Any = Ended(done, "3 records came too late")
    with caplog.at_level(logging.INFO, "millstream"):
        assert follow(ended, "f", quiet=False) is done
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "f: 3 records came too late"),
        ("INFO", "f: 1 batch, 5 records, 0 results in 0.0 s"),
    ]
    caplog.clear()
    follow(ended, "f", quiet=True)
    assert caplog.records == []


def test_a_run_that_found_nothing_new_says_so(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = Ended(Progress(batch=3, rows=5, done=True, notes=("a note",)))
    follow(nothing, "f", quiet=False)
    assert [one.getMessage() for one in caplog.records] == [
        "a note",
        "f: nothing new; 4 batches, 5 records, 0 results in earlier runs. Everything there is was "
        "read before; checkpoint=None begins anew",
    ]


def test_a_source_that_falls_idle_is_told_once() -> None:
    flow = ms.Flow("idle")
    source = ms.Generator(tuple, time="ts", schema="ts bigint", idle_timeout="10s")
    flow.source(source, name="in").key_by().window(ms.tumbling("1m")).agg(n=ms.count()).sink(
        ms.Memory()
    )
    with Driver(flow, now=1_000.0) as driver:
        driver.push("in", [{"ts": 1}]).step()
        for _ in range(3):
            driver.advance("20s").step()
        (note,) = driver.engine.notes
    assert note.startswith("source 'in' has been idle for 10s (idle_timeout): windows do not wait")


def test_the_watermark_that_is_told_does_not_go_back_for_a_window_that_is_added() -> None:
    def counting(*sizes: str) -> ms.Flow:
        flow = ms.Flow("counting")
        timing: dict[str, Any] = {"time": "ts", "participant": "who", "lateness": "0s"}
        source = ms.Generator(tuple, schema="ts bigint, who string", idle_timeout="10s", **timing)
        stream = flow.source(source, name="in").key_by()
        for size in sizes:
            stream.window(ms.tumbling(size)).agg(n=ms.count()).sink(ms.Memory())
        return flow

    with Driver(counting("10s"), now=1_000.0) as driver:
        reporter = Reporter(driver.engine)
        driver.push("in", [{"ts": 1, "who": "a"}, {"ts": 2, "who": "b"}]).step()
        driver.advance("20s").push("in", [{"ts": 100, "who": "a"}]).step()
        driver.push("in", [{"ts": 50, "who": "b"}]).step()  # it was idle, and holds others now
        assert reporter.progress().watermark == 100_000_000
        driver.replace(counting("10s", "20s"))
        driver.push("in", [{"ts": 51, "who": "b"}]).step()
        assert min(driver.watermarks.values()) == 51_000_000
        assert reporter.progress().watermark == 100_000_000

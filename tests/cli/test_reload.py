"""`millstream reload`: a run loads its file again, and says what changes or why nothing does."""

from __future__ import annotations

import importlib
import json
import os
import py_compile
import signal
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.modules import imported_again
from millstream.cli.reloading import ask_to_reload
from millstream.testing import Driver
from tests.prepared import Started, start

APP = """
import millstream as ms
import beside

flow = ms.Flow("live")
files = ms.Files("in", "json", schema="ts bigint, k string", time="ts", lateness="0s", follow=True)
rows = flow.source(files, name="in")
rows.map(lambda row: {{**row, "v": beside.factor()}}).select("v").sink(ms.Jsonl("raw"), name="raw")
keyed = rows.key_by("k")
{windows}
"""
WINDOW = """
counted = keyed.window(ms.tumbling("{size}")).agg(n=ms.count()).named("{name}")
counted.sink(ms.Jsonl("{name}"))
"""
KEPT = WINDOW.format(size="10s", name="kept")
MORE = WINDOW.format(size="20s", name="more")


class Live:
    """A run of the app above, in a directory of its own."""

    def __init__(self, here: Any) -> None:
        self.here, self.path = here, here.path
        (self.path / "in").mkdir()
        self.process: Started | None = None

    def app(self, windows: str, factor: int) -> None:
        self.here.file("app.py", APP.format(windows=windows))
        self.here.file("beside.py", f"def factor():\n    return {factor}\n")

    def write(self, seconds: range) -> None:
        lines = [json.dumps({"ts": s, "k": "ab"[s % 2]}) for s in seconds]
        with open(self.path / "in" / "log.jsonl", "a") as out:  # one log that grows
            out.write("\n".join(lines) + "\n")

    def start(self, **env: str) -> None:
        if self.process is not None:
            self.process.wait()
        with open(self.path / "log", "a") as log:
            command = ("millstream", "run", "app.py", "--master", "local[1]")
            surroundings = {**os.environ, **env}
            self.process = start(*command, cwd=self.path, env=surroundings, stdout=log, stderr=log)

    def until(self, raw: int) -> None:
        """Wait until so many records were published."""
        while len(self.rows("raw")) < raw:
            assert self.process is not None and self.process.poll() is None, self.log()
            time.sleep(0.1)

    def rows(self, sink: str) -> list[dict[str, Any]]:
        files = sorted((self.path / sink).glob("part-*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def counts(self, sink: str) -> Counter[tuple[str, int, int]]:
        return Counter((r["k"], seconds(r["window_start"]), r["n"]) for r in self.rows(sink))

    def log(self) -> str:
        return str((self.path / "log").read_text())

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def counted(size: int, of: range) -> Counter[tuple[str, int, int]]:
    every = Counter(("ab"[s % 2], s // size * size) for s in of)
    return Counter((*name, n) for name, n in every.items())


@pytest.fixture
def live(here: Any) -> Any:
    made = Live(here)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_an_edit_of_the_same_second_and_length_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module = tmp_path / "edited_at_once.py"
    for factor in (1, 2, 3):
        module.write_text(f"factor = {factor}\n")
        os.utime(module, (10**9, 10**9))
        with imported_again(tmp_path, keep=True):
            assert importlib.import_module(module.stem).factor == factor
        assert sys.modules[module.stem].factor == factor
        if factor == 1:
            py_compile.compile(str(module))  # as the first import of a run leaves it
    del sys.modules[module.stem]


@pytest.mark.spark
def test_a_run_is_reloaded_and_goes_on_whatever_is_refused(live: Live) -> None:
    live.app(KEPT, 1)
    assert live.here.run("reload", "app.py").code == 2  # nothing runs
    live.write(range(45))
    live.start()
    live.until(45)
    live.app(KEPT + MORE, 2)
    dry = live.here.run("reload", "app.py", "--dry-run")
    assert dry.code == 0 and "added    more, " in dry.out, dry.err
    assert "nothing was changed: this was a dry run" in dry.out
    live.write(range(45, 50))
    live.until(50)
    done = live.here.run("reload", "app.py")
    assert done.code == 0, done.err
    assert "added    more, " in done.out and "kept     in, raw, kept, " in done.out
    assert "note     more is new (filled from stored panes)" in done.out
    live.write(range(50, 90))
    live.until(90)
    for windows, says in (
        (KEPT.replace("10s", "30s"), "operator 'kept': window was tumbling(10s)"),
        (KEPT + "keyed.window(5)", "expected a window"),
        ("1/0", ": ZeroDivisionError: division by zero. Nothing was changed, and the flow goes on"),
    ):
        live.app(windows, 3)
        refused = live.here.run("reload", "app.py")
        assert refused.code == 2 and says in refused.err, refused.err
    live.here.file("other.py", APP.format(windows=KEPT))
    assert "was started from" in live.here.run("reload", "other.py").err
    live.app(KEPT, 4)
    assert "removed  more, " in live.here.run("reload", "app.py").out
    live.write(range(90, 130))
    live.until(130)
    assert live.stop() == 0, live.log()
    assert [row["v"] for row in live.rows("raw")] == [1] * 50 + [2] * 40 + [4] * 40
    assert live.counts("kept") == counted(10, range(120))
    assert live.counts("more") == counted(20, range(40, 80))
    assert not (live.path / ".millstream" / "live" / "reload").exists()
    assert "no flow is running" in live.here.run("reload", "app.py").err


@pytest.mark.spark
@pytest.mark.parametrize(
    "point", [pytest.param(at, marks=pytest.mark.long) for at in ("before-switch", "after-switch")]
)
def test_killed_while_it_is_reloaded_it_is_one_program_or_the_other(live: Live, point: str) -> None:
    live.app(KEPT, 1)
    live.write(range(45))
    live.start(MILLSTREAM_CRASH_AT=f"{point}:0")
    live.until(45)
    live.app(KEPT + MORE, 2)
    killed = live.here.run("reload", "app.py")
    assert killed.code == 1 and "ended before it answered" in killed.err
    live.write(range(45, 90))
    live.start()
    live.until(90)
    assert live.stop() == 0, live.log()
    assert live.counts("kept") == counted(10, range(80))
    assert live.counts("more") == counted(20, range(40, 80))


def test_a_flow_that_python_started_has_no_file_to_load(tmp_path: Path) -> None:
    made = ms.Flow("driven")
    made.source(ms.Files("x", schema="ts bigint", time="ts", follow=True)).sink(ms.Memory())
    with (
        Driver(made, checkpoint=tmp_path / "ck"),
        pytest.raises(ms.ConfigError, match=r"was not started with `millstream run`"),
    ):
        ask_to_reload(tmp_path / "ck", tmp_path / "app.py", dry_run=False)


QUERY = """
import millstream as ms

def query(flow):
    twice = flow.step("in").map(lambda row: [row, row]).key_by("k").window(ms.tumbling("10s"))
    twice.agg(n=ms.count()).sink(ms.Jsonl("twice"))
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_query_is_added_to_a_run_on_spark_and_survives_a_kill(live: Live) -> None:
    live.app(KEPT, 1)
    live.here.file("twice.py", QUERY)
    live.write(range(40))
    live.start()
    live.until(40)
    added = live.here.run("flow", "add", "app.py", "twice.py")
    assert added.code == 0 and "added    twice agg, twice" in added.out, added.err
    live.write(range(40, 70))
    live.until(70)
    assert live.process is not None
    live.process.kill()
    live.start()
    live.write(range(70, 110))
    live.until(110)
    removed = live.here.run("flow", "remove", "app.py", "twice")
    assert removed.code == 0 and "removed  twice agg, twice" in removed.out, removed.err
    assert live.stop() == 0, live.log()
    assert live.counts("kept") == counted(10, range(100))
    both = {(k, start, 2 * n): 1 for k, start, n in counted(10, range(40, 100))}
    assert live.counts("twice") == both

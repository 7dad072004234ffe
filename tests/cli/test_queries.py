"""`millstream flow add|remove`: queries come and go while a flow runs, each by itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import millstream as ms
from millstream.cli.commands import app
from millstream.cli.loading import load_application, load_trusted
from millstream.cli.reloading import Listening
from millstream.testing import Driver

APP = """
import millstream as ms

flow = ms.Flow("live")
files = ms.Files("in", "json", schema="ts bigint, k string, v bigint", time="ts", lateness="0s",
                 follow=True)
rows = flow.source(files, name="in")
rows.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="first")
"""
LARGE = """
import millstream as ms

def query(flow):
    large = flow.step("in").where("v > 5").key_by("k").window(ms.tumbling("10s"))
    large.agg(n=ms.count()).sink(ms.Memory(), name="large")
"""
TOTALS = """
CREATE STREAMED VIEW total AS
SELECT k, window_end, SUM(v) AS t
FROM TABLE(TUMBLE(TABLE `in`, DESCRIPTOR(ts), INTERVAL '10' SECONDS))
GROUP BY k, window_end;
CREATE SINK totals FROM total WITH (sink = 'jsonl', path = 'totals')
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    Path("large.py").write_text(LARGE)
    Path("totals.sql").write_text(TOTALS)
    return tmp_path


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["flow", *words])


@contextlib.contextmanager
def running() -> Iterator[Driver]:
    """The flow in the hands of the test, and somebody who answers requests to load it again."""
    place, over = Path(".millstream/live"), threading.Event()
    file = Path("app.py")
    with Driver(load_application(file).flow, checkpoint=place) as driver:
        handle: Any = driver
        with Listening(handle, place, file, lambda: load_trusted(file, None, False)) as listening:

            def answer() -> None:
                while not over.wait(0.01):
                    listening.look()

            thread = threading.Thread(target=answer)
            thread.start()
            try:
                yield driver
            finally:
                over.set()
                thread.join()


def push(driver: Driver, *seconds: int) -> None:
    driver.push("in", [{"ts": s, "k": "ab"[s % 2], "v": s % 10} for s in seconds]).step()


def told(driver: Driver, sink: str) -> list[tuple[Any, ...]]:
    return sorted((row["k"], row["n"]) for row in driver.output(sink))


def test_a_query_comes_and_goes_while_the_flow_runs(here: Path) -> None:
    with running() as driver:
        push(driver, *range(25))
        added = command("add", "app.py", "large.py")
        assert added.exit_code == 0, added.output
        assert "added    large agg, large" in added.output and "kept     in" in added.output
        assert Path("live.queries/large.py").read_text() == LARGE
        again = command("add", "app.py", "large.py")
        assert isinstance(again.exception, ms.ConfigError) and "already" in str(again.exception)
        push(driver, *range(25, 55))
        assert told(driver, "first") == [(k, 5) for k in "ab" for _ in range(5)]
        assert told(driver, "large") == [("a", 2)] * 2 + [("b", 2)] * 2  # [30, 50): all of it
        assert "large  large agg, large" in command("list", "app.py").output
        gone = command("remove", "app.py", "large")
        assert gone.exit_code == 0 and "removed  large agg, large" in gone.output
        assert not Path("live.queries").exists()
        push(driver, *range(55, 75))
        assert told(driver, "first") == [(k, 5) for k in "ab" for _ in range(7)]
        assert len(driver.output("large")) == 4
    with running() as driver:  # the checkpoint has the program without it
        push(driver, *range(75, 95))


def test_what_was_added_is_there_at_the_next_start_under_the_same_names(here: Path) -> None:
    with running() as driver:
        for query in ("large.py", "totals.sql"):
            assert command("add", "app.py", query).exit_code == 0
        push(driver, *range(25))
        assert len(driver.output("totals")) == 4
    steps = {
        one.name: [n.name for n in one.nodes] for one in load_application(here / "app.py").queries
    }
    with running() as driver:
        assert command("remove", "app.py", "large").exit_code == 0
        push(driver, *range(25, 45))
        assert len(driver.output("totals")) == 4  # of this start
    (rest,) = load_application(here / "app.py").queries
    assert [n.name for n in rest.nodes] == steps["totals"]


WRONG = (
    ("x = 1", "has no function `query`"),
    ("def query(flow): flow.step('nothing')", "no such stream; it has: in, agg"),
    ("def query(flow): 1 / 0", "ZeroDivisionError"),
    ("def query(flow): flow.remove(flow.nodes[1:])", "changes steps that were there"),
    ("def query(flow): flow.step('in').named('agg')", "changes steps|already used"),
    (LARGE.replace('name="large"', 'name="first"'), "already has a step named 'first'"),
    (
        "import millstream as ms\ndef query(flow): flow.source(ms.Rate(1)).sink(ms.Memory())",
        "source 'wrong rate' is new",
    ),
)


def test_what_cannot_be_added_changes_nothing(here: Path) -> None:
    with running() as driver:
        for text, said in WRONG:
            Path("wrong.py").write_text(text)
            refused = command("add", "app.py", "wrong.py")
            assert isinstance(refused.exception, ms.MillstreamError), refused.output
            with pytest.raises(ms.MillstreamError, match=said):
                raise refused.exception
            assert not Path("live.queries").exists()
        dry = command("add", "app.py", "large.py", "--dry-run")
        assert "added    large agg" in dry.output and not Path("live.queries").exists()
        push(driver, *range(25))
        assert len(driver.output("first")) == 4


def test_without_a_run_it_is_refused_unless_later_is_meant(here: Path) -> None:
    with pytest.raises(ms.ConfigError, match="no checkpoint"):
        raise command("add", "app.py", "large.py").exception  # type: ignore[misc]
    assert not Path("live.queries").exists()
    assert "no run was asked" in command("add", "app.py", "large.py", "--later").output
    assert [one.name for one in load_application(here / "app.py").queries] == ["large"]
    with pytest.raises(ms.ConfigError, match=r"no query 'small'; it has: large"):
        raise command("remove", "app.py", "small").exception  # type: ignore[misc]
    assert command("remove", "app.py", "large", "--later").exit_code == 0
    assert "no queries were added" in command("list", "app.py").output


def test_a_query_of_sql_takes_no_secrets_that_are_not_for_it(here: Path) -> None:
    Path("live.queries").mkdir()
    given = "sink = 'redis', key = 'k', password_env = 'HOME'"
    wrong = f"CREATE SINK r WITH ({given}) AS SELECT k FROM `in`"
    Path("live.queries/wrong.sql").write_text(wrong)
    with pytest.raises(ms.ConfigError, match=r"wrong\.sql.*HOME"):
        load_trusted(here / "app.py", None, False)

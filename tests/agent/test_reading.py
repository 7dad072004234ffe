"""What agents read besides files: sockets and standard input, and functions that hang."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.agent import agent as agents
from tests.agent.centre import Centre, agent_of, free_port

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
LINES = {"format": "json", "schema": "ts timestamp, k string", "time": "ts", "lateness": "1s"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


def flow_of(place: Path, port: int, reads: Any, names: tuple[str, ...] = ("a", "b")) -> ms.Flow:
    flow = ms.Flow("reading")
    source = ms.Collector(f"127.0.0.1:{port}", reads, agents=list(names), boundary="20ms")
    counted = flow.source(source, name="in").key_by("k").window(ms.tumbling("10s"))
    counted.agg(n=ms.count()).sink(ms.Jsonl(place / "out"))
    return flow


def lines_of(*seconds: float) -> str:
    times = (str(NOON + timedelta(seconds=s)) for s in seconds)
    return "".join(json.dumps({"ts": at, "k": "x"}) + "\n" for at in times)


def rows(place: Path) -> list[int]:
    files = sorted((place / "out").glob("*.jsonl"))
    return [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]


@contextmanager
def serving(text: str) -> Iterator[int]:
    """A server that gives some lines to whoever comes first, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def give() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(text.encode())

        thread = threading.Thread(target=give, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(10)


def test_agents_read_sockets_to_their_end(tmp_path: Path) -> None:
    port = free_port()
    with serving(lines_of(1, 2, 15)) as one, serving(lines_of(3, 12) + '{"ts": 1}\n') as other:
        ports = {"a": one, "b": other}

        def flow(name: str) -> ms.Flow:
            return flow_of(tmp_path, port, ms.Socket("127.0.0.1", ports[name], **LINES))

        with Centre(flow("a"), tmp_path / "collector") as centre:
            both = [agent_of(flow(n), port, n, tmp_path / "agents") for n in "ab"]
            until = time.monotonic() + 100
            while not (centre.engine.done and all(one.done for one in both)):
                assert time.monotonic() < until
                for agent in both:
                    agent.step()
                centre.step()
            assert rows(tmp_path) == [3, 2]
            account = centre.ledger["in"]
            assert (account["offered"], account["aggregated"], account["dead"]) == (6, 5, 1)
            for agent in both:
                agent.close()


APP = """
import os, time, millstream as ms
flow = ms.Flow("reading")
here = ms.Stdin(format="json", schema="ts timestamp, k string", time="ts", lateness="1s")
source = ms.Collector(os.environ["AT"], here, agents=["a"], boundary="20ms")
def hang(record):
    if record["k"] == "hang":
        time.sleep(1000)
    return record
lines = flow.source(source, name="in").map(hang, schema="ts timestamp, k string").named("slow")
lines.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Jsonl(os.environ["OUT"]))
"""


def run_agent(place: Path, port: int, given: str, *more: str) -> subprocess.Popen[str]:
    (place / "app.py").write_text(APP)
    command = ["agent", "app.py", "--to", f"127.0.0.1:{port}", "--name", "a", *more]
    started = subprocess.Popen(
        [sys.executable, "-m", "millstream", *command],
        cwd=place,
        env={"AT": f"127.0.0.1:{port}", "OUT": str(place / "out"), "PATH": os.defpath},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdin is not None
    started.stdin.write(given)
    started.stdin.close()
    started.stdin = None  # or communicate() would flush it
    return started


def drive(centre: Centre, agent: subprocess.Popen[str]) -> str:
    """Step the collector until the agent has ended; what it said."""
    until = time.monotonic() + 100
    while agent.poll() is None and time.monotonic() < until:
        centre.step()
        time.sleep(0.01)
    agent.kill()
    return agent.communicate()[1]


def load(place: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> ms.Flow:
    monkeypatch.setenv("AT", f"127.0.0.1:{port}")
    monkeypatch.setenv("OUT", str(place / "out"))
    found: dict[str, Any] = {"__name__": "app"}
    exec(APP, found)
    return found["flow"]  # type: ignore[no-any-return]


def test_an_agent_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with Centre(load(tmp_path, port, monkeypatch), tmp_path / "collector") as centre:
        agent = run_agent(tmp_path, port, lines_of(1, 2, 12))
        assert "all is read and committed" in drive(centre, agent)
        assert agent.returncode == 0 and centre.engine.done
    assert rows(tmp_path) == [2, 1]


def test_a_function_that_hangs_ends_the_agent_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with Centre(load(tmp_path, port, monkeypatch), tmp_path / "collector") as centre:
        given = lines_of(1) + lines_of(2).replace('"x"', '"hang"') + lines_of(12)
        agent = run_agent(tmp_path, port, given, "--function-timeout", "1s")
        said = drive(centre, agent)
        assert agent.returncode != 0
        assert "'slow' hangs: its function had not returned after 1s on record" in said
        assert '"hang"' in said and "--function-timeout" in said and "Traceback" not in said
        monkeypatch.setattr("tests.agent.test_reading.APP", APP.replace("sleep(1000)", "sleep(0)"))
        again = run_agent(tmp_path, port, "")  # it kept what it had received
        assert "all is read and committed" in drive(centre, again)
    assert sorted(rows(tmp_path)) == [1, 1, 1]

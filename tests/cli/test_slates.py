"""`millstream slates` and `millstream serve`, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import duckdb
import httpx
import pytest

from tests.cli.conftest import COMMAND, Here
from tests.serve.writing import Put, Writer

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def flow(here: Here) -> Writer:
    """A checkpoint where `millstream run` would put it."""
    writer = Writer(here.path / ".millstream" / "shops")
    writer.commit(
        *(Put(f"k{i:02d}", {"n": i, "tags": ["x"]}) for i in range(30)),
        Put(42, {"n": 42}),
        Put("naïve \n", {"n": -1}),
    )
    return writer


def test_get(here: Here, flow: Writer) -> None:
    done = here.run("slates", "get", "counts", "k07")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "key": "k07",
        "slate": {"n": 7, "tags": ["x"]},
        "ts": "1970-01-01T00:00:00Z",
        "batch": 0,
    }
    assert json.loads(here.run("slates", "get", "counts", "42").out)["key"] == 42
    assert json.loads(here.run("slates", "get", "counts", "naïve \n").out)["slate"] == {"n": -1}


def test_an_absent_key_and_an_unknown_updater(here: Here, flow: Writer) -> None:
    done = here.run("slates", "get", "counts", "nobody")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: counts has no slate for 'nobody'\n"
    done = here.run("slates", "get", "count", "k07")
    assert done.code == 2
    assert "did you mean 'counts'?" in done.err


def test_list(here: Here, flow: Writer) -> None:
    lines = here.run("slates", "list", "counts").out.splitlines()
    assert [json.loads(line)["key"] for line in lines] == [
        42,
        *(f"k{i:02d}" for i in range(30)),
        "naïve \n",
    ]
    done = here.run("slates", "list", "counts", "--prefix", "k", "--after", "k04", "--limit", "3")
    assert [json.loads(line)["slate"]["n"] for line in done.out.splitlines()] == [5, 6, 7]


def test_which_checkpoint(here: Here, flow: Writer) -> None:
    flow.path.rename(here.path / "elsewhere")
    done = here.run("slates", "get", "counts", "k07")
    assert done.code == 2
    assert "give one with --checkpoint" in done.err
    assert here.run("slates", "get", "counts", "k07", "--checkpoint", "elsewhere").code == 0
    for name in ("one", "two"):
        Writer(here.path / ".millstream" / name)
    done = here.run("slates", "get", "counts", "k07")
    assert done.code == 2
    assert ".millstream/one, .millstream/two; choose one with --checkpoint" in done.err
    done = here.run("slates", "list", "counts", "--checkpoint", "nowhere")
    assert done.code == 2
    assert "there is no checkpoint at" in done.err


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_export(here: Here, flow: Writer, ending: str) -> None:
    to = here.path / f"out.{ending}"
    done = here.run("slates", "export", "counts", "--to", str(to))
    assert done.code == 0, done.err
    assert done.out == ""
    assert done.err == f"32 slates written to {to}\n"
    reader = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[ending]
    found = duckdb.sql(f"SELECT count(*), sum(n), count(tags), min(key) FROM {reader}('{to}')")
    assert found.fetchall() == [(32, 42 - 1 + sum(range(30)), 30, "42")]
    assert [p.name for p in here.path.iterdir() if "out" in p.name] == [to.name]


def test_export_refuses_what_it_cannot_write(here: Here, flow: Writer) -> None:
    done = here.run("slates", "export", "counts", "--to", "out.xlsx")
    assert done.code == 2
    assert "must end in .parquet, .csv, .jsonl" in done.err
    done = here.run("slates", "export", "counts", "--to", "no/where.csv")
    assert done.code == 2
    assert "there is no directory no" in done.err


def serving(here: Here, *arguments: str, token: str = "") -> subprocess.Popen[str]:
    """`millstream serve`, in the background."""
    env = {**os.environ, "MILLSTREAM_TOKEN": token}
    return subprocess.Popen(
        [COMMAND, "serve", *arguments], cwd=here.path, env=env, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_until_a_signal(here: Here, flow: Writer, number: signal.Signals) -> None:
    process = serving(here, ".millstream/shops", "--port", "0")
    assert process.stderr is not None
    line = process.stderr.readline()
    url = line.partition(" at ")[2].partition(";")[0]
    assert line.startswith("serving .millstream/shops at http://127.0.0.1:")
    assert httpx.get(f"{url}/slates/counts/k07", timeout=60).json()["slate"]["n"] == 7
    flow.commit(Put("k07", {"n": 70}))
    until = time.monotonic() + 100
    while httpx.get(f"{url}/slates/counts/k07", timeout=60).json()["slate"]["n"] != 70:
        assert time.monotonic() < until
    process.send_signal(number)
    assert process.wait(100) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_serve_says_why_it_cannot(here: Here, flow: Writer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = here.run("serve", ".millstream/shops", "--port", port)
        assert done.code == 2
        assert done.err == (
            f"error: port {port} on 127.0.0.1 is taken by another program; choose another port\n"
        )
    done = here.run("serve", ".millstream/shops", "--host", "0.0.0.0", env={"MILLSTREAM_TOKEN": ""})
    assert done.code == 2
    assert "needs a token" in done.err
    assert here.run("serve", "nowhere").code == 2
    Path(here.path / "empty").mkdir()
    done = here.run("serve", "empty")
    assert done.code == 2
    assert "is not a checkpoint" in done.err


def test_serve_beyond_this_machine_with_a_token(here: Here, flow: Writer) -> None:
    arguments = (".millstream/shops", "--host", "0.0.0.0", "--port", "0")
    process = serving(here, *arguments, token=TOKEN)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert TOKEN not in line
        port = int(line.partition("0.0.0.0:")[2].partition(" ")[0])
        url = f"http://127.0.0.1:{port}/slates/counts/k07"
        assert httpx.get(url, timeout=60).status_code == 401
        mine = {"authorization": f"Bearer {TOKEN}"}
        assert httpx.get(url, headers=mine, timeout=60).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=100)

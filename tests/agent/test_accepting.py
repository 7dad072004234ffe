"""Code reaches an agent that accepts it, from a collector that proves the token, and no other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.agent import agent as agents
from millstream.agent import programs
from millstream.agent.accepting import FOLDER, Accepting
from millstream.agent.agent import Agent
from millstream.agent.relay import Relay
from millstream.agent.sending import Connection
from millstream.agent.working import collector_of
from millstream.cli.agents import load_accepted
from millstream.cli.commands import app
from millstream.cli.loading import load_application
from millstream.cli.modules import imported_again, leave_path
from millstream.run.messages.code import Code, Given, bearer, proof_of
from tests.agent.centre import Centre, free_port

TOKEN = "the-right-token-of-24-ch"
APP = """
import millstream as ms
import rules

flow = ms.Flow("shipped")
reads = ms.Files({place!r} + "/in", format="json", schema="ts bigint, k string", time="ts",
                 lateness="0s", follow=True)
source = ms.Collector("127.0.0.1:{port}", reads, agents=["a"], boundary="20ms", trees={trees},
                      modules=["rules.py"], certificate={place!r} + "/our.pem",
                      private_key={place!r} + "/our.key")
rows = flow.source(source, name="in").map(rules.changed)
counted = rows.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count())
counted.sink(ms.Jsonl({place!r} + "/out"))
"""
RULES = "def changed(row):\n    return {{**row, 'k': {mark!r} + row['k']}}\n"
QUERY = """
import millstream as ms

def query(flow):
    more = flow.step("in").key_by("k").window(ms.tumbling("10s"))
    more.agg(n=ms.count()).sink(ms.Jsonl({out!r}))
"""

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make a certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificate")
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ours"
    made += f" -keyout {place}/our.key -out {place}/our.pem -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *made.split()], check=True, capture_output=True)
    return place


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(agents, "_AGAIN", 0.0)
    monkeypatch.setattr(programs, "_LOOK", 0.0)
    monkeypatch.setenv("MILLSTREAM_AGENT_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("rules", None)


class Site:
    """A collector's directory and an agent's, each with a program of its own."""

    def __init__(self, place: Path, trees: int = 1) -> None:
        self.place, self.port, self.trees = place, free_port(), trees
        self.said: list[str] = []
        (place / "in").mkdir()
        for where in ("there", "here"):
            (place / where).mkdir()
        self.write("there", "new ")
        self.write("here", "old ")

    def write(self, where: str, mark: str) -> None:
        values = {"place": str(self.place), "port": self.port, "trees": self.trees}
        (self.place / where / "app.py").write_text(APP.format(**values))
        (self.place / where / "rules.py").write_text(RULES.format(mark=mark))

    def log(self, *seconds: int) -> None:
        with open(self.place / "in" / "log.json", "a") as out:
            out.writelines(json.dumps({"ts": s, "k": "x"}) + "\n" for s in seconds)

    def flow(self, where: str) -> ms.Flow:
        """What a process of its own would load."""
        with imported_again(self.place, keep=False):
            leave_path(self.place)
            return load_application(self.place / where / "app.py").flow

    def options(self, name: str, *, accept: bool) -> dict[str, Any]:
        flow, directory = self.flow("here"), self.place / "agents" / name
        accepting = None
        if accept:
            load = partial(load_accepted, self.place / "here" / "app.py", False, directory / FOLDER)
            accepting = Accepting(TOKEN, load, collector_of(flow).spec.code)
        options = {"accept": accepting, "say": self.said.append}
        return {"flow": flow, "name": name, "directory": directory, **options}

    def connection(self, port: int | None = None) -> Connection:
        return Connection(f"127.0.0.1:{port or self.port}", TOKEN, self.place / "our.pem")

    def agent(self, *, accept: bool = True, port: int | None = None) -> Agent:
        first, *more = (self.connection(port) for _ in range(self.trees))
        return Agent(collector=first, others=tuple(more), **self.options("a", accept=accept))

    def rows(self, out: str = "out") -> set[tuple[str, int]]:
        files = (self.place / out).glob("*.jsonl")
        found = [json.loads(line) for one in files for line in one.read_text().splitlines()]
        return {(row["k"], row["n"]) for row in found}


@pytest.fixture
def site(tmp_path: Path, certificate: Path) -> Site:
    return made(tmp_path, certificate)


def made(place: Path, certificate: Path, trees: int = 1) -> Site:
    for name in ("our.key", "our.pem"):
        shutil.copy(certificate / name, place / name)
    return Site(place, trees)


@pytest.fixture
def centre(site: Site) -> Iterator[Centre]:
    with Centre(site.flow("there"), site.place / "collector") as one:
        yield one


def until(what: Callable[[], object], *steps: Callable[[], object]) -> None:
    for _ in range(5000):
        for step in steps:
            step()
        if what():
            return
        time.sleep(0.005)
    pytest.fail("it does not come to that")


def test_an_agent_that_accepts_code_runs_the_collectors(site: Site, centre: Centre) -> None:
    site.log(*range(15))
    one = site.agent()
    until(site.rows, one.step, centre.step)
    assert site.rows() == {("new x", 10)}
    assert len(site.said) == 1 and "going on with the collector's program, sha256" in site.said[0]
    # The collector's program changes, in what it calls and in its queries, while it runs.
    site.write("there", "newer ")
    (site.place / "there" / "shipped.queries").mkdir()
    query = QUERY.format(out=str(site.place / "more"))
    (site.place / "there" / "shipped.queries" / "more.py").write_text(query)
    centre.replace(site.flow("there"))
    until(lambda: len(site.said) > 1, one.step, centre.step)
    site.log(*range(20, 45))
    until(lambda: site.rows("more"), one.step, centre.step)
    assert ("newer x", 10) in site.rows() and ("x", 10) in site.rows("more")
    # Started again while the collector is away, it goes on with what it had.
    one.close(), centre.engine.close()
    one = site.agent()
    site.log(*range(45, 65))
    last = one.outbox.last
    until(lambda: one.outbox.last > last, one.step)
    assert {block.to for block in one.outbox.read(one.outbox.last)[0].blocks} >= {"in by k"}
    centre.open()
    until(lambda: one.committed > last, one.step, centre.step)
    one.close()
    (site.place / "agents" / "a" / "code.json").write_text("{")  # a disk may do that
    one, before = site.agent(), len(site.said)
    assert "code.json is damaged" in site.said[-1] and "again" in site.said[-1]
    until(lambda: len(site.said) > before, one.step, centre.step)
    assert "going on with the collector's program" in site.said[-1]
    one.close()


def test_one_that_does_not_runs_its_own_file(site: Site, centre: Centre) -> None:
    site.log(*range(15))
    one = site.agent(accept=False)
    until(site.rows, one.step, centre.step)
    assert site.rows() == {("old x", 10)}
    one.close()


def test_code_comes_through_relays_and_trees(tmp_path: Path, certificate: Path) -> None:
    site = made(tmp_path, certificate, trees=2)
    site.log(*range(15))
    with Centre(site.flow("there"), site.place / "collector") as centre:
        between = free_port()
        options = site.options("rack", accept=False)
        spec = ms.Collector(
            f"127.0.0.1:{between}",
            collector_of(options["flow"]).spec.reads,
            agents=["a"],
            trees=2,
            certificate=site.place / "our.pem",
            private_key=site.place / "our.key",
        )
        parent, asking = site.connection(), site.connection()
        relay = Relay(collector=parent, asking=asking, spec=spec, most=1, **options)
        relay.step()
        one = site.agent(port=between)
        until(site.rows, one.step, relay.step, centre.step)
        assert site.rows() == {("new x", 10)}
        site.write("there", "newer ")
        centre.replace(site.flow("there"))
        until(lambda: len(site.said) > 1, one.step, relay.step, centre.step)
        site.log(*range(20, 35))
        until(lambda: ("newer x", 10) in site.rows(), one.step, relay.step, centre.step)
        one.close(), relay.close()


def test_what_is_not_proven_is_not_kept(
    site: Site, centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: Any = centre.engine.trackers["in"].messages  # type: ignore[attr-defined]
    give, first = messages.give, messages.give("a number from before")
    evil = Code("app.py", "shipped", {**messages.code.files, "rules.py": "print('evil')"})
    site.log(*range(15))
    wrong = {
        "other files": lambda nonce: Given(evil, give(nonce).proof),
        "another token": lambda nonce: Given(evil, proof_of("x" * 20, nonce, evil.digest)),
        "what is sent to be let in": lambda n: Given(evil, proof_of(bearer(TOKEN), n, evil.digest)),
        "an older answer": lambda nonce: first,
    }
    one = site.agent()
    for answer in wrong.values():
        monkeypatch.setattr(messages, "give", answer)
        one.collector.close()
        one.programs.differs = None
        one.step()
        assert "without the proof" in site.said[-1]
        assert not (site.place / "agents" / "a" / "code").exists()
    assert len(site.said) == len(wrong)
    until(site.rows, one.step, centre.step)
    assert site.rows() == {("old x", 10)}  # it goes on with what it has
    monkeypatch.undo()
    one.close()


@pytest.mark.parametrize("name", ["../x.py", "/etc/x.py", "a/../../x.py", "", ".", "a//../b", "é"])
def test_files_lie_beside_the_program(name: str) -> None:
    code = Code("app.py", "shipped", {"app.py": "", name: ""})
    with pytest.raises(ms.ConfigError, match="no file beside the program"):
        code.check()


def test_code_needs_a_token_and_tls(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOKEN not in bearer(TOKEN)
    words = ["agent", str(site.place / "there" / "app.py"), "--to", "127.0.0.1:1", "--name", "a"]
    with pytest.raises(ms.ConfigError, match="--accept-code runs what the collector sends"):
        raise CliRunner().invoke(app, [*words, "--accept-code"]).exception  # type: ignore[misc]
    monkeypatch.delenv("MILLSTREAM_AGENT_TOKEN")
    with Centre(site.flow("there"), site.place / "collector") as centre:
        messages: Any = centre.engine.trackers["in"].messages  # type: ignore[attr-defined]
        assert messages.digest == ""
        with pytest.raises(ms.RunError, match="this collector gives no code"):
            messages.give("some number")


def test_a_module_that_is_not_there_is_said(site: Site) -> None:
    (site.place / "there" / "app.py").write_text(
        (site.place / "there" / "app.py").read_text().replace('["rules.py"]', '["prices.py"]')
    )
    with pytest.raises(ms.ConfigError, match=r"modules=.*prices\.py cannot be read"):
        site.flow("there")

"""What an agent and its collector do not take: each is said, and the flow goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import millstream as ms
from millstream.agent.agent import Agent
from millstream.agent.sending import Away, Connection
from millstream.agent.working import Working
from millstream.errors import ConfigError, RunError
from millstream.io.prints import MOVED
from millstream.run.messages.greetings import Hello
from millstream.run.messages.message import FORM
from millstream.run.resharding import reshard
from millstream.run.sources.collector import listening
from millstream.sizes import bytes_of
from tests.agent.centre import NOON, Centre, agent_of, free_port, write

pytestmark = pytest.mark.usefixtures("impatient")


def flow_of(
    place: Path,
    port: int,
    name: str = "a",
    *,
    size: str = "10s",
    close: ms.ClosingPolicy | None = None,
    follow: bool = False,
    **options: Any,
) -> ms.Flow:
    flow = ms.Flow("refusals")
    reads = ms.Files(
        place / "in" / name,
        schema="ts timestamp, k string",
        time="ts",
        lateness="0s",
        follow=follow,
    )
    source = {"agents": ["a", "b"], "boundary": "20ms", **options}
    stream = flow.source(ms.Collector(f"127.0.0.1:{port}", reads, **source), name="in")
    counted = stream.key_by("k").window(ms.tumbling(size), close=close).agg(n=ms.count())
    counted.sink(ms.Jsonl(place / "out"))
    return flow


@pytest.fixture
def centre(place: Path, port: int) -> Iterator[Centre]:
    with Centre(flow_of(place, port), place / "collector") as one:
        yield one


def until_done(centre: Centre, *several: Agent) -> None:
    for _ in range(5000):
        for one in several:
            one.step()
        centre.step()
        if centre.engine.done and all(one.done for one in several):
            return
        time.sleep(0.002)
    pytest.fail("it does not come to an end")


def rows(place: Path) -> list[dict[str, Any]]:
    files = sorted((place / "out").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_an_agent_with_another_program_is_refused(centre: Centre, place: Path, port: int) -> None:
    other = agent_of(flow_of(place, port, size="20s"), port, "a", place / "agents")
    with pytest.raises(ConfigError, match=r"differs from that of the collector.*tumbling\(20s\)"):
        other.step(), other.step()
    other.close()
    good = [agent_of(flow_of(place, port, n), port, n, place / "good") for n in "b"]
    good[0].step()
    good[0].close()


def test_a_name_that_is_not_expected_is_refused(centre: Centre, place: Path, port: int) -> None:
    other = agent_of(flow_of(place, port), port, "c", place / "agents")
    with pytest.raises(ConfigError, match=r"'c' is not expected here.* a, b"):
        other.step()
    other.close()


def test_a_name_with_another_directory_is_refused(centre: Centre, place: Path, port: int) -> None:
    first = agent_of(flow_of(place, port), port, "a", place / "agents")
    first.step(), first.step(), first.close()
    other = agent_of(flow_of(place, port), port, "a", place / "elsewhere")
    with pytest.raises(ConfigError, match="with another directory"):
        other.step()
    other.close()


def test_an_older_copy_of_a_directory_is_refused(centre: Centre, place: Path, port: int) -> None:
    first = agent_of(flow_of(place, port), port, "a", place / "agents", rows=1)
    first.step(), first.close()
    shutil.copytree(place / "agents", place / "copy")
    first = agent_of(flow_of(place, port), port, "a", place / "agents", rows=1)
    for _ in range(4):
        first.step()
    first.close()
    copy = agent_of(flow_of(place, port), port, "a", place / "copy")
    with pytest.raises(RunError, match="it is an older copy"):
        copy.send()
    copy.close()


def test_two_agents_cannot_share_a_directory(centre: Centre, place: Path, port: int) -> None:
    first = agent_of(flow_of(place, port), port, "a", place / "agents")
    with pytest.raises(ConfigError, match=r"belongs to an agent.*of its own"):
        agent_of(flow_of(place, port), port, "a", place / "agents")
    first.close()


def test_a_message_out_of_turn_or_too_large_is_not_taken(
    centre: Centre, place: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent_of(flow_of(place, port), port, "a", place / "agents")
    one.step(), one.make()
    head, blocks = one.outbox.read(0)
    one.collector.hello(Hello("a", one.outbox.life))
    with pytest.raises(Away, match=f"message {head.number + 5} came, and"):
        one.collector.put(msgspec.structs.replace(head, number=head.number + 5), blocks)
    one.collector.hello(Hello("a", one.outbox.life))
    with pytest.raises(Away, match="1 blocks were announced, 0 came"):
        one.collector.put(head, [])
    monkeypatch.setattr(listening, "MOST_BYTES", 100)
    one.collector.hello(Hello("a", one.outbox.life))
    with pytest.raises(Away, match="a message has more than"):
        one.collector.put(head, [bytes(1000)])
    monkeypatch.undo()
    other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
    until_done(centre, one, other)
    assert [row["n"] for row in rows(place)] == [4, 4]
    one.close(), other.close()


def test_rows_that_are_none_and_other_releases_are_not_taken(
    centre: Centre, place: Path, port: int
) -> None:
    one = agent_of(flow_of(place, port), port, "a", place / "agents")
    one.step(), one.make()
    head, blocks = one.outbox.read(0)
    cut, flipped = blocks[0][:-100], bytearray(blocks[0])
    flipped[8:40] = bytes(range(100, 132))
    for wrong in (b"no rows", cut, bytes(flipped), b""):
        one.collector.hello(Hello("a", one.outbox.life))
        with pytest.raises(Away, match="of 'a' are damaged"):
            one.collector.put(head, [wrong, *blocks[1:]])
    one.collector.hello(Hello("a", one.outbox.life))
    more = [msgspec.structs.replace(head.blocks[0], rows=7), *head.blocks[1:]]
    with pytest.raises(Away, match="7 rows for 'in by k' were announced"):
        one.collector.put(msgspec.structs.replace(head, blocks=more), blocks)
    with pytest.raises(RunError, match=r"form 3, and form 2 is read here.*same release"):
        centre.engine.trackers["in"].messages.greet(  # type: ignore[attr-defined]
            Hello("a", one.outbox.life, form=FORM + 1), True
        )
    other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
    until_done(centre, one, other)
    assert [row["n"] for row in rows(place)] == [4, 4]
    one.close(), other.close()


@pytest.mark.long
@pytest.mark.parametrize("pieces", [1, 16])
def test_a_message_of_a_gibibyte_is_refused_and_the_flow_goes_on(
    centre: Centre, place: Path, port: int, pieces: int
) -> None:
    one = agent_of(flow_of(place, port), port, "a", place / "agents")
    one.step(), one.make()
    head, _ = one.outbox.read(0)
    one.collector.hello(Hello("a", one.outbox.life))
    with pytest.raises(Away, match=r"a message has more than 64 MiB|cannot be reached"):
        one.collector.put(head, [bytes((1 << 30) // pieces)] * pieces)
    other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
    until_done(centre, one, other)
    assert [row["n"] for row in rows(place)] == [4, 4]
    one.close(), other.close()


def test_garbage_instead_of_messages_changes_nothing(
    centre: Centre, place: Path, port: int
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 100)
    both = [agent_of(flow_of(place, port, n), port, n, place / "agents") for n in "ab"]
    until_done(centre, *both)
    assert [row["n"] for row in rows(place)] == [4, 4]
    for one in both:
        one.close()


def test_a_wrong_token_is_refused_and_a_right_one_is_not(
    place: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_AGENT_TOKEN", "the-right-token-of-24-ch")
    with Centre(flow_of(place, port), place / "collector"):
        for token in (None, "another-token-of-23-chs"):
            wrong = Connection(f"127.0.0.1:{port}", token)
            with pytest.raises(ConfigError, match="does not take this token"):
                wrong.hello(Hello("a", 1))
        right = Connection(f"127.0.0.1:{port}", "the-right-token-of-24-ch")
        assert right.hello(Hello("a", 1)).durable == -1
        right.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_over_tls_only_the_right_certificate_is_trusted(place: Path, port: int) -> None:
    for name in ("ours", "theirs"):
        made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}"
        made += f" -keyout {place}/{name}.key -out {place}/{name}.pem"
        made += " -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(["openssl", *made.split()], check=True, capture_output=True)
    keys = {"certificate": place / "ours.pem", "private_key": place / "ours.key"}
    with Centre(flow_of(place, port, **keys), place / "collector"):
        with pytest.raises(Away, match="has a certificate that is not trusted; give the right one"):
            Connection(f"127.0.0.1:{port}", None, place / "theirs.pem").hello(Hello("a", 1))
        with pytest.raises(Away, match=r"if it has a certificate \(TLS\), give that with --ca"):
            Connection(f"127.0.0.1:{port}", None).hello(Hello("a", 1))
        known = Connection(f"127.0.0.1:{port}", None, place / "ours.pem")
        assert known.hello(Hello("a", 1)).number == 1
        known.close()


def test_beyond_this_machine_it_needs_a_token_and_tls(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = ms.Files(place / "in", time="ts", format="json")
    with pytest.raises(ConfigError, match="needs a token"):
        listening.check_place(ms.Collector("0.0.0.0:9410", reads))
    monkeypatch.setenv("MILLSTREAM_AGENT_TOKEN", "the-right-token-of-24-ch")
    with pytest.raises(ConfigError, match="certificate"):
        listening.check_place(ms.Collector("0.0.0.0:9410", reads))


def test_a_port_that_is_taken_is_said(place: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        reads = ms.Files(place / "in", time="ts", format="json")
        with pytest.raises(ConfigError, match="cannot listen there"):
            listening.check_place(ms.Collector(f"127.0.0.1:{port}", reads))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "nowhere"}, 'expected "host:port"'),
        ({"reads": None}, "expected what agents read"),
        ({"reads": ms.Files("x", format="text")}, "clocks of machines differ"),
        ({"agents": []}, "names of agents"),
        ({"agents": ["a", "a"]}, "names of agents"),
        ({"agents": True}, "names of agents"),
        ({"certificate": "x"}, "TLS needs both"),
        ({"lateness": "5s"}, "no option lateness"),
    ],
    ids=str,
)
def test_what_a_collector_cannot_be(given: dict[str, Any], said: str) -> None:
    options = {"address": "127.0.0.1:9410", "reads": ms.Files("x", time="ts"), **given}
    with pytest.raises(ConfigError, match=said):
        ms.Collector(**options)


def test_sizes() -> None:
    assert bytes_of("2GB") == 2 << 30
    with pytest.raises(ConfigError, match="expected a size"):
        bytes_of("much")


# -- while the collector is away ------------------------------------------------------------------


def test_an_agent_waits_when_its_disk_space_is_used_up(place: Path, port: int) -> None:
    with Centre(flow_of(place, port), place / "collector") as centre:
        one = agent_of(flow_of(place, port), port, "a", place / "agents", rows=1, spool=1)
        one.step(), one.step()
        centre.engine.trackers["in"].close()
        for _ in range(5):
            one.step()
        assert not one.over and one.outbox.last <= 1
        centre.restart()
        other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
        until_done(centre, one, other)
        assert [row["n"] for row in rows(place)] == [4, 4]
        one.close(), other.close()


def test_or_gives_up_the_oldest_and_counts_it(place: Path, port: int) -> None:
    with Centre(flow_of(place, port), place / "collector") as centre:
        options = {"rows": 1, "spool": 20_000, "overload": "drop"}
        one = agent_of(flow_of(place, port), port, "a", place / "agents", **options)
        one.send()
        centre.engine.trackers["in"].close()
        write(place, "a", *range(13, 40))
        while one.make():
            pass
        assert one.over and one.outbox.dropped > 0
        centre.restart()
        other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
        until_done(centre, one, other)
        account = centre.ledger["in"]
        assert account["offered"] == 31 + 4 and account["dropped"] == one.outbox.dropped
        assert sum(row["n"] for row in rows(place)) == 35 - one.outbox.dropped
        one.close(), other.close()


# -- windows that are evicted ---------------------------------------------------------------------


def test_what_an_agent_sends_for_an_evicted_window_is_late(place: Path, port: int) -> None:
    def flow(name: str) -> ms.Flow:
        return flow_of(place, port, name, close=ms.evict(fidelity=0.5), follow=True)

    with Centre(flow("a"), place / "collector") as centre:
        one, other = (agent_of(flow(n), port, n, place / "agents") for n in "ab")
        other.send(), other.make()  # read, and not sent
        for _ in range(20):
            one.step(), centre.step()
        assert [(row["n"], row["fidelity"], row["closed_by"]) for row in rows(place)] == [
            (2, 0.5, "fidelity")
        ]
        for _ in range(20):
            other.step(), centre.step()
        assert centre.engine.manifest.late == {"agg": {"b": 2}}
        account = centre.ledger["agg"]
        assert (account["offered"], account["aggregated"], account["late"]) == (8, 6, 2)
        one.close(), other.close()


# -- as a command ---------------------------------------------------------------------------------

APP = """
import os, millstream as ms
flow = ms.Flow("refusals")
here = ms.Files(os.environ["HERE"], schema="ts timestamp, k string", time="ts", lateness="0s")
agents = ms.Collector(os.environ["AT"], here, agents=["a", "b"], boundary="20ms")
lines = flow.source(agents, name="in")
lines.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Jsonl(os.environ["OUT"]))
"""
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None  # whoever imports these fails
from millstream.cli import main
main()
"""


def test_the_command_needs_neither_spark_nor_java(place: Path, port: int) -> None:
    """One agent goes through a relay, the other one straight to the collector."""
    (place / "app.py").write_text(APP)
    root, between = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"

    def started(name: str, here: str, to: str, *more: str) -> subprocess.Popen[str]:
        command = ["agent", "app.py", "--to", to, "--name", name, *more]
        return subprocess.Popen(
            [sys.executable, "-c", WITHOUT_SPARK, *command],
            cwd=place,
            env={"HERE": here, "AT": root, "OUT": str(place / "out"), "PATH": os.defpath},
            stderr=subprocess.PIPE,
            text=True,
        )

    with Centre(flow_of(place, port), place / "collector") as centre:
        relay = ("--relay", "--listen", between, "--children", "1")
        commands = [
            started("rack", "in/a", root, *relay),
            started("a", "in/a", between),
            started("b", "in/b", root),
        ]
        ended = threading.Event()
        timer = threading.Timer(100, ended.set)
        timer.start()
        while any(one.poll() is None for one in commands) and not ended.is_set():
            centre.step()
            time.sleep(0.01)
        timer.cancel()
        for one in commands:
            one.kill()
        told = [one.communicate()[1] for one in commands]
        assert {one.returncode for one in commands} == {0}, told
        assert all("all is read and committed" in text for text in told)
    assert [row["n"] for row in rows(place)] == [4, 4]


def test_a_server_that_has_stopped_is_not_stopped_again(place: Path, port: int) -> None:
    def pending() -> int:
        """Servers that Flight would shut down when they go, or at the end of the interpreter."""
        waiting = weakref.finalize._registry.values()  # type: ignore[attr-defined]
        owners = (getattr(one.func, "__self__", None) for one in waiting)
        return sum(type(owner).__name__ == "_FlightServerFinalizer" for owner in owners)

    before = pending()
    with Centre(flow_of(place, port), place / "collector") as centre:
        server = centre.engine.trackers["in"].messages.server  # type: ignore[attr-defined]
        assert pending() == before + 1
    server.end()
    assert pending() == before


# -- a pause is no failure ------------------------------------------------------------------------


def test_an_agent_that_is_gone_is_not_waited_for_and_one_that_pauses_is(
    place: Path, port: int
) -> None:
    def flow(name: str) -> ms.Flow:
        return flow_of(place, port, name, close=ms.evict(failure_after="400ms"), follow=True)

    (place / "in" / "a" / "0.json").unlink()
    write(place, "a", 1, 4)  # it stands in the first window, and has nothing more for now
    now = time.time()
    with Centre(flow("a"), place / "collector", clock=lambda: now) as centre:
        one, other = (agent_of(flow(n), port, n, place / "agents") for n in "ab")

        def go(seconds: float, *several: Agent) -> None:
            nonlocal now
            until = now + seconds
            while now < until:
                for agent in several:
                    agent.step()
                centre.step()
                time.sleep(0.02)  # they say so once in that time, however long all this takes
                now += 0.02

        go(1.2, one, other)
        assert rows(place) == []  # both are there, and say so
        engine = centre.engine
        known = engine.outlook.participants("in", engine.outlook.progress()["in"])
        assert known.keys() == {"a", "b"} and max(known["a"][1], known["b"][1]) < 1
        one.close()  # a is gone, 40 % through; b has passed the end
        go(1.2, other)
        assert [(row["n"], row["fidelity"], row["closed_by"]) for row in rows(place)] == [
            (4, 0.7, "failure")
        ]
        left = centre.engine.manifest.left["agg"]
        assert (left.fidelity, left.participants, left.closed_by) == (0.7, "2/2", "failure")
        other.close()


@pytest.mark.parametrize("waits", [True, False])
def test_an_agent_that_reads_nothing_is_waited_for_unless_it_is_said(
    place: Path, port: int, waits: bool
) -> None:
    """Its files are silent for longer than they wait for each other; still it is a pause."""

    def flow(name: str) -> ms.Flow:
        flow = ms.Flow("pauses")
        form = {"schema": "ts timestamp, k string", "time": "ts", "lateness": "0s", "follow": True}
        reads = ms.Files(place / "in" / name, **form, idle_timeout="1ms")
        options = {"agents": ["a", "b"], "boundary": "20ms"}
        options |= {"idle_timeout": None if waits else "1ms"}
        stream = flow.source(ms.Collector(f"127.0.0.1:{port}", reads, **options), name="in")
        stream.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(
            ms.Jsonl(place / "out")
        )
        return flow

    with Centre(flow("a"), place / "collector") as centre:
        both = [agent_of(flow(n), port, n, place / "agents") for n in "ab"]

        def go(*several: Agent) -> None:
            for _ in range(12):
                time.sleep(0.01)
                for one in several:
                    one.step()
                centre.step()

        go(*both)
        write(place, "a", 30, 45)
        go(*both)
        assert [row["n"] for row in rows(place)] == ([4] if waits else [4, 4, 1])
        write(place, "b", 13, 31, 45)
        go(*both)
        late = centre.ledger["agg"]["late"]
        assert ([row["n"] for row in rows(place)], late) == (
            ([4, 5, 2], 0) if waits else ([4, 4, 1], 2)
        )
        for one in both:
            one.close()


# -- what changes on the way ----------------------------------------------------------------------


def test_messages_made_for_other_shards_are_dealt_anew(place: Path, port: int) -> None:
    def flow(name: str) -> ms.Flow:
        return flow_of(place, port, name)

    for name in "ab":
        path = place / "in" / name / "1.json"
        lines = [{"ts": str(NOON + timedelta(seconds=s)), "k": f"k{s % 37}"} for s in range(200)]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with Centre(flow("a"), place / "collector") as centre:
        one, other = (agent_of(flow(n), port, n, place / "agents", rows=30) for n in "ab")
        one.step(), one.step(), other.send(), other.make()
        centre.step()
        centre.engine.close()
        reshard(place / "collector", 5)
        centre.open()
        until_done(centre, one, other)
        assert sum(row["n"] for row in rows(place)) == 408
        keys = [(row["k"], row["window_end"]) for row in rows(place)]
        assert len(keys) == len(set(keys))  # none lies in two shards
        one.close(), other.close()


def test_agents_go_on_with_a_changed_program_once_they_have_it(place: Path, port: int) -> None:
    def flow(name: str, *, more: bool) -> ms.Flow:
        made = flow_of(place, port, name)
        if more:
            source = ms.Stream(made, made.nodes[0])
            late = source.key_by("k").window(ms.tumbling("1m")).agg(n=ms.count()).named("minutes")
            late.sink(ms.Jsonl(place / "minutes"))
        return made

    with Centre(flow("a", more=False), place / "collector") as centre:
        one = agent_of(flow("a", more=False), port, "a", place / "agents", rows=2)
        other = agent_of(flow("b", more=False), port, "b", place / "agents", rows=2)
        one.step(), one.step(), other.send(), other.make()  # b has something of the old program
        centre.step()
        centre.engine.close()
        centre.flow = flow("a", more=True)
        centre.open()
        said: list[str] = []
        one.say = said.append
        for _ in range(2000):  # also without a new connection: the answer tells of a newer one
            one.step(), time.sleep(0.01)
            if any("operator 'minutes' is not here" in text for text in said):
                break
        assert "goes on with the program it has" in said[-1]
        said = said[-1:]
        one.say = said.append
        one.programs.reload = lambda: flow("a", more=True)
        one.programs.next_look = 0.0  # the file is changed
        for _ in range(2000):
            one.step(), time.sleep(0.01)
            if len(said) > 1:
                break
        assert "which this file has, too" in said[1] and one.programs.edition == 2
        one.close(), other.close()
        one = agent_of(flow("a", more=True), port, "a", place / "agents", rows=2)
        other = agent_of(flow("b", more=True), port, "b", place / "agents", rows=2)
        until_done(centre, one, other)
        assert [row["n"] for row in rows(place)] == [4, 4]
        assert centre.ledger["minutes"]["aggregated"] == 2  # what b read after it knew of it
        one.close(), other.close()


def test_a_log_that_is_rotated_is_found_again(
    centre: Centre, place: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent_of(flow_of(place, port), port, "a", place / "agents")
    other = agent_of(flow_of(place, port, "b"), port, "b", place / "agents")
    step, times = Working.step, []

    def moved(working: Working, rows: int, size: int) -> Any:
        times.append(1)
        if len(times) == 1:
            raise FileNotFoundError(MOVED)
        return step(working, rows, size)

    monkeypatch.setattr(Working, "step", moved)
    until_done(centre, one, other)
    assert [row["n"] for row in rows(place)] == [4, 4]
    one.close(), other.close()


def test_half_a_message_does_not_hold_the_end_up(place: Path, port: int) -> None:
    with Centre(flow_of(place, port), place / "collector") as centre:
        one = agent_of(flow_of(place, port), port, "a", place / "agents")
        one.step(), one.make()
        head, _ = one.outbox.read(0)
        held = flight.connect(f"grpc+tcp://127.0.0.1:{port}")
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(head))
        writer, _ = held.do_put(descriptor, pa.schema([("block", pa.large_binary())]))
        receiver = centre.engine.trackers["in"].messages  # type: ignore[attr-defined]
    assert not receiver.is_alive()  # its server has ended
    with contextlib.suppress(pa.ArrowException):
        writer.close()
    held.close(), one.close()

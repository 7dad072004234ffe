"""Deployments that go on while the flow runs: followed and rotated files, and sockets."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import millstream as ms
from tests.deployments import inputs
from tests.deployments.cases import Case
from tests.deployments.oracle import Input, Participants, Record
from tests.deployments.running import Ledger, Running, build

AFTER_ALL = inputs.T0 + 10_000_000
IDLE = 11  # seconds; a file is idle after 10


@dataclass
class Log:
    """A log that is appended to, and rotated as logrotate does."""

    path: Path
    kind: str

    def append(self, records: list[Record], between: Callable[[], object] = lambda: None) -> None:
        """More lines, with a pause in the middle of one of them."""
        data = b"" if self.path.exists() and self.path.stat().st_size else inputs.head(self.kind)
        data += inputs.encode(records, self.kind)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            with open(self.path, "ab") as out:
                out.write(part)
            between()

    def rotate(self, way: str) -> None:
        """Out of the way with what there is."""
        for number in range(8, 0, -1):
            for suffix in ("", ".gz"):
                old = self.path.with_name(f"{self.path.name}.{number}{suffix}")
                if old.exists():
                    old.rename(self.path.with_name(f"{self.path.name}.{number + 1}{suffix}"))
        first = self.path.with_name(self.path.name + ".1")
        if way == "copytruncate":
            shutil.copy2(self.path, first)
            os.truncate(self.path, 0)
        else:
            self.path.rename(first)
        if way == "compress":
            packed = first.with_name(first.name + ".gz")
            with open(first, "rb") as source, gzip.open(packed, "wb") as target:
                shutil.copyfileobj(source, target)
            first.unlink()


def follow(case: Case, place: Path) -> tuple[Input, Ledger]:
    """A file per host (or one for all), each appended to while the flow runs."""
    random = case.random()
    whole = inputs.by_host(case.records) if random.random() < 0.5 else {"all": case.records}
    (place / "in").mkdir(parents=True)
    source = ms.Files(place / "in", follow=True, **{**case.timing, "idle_timeout": "10s"})
    logs = {name: Log(place / "in" / f"{name}.{case.kind}", case.kind) for name in whole}
    files: Participants = {name: records[:1] for name, records in whole.items()}
    for name, log in logs.items():  # all are there from the beginning
        log.append(files[name])
    running = Running(place, lambda: build(place, source, case.window), case.kills, **case.options)
    while waiting := [name for name in whole if len(files[name]) < len(whole[name])]:
        name = random.choice(waiting)
        begin = len(files[name])
        some = whole[name][begin : begin + random.randint(1, 9)]
        files[name] += some
        steps = random.choice((0, 1, 1, 3))
        logs[name].append(some, lambda: [running.step() for _ in range(steps)])  # noqa: B023
    return flushed(case, running, files, logs[name], name)


def rotate(case: Case, place: Path) -> tuple[Input, Ledger]:
    """One log, rotated in the middle, perhaps more than once."""
    random = case.random()
    way = random.choice(("rename", "rename", "compress", "copytruncate"))
    log = Log(place / "in" / "app.log", case.kind)
    (place / "in").mkdir(parents=True)
    path = place / "in" if random.random() < 0.5 else log.path
    options = {**case.timing, "idle_timeout": "10s"}
    source = ms.Files(path, case.kind, follow=True, **options)
    log.append(case.records[:1])
    files: Participants = {"0": case.records[:1]}
    running = Running(place, lambda: build(place, source, case.window), case.kills, **case.options)
    left, held = case.records[1:], float("-inf")
    while left:
        size = random.randint(1, 9)
        some, left = left[:size], left[size:]
        living = files[str(len(files) - 1)]
        some = [r for r in some if r.ts >= held]  # a new file cannot hold what has left before it
        if some:
            log.append(some)
            living += some
        for _ in range(random.choice((0, 1, 1, 3))):
            running.step()
        if living and random.random() < 0.4:
            running.look()  # what came and went between two looks nobody has seen
            log.rotate(way)
            assert case.lateness is not None
            each = [Input({n: f}, case.lateness).passed() for n, f in files.items()]
            # What is complete holds nothing; what has been passed stays so.
            held = max(held, min(each) if way == "rename" else max(each))
            files[str(len(files))] = []
    return flushed(case, running, files, log, str(len(files) - 1))


def flushed(
    case: Case, running: Running, files: Participants, log: Log, name: str
) -> tuple[Input, Ledger]:
    """When all has been read and everybody is silent, one record brings all windows to leave."""
    running.until(lambda: running.read == sum(map(len, files.values())))
    running.kills.clear()  # after a start nobody is idle for having been silent before
    running.now += IDLE
    running.until(lambda: True)
    last = Record(-1, AFTER_ALL, "h0", "last", 0)
    log.append([last])
    files[name].append(last)
    running.until(lambda: running.read == sum(map(len, files.values())))
    running.close()
    assert case.lateness is not None
    return Input(files, case.lateness), running.ledger


def through_a_socket(case: Case, place: Path) -> tuple[Input, Ledger]:
    """Lines of one connection; after a kill the rest comes through the next one."""
    random = case.random()
    hosts = inputs.by_host(case.records)
    apart = random.random() < 0.5
    who = {"participant": "host", "participants": sorted(hosts)} if apart else {}
    place.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = ms.Socket("127.0.0.1", port, format=case.kind, **who, **case.timing)
        running = Running(
            place, lambda: build(place, source, case.window), case.kills, **case.options
        )
        connection, known, sent = server.accept()[0], running.opened, 0
        while not running.engine.done:
            if known != running.opened:
                connection.close()
                connection, known = server.accept()[0], running.opened
            if running.read == sent:
                some = case.records[sent : sent + random.randint(1, 20)]
                if some:
                    connection.sendall(inputs.encode(some, case.kind))
                else:
                    connection.close()
                sent += len(some)
            running.step()
        connection.close()
        running.close()
    given = Input(hosts if apart else {"all": case.records}, case.lateness)
    return given, running.ledger


LIVE = {made.__name__: made for made in (follow, rotate, through_a_socket)}

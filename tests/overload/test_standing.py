"""When overload sets in and when it is over; what receivers, status and metrics make of it."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.io.kafka.consuming import Stretch
from millstream.io.readers import Split
from millstream.ops.overload import Overload, Standing
from millstream.run.exploring import run_here
from millstream.run.planning import plan_flow
from millstream.run.reporting import Reporter
from millstream.run.sources.received.generating import GeneratorReceiver
from millstream.run.sources.received.lines import LineReceiver
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.run.sources.resolving import resolve_format
from millstream.run.sources.shedding import Shedding, shedding
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.asides import count
from millstream.run.tasks.reading import read
from millstream.run.tasks.splits import Aside, RateSplit
from millstream.serve.following import Follower
from millstream.serve.metrics import exposition
from millstream.serve.status import Served
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage, open_storage
from millstream.testing import Driver
from tests.overload.support import shed_of


def test_pressure_is_the_larger_of_bytes_and_lag() -> None:
    policy = ms.drop(when=100, lag="10s")
    assert policy.pressure(50, None) == 0.5
    assert policy.pressure(50, 5_000_000) == 0.5
    assert policy.pressure(50, 30_000_000) == 3.0
    assert ms.drop(when=100).pressure(50, 30_000_000) == 0.5


def test_it_stays_until_it_is_well_below() -> None:
    policy, standing, seen = Overload("drop", when=100, until=0.5), Standing(), []
    for number, waiting in enumerate((90, 100, 101, 80, 51, 50, 99, 100, 150), 1):
        standing = standing.moved(policy, policy.pressure(waiting, None), number)
        seen.append((waiting, standing.since))
    assert seen == [
        (90, 0),
        (100, 0),
        (101, 3),
        (80, 3),
        (51, 3),
        (50, 0),
        (99, 0),
        (100, 0),
        (150, 9),
    ]


def pushed(policy: ms.Overload, **options: Any) -> ms.Flow:
    flow = ms.Flow("pushed")
    spec = ms.Generator(tuple, time="ts", schema="ts bigint, n bigint", overload=policy, **options)
    flow.source(spec, name="in").sink(ms.Memory())
    return flow


def records(low: int, high: int) -> list[dict[str, int]]:
    return [{"ts": 1_000 + n, "n": n} for n in range(low, high)]


def test_the_newest_are_kept_until_it_is_over_also_across_a_restart() -> None:
    policy = ms.drop(when=64 * 40, until=0.5)  # forty records
    with Driver(pushed(policy), batch_rows=10, now=2_000) as driver:
        for n in range(0, 100, 10):
            driver.push("in", records(n, n + 10))
        driver.step()  # 100 wait: 20 may stay, 10 are worked on
        assert driver.output()[0]["n"] == 70 and len(driver.output()) == 10
        assert driver.ledger["in"]["dropped"] == driver.ledger["in"]["shed"] == 70
        driver.restart()
        assert isinstance(driver.engine.trackers["in"], Shedding)
        assert driver.engine.trackers["in"].standing.since == 2_000_000_000
        driver.push("in", records(80, 90)).push("in", records(90, 100)).push(
            "in", records(100, 110)
        )
        driver.step()  # 30 wait, which would not be too much, and are until it is over
        assert driver.ledger["in"]["dropped"] == 70
        driver.step()
        driver.step()
        assert not driver.engine.trackers["in"].standing.on
        driver.end()
        account = driver.ledger["in"]
        assert account["offered"] == 110 == account["aggregated"] + account["dropped"]


def test_lag_sets_it_in() -> None:
    policy = ms.drop(lag="30s")
    with Driver(pushed(policy), batch_rows=10, now=1_000) as driver:
        driver.push("in", records(0, 10)).step()  # event time is at 1009
        for n in range(10, 60, 10):
            driver.push("in", records(n, n + 10))
        driver.advance("69s").step()  # by 60 s behind: a quarter of what waits may stay
        assert driver.ledger["in"]["dropped"] == 20
        assert driver.output()[-1]["n"] == 39


def test_status_metrics_and_the_log_say_it(tmp_path: Path) -> None:
    flow = pushed(ms.divert("more", when=64 * 20))
    flow.stream("more").sink(ms.Memory())
    with Driver(flow, batch_rows=10, now=2_000, checkpoint=tmp_path) as driver:
        for n in range(0, 100, 10):
            driver.push("in", records(n, n + 10))
        driver.step()
        reporter = Reporter(driver.engine)
        live = reporter.live(reporter.progress(), None)
        served = Served(Follower(tmp_path), lambda: live)
        (source,) = served.status()["sources"]
        assert source["overload"] == {
            "policy": "divert(more, when=1280B)",
            "pressure": 5.0,
            "since": "1970-01-01T00:33:20Z",
        }
        figures = exposition(served.status()).decode()
        assert 'millstream_overloaded{step="in"} 1.0' in figures
        assert 'millstream_overload_pressure{step="in"} 5.0' in figures
        assert 'millstream_records_total{step="in",way="diverted"} 80.0' in figures
    assert [one["diverted"] for one in shed_of(tmp_path)] == [10] * 8
    assert {one["to"] for one in shed_of(tmp_path)} == {"more"}


FILES = {
    "csv": b"ts,n\n1,2\n\n3,x\n \n4,5",
    "json": b'{"ts": 1, "n": 1}\n\nnonsense\n{"ts": 2, "n": 3}\n',
    "text": b"one\n\nthree\n\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_what_is_dropped_is_counted_as_if_it_were_read(
    tmp_path: Path, kind: str, packed: bool
) -> None:
    path = tmp_path / f"in.{kind}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(FILES[kind]) if packed else FILES[kind])
    options = {} if kind == "text" else {"schema": "ts bigint, n bigint"}
    fmt = resolve_format("in", ms.Files(path, format=kind, **options))
    split = Split(0, 0, str(path), 0, len(FILES[kind]))
    assert count(fmt, split) == sum(piece.offered for piece in read(fmt, split, 0)) >= 3


def test_rows_and_numbers_are_counted_by_their_ends(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a.parquet")
    fmt = resolve_format("in", ms.Files(tmp_path / "a.parquet"))
    assert count(fmt, Split(0, 0, str(tmp_path / "a.parquet"), 1, 3)) == 2
    assert count(fmt, RateSplit(0, 5, 9, 0, 1.0)) == 4
    assert Aside(Stretch(3, 0, "t", 0, 0, 9, 0, None, 0)).source == 3


class Fed(LineReceiver):
    """Twenty pieces of a hundred lines."""

    def receive(self) -> None:
        for n in range(0, 2_000, 100):
            lines = (f'{{"ts": {1_000 + i // 100}, "n": {i}}}\n' for i in range(n, n + 100))
            self.feed("".join(lines).encode())
            self.seal()


@pytest.mark.parametrize("keep", ["newest", "oldest"])
@pytest.mark.parametrize("kind", ["drop", "divert"])
def test_pieces_of_a_spool_are_set_aside(tmp_path: Path, kind: str, keep: str) -> None:
    policy = ms.drop(keep, when=9_000)
    if kind == "divert":
        policy = ms.divert("more", keep=keep, when=9_000)
    flow = ms.Flow("fed")
    kept, more = ms.Memory(), ms.Memory()
    spec = ms.Socket("nowhere", 9, format="json", schema="ts bigint, n bigint", overload=policy)
    flow.source(spec, name="in").sink(kept)
    if kind == "divert":
        flow.stream("more").sink(more)

    def tracker(
        number: int, node: Any, fmt: Any, checkpoint: Storage, state: SourceState
    ) -> Tracker:
        receiver = Fed("in", spec, checkpoint.within("spool").within("in"))
        receiver.most_held = 1 << 30  # all of it is there before the first batch
        made = SpoolTracker(number, receiver, state)
        receiver.join()
        return shedding(made, "in", policy, state)

    settings = ms.Settings(batch_rows=200, parallelism=1)
    ledger = run_here(plan_flow(flow), tmp_path / "ck", settings, tracker).manifest.ledger
    account = ledger["in"]
    assert account["offered"] == 2_000 and account["dropped"] + account["diverted"] >= 1_000
    assert len(kept.rows) == account["aggregated"] and len(more.rows) == account["diverted"]
    numbers = [row["n"] for row in (*kept.rows, *more.rows)]
    assert len({*numbers}) == len(numbers) == 2_000 - account["dropped"]
    assert (kept.rows[0]["n"] == 0) == (keep == "oldest")
    assert not list((tmp_path / "ck" / "spool" / "in").glob("*.lines"))


def test_who_sends_little_at_a_time_is_held_back_too(tmp_path: Path) -> None:
    spec = ms.Socket("nowhere", 9, overload=ms.throttle(when=30))
    receiver = LineReceiver("in", spec, open_storage(tmp_path))
    receiver.feed(b"a line\nand another\n")
    receiver.seal()
    sender = threading.Thread(target=receiver.feed, args=(b"one line more\n",), daemon=True)
    sender.start()
    sender.join(0.2)
    assert sender.is_alive()
    receiver.forget(receiver.received()[0])
    sender.join(30)
    assert not sender.is_alive()


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        (ms.throttle(), 64 << 20),
        (ms.throttle(100), 100),
        (ms.drop(), 256 << 20),
        (ms.drop(when=100), 16 << 20),  # what waits with the sender cannot be shed
        (ms.divert("more", when=100), 16 << 20),
    ],
)
def test_senders_wait_when_so_much_was_received(
    tmp_path: Path, policy: ms.Overload, most: int
) -> None:
    spec = ms.Generator(tuple, overload=policy)
    assert GeneratorReceiver("in", spec, open_storage(tmp_path)).most_held == most

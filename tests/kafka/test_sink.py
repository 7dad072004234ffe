"""Kafka as a sink: every committed result once, for readers of what is committed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.io.kafka import producing
from millstream.run import faults
from millstream.run.batches.letters import letters_in
from millstream.run.outputs.topics import TopicSink
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process

SCHEMA = "ts bigint, k string, v bigint"
ROWS = [{"ts": 1_700_000_000 + n, "k": f"ü{n % 7}", "v": n} for n in range(300)]


class Crash(BaseException):
    """The end of a process."""


@pytest.fixture
def source(tmp_path: Path) -> ms.Files:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ms.Files(path, schema=SCHEMA, time="ts")


def flow_to(source: ms.Files, sink: ms.Kafka, **more: Any) -> ms.Flow:
    flow = ms.Flow("writes")
    flow.source(source, name="in").where("v % 3 = 0").sink(sink, name="out")
    return flow


BATCHES = {"batch_rows": 40, "batch_bytes": 2000}
WANTED = Counter(row["v"] for row in ROWS if row["v"] % 3 == 0)


def values(topics: Any, topic: str) -> Counter[int]:
    return Counter(json.loads(one.value())["v"] for one in topics.committed(topic))


def test_keys_values_and_headers(topics: Any, tmp_path: Path, source: ms.Files) -> None:
    topic = topics.make(partitions=3)
    sink = ms.Kafka(topics.address, topic, key="k", headers=("v",))
    ledger = run_in_process(flow_to(source, sink), tmp_path / "ck", **BATCHES)
    found = topics.committed(topic)
    assert Counter(int(dict(one.headers())["v"]) for one in found) == WANTED
    assert all(json.loads(one.value())["k"].encode() == one.key() for one in found)
    assert set(json.loads(found[0].value())) == {"ts", "k"}
    homes = {(one.key(), one.partition()) for one in found}
    assert len(homes) == 7  # a key is in one partition
    assert ledger["out"]["offered"] == ledger["out"]["aggregated"] == 100
    both = topics.make()
    sink = ms.Kafka(topics.address, both, key=("k", "v"), format="json")
    run_in_process(flow_to(source, sink), tmp_path / "ck2")
    assert json.loads(topics.committed(both)[0].key()) == {"k": "ü0", "v": 0}
    text = topics.make()
    flow = ms.Flow("text")
    flow.source(source).select("k", "CAST(v AS STRING) AS line").sink(
        ms.Kafka(topics.address, text, key="k", format="text")
    )
    run_in_process(flow, tmp_path / "ck3")
    assert [one.value() for one in topics.committed(text)] == [b"%d" % n for n in range(300)]


POINTS = ("after-manifest", "half-published", "published", "begun", "sent", "committed")


def test_crashes_at_every_point_of_publishing(
    topics: Any, tmp_path: Path, source: ms.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also inside of transactions, which hold several pieces of a batch here."""
    topic = topics.make(partitions=2)
    flow = flow_to(source, ms.Kafka(topics.address, topic, key="k"))
    monkeypatch.setattr(producing, "_ROWS", 7)
    armed: list[str] = []
    met: Counter[str] = Counter()

    def crash(point: str, batch: int = 0) -> None:
        met[point] += 1
        if armed and armed[0] == point and met[point] > 1:
            armed.pop(0)
            raise Crash

    def crashing(kind: Any) -> Any:
        class Producer(kind):  # type: ignore[misc]
            def begin_transaction(self) -> None:
                super().begin_transaction()
                crash("begun")

            def commit_transaction(self, *given: Any) -> None:
                self.flush()
                crash("sent")
                super().commit_transaction(*given)
                crash("committed")

        return Producer

    monkeypatch.setattr(faults, "crash_point", crash)
    real = producing.connect
    monkeypatch.setattr(
        producing,
        "connect",
        lambda kind, *a, **s: real(crashing(kind) if "Producer" in str(kind) else kind, *a, **s),
    )
    armed.extend(POINTS)
    for _ in range(30):
        met.clear()
        try:
            run_in_process(flow, tmp_path / "ck", **BATCHES)
            break
        except Crash:
            continue
    assert not armed
    assert values(topics, topic) == WANTED


def test_an_older_copy_and_an_overtaken_run_write_nothing(
    topics: Any, tmp_path: Path, source: ms.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make()
    flow = flow_to(source, ms.Kafka(topics.address, topic))
    copy, seen = tmp_path / "copy", 0

    def step(point: str, batch: int) -> None:
        nonlocal seen
        if point == "after-manifest" and batch == 1:
            shutil.copytree(tmp_path / "ck", copy)
        if point == "after-manifest" and batch == 2:  # overtaken by who goes on from the copy
            seen += 1
            if seen == 1:
                run_in_process(flow, copy, **BATCHES)

    monkeypatch.setattr(faults, "crash_point", step)
    with pytest.raises(RunError, match=r"another run of this flow.*writes to topic.*this one ends"):
        run_in_process(flow, tmp_path / "ck", **BATCHES)
    assert seen == 2 and values(topics, topic) == WANTED
    with pytest.raises(RunError, match="older copy"):
        run_in_process(flow, tmp_path / "ck", **BATCHES)
    assert values(topics, topic) == WANTED


def test_a_note_of_progress_that_is_lost_is_not_taken_for_nothing_sent(
    topics: Any, tmp_path: Path, source: ms.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, progress = topics.make(), topics.make()
    flow = flow_to(source, ms.Kafka(topics.address, topic, progress=progress))

    deliver = TopicSink.deliver

    def crash(self: TopicSink, table: Any, batch: int, checksum: int) -> None:
        deliver(self, table, batch, checksum)
        if batch == 1:
            raise Crash

    with monkeypatch.context() as crashing:
        crashing.setattr(TopicSink, "deliver", crash)
        with pytest.raises(Crash):
            run_in_process(flow, tmp_path / "ck", **BATCHES)
    (note,) = {one.key() for one in topics.committed(progress)}
    last = topics.committed(progress)[-1].offset()
    topics.remove(progress, last + 2)  # with the mark of its transaction
    for _ in range(2):
        with pytest.raises(RunError, match=f"no longer says how far.*key '{note.decode()}'"):
            run_in_process(flow, tmp_path / "ck", **BATCHES)
    topics.send(progress, [(note, b'{"epoch":1}')])
    run_in_process(flow, tmp_path / "ck", **BATCHES)
    found = values(topics, topic)
    assert set(found) == set(WANTED) and set(found.values()) == {1, 2}  # as it was said


def test_upserts_come_to_the_table_and_tombstones_remove(
    topics: Any, tmp_path: Path, source: ms.Files
) -> None:
    """What a reader has who keeps the newest value per key; rows leave it when they turn odd."""
    flow = ms.Flow("newest")
    stream = flow.source(source, name="in").changes(key="k").where("v % 2 = 0")
    upsert, envelopes = topics.make(partitions=2), topics.make()
    stream.sink(ms.Kafka(topics.address, upsert, key="k", changes="upsert"))
    stream.sink(ms.Kafka(topics.address, envelopes, key="k", changes="debezium"))
    run_in_process(flow, tmp_path / "ck", **BATCHES)
    newest = {row["k"]: row for row in ROWS}
    wanted = {key: row for key, row in newest.items() if row["v"] % 2 == 0}
    assert 0 < len(wanted) < 7
    table: dict[str, Any] = {}
    tombstones = 0
    for one in topics.committed(upsert):
        if one.value() is None:
            tombstones += 1
            del table[one.key().decode()]
        else:
            table[one.key().decode()] = json.loads(one.value())
    assert table == wanted and tombstones
    told: dict[str, Any] = {}
    for one in topics.committed(envelopes):
        change = json.loads(one.value())
        assert set(change) == {"before", "after", "op"}
        if change["op"] == "d":
            assert told.pop(one.key().decode()) == change["before"]
        else:
            assert (change["op"] == "u") == (one.key().decode() in told)
            told[one.key().decode()] = change["after"]
    assert told == wanted
    read = ms.Flow("read")  # and back again
    log = ms.Kafka(
        topics.address,
        envelopes,
        format="debezium",
        schema=SCHEMA,
        follow=False,
    )
    sink = ms.Memory()
    read.source(log).changes(key="k", op="__op").sink(sink)
    run_in_process(read, tmp_path / "ck2")
    kept: dict[str, Any] = {}
    for row in sink.rows:
        if row.pop("op") == "-":
            del kept[row["k"]]
        else:
            kept[row["k"]] = {name: row[name] for name in ("ts", "k", "v")}
    assert kept == wanted


def test_rows_that_cannot_be_records_are_dead_letters(topics: Any, tmp_path: Path) -> None:
    topic = topics.make()
    flow = ms.Flow("large")
    rows = [{"k": "a", "v": "x"}, {"k": "b", "v": "x" * 1_000_001}, {"k": "c", "v": "y"}]
    stream = flow.source(ms.Generator(lambda: iter(rows), schema="k string, v string"))
    stream.sink(ms.Kafka(topics.address, topic, key="k"), name="out")
    ledger = run_in_process(flow, tmp_path, dead_letter_limit=1)
    assert [one.key() for one in topics.committed(topic)] == [b"a", b"c"]
    assert (ledger["out"]["aggregated"], ledger["out"]["dead"]) == (2, 1)


def test_rows_of_functions_that_lack_what_the_sink_names(topics: Any, tmp_path: Path) -> None:
    """However they fall into batches: what a function gives is known when it is there."""
    rows = [{"n": n} for n in range(8)]

    def given(row: dict[str, Any]) -> dict[str, Any]:
        n = row["n"]
        value: Any = {0: n, 3: None}.get(n % 4, f"v{n}")
        more = {"other": "x"} if n == 5 else {}
        return {"v": value, **more, **({} if n % 4 == 1 else {"k": f"k{n}"})}

    found = []
    for name, size in (("one", 1), ("all", 100)):
        topic = topics.make()
        flow = ms.Flow(name)
        stream = flow.source(ms.Generator(lambda: iter(rows), schema="n bigint")).map(given)
        sink = ms.Kafka(topics.address, topic, key="k", headers="nobody", format="text")
        stream.sink(sink, name="out")
        ledger = run_in_process(flow, tmp_path / name, dead_letter_limit=1, batch_rows=size)["out"]
        assert (ledger["offered"], ledger["aggregated"], ledger["dead"]) == (8, 4, 4)
        found.append(sorted((one.key(), one.value()) for one in topics.committed(topic)))
        dead = list(letters_in(Checkpoint(tmp_path / name).dead))
        assert sum("it has no 'k', which key= names" in one["error"] for one in dead) == 2
        assert sum("writes texts or bytes" in one["error"] for one in dead) == 2
    wanted = [(b"k2", b"v2"), (b"k3", None), (b"k6", b"v6"), (b"k7", None)]
    assert found == [wanted, wanted]


def test_kafka_away_stops_the_flow_and_nothing_is_missing_after(
    topics: Any, tmp_path: Path, source: ms.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make()
    flow = flow_to(source, ms.Kafka(topics.address, topic, wait="100ms"))
    real, failing = producing.Publisher._send, [True]

    def send(self: Any, records: Any, progress: Any) -> None:
        if failing and progress.batch == 2:
            raise producing.require_kafka().KafkaException(
                producing.require_kafka().KafkaError(-195)  # transport failure
            )
        real(self, records, progress)

    monkeypatch.setattr(producing.Publisher, "_send", send)
    with pytest.raises(RunError, match=r"batch 2 is committed, and what is missing of it will be"):
        run_in_process(flow, tmp_path / "ck", **BATCHES)
    failing.clear()
    run_in_process(flow, tmp_path / "ck", **BATCHES)
    assert values(topics, topic) == WANTED


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": None, "pattern": "a.*"}, "for a source"),
        ({"topic": ("a", "b")}, "one topic"),
        ({"time": "ts"}, "for a source"),
        ({"format": "csv"}, "writes json"),
        ({"format": "debezium"}, 'changes="debezium"'),
        ({"changes": "upsert"}, "with key= which columns"),
        ({"changes": "all"}, "use one of"),
        ({"key": "nobody"}, "there is no column 'nobody'"),
        ({"headers": "nobody"}, "there is no column 'nobody'"),
        ({"format": "text"}, r"writes one column, and there are 3 \(ts, k, v\)"),
        ({"format": "text", "key": ("ts", "k")}, "writes texts or bytes, and 'v' is int64"),
        ({"topic": "never-made"}, "has no topic 'never-made'"),
    ],
)
def test_what_cannot_be_is_refused(
    topics: Any, tmp_path: Path, source: ms.Files, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        flow = flow_to(source, ms.Kafka(**{"servers": topics.address, "topic": "t", **given}))
        run_in_process(flow, tmp_path / "ck")

"""Kafka as a source: exact ranges, whatever lies in the topic."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.io.kafka import consuming
from millstream.run.batches.engine import Engine
from millstream.run.batches.letters import letters_in
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process

T0 = 1_700_000_000
SCHEMA = "ts bigint, k string, v bigint"


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"ts": T0 + n, "k": "abc"[n % 3], "v": n} for n in range(start, start + count)]


def encoded(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in records]


class Reading:
    """A flow to the end of what is there, as often as it is asked for."""

    def __init__(self, topics: Any, checkpoint: Path, **options: Any) -> None:
        given = {"schema": SCHEMA, "time": "ts", "follow": False, **options}
        self.flow, self.checkpoint = ms.Flow("read"), checkpoint
        self.sink = ms.Memory()
        self.flow.source(ms.Kafka(topics.address, **given), name="in").sink(self.sink)

    def rows(self, **settings: Any) -> list[dict[str, Any]]:
        """What one run gives."""
        self.sink.tables.clear()
        ledger = run_in_process(self.flow, self.checkpoint, dead_letter_limit=1, **settings)
        self.ledger = {name: n for name, n in ledger.get("in", {}).items() if n}
        return self.sink.rows

    def values(self, **settings: Any) -> list[int]:
        return sorted(row["v"] for row in self.rows(**settings))

    @property
    def dead(self) -> list[dict[str, Any]]:
        return list(letters_in(Checkpoint(self.checkpoint).dead))


def test_every_record_once_and_only_what_is_new_later(topics: Any, tmp_path: Path) -> None:
    topic = topics.make(partitions=3)
    for part in range(3):
        topics.send(topic, encoded(rows(1500, part * 1500)), part)
    reading = Reading(topics, tmp_path, topic=topic)
    assert reading.values(parallelism=2) == list(range(4500))
    assert reading.ledger == {"offered": 4500, "aggregated": 4500}
    topics.send(topic, encoded(rows(10, 4500)), 1)
    assert reading.values() == list(range(4500, 4510))
    topics.widen(topic, 4)  # a new partition is read from its beginning
    topics.send(topic, encoded(rows(5, 4510)), 3)
    assert reading.values() == list(range(4510, 4515))


def test_partitions_take_turns_where_consumers_are_few(
    topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_CONSUMERS", 2)
    topic, other = topics.make(partitions=5), topics.make()
    for part in range(5):
        topics.send(topic, encoded(rows(700, part * 700)), part)
    topics.send(other, encoded(rows(300, 3500)))
    reading = Reading(topics, tmp_path, topic=[topic, other])
    assert reading.values(batch_rows=500) == list(range(3800))
    assert reading.ledger == {"offered": 3800, "aggregated": 3800}
    assert len(consuming._readers) <= 2


def test_what_transactions_abort_and_leave_open_is_no_record(topics: Any, tmp_path: Path) -> None:
    topic = topics.make()
    producer = topics.producer(**{"transactional.id": "gaps"})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for one in encoded(rows(50, number * 50)):
            producer.produce(topic, one)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.begin_transaction()
    producer.produce(topic, encoded(rows(1, 999))[0])
    producer.flush()  # it lies in the topic and is not committed
    committed = [n for n in range(300) if n // 50 % 2 == 0]
    reading = Reading(topics, tmp_path, topic=topic)
    assert reading.values(batch_rows=70) == committed
    assert reading.ledger == {"offered": 150, "aggregated": 150}
    producer.commit_transaction()
    assert reading.values() == [999]


def test_compaction_leaves_gaps(topics: Any, tmp_path: Path) -> None:
    topic = topics.make(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
        max_compaction_lag_ms="200",
    )
    for n in range(4):
        several = [(one["k"].encode(), json.dumps(one).encode()) for one in rows(60, n * 60)]
        topics.send(topic, several)
        time.sleep(0.15)  # the next one lies in another segment
    topics.send(topic, [(b"last", encoded(rows(1, 240))[0])])
    deadline = time.monotonic() + 60
    while len(there := topics.committed(topic)) > 200:
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.2)
    wanted = sorted(json.loads(one.value())["v"] for one in there)
    found = Reading(topics, tmp_path, topic=topic).values()
    assert found[-1] == 240 and set(found) <= set(wanted) and len(found) == len(set(found))


POISON = {
    "json": [b"", b"{", b"[1]", b"\xff{}", b'{"ts": "x"}', b'{"v": 1}', b'{"ts":1,"v":2}{}', None],
    "csv": [b"", b"1,2", b"1,a,x", b"x,a,1", b'1,"a,1', b"1,a,1\n2,b,2", b"\xff,a,1", None],
    "debezium": [b"", b"{}", b'{"op":"x"}', b'{"op":"c"}', b'{"op":"d","after":{}}', b"\xff"],
}


@pytest.mark.parametrize("kind", list(POISON))
def test_poison_is_a_dead_letter_with_its_offset(topics: Any, tmp_path: Path, kind: str) -> None:
    topic = topics.make()
    good = {
        "json": [*encoded(rows(2)), b'{\n"ts": 1700000002,\n"v": 2\n}'],
        "csv": [b"1700000000,a,0", b'1700000001,"b\nb",1', b"1700000002,,2"],
        "debezium": [json.dumps({"op": "c", "after": one}).encode() for one in rows(3)],
    }[kind]
    for poison in POISON[kind]:
        topics.send(topic, [*good, poison])
    reading = Reading(topics, tmp_path, topic=topic, format=kind)
    found, times = reading.rows(), len(POISON[kind])
    assert Counter(row["v"] for row in found) == {0: times, 1: times, 2: times}
    assert reading.ledger == {"offered": 4 * times, "aggregated": 3 * times, "dead": times}
    places = [(one["topic"], one["partition"], one["offset"]) for one in reading.dead]
    assert places == [(topic, 0, 4 * n + 3) for n in range(times)]
    if kind == "debezium":  # a tombstone says once more that a row is gone
        topics.send(topic, [(b"k", None), good[0]])
        assert len(reading.rows()) == 1


def test_texts_bytes_and_what_lies_beside_values(topics: Any, tmp_path: Path) -> None:
    topic = topics.make()
    at = T0 * 1000
    big = "x" * (1024 * 1024)
    topics.send(topic, [(b"1", "a\nü".encode(), at), (None, b"", at + 1), (b"3", None, at + 2)])
    topics.send(topic, [(b"x", b"key is no number", at), (b"5", b"\xff", at)])
    topics.send(topic, [(b"6", b"", at + 5)], headers=[("trace", b"t-6"), ("other", b"\xff")])
    asked = {"topic": topic, "schema": None, "time": ms.record_time}
    text = Reading(topics, tmp_path / "text", **asked, format="text", key="id", headers="trace")
    found = text.rows()
    assert [(one["id"], one["value"], one["trace"]) for one in found] == [
        ("1", "a\nü", None),
        ("x", "key is no number", None),
        (None, "", None),
        ("3", None, None),
        ("6", "", "t-6"),
    ]
    assert [one["record_time"].timestamp() * 1000 - at for one in found] == [0, 0, 1, 2, 5]
    assert [one["error"] for one in text.dead] == [
        "not UTF-8: invalid start byte at byte 0 of the value"
    ]
    plain = Reading(topics, tmp_path / "bytes", **asked, format="bytes")
    assert [one["value"] for one in plain.rows()][1:4] == [b"key is no number", b"\xff", b""]
    large = topics.make(max_message_bytes="2000000")
    topics.send(large, [*encoded(rows(1)), json.dumps({**rows(1, 1)[0], "k": big}).encode()])
    typed = Reading(topics, tmp_path / "large", topic=large)
    assert [len(one["k"]) for one in typed.rows()] == [1, len(big)]
    declared = "id bigint, ts bigint, k string, v bigint"
    keyed = Reading(topics, tmp_path / "keyed", topic=large, schema=declared, key="id")
    topics.send(large, [(b"x", encoded(rows(1))[0]), (b"7", encoded(rows(1, 5))[0])])
    assert [(one["id"], one["v"]) for one in keyed.rows()] == [(None, 0), (None, 1), (7, 5)]
    assert [one["error"] for one in keyed.dead] == ["the key: column 'id': 'x' is not a bigint"]


def test_where_to_start(topics: Any, tmp_path: Path) -> None:
    topic = topics.make()
    topics.send(topic, [(None, one, (T0 + n) * 1000) for n, one in enumerate(encoded(rows(10)))])
    latest = Reading(topics, tmp_path / "latest", topic=topic, start="latest")
    assert latest.values() == []
    since = Reading(topics, tmp_path / "since", topic=topic, start="2023-11-14T22:13:27Z")
    assert since.values() == [7, 8, 9]
    after = Reading(topics, tmp_path / "after", topic=topic, start="2030-01-01T00:00:00Z")
    assert after.values() == []


def test_topics_that_fit_a_pattern_are_taken_up(topics: Any, tmp_path: Path) -> None:
    first = topics.make(name="fit-a")
    topics.make(name="unfit-a")
    topics.send(first, encoded(rows(3)))
    reading = Reading(topics, tmp_path, pattern="fit-.*")
    assert reading.values() == [0, 1, 2]
    second = topics.make(name="fit-b")
    topics.send(second, encoded(rows(2, 3)))
    assert reading.values() == [3, 4]


def test_records_that_retention_took_stop_the_run_or_are_counted(
    topics: Any, tmp_path: Path
) -> None:
    topic = topics.make()
    topics.send(topic, encoded(rows(100)))
    stops = Reading(topics, tmp_path / "stops", topic=topic)
    counts = Reading(topics, tmp_path / "counts", topic=topic, lost="count")
    for reading in (stops, counts):
        assert len(reading.values()) == 100
    topics.send(topic, encoded(rows(50, 100)))
    topics.remove(topic, 130)
    with pytest.raises(RunError, match=rf"{topic}/0 offsets 100 to 129.*lost=\"count\""):
        stops.values()
    assert counts.values() == list(range(130, 150))
    assert counts.ledger == {"offered": 120, "aggregated": 120, "lost": 30}
    assert counts.values() == [] and counts.ledger["lost"] == 30


def test_a_topic_made_anew_is_refused(topics: Any, tmp_path: Path) -> None:
    topic = topics.make()
    topics.send(topic, encoded(rows(3)))
    reading = Reading(topics, tmp_path, topic=topic)
    reading.values()
    topics.admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 100
    while topic in topics.admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(RunError, match=f"no topic '{topic}'"):
        reading.values()
    topics.make(name=topic)
    topics.send(topic, encoded(rows(9)))
    with pytest.raises(RunError, match="made anew"):
        reading.values()


class Live:
    """A flow without an end, batch by batch."""

    def __init__(self, flow: ms.Flow, checkpoint: Path, **settings: Any) -> None:
        self.now = time.time()
        plan = plan_flow(flow, checkpoint)
        place = Checkpoint(checkpoint)
        place.lock()
        chosen = Settings.from_options({"parallelism": 1, **settings})
        self.engine = Engine(plan, place, chosen, clock=lambda: self.now)
        self.executor = InProcess(plan, 1)
        self.engine.open(1)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()

    def until_quiet(self) -> None:
        """Batches until nothing is new."""
        for tracker in self.engine.trackers.values():
            tracker._next_discovery = 0.0  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while self.engine.step(self.executor) or self._is_away():
            assert time.monotonic() < deadline

    def _is_away(self) -> bool:
        """Whether the broker could not tell, as it may after a partition was made."""
        trackers: Any = self.engine.trackers.values()
        return any(one._away_since is not None for one in trackers)


def test_the_slowest_partition_holds_the_watermark_until_it_is_idle(
    topics: Any, tmp_path: Path
) -> None:
    topic, sink, flow = topics.make(partitions=2), ms.Memory(), ms.Flow("windows")
    source = ms.Kafka(topics.address, topic, schema=SCHEMA, time="ts", idle_timeout="30s")
    windows = flow.source(source, name="in").key_by("k").window(ms.tumbling("10s"))
    windows.agg(n=ms.count()).sink(sink)

    def given() -> list[tuple[str, int, int]]:
        return sorted(
            (one["k"], int(one["window_start"].timestamp()) - T0, one["n"]) for one in sink.rows
        )

    with Live(flow, tmp_path) as live:
        topics.send(topic, encoded([{"ts": T0 + n, "k": "a", "v": n} for n in range(40)]), 0)
        live.until_quiet()
        assert given() == []  # of the other nothing is known yet
        topics.send(topic, encoded([{"ts": T0 + n, "k": "b", "v": n} for n in range(15)]), 1)
        live.until_quiet()
        assert given() == [("a", 0, 10), ("b", 0, 10)]
        live.now += 40  # the slower one is idle, and holds nothing back
        live.until_quiet()
        assert given() == [("a", n, 10) for n in (0, 10, 20)] + [("b", 0, 10), ("b", 10, 5)]
        topics.widen(topic, 3)
        topics.send(topic, encoded([{"ts": T0 + 35, "k": "c", "v": 0}]), 2)
        topics.send(topic, encoded([{"ts": T0 + 60, "k": "a", "v": 0}]), 0)
        live.until_quiet()
        assert ("a", 30, 10) not in given()  # the new one is not there yet
        topics.send(topic, encoded([{"ts": T0 + 60, "k": "c", "v": 0}]), 2)
        live.until_quiet()
        assert given()[-1] == ("c", 30, 1) and ("a", 30, 10) in given()
        ledger = live.engine.manifest.ledger
        assert ledger["in"]["offered"] == 58 and ledger["agg"]["late"] == 0


def test_nothing_shows_a_password(topics: Any, tmp_path: Path, monkeypatch: Any) -> None:
    secret = "s3cret-word"
    monkeypatch.setenv("BROKER_PASSWORD", secret)
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": secret,
    }
    for given in (options, {**options, "sasl.password": "env:BROKER_PASSWORD"}):
        spec = ms.Kafka(topics.address, "t", schema=SCHEMA, time="ts", options=given, wait="1s")
        flow = ms.Flow("secret")
        flow.source(spec, name="in").sink(ms.Memory())
        assert spec.cluster.client()["sasl.password"] == secret
        told = [repr(spec), repr(flow), flow.explain(), repr(plan_flow(flow)), str(spec.cluster)]
        with pytest.raises((RunError, ConfigError)) as caught:
            run_in_process(flow, tmp_path / "ck")
        told.append(str(caught.value))
        assert secret not in "".join(told)
    for path in (tmp_path / "ck").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"servers": "nowhere"}, 'expected addresses like "host:9092"'),
        ({"servers": "me:word@h:1"}, 'expected addresses like "host:9092"'),
        ({"topic": None}, "say which topics"),
        ({"pattern": "x"}, "say which topics"),
        ({"topic": None, "pattern": "("}, "regular expression"),
        ({"format": "xml"}, "use one of json"),
        ({"schema": None}, "give a schema"),
        ({"start": "now"}, "a moment with its zone"),
        ({"start": "2026-11-17T00:00:00"}, "a moment with its zone"),
        ({"lost": "ignore"}, '"stop" or "count"'),
        ({"changes": "upsert"}, "for a sink"),
        ({"key": ("a", "b")}, "one key"),
        ({"options": {"group.id": "g"}}, "'group.id' cannot be set"),
        ({"options": {"acks": 1}}, "'acks' cannot be set"),
        ({"options": {"sasl.password": "env:NOT_SET"}}, "NOT_SET, which is not set"),
        ({"options": {"sasl.pasword": "x"}}, "No such configuration property"),
        ({"time": "k", "key": "k"}, "column of values"),
        ({"schema": "k string", "key": "k", "time": None}, "no column that is in values"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        options = {"servers": "127.0.0.1:1", "topic": "t", "schema": SCHEMA, "time": "ts", **given}
        flow = ms.Flow("refused")
        flow.source(ms.Kafka(**options)).sink(ms.Memory())
        run_in_process(flow, tmp_path)

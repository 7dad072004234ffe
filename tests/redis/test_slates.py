"""Slates in Redis: what committed batches say, whatever happened to either side in between."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import RunError
from millstream.io.mirrors import Address, Mirror
from millstream.ops.codec import encode
from millstream.ops.keys.names import hashes_of_values, key_text
from millstream.ops.updates.job import NEVER, UpdateJob
from millstream.run.outputs.mirroring import SlateMirror, as_text
from millstream.state.manifests import Manifest
from millstream.state.segments import write_segment
from millstream.state.storage import Storage, open_storage
from millstream.state.tables import KeyedTable, newest
from tests.variants import variants

SHARDS = 3
KEYS: list[Any] = ["a", "b\0c", "ключ", "", "42", 42, 4.5, True, None, ("x", 1), ["y", None], "*"]


@dataclass
class State:
    """The segments of an updater, written by hand; `living` is what they say."""

    root: Storage
    manifests: list[Manifest] = field(default_factory=list)
    living: dict[str, tuple[Any, Any, int, int]] = field(default_factory=dict)

    def commit(
        self, changes: dict[int, Any], *, merge: bool = False, closed: int | None = None
    ) -> Manifest:
        """A batch that changed KEYS[number]: a dict, or (dict, expires); None removes it."""
        number = len(self.manifests)
        old = self.manifests[-1] if self.manifests else Manifest(-1)
        manifest = Manifest(number, files=dict(old.files), closed=dict(old.closed))
        if closed is not None:
            manifest.closed["counts"] = closed
        stored = {s: list(v) for s, v in old.segments.get("counts", {}).get("slates", {}).items()}
        for shard, rows in self._rows(number, changes).items():
            before = stored.get(str(shard), [])
            if merge and before:
                table = KeyedTable(self.root, {str(shard): before}, old.files)
                rows = newest([*table.read(before), rows])
                stored[str(shard)] = []
            file, written = write_segment(
                self.root, f"counts/slates/{number:08d}-{shard:04d}-x.arrow", rows, "expires"
            )
            manifest.files[file.file] = file
            stored.setdefault(str(shard), []).append(written[shard])
        manifest.segments = {"counts": {"slates": stored}}
        self.manifests.append(manifest)
        if closed is not None:
            self.living = {k: v for k, v in self.living.items() if v[3] > closed}
        return manifest

    def _rows(self, number: int, changes: dict[int, Any]) -> dict[int, pa.Table]:
        by_shard: dict[int, list[dict[str, Any]]] = {}
        for at, change in changes.items():
            key = KEYS[at % len(KEYS)]
            if at >= len(KEYS):
                key = f"key {at}"
            slate, expires = change if isinstance(change, tuple) else (change, NEVER)
            hashes, checks = hashes_of_values([key])
            text, plain = key_text(key)
            shard = int(hashes[0] >> 1) % SHARDS
            row = {
                "shard": shard,
                "expires": expires,
                "hash": int(hashes[0]),
                "check": int(checks[0]),
                "gone": slate is None,
                "key": text,
                "plain": plain,
                "ts": number * 1_000_000,
                "batch": number,
                "slate": encode(slate) if slate is not None else b"",
            }
            by_shard.setdefault(shard, []).append(row)
            name = as_text(text, plain)
            if slate is None:
                self.living.pop(name, None)
            else:
                value = list(key) if isinstance(key, tuple) else key
                self.living[name] = (slate, value, number, expires)
        schema = pa.schema(
            [
                ("shard", pa.int32()),
                ("expires", pa.int64()),
                ("hash", pa.uint64()),
                ("check", pa.uint64()),
                ("gone", pa.bool_()),
                ("key", pa.string()),
                ("plain", pa.bool_()),
                ("ts", pa.int64()),
                ("batch", pa.int64()),
                ("slate", pa.binary()),
            ]
        )
        out = {}
        for shard, rows in by_shard.items():
            table = pa.Table.from_pylist(rows, schema)
            order = np.argsort(np.asarray(table.column("hash").combine_chunks()))
            out[shard] = table.take(pa.array(order))
        return out


def nothing(event: Any, slate: Any, ctx: Any) -> None:
    """An update."""


def mirror_of(server: Any, state: State, owner: str = "o", **job: Any) -> SlateMirror:
    mirror = Mirror(Address.parse(server.url, "NOT_SET"), "m:counts", owner, 5)
    return SlateMirror("redis", UpdateJob("counts", nothing, **job), "counts", mirror, state.root)


def contents(server: Any) -> dict[str, tuple[Any, Any, int]]:
    client = server.client()
    found = {}
    for name in client.scan_iter(match="m:counts:*", count=1000):
        value = json.loads(client.get(name))
        assert list(value) == ["batch", "key", "slate", "ts"]
        assert value["ts"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value["batch"]))
        found[name.decode()[len("m:counts:") :]] = (value["slate"], value["key"], value["batch"])
    return found


def check(server: Any, state: State) -> None:
    assert contents(server) == {k: v[:3] for k, v in state.living.items()}


def random_changes(random_: random.Random, number: int, most: int = 40) -> dict[int, Any]:
    changes: dict[int, Any] = {}
    for at in random_.sample(range(most), random_.randrange(1, most)):
        gone = random_.random() < 0.3
        changes[at] = None if gone else {"n": number, "at": [at, None, 1.5, "ü"]}
    return changes


def test_any_key_and_value(server: Any, tmp_path: Path) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    slates = {at: {"n": at, "of": {"deep": [1, None, True]}} for at in range(len(KEYS))}
    mirror.publish(state.commit(slates), None)
    assert len(state.living) == len(KEYS)  # "42" and 42 are two
    check(server, state)


@pytest.mark.parametrize("seed", variants(range(3)))
def test_the_mirror_follows_batch_by_batch(server: Any, tmp_path: Path, seed: int) -> None:
    """With merged segments, restarts and repeated publishing in between."""
    random_ = random.Random(seed)
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    before = None
    for number in range(25):
        manifest = state.commit(random_changes(random_, number), merge=random_.random() < 0.4)
        mirror.publish(manifest, before)
        check(server, state)
        if random_.random() < 0.3:
            mirror = mirror_of(server, state)
        if random_.random() < 0.5:
            mirror.publish(manifest, before)
            check(server, state)
        before = manifest


def test_only_changes_are_written(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    mirror.publish(state.commit({at: {"n": 0} for at in range(300)}), None)
    written: list[int] = []
    real = mirror.mirror.write
    monkeypatch.setattr(mirror.mirror, "write", lambda entries: written.append(real(entries)))
    mirror.publish(state.commit({3: {"n": 1}, 200: None}, merge=True), None)
    assert sum(written) == 2
    check(server, state)


def test_a_new_mirror_of_an_old_checkpoint_is_whole(server: Any, tmp_path: Path) -> None:
    state = State(open_storage(tmp_path))
    for number in range(5):
        state.commit(random_changes(random.Random(number), number))
    client = server.client()
    client.set("m:counts:stray", '{"batch":0,"key":"stray","slate":{},"ts":"x"}')
    client.set("m:countsother", "{}")
    client.set("m:other:a", "{}")
    mirror_of(server, state).publish(state.manifests[-1], state.manifests[-2])
    check(server, state)
    assert client.get("m:countsother") == client.get("m:other:a") == b"{}"


def test_another_checkpoint_takes_over_and_the_first_one_is_told(
    server: Any, tmp_path: Path
) -> None:
    one, two = State(open_storage(tmp_path / "1")), State(open_storage(tmp_path / "2"))
    first = mirror_of(server, one, "one")
    first.publish(one.commit({at: {"n": 1} for at in range(20)}), None)
    second = mirror_of(server, two, "two")
    second.publish(two.commit({at: {"n": 2} for at in range(10, 30)}), None)
    check(server, two)
    with pytest.raises(RunError, match=r"now belongs to another run.*batch 1 is committed"):
        first.publish(one.commit({0: {"n": 3}}), None)
    check(server, two)
    mirror_of(server, one, "one").publish(one.manifests[-1], None)
    check(server, one)


@pytest.mark.parametrize("how", ["flush", "snapshot"])
def test_a_redis_that_lost_data_is_made_whole(server: Any, tmp_path: Path, how: str) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    for number in range(6):
        mirror.publish(state.commit(random_changes(random.Random(number), number)), None)
        if number == 2 and how == "snapshot":
            server.client().save()
        if number == 4:
            server.kill()
            server.start()
            assert mirror.mirror.where()[1] == (2 if how == "snapshot" else -1)
    check(server, state)


def test_data_lost_while_a_batch_is_written(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    mirror.publish(state.commit({at: {"n": 0} for at in range(100)}), None)
    monkeypatch.setattr("millstream.io.mirrors._PIECE_KEYS", 10)
    monkeypatch.setattr("millstream.io.mirrors._IN_FLIGHT", 1)
    real = mirror.mirror._send
    calls = 0

    def restarting(group: list[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            server.kill()
            server.start()
        real(group)

    monkeypatch.setattr(mirror.mirror, "_send", restarting)
    mirror.publish(state.commit({at: {"n": 1} for at in range(0, 100, 2)}), None)
    assert calls > 10
    check(server, state)


def test_a_redis_that_loses_everything_again_and_again_is_reported(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    real = mirror.mirror.finish
    monkeypatch.setattr(
        mirror.mirror, "finish", lambda batch: (server.client().flushall(), real(batch))
    )
    with pytest.raises(RunError, match=r"lost what was written to it 5 times.*is committed"):
        mirror.publish(state.commit({0: {"n": 0}}), None)


def test_going_back_to_an_older_batch_takes_the_mirror_along(server: Any, tmp_path: Path) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    for number in range(6):
        mirror.publish(state.commit(random_changes(random.Random(number), number)), None)
    with pytest.raises(RunError, match="now belongs to another run"):  # not while it runs
        mirror.publish(state.manifests[2], None)
    check(server, state)
    again = State(open_storage(tmp_path / "again"))
    for number in range(3):
        again.commit(random_changes(random.Random(number), number))
    mirror_of(server, again).publish(again.manifests[2], again.manifests[1])
    check(server, again)


def test_redis_away_leaves_the_batch_for_the_next_start(server: Any, tmp_path: Path) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state)
    mirror.mirror.patience = 0.3
    mirror.publish(state.commit({at: {"n": 0} for at in range(30)}), None)
    server.client().save()
    server.kill()
    manifest = state.commit({at: {"n": 1} for at in range(10, 40)})
    with pytest.raises(RunError) as caught:
        mirror.publish(manifest, state.manifests[0])
    assert "batch 1 is committed and will be mirrored at the next start" in str(caught.value)
    server.start()
    mirror_of(server, state).publish(manifest, state.manifests[0])
    check(server, state)


# -- times to live --------------------------------------------------------------------------------


def test_wall_clock_ttl_is_kept_by_redis(server: Any, tmp_path: Path) -> None:
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state, ttl=1, clock="wall")
    now = int(time.time() * 1e6)
    manifest = state.commit(
        {0: ({"n": 0}, now + 60_000_000), 2: ({"n": 0}, now + 3_000_000), 3: ({"n": 0}, now - 1)}
    )
    mirror.publish(manifest, None)
    client = server.client()
    assert 50_000 < client.pttl("m:counts:a") <= 60_000
    assert client.exists("m:counts:ключ") and not client.exists("m:counts:")
    until = time.monotonic() + 60
    while list(contents(server)) != ["a"]:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_event_time_ttl_goes_with_the_watermark(server: Any, tmp_path: Path) -> None:
    """What has expired leaves with the batch; what is left gets the rest of its time."""
    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state, ttl=1, clock="event")
    second = 1_000_000
    random_ = random.Random(5)
    before = None
    ends: dict[int, int] = {}
    for number in range(20):
        closed = number * 100 * second
        changes = {}
        for at in random_.sample(range(60), 12):  # as the engine writes them: never earlier
            ends[at] = max(ends.get(at, 0), closed + random_.randrange(-50, 900) * second)
            changes[at] = ({"n": number}, ends[at])
        manifest = state.commit(changes, merge=random_.random() < 0.3, closed=closed)
        mirror.publish(manifest, before)
        check(server, state)
        for name, (_, _, batch, expires) in state.living.items():
            if batch == number:
                left = server.client().pttl(f"m:counts:{name}")
                assert 0 <= (expires - closed) // 1000 - left < 20_000
        before = manifest
    assert state.living and len(state.living) < 60


def test_what_json_cannot_say_is_said_by_str(server: Any, tmp_path: Path) -> None:
    class Text:
        """A slate that is an object."""

        def new(self) -> Any:
            return object()

        def encode(self, slate: Any) -> bytes:
            return b""

        def decode(self, data: bytes) -> Any:
            return {"bytes": data, "text": "\ud800" if data == encode({"n": 2}) else self}

        def __str__(self) -> str:
            return "a codec"

    state = State(open_storage(tmp_path))
    mirror = mirror_of(server, state, codec=Text())
    mirror.publish(state.commit({0: {"n": 1}, 11: {"n": 2}}), None)
    one, two = (json.loads(server.client().get(f"m:counts:{key}"))["slate"] for key in "a*")
    assert one == {"bytes": "gaFuAQ==", "text": "a codec"}
    assert two == str({"bytes": encode({"n": 2}), "text": "\ud800"})

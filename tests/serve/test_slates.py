"""Snapshots of slates against a plain dict, through merges, tombstones, expiry and garbage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.errors import CheckpointError
from millstream.ops.codec import decode
from millstream.serve.following import Follower
from millstream.serve.slates import Snapshot, Unknown
from tests.serve.writing import GONE, Put, Writer
from tests.variants import variants

KEYS: list[Any] = [f"k{i}" for i in range(150)] + list(range(20))
KEYS += ["42", 42, 1.5, None, True, "true", ("a", 1), ("a", "1"), "", "ключ", "a/b", "\0", "😀"]


def name(key: Any) -> tuple[type, Any]:
    """A key and its type: 1 and True are different keys."""
    return type(key), key


def text(key: tuple[type, Any]) -> str:
    """How a key is written."""
    return key[1] if key[0] is str else msgspec.json.encode(key[1]).decode()


def batch_of(rnd: random.Random, number: int, state: dict[Any, Any]) -> list[Put]:
    """A random batch, and the same done to a dict."""
    puts = []
    for key in rnd.sample(KEYS, 30):
        slate = GONE if rnd.random() < 0.2 else {"n": number, "key": str(key)}
        puts.append(Put(key, slate, ts=number))
        state.pop(name(key), None)
        if slate is not GONE:
            state[name(key)] = slate
    return puts


def everything(snapshot: Snapshot, limit: int, prefix: str = "") -> list[Any]:
    """All pages one after the other."""
    found: list[Any] = []
    after = None
    while True:
        page = snapshot.page("counts", prefix, after, limit)
        assert len(page.slates) <= limit + 1
        found += page.slates
        after = page.next
        if after is None:
            return found


@pytest.mark.parametrize("seed", variants(range(3)))
def test_reads_are_those_of_a_dict(tmp_path: Path, seed: int) -> None:
    rnd, writer, state = random.Random(seed), Writer(tmp_path), {}
    follower = Follower(tmp_path)
    for number in range(40):
        writer.commit(*batch_of(rnd, number, state))
        assert follower.advance()
        now = follower.current
        assert now.batch == number
        for key in KEYS:
            found = now.get("counts", key)
            assert (None if found is None else found.slate) == state.get(name(key))
        rows = [row for table in now.scan("counts") for row in table.to_pylist()]
        scanned = {(row["key"], row["plain"]): decode(row["slate"]) for row in rows}
        assert len(rows) == len(scanned)
        assert scanned == {(text(key), key[0] is str): slate for key, slate in state.items()}


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
@pytest.mark.parametrize("prefix", ["", "k1", "4", "zzz"])
def test_pages_are_the_sorted_keys(tmp_path: Path, limit: int, prefix: str) -> None:
    rnd, writer, state = random.Random(5), Writer(tmp_path), {}
    for number in range(15):
        writer.commit(*batch_of(rnd, number, state))
    now = Follower(tmp_path).current
    texts = [text(key) for key in state]
    wanted = sorted(one for one in texts if one.startswith(prefix))
    found = everything(now, limit, prefix)
    assert [slate.text for slate in found] == wanted
    for slate in found:
        key = tuple(slate.key) if isinstance(slate.key, list) else slate.key
        assert slate.slate == state[name(key)]


def test_more_keys_than_are_looked_at_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, shards=2)
    writer.commit(*(Put(f"{i:05d}", {"n": i}) for i in range(3000)))
    writer.commit(*(Put(f"{i:05d}", GONE) for i in range(3000) if i % 100))
    found = everything(Follower(tmp_path).current, 10)
    assert [slate.text for slate in found] == [f"{i:05d}" for i in range(0, 3000, 100)]


def test_a_page_that_runs_out_of_time_can_be_gone_on_with(tmp_path: Path) -> None:
    writer = Writer(tmp_path, shards=2)
    writer.commit(*(Put(f"{i:05d}", {"n": i}) for i in range(2000)))
    now = Follower(tmp_path).current
    page = now.page("counts", limit=1000, seconds=0.0)
    assert page.next is not None
    assert [s.text for s in page.slates] == [f"{i:05d}" for i in range(len(page.slates))]
    rest = everything_after(now, page.next)
    assert len(page.slates) + len(rest) == 2000


def everything_after(snapshot: Snapshot, after: str | None) -> list[Any]:
    """The pages that follow."""
    found: list[Any] = []
    while after is not None:
        page = snapshot.page("counts", after=after, limit=500)
        found += page.slates
        after = page.next
    return found


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ("42", "42"),
        ("7", 7),
        ("1.5", 1.5),
        ("true", "true"),
        ("false", False),
        ("null", None),
        ('["a", 1]', ("a", 1)),
    ],
)
def test_a_text_is_a_string_first_and_then_json(tmp_path: Path, asked: str, key: Any) -> None:
    Writer(tmp_path).commit(*(Put(one, {"is": repr(one)}) for one in [*KEYS, False]))
    found = Follower(tmp_path).current.get_text("counts", asked)
    assert found is not None
    assert found.slate == {"is": repr(key)}


def test_expired_slates_are_gone_in_event_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path, about={"ttl": 10})
    writer.commit(Put("a", {"n": 1}, ts=5, expires=15), Put("b", {"n": 2}), closed=14)
    follower = Follower(tmp_path)
    assert follower.current.get("counts", "a") is not None
    writer.commit(closed=15)
    follower.advance()
    assert follower.current.get("counts", "a") is None
    assert [s.text for s in everything(follower.current, 10)] == ["b"]
    assert [len(table) for table in follower.current.scan("counts") if len(table)] == [1]
    writer.commit(closed=2**62)  # the end of the input
    follower.advance()
    assert follower.current.get("counts", "b") is not None


def test_expired_slates_are_gone_by_the_wall_clock(tmp_path: Path) -> None:
    writer = Writer(tmp_path, about={"ttl": 10, "clock": "wall"})
    writer.commit(Put("a", {"n": 1}, expires=1), Put("b", {"n": 2}, expires=2**60))
    now = Follower(tmp_path).current
    assert now.get("counts", "a") is None
    assert now.get("counts", "b") is not None


def test_updaters_in_a_cycle_have_one_shard(tmp_path: Path) -> None:
    Writer(tmp_path, about={"cyclic": True}).commit(*(Put(f"k{i}", {"n": i}) for i in range(50)))
    now = Follower(tmp_path).current
    assert [now.get("counts", f"k{i}").slate for i in range(50)] == [{"n": i} for i in range(50)]


def test_an_unknown_updater_is_refused_with_the_nearest(tmp_path: Path) -> None:
    Writer(tmp_path).commit(Put("a", {}))
    with pytest.raises(Unknown, match="did you mean 'counts'"):
        Follower(tmp_path).current.get("count", "a")


def test_garbage_collection_does_not_disturb_a_snapshot(tmp_path: Path) -> None:
    rnd, writer, state = random.Random(1), Writer(tmp_path, retain=1), {}
    writer.commit(*batch_of(rnd, 0, state))
    held = Follower(tmp_path, eager=True)
    before, then = dict(state), held.current
    lazy = Follower(tmp_path)  # has opened nothing when files vanish
    for number in range(1, 40):
        writer.commit(*batch_of(rnd, number, state))
    for key in KEYS:
        found = then.get("counts", key)
        assert (None if found is None else found.slate) == before.get(name(key))
        newer = lazy.read(lambda now, key=key: now.get("counts", key))
        assert (None if newer is None else newer.slate) == state.get(name(key))


def test_a_damaged_segment_is_refused_and_the_older_batch_still_shown(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.commit(Put("a", {"n": 1}))
    follower = Follower(tmp_path, eager=True)
    writer.commit(Put("a", {"n": 2}), Put("b", {"n": 2}))
    for path in tmp_path.rglob("00000001-*.arrow"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert not follower.advance()
    assert follower.problem is not None
    assert "is damaged" in follower.problem
    assert follower.current.get("counts", "a").slate == {"n": 1}
    with pytest.raises(CheckpointError, match="is damaged"):
        Follower(tmp_path, eager=True)


def test_a_directory_without_a_flow_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        Follower(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        Follower(tmp_path / "nowhere")

"""What changed between two snapshots, against the difference of two dicts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from millstream.ops.codec import decode
from millstream.serve.changes import changes
from millstream.serve.following import Follower
from millstream.serve.slates import Snapshot
from tests.serve.writing import GONE, Put, Writer
from tests.variants import variants

State = dict[str, tuple[Any, int]]  # key -> slate, when it expires


def living(state: State, closed: int) -> dict[str, Any]:
    """The slates that have not expired."""
    return {key: slate for key, (slate, expires) in state.items() if expires > closed}


def found(old: Snapshot, new: Snapshot, prefix: str = "") -> dict[str, Any]:
    """All changes, each key once."""
    every = list(changes(old, new, new.updater("counts"), prefix))
    assert len({change.text for change in every}) == len(every)
    return {change.text: None if change.data is None else decode(change.data) for change in every}


@pytest.mark.parametrize("seed", variants(range(6), 2))
@pytest.mark.parametrize("ttl", [None, 4])
def test_changes_are_the_difference(tmp_path: Path, seed: int, ttl: int | None) -> None:
    rnd = random.Random(seed)
    writer = Writer(tmp_path, shards=2, retain=100, about={"ttl": ttl})
    follower = Follower(tmp_path, eager=True)
    state: State = {}
    then: list[tuple[Snapshot, dict[str, Any], int]] = [(follower.current, {}, 0)]
    wrote: list[set[str]] = [set()]
    for number in range(25):
        puts = []
        for key in rnd.sample([f"k{i}" for i in range(12)], rnd.choice([0, 1, 3, 9])):
            expires = 2**61 if ttl is None else number + ttl
            slate = GONE if rnd.random() < 0.3 else {"n": number}
            puts.append(Put(key, slate, ts=number, expires=expires if slate is not GONE else 2**61))
            state.pop(key, None)
            if slate is not GONE:
                state[key] = (slate, expires)
        writer.commit(*puts, closed=number)
        follower.advance()
        wrote.append({put.key for put in puts})
        then.append((follower.current, living(state, number), number))
        for at in rnd.sample(range(len(then)), min(4, len(then))):
            old, before, _ = then[at]
            new, after, _ = then[-1]
            touched = set().union(*wrote[at + 1 :])
            expected = {key: after.get(key) for key in touched if key in before or key in after}
            expected |= {key: None for key in before if key not in after}
            assert found(old, new) == expected
            some = {key: slate for key, slate in expected.items() if key.startswith("k1")}
            assert found(old, new, "k1") == some


def test_earlier_snapshots_can_be_had_as_long_as_they_are_kept(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retain=4)
    for number in range(20):
        writer.commit(Put("a", {"n": number}))
    follower = Follower(tmp_path)
    assert follower.at(19) is follower.current
    assert follower.at(18).get("counts", "a").slate == {"n": 18}
    assert follower.at(-1).get("counts", "a") is None
    assert follower.at(3) is None
    assert follower.at(25) is None


def test_snapshots_in_use_survive_garbage_collection(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retain=1)
    writer.commit(Put("a", {"n": 0}), Put("b", {"n": 0}))
    follower = Follower(tmp_path, eager=True)
    old = follower.current
    for number in range(1, 6):
        writer.commit(Put("a", {"n": number}))
        follower.advance()
    assert follower.at(0) is old
    assert found(old, follower.current) == {"a": {"n": 5}}

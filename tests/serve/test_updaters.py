"""Slates of real updaters, read back key by key and as a whole, against plain Python."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.ops.codec import decode_key
from millstream.ops.keys.names import key_text, pack_key
from millstream.serve.changes import changes
from millstream.serve.following import Follower
from millstream.serve.slates import Unknown
from millstream.testing import Driver

AT = datetime(2026, 1, 5, tzinfo=UTC)
KINDS: dict[str, tuple[str, list[Any]]] = {
    "string": ("string", ["a", "b/c", "", "42", "ключ", "null"]),
    "bigint": ("bigint", [0, 1, -7, 42, 2**62]),
    "double": ("double", [0.5, 1.0, -2.25, 1e300]),
    "boolean": ("boolean", [True, False]),
    "timestamp": ("timestamp", [AT, AT + timedelta(seconds=1, microseconds=5)]),
}


def written(key: Any) -> str:
    """A key as it is stored: a whole number is one key, whatever type its column has."""
    return key_text(decode_key(pack_key(key)))[0]


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    """Counts; a negative value removes the slate."""
    if event.value["v"] < 0:
        ctx.delete()
    else:
        slate["n"] = slate.get("n", 0) + event.value["v"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 2])
def test_every_kind_of_key_is_found_again(tmp_path: Path, kind: str, columns: int) -> None:
    name, values = KINDS[kind]
    flow = ms.Flow("keys")
    schema = f"k {name}, other string, v bigint"
    events = flow.source(ms.Generator(lambda: iter(()), schema=schema), name="in")
    keyed = events.key_by("k") if columns == 1 else events.key_by("k", "other")
    keyed.update(count, name="counts", order="arrival")
    rnd, state = random.Random(kind), {}
    with Driver(flow, checkpoint=tmp_path) as driver:
        follower = Follower(tmp_path, eager=True, new=True)
        for _ in range(12):
            batch = [
                {"k": rnd.choice(values), "other": rnd.choice("xy"), "v": rnd.randrange(-1, 5)}
                for _ in range(6)
            ]
            before = dict(state)
            for record in batch:
                key = record["k"] if columns == 1 else (record["k"], record["other"])
                if record["v"] < 0:
                    state.pop(key, None)
                else:
                    state[key] = {"n": state.get(key, {"n": 0})["n"] + record["v"]}
            driver.push("in", batch)
            driver.step()
            old = follower.current
            follower.advance()
            now = follower.current
            for key in {*before, *state}:
                found = now.get("counts", key)
                assert (None if found is None else found.slate) == state.get(key), key
                text = written(key)
                found = now.get_text("counts", text)
                assert (None if found is None else found.slate) == state.get(key), text
            told = {
                change.text: None
                if change.data is None
                else now.decode(change.updater, change.data)
                for change in changes(old, now, now.updater("counts"))
            }
            texts = {written(key): slate for key, slate in state.items()}
            known = {written(key): slate for key, slate in before.items()} | told
            assert {text: slate for text, slate in known.items() if slate is not None} == texts
    assert sorted(slate["n"] for _, slate in ms.slates(tmp_path, "counts")) == sorted(
        slate["n"] for slate in state.values()
    )


def test_a_flow_that_is_starting_is_not_said_to_have_no_updater(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    snapshot = Follower(tmp_path, new=True).current
    for ask in (snapshot.updater, snapshot.view):
        with pytest.raises(Unknown, match=r"'counts' yet: the flow is starting, ask again"):
            ask("counts")

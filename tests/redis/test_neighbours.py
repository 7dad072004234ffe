"""Mirrors beside each other: prefixes that are nested or empty, and keys of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import run_in_process


def counting(tmp: Path, url: str, prefix: str, name: str = "counts") -> ms.Flow:
    path = tmp / "in.jsonl"
    if not path.exists():
        path.write_text("".join(f'{{"ts": {i}, "k": "k{i % 3}"}}\n' for i in range(9)))
    flow = ms.Flow("neighbours")
    source = flow.source(ms.Files(path, schema="ts bigint, k string", time="ts"), name="in")

    def count(event: Any, slate: Any, ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1

    source.key_by("k").update(count, name=name).sink(ms.Redis(url, prefix=prefix))
    return flow


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_keys_of_others_are_left_alone(tmp_path: Path, server: Any, prefix: str) -> None:
    client = server.client()
    head = f"{prefix}counts"
    others = {
        f"{head}:cart:1": b"theirs",
        f"{head}:k9": b'{"batch": 1, "key": "another", "slate": {}, "ts": "x"}',
        f"{head}:inner:k1": b'{"batch":0,"key":"k1","slate":{"n":1},"ts":"x"}',
    }
    for key, value in others.items():
        client.set(key, value)
    client.lpush(f"{head}:queue", "job")
    stale = f"{head}:gone"
    client.set(stale, b'{"batch":0,"key":"gone","slate":{"n":1},"ts":"x"}')
    run_in_process(counting(tmp_path, server.url, prefix), tmp_path / "ck")
    assert {key: client.get(key) for key in others} == others
    assert client.lrange(f"{head}:queue", 0, -1) == [b"job"]
    assert client.get(stale) is None  # a slate of this mirror that is no more
    assert client.get(f"{head}:k1") is not None


def test_a_mirror_inside_another_is_refused(tmp_path: Path, server: Any) -> None:
    run_in_process(counting(tmp_path, server.url, "shop:"), tmp_path / "ck")
    inner = counting(tmp_path, server.url, "shop:counts:")
    with pytest.raises(ms.ConfigError, match=r"among the keys of the mirror 'shop:counts'"):
        run_in_process(inner, tmp_path / "ck2")

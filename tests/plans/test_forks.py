"""Flows that fork and come together again: each step is looked at once."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.graph.changing import marks_changes, tells_fidelity


@pytest.mark.parametrize("emit", ["final", "delta"])
def test_a_hundred_forks_are_looked_at_once_each(emit: str) -> None:
    flow = ms.Flow("forks")
    source = flow.source(ms.Generator(list, schema="ts bigint, k string", time="ts"))
    stream = source.key_by("k").window(ms.tumbling("1m"), emit=emit).agg(n=ms.count())
    for _ in range(100):
        stream = stream.select("*").union(stream.select("*"))
    assert marks_changes(stream.node) == (emit == "delta")
    assert not tells_fidelity(stream.node)

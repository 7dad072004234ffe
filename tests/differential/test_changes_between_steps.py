"""Filters, functions and unions between operators that emit changes: sinks come to the truth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.chunks import Chunk
from millstream.ops.emitting import edges
from tests.differential.changing import Changing, Operator, check, flows, inputs

QUICK = settings(max_examples=12, derandomize=True)
LONG = settings(max_examples=2_000)
RUNS = (flows(), st.integers(0, 10_000), st.sampled_from([1, 3]), st.sampled_from([None, 1, 3]))


@QUICK
@given(*RUNS)
def test_sinks_come_to_the_table_of_the_reference(
    recipe: Changing, seed: int, parallelism: int, stop: int | None
) -> None:
    check(recipe, inputs(seed), parallelism, stop)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(*RUNS)
def test_many_sinks_come_to_the_table_of_the_reference(
    recipe: Changing, seed: int, parallelism: int, stop: int | None
) -> None:
    check(recipe, inputs(seed), parallelism, stop)


@pytest.mark.parametrize("emit", ["delta", "early"])
def test_without_the_work_at_the_edge_they_do_not(
    monkeypatch: pytest.MonkeyPatch, emit: str
) -> None:
    """What the engine did before: rows are marked where they come from, and one side is dropped."""
    recipe = Changing(Operator("tumbling", emit, ("where n",)), None, None)
    check(recipe, inputs(1), 1, None)

    def too_early(chunks: list[Chunk], *_: object) -> Chunk:
        whole = edges._together(chunks)
        given = whole.take(whole.weights() > 0)
        return edges._marked(given, given.pos * 0 + edges._CHANGED)

    monkeypatch.setattr(edges, "consolidate", too_early)
    with pytest.raises(AssertionError):
        check(recipe, inputs(1), 1, None)

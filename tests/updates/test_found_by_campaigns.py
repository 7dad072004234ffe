"""What random flows found, each as small as it became; all are compared with the reference."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.updates.flows import BASE, Behaviour, Feed, Node, Publish, Recipe
from tests.updates.test_driver_against_reference import check


def at(seconds: float, **columns: Any) -> dict[str, Any]:
    row = {"k": "a", "k2": 0, "v": 0, "hops": 1}
    return {"ts": BASE + timedelta(seconds=seconds), **row, **columns}


TO_S0 = (Publish(stream="s0", packed=False, when=3, key="same"),)
FIRST = Node((Feed("in0"),), Behaviour(publishes=TO_S0))


def test_a_failure_after_expiry_leaves_the_slate() -> None:
    """The slate had expired for the call that raised, but not yet for readers."""
    window = Feed("in0", ("window 10s",))
    recipe = Recipe((3.0,), (), (Node((window,), Behaviour(raises=3), ttl=10.0),))
    batches = [[at(60, v=3)], [at(54.999999, v=3)], [at(54.999999, v=3)]]
    check(recipe, [{"in0": rows} for rows in batches], 1, {}, 1)


def test_a_slate_made_again_after_its_deletion_expires_anew() -> None:
    how = Behaviour(deletes=5)
    recipe = Recipe((0.0,), (), (Node((Feed("in0"),), how, ttl=10.0),))
    batches = [[at(30)], [at(39)], [at(20, v=5), at(21), at(45, k="b")]]
    check(recipe, [{"in0": rows} for rows in batches], 1, {}, 1)


@pytest.mark.parametrize("nulls", ["dead", "keep"])
def test_null_keys_of_published_events(nulls: str) -> None:
    publish = Publish(stream="s0", packed=True, when=3, key="none")
    one = Node((Feed("in0"),), Behaviour(remember="count", publishes=(publish,)))
    other = Node((Feed("s0", (), ("key",), nulls),), Behaviour())
    check(Recipe((0.0,), ("s0",), (one, other)), [{"in0": [at(0, v=1), at(1, v=2)]}], 1, {}, 1)


def test_a_stream_taken_twice_arrives_twice() -> None:
    twice = (Feed("s0", (), ("key",)), Feed("s0", (), ("key",)))
    recipe = Recipe((0.0,), ("s0",), (FIRST, Node(twice, Behaviour(remember="count"))))
    check(recipe, [{"in0": [at(0), at(1)]}], 1, {}, 1)


def test_a_stream_taken_directly_and_through_a_step_arrives_in_the_order_of_steps() -> None:
    both = (Feed("s0", (), ("key",)), Feed("s0", ("flat_map twice",), ("k",)))
    recipe = Recipe((0.0,), ("s0",), (FIRST, Node(both, Behaviour(remember="path"))))
    check(recipe, [{"in0": [at(0, v=2), at(1, v=4)]}], 1, {}, 1)


@pytest.mark.parametrize("timer", ["none", "after"])
def test_two_publishers_of_one_record_have_an_order(timer: str) -> None:
    """Both get the same record (or a timer at the same time) under the same key."""
    how = Behaviour(remember="count", publishes=TO_S0, timer=timer)
    one = Node((Feed("in0"),), how)
    other = Node((Feed("in0"),), Behaviour(remember="path", publishes=TO_S0, timer=timer))
    last = Node((Feed("s0", (), ("key",)),), Behaviour())
    rows = [at(i, v=2 * i + 1, hops=2) for i in range(4)]
    for parallelism in (1, 3):
        check(Recipe((0.0,), ("s0",), (one, other, last)), [{"in0": rows}], parallelism, {}, 8)


@pytest.mark.parametrize("late", ["apply", "divert"])
@pytest.mark.parametrize("steps", [(), ("window 10s",)])
def test_what_is_made_of_late_events_by_arrival_is_not_late_itself(
    late: str, steps: tuple[str, ...]
) -> None:
    """It has the time from which the late event counts, so nobody behind it misses it."""
    first = Node((Feed("in0"),), Behaviour(remember="count", emits="one"), order="arrival")
    then = Node((Feed("u0", steps),), Behaviour(remember="count", emits="one"), late=late)
    batches = [[at(0), at(30), at(4)], [at(45), at(12), at(14)], [at(60)]]
    check(Recipe((0.0,), (), (first, then)), [{"in0": rows} for rows in batches], 1, {}, 1)

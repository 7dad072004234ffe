"""The law suite passes what is sound and names what is not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.testing import LawError, check_aggregate
from tests.laws.aggregates import Average

BUILTINS = [
    ms.sum("x"),
    ms.mean("x"),
    ms.var("x"),
    ms.std("x"),
    ms.count("x"),
    ms.min("x"),
    ms.max("x"),
    ms.first("x"),
    ms.last("x"),
    ms.collect("x"),
    ms.top_k("x", 3),
    ms.distinct("x"),
    ms.distinct("x", approx=True),
    ms.quantile("x", 0.3),
    ms.quantile("x", [0, 0.5, 1]),
    ms.quantile("x", 0.3, approx=True),
]


class Histogram(ms.Aggregate):
    """Sound, and works in place on its left argument."""

    def zero(self) -> dict[str, int]:
        return {}

    def add(self, state: dict[str, int], record: dict[str, Any]) -> dict[str, int]:
        state[record["kind"]] = state.get(record["kind"], 0) + 1
        return state

    def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        for kind, number in right.items():
            left[kind] = left.get(kind, 0) + number
        return left


class Longest(ms.Aggregate):
    """Sound, without combine."""

    def zero(self) -> str:
        return ""

    def add(self, state: str, value: str) -> str:
        return max(state, value, key=lambda text: (len(text), text))


class Total(ms.MapReduce):
    """A sound job."""

    def combine(self, key: Any, values: list[Any]) -> Any:
        return sum(values)

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        return total - expired

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


@pytest.mark.parametrize("agg", BUILTINS, ids=str)
def test_builtins_obey_the_laws(agg: Any) -> None:
    check_aggregate(agg, examples=30)


TEXTS = [ms.min("x"), ms.max("x"), ms.first("x"), ms.last("x"), ms.top_k("x", 2), ms.distinct("x")]


@pytest.mark.parametrize("agg", TEXTS, ids=str)
def test_builtins_obey_the_laws_on_texts_and_nulls(agg: Any) -> None:
    check_aggregate(agg, ["", "a", "ä", None], examples=30)


def test_totals_obey_the_laws() -> None:
    def record(chance: random.Random) -> dict[str, Any]:
        sizes = [1.5, 0.1, 1e300, -2.0, None, float("inf"), chance.uniform(-1, 1)]
        return {"x": chance.choice(["a", "b", None]), "y": chance.choice(sizes)}

    check_aggregate(ms.top_k("x", 2, by="y"), record, tolerance=0, examples=30)
    with pytest.raises(ms.ConfigError, match="give values="):
        check_aggregate(ms.top_k("x", 2, by="y"))


@pytest.mark.long
@pytest.mark.parametrize("agg", BUILTINS, ids=str)
def test_builtins_obey_the_laws_at_length(agg: Any) -> None:
    values = [0, 1, -1, None, float("nan"), float("inf"), 1e15, -1e15, 0.1, 3e-5]
    check_aggregate(agg, values, examples=1_000, seed=1)
    check_aggregate(agg, examples=2_000, seed=2)


def test_sound_aggregates_pass() -> None:
    check_aggregate(Average("x"))
    check_aggregate(Histogram(), lambda chance: {"kind": chance.choice("abc")})
    check_aggregate(Longest("s"), ["a", "bb", "", "cc"])
    check_aggregate(Total())


def test_a_job_without_combine_has_little_to_check() -> None:
    class Plain(ms.MapReduce):
        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield key, len(values)

    check_aggregate(Plain())


def broken(**methods: Any) -> ms.Aggregate:
    """The sound average with some methods replaced."""
    return type("Broken", (Average,), methods)("x")


def assert_breaks(agg: Any, law: str, values: Any = None) -> str:
    with pytest.raises(LawError) as caught:
        check_aggregate(agg, values)
    message = str(caught.value)
    assert law in message
    return message


def test_a_combine_that_is_not_associative_is_found() -> None:
    class Midpoint(ms.Aggregate):
        def zero(self) -> Any:
            return None

        def add(self, state: Any, value: Any) -> Any:
            return self.combine(state, value)

        def combine(self, left: Any, right: Any) -> Any:
            if left is None or right is None:
                return left if right is None else right
            return (left + right) / 2

    message = assert_breaks(Midpoint("x"), "combine is associative")
    assert "a = [" in message
    assert "one gives" in message
    assert "other gives" in message


def test_a_combine_that_is_not_commutative_is_found() -> None:
    class Joined(ms.Aggregate):
        def zero(self) -> str:
            return ""

        def add(self, state: str, value: Any) -> str:
            return state + str(value)

        def combine(self, left: str, right: str) -> str:
            return left + right

    assert_breaks(Joined("x"), "combine is commutative")


def test_a_zero_that_is_not_neutral_is_found() -> None:
    assert_breaks(broken(zero=lambda self: (1, 0.0)), "zero is neutral")


def test_a_shared_zero_is_found() -> None:
    shared: dict[str, int] = {}

    class Sharing(Histogram):
        def zero(self) -> dict[str, int]:
            return shared

    values = [{"kind": "a"}, {"kind": "b"}]
    assert_breaks(Sharing(), "zero() gives a new state every time", values)


def test_an_uncombine_that_does_nothing_is_found() -> None:
    agg = broken(uncombine=lambda self, total, expired: total)
    assert_breaks(agg, "uncombine is the inverse of combine")


def test_a_combine_that_changes_its_left_argument_is_found() -> None:
    class Greedy(Histogram):
        def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
            return dict(super().combine(left, right))  # left was changed, a copy is given back

    assert_breaks(Greedy(), "leaves its arguments", [{"kind": "a"}, {"kind": "b"}])


def test_a_combine_that_changes_its_right_argument_is_found() -> None:
    class Draining(Histogram):
        def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
            left = super().combine(left, right)
            right.clear()
            return left

    assert_breaks(Draining(), "leaves its arguments", [{"kind": "a"}, {"kind": "b"}])


def test_a_result_that_changes_the_state_is_found() -> None:
    class Popping(ms.Aggregate):
        def zero(self) -> list[Any]:
            return []

        def add(self, state: list[Any], value: Any) -> list[Any]:
            return [*state, value]

        def result(self, state: list[Any]) -> Any:
            return state.pop() if state else None

    assert_breaks(Popping("x"), "result() leaves the state as it is")


def test_a_state_that_cannot_be_stored_is_found() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

        __hash__ = None  # type: ignore[assignment]

    agg = broken(
        zero=lambda self: Odd(),
        add=lambda self, state, value: state,
        combine=lambda self, left, right: left,
        result=lambda self, state: 1,
    )
    message = assert_breaks(agg, "a state can be stored")
    assert "cannot be stored" in message


def test_a_state_that_changes_when_stored_is_found() -> None:
    agg = broken(result=lambda self, state: isinstance(state, tuple))  # it comes back as a list
    assert_breaks(agg, "a state can be stored")


def test_a_job_whose_combine_loses_values_is_found() -> None:
    class First(Total):
        def combine(self, key: Any, values: list[Any]) -> Any:
            return values[0]

    assert_breaks(First(), "combine is commutative")


def test_an_error_names_the_law_and_the_values() -> None:
    def fail(self: Any, left: Any, right: Any) -> Any:
        raise KeyError("oops")

    message = assert_breaks(broken(combine=fail), "raised KeyError: 'oops'")
    assert "a = [" in message


def test_the_same_seed_gives_the_same_values() -> None:
    seen: list[list[float]] = [[], []]
    for into in seen:

        def value(chance: random.Random, into: list[float] = into) -> float:
            into.append(chance.random())
            return into[-1]

        check_aggregate(Average("x"), value, examples=3, seed=5)
    assert seen[0] == seen[1]


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ms.ConfigError, match="give values="):
        check_aggregate(Histogram())
    with pytest.raises(ms.ConfigError, match="samples is empty"):
        check_aggregate(Average("x"), [])
    with pytest.raises(ms.ConfigError, match="expected an aggregate"):
        check_aggregate(sum)  # type: ignore[arg-type]
    with pytest.raises(ms.ConfigError, match="at least 1"):
        check_aggregate(Average("x"), examples=0)

"""The laws an aggregate must obey to be split, merged, stored and slid over: a check for users.

    check_aggregate(GeometricMean("price"), values=lambda random: random.uniform(1, 100))

The engine adds values where they are, combines states in any grouping and stores them in between.
An aggregate that breaks one of these laws gives answers that depend on how the input was cut.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.api.aggregates import Aggregate, Builtin
from millstream.api.mapreduce import MapReduce
from millstream.errors import ConfigError
from millstream.ops.aggregates.grid import find_runs
from millstream.ops.aggregates.holding import ObjectKernel
from millstream.ops.aggregates.kernels import Kernel, Rows, State
from millstream.ops.codec import decode, encode
from millstream.ops.comparing import alike, magnitude, plain
from millstream.ops.times.spans import Span
from millstream.ops.windows.jobs import Window

__all__ = ["LawError", "alike", "check_aggregate"]

Values = Callable[[random.Random], Any] | Sequence[Any]
Method = Callable[[Any, Any], Any]
_MOST = 8  # values per state


class LawError(AssertionError):
    """An aggregate broke a law; the message says which, on what, and what came out."""


def check_aggregate(
    agg: Builtin | Aggregate | MapReduce,
    values: Values | None = None,
    *,
    examples: int = 200,
    seed: int = 0,
    tolerance: float = 1e-9,
) -> None:
    """Try an aggregate (or the `combine` of a MapReduce job) against its laws.

    values: a function that makes one value out of a `random.Random`, or a list of samples to draw
        from; by default numbers. For an aggregate without a column a value is a record, for a
        MapReduce job what its `map` gives.
    tolerance: how far floats may differ, relative to the largest number in play.
    """
    subject = _subject(agg)
    chance = random.Random(seed)
    draw = _drawing(agg, values)
    if examples < 1:
        raise ConfigError("check_aggregate(examples=): must be at least 1")
    for _ in range(examples):
        parts = [[draw(chance) for _ in range(chance.randint(1, _MOST))] for _ in range(3)]
        _Example(subject, parts, tolerance).check()


def _drawing(
    agg: Builtin | Aggregate | MapReduce, values: Values | None
) -> Callable[[random.Random], Any]:
    if callable(values):
        return values
    if values is not None:
        samples = list(values)
        if not samples:
            raise ConfigError("check_aggregate(values=): the list of samples is empty")
        return lambda chance: chance.choice(samples)
    if isinstance(agg, Builtin) and agg.by is not None:
        raise ConfigError(
            f"check_aggregate({agg}): its values are records with {agg.column!r} and {agg.by!r}; "
            "give values="
        )
    if isinstance(agg, Aggregate) and agg.column is None:
        raise ConfigError(
            f"check_aggregate({agg}): it has no column, so its values are records; give values="
        )
    return _number


def _number(chance: random.Random) -> float:
    if chance.random() < 0.5:
        return chance.randint(-1000, 1000)
    return chance.uniform(-1000.0, 1000.0)


# -- what is checked: three kinds of aggregate behind one face -----------------------------------


class _Subject:
    """States of one aggregate, and those of its methods that there are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.zero: Callable[[], Any] | None = None
        self.add: Method | None = None
        self.combine: Method | None = None
        self.uncombine: Method | None = None

    def lift(self, values: list[Any]) -> Any:
        """The state of some values."""
        return list(values)

    def result(self, state: Any) -> Any:
        """The answer of a state."""
        return list(state)

    def stored(self, state: Any) -> Any:
        """A state written and read again."""
        return state

    def slid(self, states: list[Any]) -> Any:
        """The answer of a window over these panes; None if there is no way of its own."""
        return None


def _subject(agg: Builtin | Aggregate | MapReduce) -> _Subject:
    if isinstance(agg, Builtin):
        if agg.objects is not None:
            return _Columns(agg, agg.objects)
        if agg.lists is not None:
            return _Lists(agg, agg.lists)
        return _Kernels(str(agg), agg.kernel) if agg.kernel is not None else _Subject(str(agg))
    if isinstance(agg, Aggregate):
        return _Methods(agg)
    if isinstance(agg, MapReduce):
        return _Job(agg)
    raise ConfigError(
        "check_aggregate(): expected an aggregate like ms.sum('x'), an instance of a subclass of "
        f"ms.Aggregate or of ms.MapReduce, got {agg!r}"
    )


class _Methods(_Subject):
    """A user's aggregate."""

    def __init__(self, agg: Aggregate) -> None:
        super().__init__(str(agg))
        self.agg = agg
        self.zero, self.add = agg.zero, agg.add
        self.combine = agg.combine if agg.can("combine") else None
        self.uncombine = agg.uncombine if agg.can("uncombine") else None

    def lift(self, values: list[Any]) -> Any:
        state = self.agg.zero()
        for value in values:
            state = self.agg.add(state, value)
        return state

    def result(self, state: Any) -> Any:
        return self.agg.result(state)

    def stored(self, state: Any) -> Any:
        return decode(encode(state)) if self.combine is not None else state


class _Columns(_Subject):
    """A built-in whose states are made from whole columns, and are Python values."""

    def __init__(self, agg: Builtin, kernel: ObjectKernel) -> None:
        super().__init__(str(agg))
        self.agg, self.kernel = agg, kernel
        self.zero, self.combine, self.uncombine = kernel.zero, kernel.combine, kernel.inverse

    def lift(self, values: list[Any]) -> Any:
        columns = [pa.array(values)]
        if self.agg.by is not None:  # a value is a record
            columns = [pa.array([row[name] for row in values]) for name in self.agg.columns]
        assert self.kernel.bulk is not None
        return decode(self.kernel.bulk(columns, np.zeros(len(values), np.int64), 1)[0].as_py())

    def result(self, state: Any) -> Any:
        assert self.kernel.typed is not None
        return self.kernel.typed([state]).to_pylist()[0]

    def stored(self, state: Any) -> Any:
        return decode(encode(state))

    def slid(self, states: list[Any]) -> Any:
        """The same as one window over panes, by two stacks."""
        packed = pa.array([encode(state) for state in states], pa.binary())
        low, high = np.array([0, 0]), np.array([1, len(states)])
        return self.result(self.kernel.slide(packed, low, high)[-1])


class _Lists(_Subject):
    """A built-in over kept values."""

    def __init__(self, agg: Builtin, answer: Callable[[pa.Array], pa.Array]) -> None:
        super().__init__(str(agg))
        self.answer = answer

    def result(self, state: Any) -> Any:
        return self.answer(pa.array([state])).to_pylist()[0]


class _Job(_Subject):
    """The combine of a MapReduce job: its states are values, and there is no zero."""

    def __init__(self, job: MapReduce) -> None:
        super().__init__(type(job).__name__)
        self.job = job
        self.combine = self._combine if job.can("combine") else None
        self.uncombine = self._uncombine if job.can("uncombine") else None

    def _combine(self, left: Any, right: Any) -> Any:
        return self.job.combine("key", [left, right])

    def _uncombine(self, total: Any, expired: Any) -> Any:
        return self.job.uncombine("key", total, expired)

    def lift(self, values: list[Any]) -> Any:
        if self.combine is None:
            return list(values)
        state = values[0]
        for value in values[1:]:
            state = self.job.combine("key", [state, value])
        return state

    def result(self, state: Any) -> Any:
        values = [state] if self.combine is not None else state
        return list(self.job.reduce("key", values, Window(None, None)) or ())

    def stored(self, state: Any) -> Any:
        return decode(encode(state))


class _Kernels(_Subject):
    """A built-in: states are Arrow columns of one row."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        super().__init__(name)
        self.kernel = kernel
        self.zero = self._zero if "pos" not in kernel.fields else None  # an edge needs a value
        self.combine = self._combine
        self.lifted = 0

    def _zero(self) -> State:
        return self.lift([None])

    def lift(self, values: list[Any]) -> State:
        column = pa.array(values)
        places = np.arange(self.lifted, self.lifted + len(values))
        self.lifted += len(values)
        rows = Rows(np.zeros(len(values), np.int64), 1, places // 2, 0, places)
        return self.kernel.lift(column, rows)

    def _combine(self, left: State, right: State) -> State:
        return self.kernel.merge(self._stacked([left, right]), np.zeros(2, np.int64), 1)

    def _stacked(self, states: list[State]) -> State:
        tables = [pa.table(state) for state in states]
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        if "upper" in columns:  # of sums: some states have none, which is 0
            columns["upper"] = columns["upper"].fill_null(0)
        return columns

    def result(self, state: State) -> Any:
        return self.kernel.result(state).to_pylist()[0]

    def stored(self, state: State) -> State:
        return {name: pa.array(column.to_pylist(), column.type) for name, column in state.items()}

    def slid(self, states: list[State]) -> Any:
        """The same as one window over panes, the way the engine slides."""
        panes = np.arange(len(states))
        runs = find_runs(Span(len(states), 1), np.zeros_like(panes), panes, len(states) - 1, 99)
        (grid, *_) = list(runs.grids(panes))
        found = self.kernel.result(self.kernel.slide(self._stacked(states), grid))
        return found.to_pylist()[0]


# -- the laws ------------------------------------------------------------------------------------


@dataclass
class _Example:
    """The laws on three lists of values."""

    subject: _Subject
    parts: list[list[Any]]
    tolerance: float

    def check(self) -> None:
        """Every law, the simplest first, so that the message names the cause."""
        if self.subject.zero is not None:
            self._fresh_zero(self.subject.zero)
        if self.subject.add is not None:
            self._undisturbed("add", self.subject.add, self.parts[0], [self.parts[1][0]])
        self._result_is_pure()
        self._stored()
        if self.subject.combine is None:
            return
        self._undisturbed("combine", self.subject.combine, self.parts[0], self.parts[1])
        if self.subject.zero is not None:
            self._neutral_zero(self.subject.zero, self.subject.combine)
        self._commutative(self.subject.combine)
        self._associative(self.subject.combine)
        self._splits(self.subject.combine)
        if self.subject.uncombine is not None:
            self._inverse(self.subject.combine, self.subject.uncombine)

    def _fresh_zero(self, zero: Callable[[], Any]) -> None:
        law = "zero() gives a new state every time"
        before = self._do(law, lambda: self.subject.result(copy.deepcopy(zero())))
        self._lift(law, self.parts[0])
        after = self._do(law, lambda: self.subject.result(copy.deepcopy(zero())))
        self._same(law, "result(zero()), before and after adding", self.parts[:1], before, after)

    def _neutral_zero(self, zero: Callable[[], Any], combine: Method) -> None:
        law = "zero is neutral"
        alone = self._result(law, self._lift(law, self.parts[0]))
        for shown, build in (
            ("combine(zero, a)", lambda: combine(zero(), self._lift(law, self.parts[0]))),
            ("combine(a, zero)", lambda: combine(self._lift(law, self.parts[0]), zero())),
        ):
            found = self._result(law, self._do(law, build))
            self._same(law, f"a against {shown}", self.parts[:1], alone, found)

    def _commutative(self, combine: Method) -> None:
        law = "combine is commutative"
        a, b = (self._lift(law, part) for part in self.parts[:2])
        one = self._do(law, lambda: combine(copy.deepcopy(a), copy.deepcopy(b)))
        other = self._do(law, lambda: combine(b, a))
        shown = "combine(a, b) against combine(b, a)"
        self._same(law, shown, self.parts[:2], self._result(law, one), self._result(law, other))

    def _associative(self, combine: Method) -> None:
        law = "combine is associative"
        a, b, c = (self._lift(law, part) for part in self.parts)
        keep = copy.deepcopy
        one = self._do(law, lambda: combine(combine(keep(a), keep(b)), keep(c)))
        other = self._do(law, lambda: combine(a, combine(b, c)))
        shown = "combine(combine(a, b), c) against combine(a, combine(b, c))"
        self._same(law, shown, self.parts, self._result(law, one), self._result(law, other))

    def _splits(self, combine: Method) -> None:
        law = "the answer does not depend on how values were split"
        values = [value for part in self.parts for value in part]
        whole = self._result(law, self._lift(law, values))
        for cuts in (self.parts, [[value] for value in values]):
            states = [self._lift(law, part) for part in cuts]
            total = states[0]
            for state in states[1:]:
                total = self._do(law, lambda t=total, s=state: combine(t, s))  # type: ignore[misc]
            shown = f"adding all {len(values)} against combining {len(cuts)} states"
            self._same(law, shown, cuts, whole, self._result(law, total))
        slid = self._do(law, lambda: self.subject.slid([self._lift(law, p) for p in self.parts]))
        if slid is not None:
            self._same(law, "adding all against sliding over panes", self.parts, whole, slid)

    def _inverse(self, combine: Method, uncombine: Method) -> None:
        law = "uncombine is the inverse of combine"
        a, b = (self._lift(law, part) for part in self.parts[:2])
        keep = copy.deepcopy
        left = self._do(law, lambda: uncombine(combine(keep(a), keep(b)), keep(b)))
        scale = max(magnitude(a), magnitude(b))
        shown = "a against uncombine(combine(a, b), b)"
        self._same(law, shown, self.parts[:2], self._result(law, a), self._result(law, left), scale)

    def _stored(self) -> None:
        law = "a state can be stored"
        state = self._lift(law, self.parts[0])
        back = self._do(law, lambda: self.subject.stored(state))
        before, after = self._result(law, state), self._result(law, back)
        self._same(law, "a against a stored and read again", self.parts[:1], before, after)
        if self.subject.combine is None:
            return
        combine = self.subject.combine
        b = self._do(law, lambda: self.subject.stored(self._lift(law, self.parts[1])))
        total = self._do(law, lambda: combine(self.subject.stored(state), b))
        plain = self._do(law, lambda: combine(copy.deepcopy(state), self._lift(law, self.parts[1])))
        before, after = self._result(law, plain), self._result(law, total)
        self._same(
            law, "combine(a, b) against that of stored states", self.parts[:2], before, after
        )

    def _result_is_pure(self) -> None:
        law = "result() leaves the state as it is"
        state = self._lift(law, self.parts[0])
        one = self._do(law, lambda: copy.deepcopy(self.subject.result(state)))
        other = self._do(law, lambda: self.subject.result(state))
        self._same(law, "result(a) against result(a) again", self.parts[:1], one, other)

    def _undisturbed(self, method: str, call: Method, left: list[Any], right: list[Any]) -> None:
        """An argument may be changed only if it is the left one and is what is given back."""
        law = f"{method} leaves its arguments as they are, or gives the left one back"
        a = self._lift(law, left)
        b = right[0] if method == "add" else self._lift(law, right)
        was_a, was_b = copy.deepcopy(a), copy.deepcopy(b)
        out = self._do(law, lambda: call(a, b))
        if out is not a:
            self._same(law, "the left argument before and after", [left, right], was_a, a)
        if out is not b:
            self._same(law, "the right argument before and after", [left, right], was_b, b)

    # -- calling and comparing --------------------------------------------------------------------

    def _lift(self, law: str, values: list[Any]) -> Any:
        values = copy.deepcopy(values)  # so that nothing is shared between states
        return self._do(law, lambda: self.subject.lift(values))

    def _result(self, law: str, state: Any) -> Any:
        return self._do(law, lambda: self.subject.result(copy.deepcopy(state)))

    def _do(self, law: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a user's function may raise anything
            raise LawError(
                f"{self.subject.name}: {law}: raised {type(error).__name__}: {error}\n"
                f"  on {self._shown(self.parts)}"
            ) from error

    def _same(
        self, law: str, shown: str, on: list[list[Any]], one: Any, other: Any, scale: float = 0.0
    ) -> None:
        scale = max(scale, magnitude(one), magnitude(other), magnitude(on))
        if not alike(one, other, self.tolerance, scale):
            raise LawError(
                f"{self.subject.name}: broken law: {law}\n  {shown}\n  on {self._shown(on)}\n"
                f"  one gives   {plain(one)!r}\n  other gives {plain(other)!r}"
            )

    def _shown(self, parts: list[list[Any]]) -> str:
        return ", ".join(f"{name} = {part!r}" for name, part in zip("abc", parts, strict=False)) + (
            "" if len(parts) <= 3 else ", ..."
        )

"""Programs written for plain MapReduce, called as they expect it: no base class, times or windows.

A `Program` is a `MapReduce` job like any other to the steps after it; `api/job.py` makes it of what
a user has. On the map side a `MapSplit` has an instance of its own, so that a map can gather, and
give what it gathered when its piece of the input is over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from millstream.api.mapreduce import MapReduce, nothing, untold
from millstream.errors import ProgramError, RunError
from millstream.ops.aggregates.holding import ObjectKernel, never
from millstream.ops.codec import Keys
from millstream.ops.records import describe
from millstream.ops.windows.jobs import Window

Pair = tuple[Any, Any]


class JobContext:
    """What a method of a program gets if it has a parameter more than key and value.

    Call it, or its `emit` or `write`, with a key and a value to give a pair. `key`, `value` (in a
    map), `values` (in a combine or reduce), `ts` (of the record) and `window` say what is at hand.
    """

    def __init__(self, **at_hand: Any) -> None:
        self.key = at_hand.get("key")
        self.value = at_hand.get("value")
        self.values = at_hand.get("values")
        self.ts = at_hand.get("ts")
        self.window = at_hand.get("window")
        self._pairs: list[Pair] = []

    def emit(self, key: Any, value: Any) -> None:
        """Give a pair."""
        self._pairs.append((key, value))

    __call__ = write = emit


class Values:
    """The values of a key, to be gone through once, as in Hadoop.

    A second look finds nothing, as with any iterator; what needs a list is told to make one.
    """

    __slots__ = ("_left",)

    def __init__(self, values: list[Any]) -> None:
        self._left = iter(values)

    def __iter__(self) -> Iterator[Any]:
        return self._left

    def __next__(self) -> Any:
        return next(self._left)

    def __len__(self) -> int:
        raise TypeError(f"len(values): {_ONCE}")

    def __getitem__(self, at: Any) -> Any:
        raise TypeError(f"values[{at!r}]: {_ONCE}")

    def __bool__(self) -> bool:
        return True


_ONCE = (
    "values are an iterator that is gone through once; take `values = list(values)` first, or "
    "subclass ms.MapReduce, whose reduce gets a list"
)


@dataclass(frozen=True)
class Method:
    """A function of a program, whose it is, and how it is called."""

    owner: Any  # a class, an object, or None for a plain function
    called: str  # the name of the method of its owner
    form: tuple[str, ...]  # what it is called with
    function: Callable[..., Any] | None = None

    def of(self, instance: Any) -> Callable[..., Any]:
        """The function to call, of an instance of its owner."""
        bound: Callable[..., Any] = self.function or getattr(instance, self.called)
        return bound

    @property
    def yields(self) -> bool:
        """Whether it can be seen that it gives pairs."""
        return inspect.isgeneratorfunction(self.function or getattr(self.owner, self.called))


class Program(MapReduce):
    """A program as a job; made by `ms.job`."""

    def __init__(
        self, name: str, methods: dict[str, Method], based: bool, same: tuple[int, ...]
    ) -> None:
        self.name = name
        self.methods = methods
        self.based = based  # it has the base class: lists of values, single combined values
        self.same = same  # programs with equal marks are one program
        self.gathers = False  # a piece of its input may be of several files
        self._shared: dict[int, Any] = {}  # per owner the instance for combine and reduce

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": {}}

    def can(self, method: str) -> bool:
        """Whether the program has this method."""
        return method in self.methods

    @property
    def combines_pairs(self) -> bool:
        """Its `combine` gives any number of values for several, as pairs."""
        return self.can("combine") and not self.based

    def map(self, key: Any, value: Any, ts: Any) -> list[Pair]:
        """Pairs for one record, as a split of its own."""
        split = MapSplit(self)
        return [*split.map(key, value, ts), *split.close()]

    def combine(self, key: Any, values: list[Any]) -> Any:
        """The base class's: several values as one."""
        return self.methods["combine"].of(self._instance("combine"))(key, values)

    def uncombine(self, key: Any, total: Any, expired: Any) -> Any:
        """Likewise its inverse."""
        return self.methods["uncombine"].of(self._instance("uncombine"))(key, total, expired)

    def combined(self, key: Any, values: list[Any]) -> list[Any]:
        """Values of a key as fewer: what `combine` gives as pairs, or returns as one value."""
        pairs, result = self._over_values("combine", key, values, None)
        if result is not None and not isinstance(result, Iterator):
            return [*(value for _, value in pairs), result]
        _gather(pairs, result, f"{self.name}.combine")
        for other, _ in pairs:
            if other != key:
                raise TypeError(
                    f"{self.name}.combine() got the key {key!r} and gave {other!r}; what it gives "
                    "must have the key it got"
                )
        return [value for _, value in pairs]

    def reduce(self, key: Any, values: list[Any], window: Window) -> list[Pair]:
        """Pairs for one key and window."""
        pairs, result = self._over_values("reduce", key, values, window)
        return _gather(pairs, result, f"{self.name}.reduce")

    def reduce_combined(self, key: Any, values: list[list[Any]], window: Window) -> list[Pair]:
        """The same after `combined`: all values are in one list."""
        return self.reduce(key, values[0], window)

    def _over_values(
        self, name: str, key: Any, values: list[Any], window: Window | None
    ) -> tuple[list[Pair], Any]:
        """Call combine or reduce; gives what it emitted so far, and what it returned."""
        method, given = self.methods[name], values if self.based else Values(values)
        context = JobContext(key=key, values=given, window=window)
        return context._pairs, _call(method, self._instance(name), context)

    def _instance(self, name: str) -> Any:
        """The instance for combine and reduce in this process, set up once."""
        owner = self.methods[name].owner
        if owner is not None and id(owner) not in self._shared:
            self._shared[id(owner)] = _begun(self, owner)
        return self._shared.get(id(owner))


class MapSplit:
    """One piece of the input in the hands of a program's map."""

    def __init__(self, program: Program) -> None:
        self.program = program
        methods = program.methods
        owner = next((methods[name].owner for name in ("map", "close") if name in methods), None)
        self.instance = _begun(program, owner)
        self._method = methods.get("map")
        self._function = None if self._method is None else self._method.of(self.instance)

    @property
    def called(self) -> Callable[..., Any] | None:
        """The user's function, if it gets key and value as they are."""
        return self._function if self._method and len(self._method.form) == 2 else None

    def map(self, key: Any, value: Any, ts: Any) -> list[Pair]:
        """Pairs for one record; all of them or, if it raises, none."""
        if self._method is None or self._function is None:
            return [(key, value)]
        if len(self._method.form) == 2:  # most programs: without a context
            return _gather([], self._function(key, value), f"{self.program.name}.map")
        context = JobContext(key=key, value=value, ts=ts)
        result = _call(self._method, self.instance, context)
        return _gather(context._pairs, result, f"{self.program.name}.map")

    def close(self) -> list[Pair]:
        """What the program gathered, at the end of the piece."""
        method = self.program.methods.get("close")
        if method is None:
            return []
        context = JobContext()
        try:
            result = _call(method, self.instance, context)
            return _gather(context._pairs, result, f"{self.program.name}.close")
        except ProgramError:
            raise
        except BaseException as error:  # a user's function may raise anything
            raise RunError(
                f"{self.program.name}.close() raised {describe(error)}; what it "
                "gathered would be lost, so this batch was not committed"
            ) from error


def _begun(program: Program, owner: Any) -> Any:
    """An instance of a class (or the object itself), after its `setup`."""
    setup = program.methods.get("setup")
    try:
        instance = owner() if isinstance(owner, type) else owner
        if setup is not None and (setup.owner is owner or setup.owner is None):
            context = JobContext()
            result = _call(setup, instance, context)
            if context._pairs or isinstance(result, Iterator):
                raise TypeError("it gave pairs, which would have no time; give them in close()")
    except BaseException as error:  # a user's function may raise anything
        raise RunError(f"{program.name}.setup() raised {describe(error)}") from error
    return instance


def _call(method: Method, instance: Any, context: JobContext) -> Any:
    given = [context if name == "context" else getattr(context, name) for name in method.form]
    return method.of(instance)(*given)


def _gather(pairs: list[Pair], result: Any, called: str) -> list[Pair]:
    """All pairs a call gave, in the order it gave them: by emit, by yield, or as what it returned.

    A generator runs here, so that what it emits and what it yields stay in order.
    """
    if result is None:
        return pairs
    if type(result) is not GeneratorType and (
        isinstance(result, (str, bytes, dict)) or not isinstance(result, Iterable)
    ):
        raise TypeError(f"{called}() gave {result!r}; expected pairs (key, value)")
    for one in result:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise TypeError(
                f"{called}() gave {one!r}; expected pairs (key, value): yield them, or return a "
                "list of them"
            )
        pairs.append((one[0], one[1]))
    return pairs


def job_name(job: MapReduce) -> str:
    """What a job is called in plans."""
    return job.name if isinstance(job, Program) else type(job).__name__


def pair_combiner(program: Program, name: str) -> ObjectKernel:
    """A program's `combine` as states of (packed key, values): the key travels along for it."""
    key_of = Keys()

    def gather(key: bytes, values: list[Any]) -> Any:
        return [key, combined(key, values)]

    def combine(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return [left[0], combined(left[0], [*left[1], *right[1]])]

    def combined(packed: bytes, values: list[Any]) -> list[Any]:
        try:
            return program.combined(key_of[packed], values)
        except BaseException as error:  # a user's function may raise anything
            raise untold(name, packed, values, error) from error

    def finish(state: Any) -> Any:
        return state[1]

    return ObjectKernel(
        f"{name}.combine", nothing, never, combine, finish, bare=finish, gather=gather
    )

"""Which programs are accepted as MapReduce jobs, and how their methods are called.

The methods of a class, an object or single functions are looked at once, when the flow is built:
the number of their parameters decides what they get, and what cannot be called is refused here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from millstream.api.frames import plainly
from millstream.api.mapreduce import MapReduce
from millstream.api.programs import Method, Program
from millstream.errors import ConfigError

# How a method may be called, the way that is tried first at the front.
_FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "map": (("key", "value"), ("key", "value", "context"), ("context",)),
    "combine": (("key", "values"), ("key", "values", "context"), ("context",)),
    "reduce": (("key", "values"), ("key", "values", "context"), ("context",)),
    "setup": ((), ("context",)),
    "close": ((), ("context",)),
}
_WITH_TIME: dict[str, tuple[tuple[str, ...], ...]] = {  # of subclasses of the base class
    "map": (("key", "value", "ts"), ("key", "value")),
    "combine": (("key", "values"),),
    "uncombine": (("key", "total", "expired"),),
    "reduce": (("key", "values", "window"), ("key", "values")),
    "setup": ((), ("context",)),
    "close": ((), ("context",)),
}
_AS_BASE = {name: _WITH_TIME[name][0] for name in ("map", "combine", "uncombine", "reduce")}


@plainly
def job(
    program: Any = None,
    *,
    map: Any = None,
    combine: Any = None,
    reduce: Any = None,
    setup: Any = None,
    close: Any = None,
) -> MapReduce:
    """A MapReduce program as a job for `map_reduce`: a class or an object with these methods.

    map: `map(key, value)`, with a third parameter also a context to emit with, or `map(context)`.
    reduce, combine: `reduce(key, values)`, likewise; values are an iterator, to be used once.
    setup, close: around every piece of the input that a task maps; `close` may give pairs.

    Methods give pairs by `yield`, as a returned list, or by `context.emit(key, value)`. By keyword
    a method may have another name, or be a function, or be of another class or object.
    """
    where = f"job({_name_of(program) if program is not None else ''})"
    if isinstance(program, Program):
        return program
    if isinstance(program, MapReduce) or _is_based(program):
        return _based(where, program)
    given = {"map": map, "combine": combine, "reduce": reduce, "setup": setup, "close": close}
    if isinstance(program, str | bytes | int | float) or inspect.isroutine(program):
        raise ConfigError(
            f"{where}: expected a class or an object with methods map and reduce, got "
            f"{program!r}; functions are given by name, as ms.job(map=..., reduce=...)"
        )
    sample = _sample(where, program)
    methods: dict[str, Method] = {}
    for name in _FORMS:
        found = _method(where, name, program, sample, given[name])
        if found is not None:
            methods[name] = found
    if "reduce" not in methods:
        raise ConfigError(
            f"{where}: there is no method reduce; expected reduce(key, values). If it has another "
            'name say ms.job(..., reduce="name"); for a map alone use stream.flat_map'
        )
    _check_life(where, methods)
    mapping = methods.get("map", methods["reduce"])
    stem = _name_of(program if program is not None else mapping.owner or mapping.function)
    same = tuple(id(one.owner or one.function) for one in methods.values())
    return Program(stem if stem.isidentifier() else "job", methods, False, same)


def _is_based(program: Any) -> bool:
    return isinstance(program, type) and issubclass(program, MapReduce)


def _based(where: str, program: Any) -> MapReduce:
    """A subclass of the base class: as it is, if it is called as the base class is."""
    made: MapReduce = _sample(where, program)
    if not made.can("reduce"):
        raise ConfigError(
            f"{where}: there is no method reduce; expected reduce(key, values, window)"
        )
    methods: dict[str, Method] = {}
    for name, forms in _WITH_TIME.items():
        given = made.can(name) if hasattr(MapReduce, name) else callable(getattr(made, name, None))
        if given:
            methods[name] = Method(program, name, _form(where, name, getattr(made, name), forms))
    if all(one.form == _AS_BASE.get(name) for name, one in methods.items()):
        return made
    _check_life(where, methods)
    return Program(type(made).__name__, methods, True, (id(program),))


def _sample(where: str, owner: Any) -> Any:
    """An instance to look at; that a class can be made is found out now."""
    if not isinstance(owner, type):
        return owner
    try:
        return owner()
    except Exception as error:  # a user's class may raise anything
        raise ConfigError(
            f"{where}: {owner.__name__}() raised {type(error).__name__}: {error}; give an instance"
        ) from error


def _method(where: str, name: str, owner: Any, sample: Any, given: Any) -> Method | None:
    """One method of a program: of its owner, or what was given instead."""
    called = given if isinstance(given, str) else name
    if given is None or isinstance(given, str):
        bound = getattr(sample, called, None)
        if callable(bound):
            return Method(owner, called, _form(where, name, bound, _FORMS[name]))
        if given is None:
            return None
        raise ConfigError(f"{where}: {name}={given!r}: the program has no method {given!r}")
    if not inspect.isroutine(given) and callable(getattr(given, name, None)):
        bound = getattr(_sample(where, given), name)
        return Method(given, name, _form(where, name, bound, _FORMS[name]))
    if not callable(given):
        raise ConfigError(
            f"{where}: {name}={given!r}: expected the name of a method, a function, or a class or "
            f"object with a method {name}"
        )
    return Method(None, "", _form(where, name, given, _FORMS[name]), given)


def _form(
    where: str, name: str, fn: Callable[..., Any], forms: tuple[tuple[str, ...], ...]
) -> tuple[str, ...]:
    """How a function is called: the first way that fits its parameters."""
    ways = " or ".join(f"{name}({', '.join(form)})" for form in forms)
    called = getattr(fn, "__qualname__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"{where}: {called} is async; expected a plain {ways}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return forms[0]
    for form in forms:
        try:
            signature.bind(*form)
        except TypeError:
            continue
        third = list(signature.parameters)[2:3]
        if form[2:] == ("context",) and third in (["ts"], ["window"]):
            raise ConfigError(
                f"{where}: {called}{signature}: without the base class the third argument of "
                f"{name} is a context, with context.{third[0]}; to get {third[0]} itself subclass "
                "ms.MapReduce"
            )
        return form
    raise ConfigError(f"{where}: {called}{signature} cannot be called; expected {ways}")


def _check_life(where: str, methods: dict[str, Method]) -> None:
    """What is gathered in an object that is not made anew for every piece must be cleared."""
    close, mapping = methods.get("close"), methods.get("map")
    if close is None:
        return
    if mapping is not None and close.owner is not mapping.owner and close.owner is not None:
        raise ConfigError(f"{where}: close and map must be methods of one class or object")
    if close.owner is not None and not isinstance(close.owner, type) and "setup" not in methods:
        raise ConfigError(
            f"{where}: close() without setup(): what one piece of the input gathered would be in "
            "the next; give the class instead of an object, or a setup() that begins afresh"
        )


def check_close(program: Program, window: str) -> None:
    """Where the records cut windows, what was gathered of several records has no place."""
    if program.methods["close"].yields:
        raise ConfigError(
            f"map_reduce(): close() of {program.name} gives pairs it gathered, but windows of "
            f"{window} follow from every single record; use a window over time, or give the pairs "
            "in map()"
        )


def _name_of(program: Any) -> str:
    return str(getattr(program, "__name__", type(program).__name__))

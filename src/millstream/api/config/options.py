"""What may be written in a configuration file: it follows from the signatures of the API.

An option added to a source, a sink, a window or an updater is an option of the file at once. How a
value of the file becomes one of the API goes by the type the API asks for.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from millstream.api import aggregates, overload, windows
from millstream.api.closing import ClosingPolicy, evict, watermark
from millstream.api.columns import Columns
from millstream.api.config.calls import parse_call
from millstream.api.config.functions import Functions, suggest
from millstream.api.keyed import KeyedStream
from millstream.api.mapreduce import MapReduce
from millstream.api.sinks import Memory, SinkSpec
from millstream.api.sources import Frame, FrameStream, SourceSpec
from millstream.api.stream import Stream
from millstream.api.updater import KeyedStreams
from millstream.api.windowed import WindowedStream
from millstream.api.windows import WindowSpec
from millstream.errors import ConfigError
from millstream.ops.overload import Overload
from millstream.scheduling import BY_NAME, Policy
from millstream.settings import Settings


@dataclass(frozen=True)
class Option:
    """One key of a table and the type its value is turned into."""

    name: str
    type: Any
    required: bool = False


Options = dict[str, Option]
# Streams name one another where only a checker of types looks.
_STREAMS = {one.__name__: one for one in (Stream, KeyedStream, KeyedStreams, WindowedStream)}


def options_of(target: Callable[..., Any]) -> Options:
    """What a class or function takes by name."""
    found: Options = {}
    parameters = inspect.signature(target).parameters
    types = typing.get_type_hints(target, localns=_STREAMS)
    if is_dataclass(target):
        names = [one.name for one in fields(target) if one.init]
    else:
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [name for name, one in parameters.items() if one.kind in plain and name != "self"]
    for name in names:
        default = parameters[name].default if name in parameters else None
        found[name] = Option(name, types.get(name, Any), default is inspect.Parameter.empty)
    return found


def _by_name(method: Callable[..., Any], *leave_out: str) -> Options:
    """The options of a method: what it takes by name only."""
    parameters = inspect.signature(method).parameters.values()
    named = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    found = options_of(method).items()
    return {name: one for name, one in found if name in named and name not in leave_out}


# A sink in memory has no reader but the program that made it, and a DataFrame is made by one.
SOURCES = {
    one.__name__.lower(): one
    for one in typing.get_args(SourceSpec)
    if one not in (Frame, FrameStream)
}
SINKS = {one.__name__.lower(): one for one in typing.get_args(SinkSpec) if one is not Memory}


def _giving(module: Any, result: str) -> dict[str, Callable[..., Any]]:
    return {
        name: one
        for name, one in vars(module).items()
        if inspect.isfunction(one)
        and not name.startswith("_")
        and one.__module__ == module.__name__
        and one.__annotations__.get("return") == result
    }


WINDOWS = _giving(windows, "WindowSpec")
OVERLOADS = _giving(overload, "Overload")
AGGREGATES = _giving(aggregates, "Builtin")
SETTINGS = options_of(Settings)

KEYING = _by_name(Stream.key_by)
WINDOWING = _by_name(KeyedStream.window)


@dataclass(frozen=True)
class Verb:
    """What a step can do: its own options, and whether it needs a key and can have a window."""

    options: Options
    keyed: bool = False
    windowed: bool = False

    @property
    def keys(self) -> list[str]:
        """Everything its table may have beside `from` and the verb."""
        keyed = ["key_by", *KEYING] if self.keyed else []
        windowed = ["window", *WINDOWING] if self.windowed else []
        return [*keyed, *windowed, *self.options]


TWO = ("join", "intersect", "difference")  # verbs whose value is the name of another stream
VERBS = {
    "select": Verb({}),
    "where": Verb({}),
    "map": Verb(_by_name(Stream.map)),
    "flat_map": Verb(_by_name(Stream.flat_map)),
    "process": Verb(_by_name(Stream.process)),
    "map_batches": Verb(_by_name(Stream.map_batches)),
    "at": Verb(_by_name(Stream.at)),
    "distinct": Verb({}),
    "dedup": Verb(_by_name(Stream.dedup)),
    "changes": Verb(_by_name(Stream.changes)),
    "join": Verb(_by_name(Stream.join)),
    "intersect": Verb(_by_name(Stream.intersect)),
    "difference": Verb(_by_name(Stream.difference)),
    "last": Verb({}),
    "view": Verb({}),
    "agg": Verb({}, keyed=True, windowed=True),
    "top": Verb(_by_name(KeyedStream.top), keyed=True),
    "reduce": Verb(_by_name(WindowedStream.reduce), keyed=True, windowed=True),
    "map_reduce": Verb(_by_name(WindowedStream.map_reduce), keyed=True, windowed=True),
    "update": Verb(_by_name(KeyedStreams.update, "name"), keyed=True),
}


# -- values -------------------------------------------------------------------------------------


def convert(option: Option, value: Any, functions: Functions) -> Any:
    """A value of the file as the API takes it, or an error that says what was expected."""
    wanted = members(option)
    for _, accept in wanted:
        try:
            return accept(value, functions)
        except _NotThis:
            continue
        except ConfigError as error:
            raise ConfigError(f"{option.name}: {error}") from None
    told = " or ".join(dict.fromkeys(expected for expected, _ in wanted))
    raise ConfigError(f"{option.name}: expected {told}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value of the file in a message."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value if len(value) < 80 else value[:80] + "...", ensure_ascii=False)
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case dict():
            return "a table"
    return str(value)


class _NotThis(Exception):
    """A value is not of this type."""


Accept = Callable[[Any, Functions], Any]


def _plain(*types: type) -> Accept:
    def accept(value: Any, functions: Functions) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _NotThis
        return value

    return accept


def _texts(value: Any, functions: Functions) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not all(isinstance(one, str) for one in several):
        raise _NotThis
    return tuple(several)


def _columns(value: Any, functions: Functions) -> list[Any]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list):
        raise _NotThis
    for one in several:
        pair = [one, one] if isinstance(one, str) else one
        if not isinstance(pair, list) or [type(name) for name in pair] != [str, str]:
            raise _NotThis
    return several


def _table(value: Any, functions: Functions) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise _NotThis
    return value


def _reference(instance: bool) -> Accept:
    def accept(value: Any, functions: Functions) -> Any:
        if not isinstance(value, str):
            raise _NotThis
        return functions.find(value, instance=instance)

    return accept


_OWN = ', or one of your own, like "module:name'


def _called(
    what: str,
    known: Mapping[str, Callable[..., Any]],
    own: str | None = None,
    any_case: bool = False,
) -> Accept:
    """A value like "sliding(10m, 1m)", or (`own` ends the message that says so) of a module."""

    def accept(value: Any, functions: Functions) -> Any:
        if not isinstance(value, str):
            raise _NotThis
        call = parse_call(value)
        if call.module is not None and own is not None:
            return functions.find(value, instance=True)
        name = call.name.lower() if any_case else call.name
        if call.module is not None or name not in known:
            near = suggest(call.name, known) or f"; use {', '.join(known)}"
            raise ConfigError(
                f"there is no {what} {call.name!r}{near}{'' if own is None else _OWN + own}"
            )
        return call.apply(known[name])

    return accept


def _source(value: Any, functions: Functions) -> Any:
    """A source in another one, like { kind = "files", path = "/var/log/app" }."""
    if not isinstance(value, dict):
        raise _NotThis
    cls = SOURCES.get(str(value.get("kind")))
    if cls is None:
        raise ConfigError(f"kind: expected one of {', '.join(SOURCES)}")
    known = options_of(cls)
    wrong = next((name for name in value if name != "kind" and name not in known), None)
    if wrong is not None:
        raise ConfigError(f"there is no option {wrong!r}{suggest(wrong, known)}")
    given = {
        name: convert(known[name], one, functions) for name, one in value.items() if name != "kind"
    }
    return cls(**given)


POLICIES: dict[str, Callable[..., ClosingPolicy]] = {"watermark": watermark, "evict": evict}
window = _called("window", WINDOWS)
_aggregate = _called("aggregate", AGGREGATES, '(column)"')


def aggregate(name: str, value: Any, functions: Functions) -> Any:
    """An aggregate like "mean(price)", or one of a registered module."""
    try:
        return _aggregate(value, functions)
    except _NotThis:
        told = f'expected an aggregate like "mean(price)", got {shown(value)}'
        raise ConfigError(f"{name}: {told}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


_FUNCTION = ('a function like "module:name"', _reference(instance=False))
_OBJECT = ('a class or object like "module:name"', _reference(instance=True))
_TEXT = ("a text", _plain(str))
_COLUMNS = ("a column, a list of them, or of pairs of them", _columns)
_PLAIN: dict[Any, tuple[str, Accept]] = {
    str: _TEXT,
    Path: _TEXT,
    timedelta: ('a duration like "5m"', _plain(str)),
    bool: ("true or false", _plain(bool)),
    datetime: ("a moment", _plain(datetime)),
    int: ("a whole number", _plain(int)),
    float: ("a number", _plain(int, float)),
    dict[str, str]: ("a table of texts", _table),
    MapReduce: _OBJECT,
    WindowSpec: ('a window like "tumbling(1m)"', window),
    Policy: (
        'a policy like "odf" or "hybrid(threshold=0.7)"',
        _called("policy", BY_NAME, '"', any_case=True),
    ),
    ClosingPolicy: (
        'a closing policy like "evict(timeout=60s)"',
        _called("closing policy", POLICIES, '"'),
    ),
    Overload: (
        'an overload policy like "drop(keep=newest)"',
        _called("overload policy", OVERLOADS),
    ),
}
_UNTYPED: dict[str, list[tuple[str, Accept]]] = {  # what the API takes as Any
    "schema": [('a text like "ts timestamp, price double"', _plain(str)), _PLAIN[dict[str, str]]],
    "codec": [_OBJECT],
    "reads": [('a table like { kind = "files", path = "/var/log/app" }', _source)],
}


def members(option: Option) -> list[tuple[str, Accept]]:
    """The ways to write an option: what is expected, and how it is read."""
    if option.type == Columns:
        return [_COLUMNS]
    if option.type is Any and option.name in _UNTYPED:
        return _UNTYPED[option.name]
    union = typing.get_origin(option.type) in (typing.Union, UnionType)
    types = typing.get_args(option.type) if union else (option.type,)
    if timedelta in types:
        types = (timedelta,)  # a duration, which is a text in the file
    if Policy in types:
        types = (Policy,)  # likewise
    return [_member(option, one) for one in types if one is not NoneType]


def _member(option: Option, one: Any) -> tuple[str, Accept]:
    origin = typing.get_origin(one)
    if one in _PLAIN:
        return _PLAIN[one]
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Callable):  # type: ignore[arg-type]
        return _FUNCTION
    if origin is not None and issubclass(origin, Mapping):
        return _PLAIN[dict[str, str]]
    if origin is not None and issubclass(origin, Iterable) and typing.get_args(one)[:1] == (str,):
        return ("a text or a list of texts", _texts)
    raise TypeError(f"{option.name}: {one} cannot be written in a configuration file yet")

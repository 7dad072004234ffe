"""`WITH (...)`: sources and sinks of the API by their names, with the options they have there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.config.functions import Functions
from millstream.api.config.options import SINKS, SOURCES, WINDOWING, Options, convert, options_of
from millstream.errors import ConfigError
from millstream.io.formats import DEBEZIUM, DEBEZIUM_OP
from millstream.io.schemas import parse_schema
from millstream.ops.sql.frames import suggestion
from millstream.sql import statements as ask
from millstream.sql.places import Text

_PYTHON = ("generator", "call")  # these are functions of a Python program
_COLUMNS = "schema"


@dataclass(frozen=True)
class Declared:
    """A stream as `CREATE STREAM` declares it."""

    spec: Any
    schema: pa.Schema | None
    key: tuple[str, ...]  # makes changes of its records
    op: str | None  # of a change log: the column that says what happened


def make_source(text: Text, statement: ask.CreateStream) -> Declared:
    """The source of a stream, its columns, and what makes changes of its records."""
    given = _plainly(statement.options)
    kind = _kind(text, given, "source", SOURCES, "files" if "path" in given.values else None)
    cls = SOURCES[kind]
    known = options_of(cls)
    left_out = ("source", "key", "columns", "op")
    options = _converted(text, given, known, f"source {kind!r}", left_out)
    schema = _schema(text, statement)
    if schema is not None and _COLUMNS in known:
        options[_COLUMNS] = schema
    if statement.time is not None:
        if "time" in given.values:
            raise text.error("the event time is given twice", statement.time.place)
        options["time"] = _column(text, statement.time, schema)
        options.setdefault("lateness", statement.lateness)
    time = options.get("time")
    if schema is not None and time is not None and time not in schema.names:
        raise text.error(
            f"there is no column {time!r}{suggestion(str(time), schema.names)}",
            given.places.get("time", given.place),
        )
    key = tuple(_column(text, one, schema) for one in statement.key)
    if "key" not in known:  # else it is an option of the source, and means something there
        key = key or _key(text, given, schema)
    op = _op(text, given, schema)
    if op is not None and not key:
        raise text.error(
            "a change log needs PRIMARY KEY: which row is a change about?", statement.name.place
        )
    try:
        return Declared(cls(**options), schema, key, op)
    except (ConfigError, TypeError) as error:
        told = _told(error, f"source {kind!r}")
        raise text.error(told, statement.name.place) from None


_NAMES = {"debezium-json": "debezium", "debezium": "debezium"}  # as others call it


def _plainly(given: ask.Options) -> ask.Options:
    """Options with the names of formats that are used here."""
    kind = given.values.get("format")
    if not isinstance(kind, str) or kind.lower() not in _NAMES:
        return given
    return replace(given, values={**given.values, "format": _NAMES[kind.lower()]})


def _op(text: Text, given: ask.Options, schema: pa.Schema | None) -> str | None:
    """The column that says what happened."""
    if given.values.get("format") == DEBEZIUM:
        if "op" in given.values:
            raise text.error("Debezium's envelopes have their own op", given.places["op"])
        return DEBEZIUM_OP
    value = given.values.get("op")
    if value is None:
        return None
    return _column(text, ask.Name(str(value), given.places["op"]), schema)


def make_sink(text: Text, given: ask.Options) -> Any:
    """What `CREATE SINK ... WITH (sink = 'parquet', path = 'out/')` asks for."""
    kind = _kind(text, given, "sink", SINKS, None)
    options = _converted(text, given, options_of(SINKS[kind]), f"sink {kind!r}", ("sink",))
    if isinstance(options.get("key"), list):
        options["key"] = tuple(options["key"])
    try:
        return SINKS[kind](**options)
    except (ConfigError, TypeError) as error:
        raise text.error(_told(error, f"sink {kind!r}"), given.place) from None


def _told(error: Exception, what: str) -> str:
    """What is wrong with options; Python's words for one that is missing are about functions."""
    missing = re.search(r"missing \d+ required \S+ arguments?: (.+)", str(error))
    if missing is None:
        return str(error)
    return f"{what} needs {missing[1].replace(chr(39), '')}"


def without_kept(text: Text, given: ask.Options) -> tuple[bool | None, ask.Options]:
    """Whether the rows of a view are kept to be read, if that is said, and its other options."""
    kept = given.values.get("kept")
    if kept is not None and not isinstance(kept, bool):
        raise text.error("kept: expected TRUE or FALSE", given.places["kept"])
    values = {name: value for name, value in given.values.items() if name != "kept"}
    return kept, replace(given, values=values)


def view_options(text: Text, given: ask.Options) -> dict[str, Any]:
    """How the windows of a view give their results."""
    return _converted(text, given, WINDOWING, "a view", ())


def _kind(
    text: Text, given: ask.Options, word: str, known: dict[str, Any], default: str | None
) -> str:
    names = [one for one in known if one not in _PYTHON]
    kind = given.values.get(word, default)
    if kind is None:
        raise text.error(
            f"say which {word}: WITH ({word} = '{names[0]}', ...); there are {', '.join(names)}",
            given.place,
        )
    if not isinstance(kind, str) or kind.lower() not in names:
        told = suggestion(str(kind), names) or f"; there are {', '.join(names)}"
        raise text.error(f"there is no {word} {kind!r}{told}", given.places.get(word, given.place))
    return kind.lower()


def _converted(
    text: Text, given: ask.Options, known: Options, what: str, left_out: tuple[str, ...]
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    functions = Functions(Path(), _no_modules)
    for name, value in given.values.items():
        if name in left_out and not (name == "key" and name in known):
            continue
        if name not in known or name == _COLUMNS:
            raise text.error(
                f"{what} has no option {name!r}"
                f"{suggestion(name, known) or '; it has ' + ', '.join(sorted(known))}",
                given.places[name],
            )
        try:
            options[name] = convert(known[name], value, functions)
        except ConfigError as error:
            raise text.error(str(error), given.places[name]) from None
    return options


def _no_modules(path: Path) -> Any:
    raise ConfigError("functions come from a Python program; make this step there")


def _schema(text: Text, statement: ask.CreateStream) -> pa.Schema | None:
    if not statement.columns:
        return None
    fields: list[pa.Field] = []
    for name, kind in statement.columns:
        if any(one.name.lower() == name.text.lower() for one in fields):
            raise text.error(f"column {name.text!r} is there twice", name.place)
        try:
            (found,) = parse_schema({name.text: kind})
        except ConfigError as error:
            raise text.error(str(error).removeprefix("schema: "), name.place) from None
        fields.append(found)
    return pa.schema(fields)


def _column(text: Text, name: ask.Name, schema: pa.Schema | None) -> str:
    if schema is None or name.text in schema.names:
        return name.text
    alike = [one for one in schema.names if one.lower() == name.text.lower()]
    if len(alike) == 1:
        return str(alike[0])
    raise text.error(
        f"there is no column {name.text!r}{suggestion(name.text, schema.names)}", name.place
    )


def _key(text: Text, given: ask.Options, schema: pa.Schema | None) -> tuple[str, ...]:
    value = given.values.get("key")
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise text.error("key: expected a column, or several in brackets", given.places["key"])
    several = [part.strip() for one in names for part in str(one).split(",")]
    return tuple(_column(text, ask.Name(one, given.places["key"]), schema) for one in several)

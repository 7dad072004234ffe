"""Statements: what each asks for, read from its tokens. Queries in them are read by sqlglot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlglot import expressions as exp

from millstream.ops.sql.frames import suggestion
from millstream.sql.grammar import Tokens, kind, parse_query, place_of
from millstream.sql.places import Place, Text

Value = str | int | float | bool | list[str]


@dataclass(frozen=True)
class Name:
    """A name in the text."""

    text: str
    place: Place


@dataclass(frozen=True)
class Options:
    """`WITH (name = value, ...)`."""

    values: dict[str, Value]
    places: dict[str, Place]
    place: Place


@dataclass(frozen=True)
class CreateStream:
    """`CREATE STREAM name (column type, ...) WITH (...)`."""

    name: Name
    columns: tuple[tuple[Name, str], ...]  # with the text of the type
    key: tuple[Name, ...]
    time: Name | None
    lateness: Value | None
    options: Options
    unless: bool = False  # IF NOT EXISTS


@dataclass(frozen=True)
class CreateView:
    """`CREATE STREAMED VIEW name AS query`; the same with MATERIALIZED, to be read."""

    name: Name
    query: exp.Expr
    options: Options
    unless: bool = False
    materialized: bool = False


@dataclass(frozen=True)
class CreateSink:
    """`CREATE SINK name FROM view WITH (...)`, `... AS query`, or neither, for INSERT INTO."""

    name: Name
    view: Name | None
    query: exp.Expr | None
    options: Options
    unless: bool = False


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO sink query`."""

    sink: Name
    query: exp.Expr


@dataclass(frozen=True)
class Query:
    """A query by itself."""

    query: exp.Expr


@dataclass(frozen=True)
class Show:
    """`SHOW TABLES` and others."""

    what: str


@dataclass(frozen=True)
class Describe:
    """`DESCRIBE name`."""

    name: Name


@dataclass(frozen=True)
class Explain:
    """`EXPLAIN query` or `EXPLAIN name`."""

    query: exp.Expr | None
    name: Name | None


@dataclass(frozen=True)
class Drop:
    """`DROP VIEW name`."""

    kind: str
    name: Name
    unless: bool = False  # IF EXISTS


Statement = (
    CreateStream | CreateView | CreateSink | Insert | Query | Show | Describe | Explain | Drop
)

SHOWN = ("TABLES", "STREAMS", "VIEWS", "SINKS", "FUNCTIONS")
_QUERIES = ("SELECT", "WITH", "L_PAREN", "FROM", "VALUES")


def read_statement(
    text: Text, tokens: Tokens, functions: Collection[str] = (), there: Collection[str] = ()
) -> Statement:
    """What one statement asks for.

    `functions` are names of functions that users have, `there` the statements that are possible
    where it stands, if these are not all.
    """
    reader = Reader(text, tokens, functions)
    if kind(tokens[0]) in _QUERIES:
        return Query(reader.query())
    first = reader.word("a statement")
    read = _READERS.get(first)
    if read is None:
        listed = there or ("SELECT", *_READERS)
        known = "" if first in _OTHERS else suggestion(first, [*listed, "WITH"])
        raise text.error(
            f"there is no statement {first}{known or '; there are ' + ', '.join(listed)}",
            place_of(tokens[:1]),
        )
    statement = read(reader)
    reader.end()
    return statement


class Reader:
    """The tokens of one statement, taken one after the other."""

    def __init__(self, text: Text, tokens: Tokens, functions: Collection[str] = ()) -> None:
        self.text, self.tokens, self.at = text, tokens, 0
        self.functions = functions

    def peek(self, ahead: int = 0) -> str:
        """The next word in capitals, or "" at the end."""
        at = self.at + ahead
        return " ".join(self.tokens[at].text.upper().split()) if at < len(self.tokens) else ""

    def here(self) -> Place:
        """Where the next token stands, or the end."""
        if self.at < len(self.tokens):
            return place_of([self.tokens[self.at]])
        last = place_of([self.tokens[-1]])
        return Place(last.end, last.end + 1)

    def refuse(self, expected: str) -> Exception:
        """An error at the next token."""
        came = "the end" if self.at >= len(self.tokens) else repr(self.tokens[self.at].text)
        return self.text.error(f"expected {expected}, got {came}", self.here())

    def word(self, expected: str) -> str:
        """Take the next word."""
        found = self.peek()
        if not found:
            raise self.refuse(expected)
        self.at += 1
        return found

    def taken(self, *words: str) -> bool:
        """Take these words if they come next."""
        if any(self.peek(n) != word for n, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Take these words, which must come next."""
        for word in words:
            if not self.taken(word):
                raise self.refuse(word)

    def end(self) -> None:
        """Nothing may follow."""
        if self.at < len(self.tokens):
            raise self.refuse("the end of the statement")

    def name(self, what: str) -> Name:
        """Take a name."""
        if self.at >= len(self.tokens):
            raise self.refuse(what)
        token = self.tokens[self.at]
        plain = str(token.text)
        if kind(token) != "IDENTIFIER" and not (plain[:1].isalpha() or plain[:1] == "_"):
            raise self.refuse(what)
        if kind(token) == "STRING" or not plain:
            raise self.refuse(what)
        place = self.here()
        self.at += 1
        if self.peek() == "-" and self.tokens[self.at].start == place.end:
            raise self.text.error(
                "a name with other signs than letters, digits and _ goes in `...`",
                Place(place.start, place.end + 1),
            )
        return Name(plain, place)

    def names(self, what: str) -> tuple[Name, ...]:
        """Names in brackets."""
        self.expect("(")
        found = [self.name(what)]
        while self.taken(","):
            found.append(self.name(what))
        self.expect(")")
        return tuple(found)

    def query(self) -> exp.Expr:
        """The rest is a query."""
        rest = self.tokens[self.at :]
        if not rest or kind(rest[0]) not in _QUERIES:
            raise self.refuse("a query, which begins with SELECT or WITH")
        self.at = len(self.tokens)
        return parse_query(self.text, rest, self.functions)

    def options(self) -> Options:
        """WITH (name = value, ...), or nothing."""
        start = self.here()
        values: dict[str, Value] = {}
        places: dict[str, Place] = {}
        if not self.taken("WITH"):
            return Options(values, places, start)
        self.expect("(")
        while not self.taken(")"):
            if values:
                self.expect(",")
            place = self.here()
            name = self._option().lower()
            if name in values:
                raise self.text.error(f"{name} is given twice", place)
            self.expect("=")
            values[name], places[name] = self.value(), place
        return Options(values, places, start)

    def _option(self) -> str:
        if self.at < len(self.tokens) and kind(self.tokens[self.at]) == "STRING":
            self.at += 1
            return str(self.tokens[self.at - 1].text)
        return self.name("the name of an option").text

    def value(self) -> Value:
        """A text, a number, TRUE or FALSE, or names in brackets."""
        if self.at >= len(self.tokens):
            raise self.refuse("a value")
        if self.peek() == "(":
            self.at += 1
            several = [str(self._one())]
            while self.taken(","):
                several.append(str(self._one()))
            self.expect(")")
            return several
        return self._one()

    def _one(self) -> str | int | float | bool:
        if self.at >= len(self.tokens):
            raise self.refuse("a value")
        token = self.tokens[self.at]
        plain = str(token.text)
        match kind(token):
            case "STRING":
                self.at += 1
                return plain
            case "NUMBER":
                self.at += 1
                try:
                    return int(plain) if plain.isdigit() else float(plain)
                except ValueError:
                    self.at -= 1
                    raise self.refuse("a number") from None
            case "TRUE" | "FALSE":
                self.at += 1
                return kind(token) == "TRUE"
        return self.name("a text in quotes, a number, TRUE or FALSE").text


def _create(reader: Reader) -> Statement:
    if reader.peek() == "OR":
        raise reader.refuse("STREAM, STREAMED VIEW, MATERIALIZED VIEW or SINK (drop it first)")
    if reader.taken("STREAM"):
        return _create_stream(reader)
    if reader.taken("SINK"):
        return _create_sink(reader)
    if reader.taken("STREAMED", "VIEW"):
        return _create_view(reader, materialized=False)
    if reader.taken("MATERIALIZED", "VIEW"):
        return _create_view(reader, materialized=True)
    if reader.peek() == "VIEW":
        raise reader.refuse("STREAMED VIEW or MATERIALIZED VIEW")
    raise reader.refuse("STREAM, STREAMED VIEW, MATERIALIZED VIEW or SINK")


def _create_stream(reader: Reader) -> CreateStream:
    unless = reader.taken("IF", "NOT", "EXISTS")
    name = reader.name("the name of a stream")
    columns: list[tuple[Name, str]] = []
    key: tuple[Name, ...] = ()
    time: Name | None = None
    lateness: Value | None = None
    if reader.taken("("):
        while True:
            if reader.taken("PRIMARY KEY") or reader.taken("PRIMARY", "KEY"):
                key = reader.names("a column")
                reader.taken("NOT", "ENFORCED")
            elif reader.taken("WATERMARK", "FOR"):
                time, lateness = _watermark(reader)
            else:
                columns.append((reader.name("a column"), _type(reader)))
            if reader.taken(")"):
                break
            reader.expect(",")
    return CreateStream(name, tuple(columns), key, time, lateness, reader.options(), unless)


def _watermark(reader: Reader) -> tuple[Name, Value]:
    """`ts AS ts - INTERVAL '5 seconds'`."""
    time = reader.name("a column")
    reader.expect("AS")
    if reader.name("the same column").text.lower() != time.text.lower():
        raise reader.text.error(f"expected {time.text} again", time.place)
    if not reader.taken("-"):
        return time, "0s"
    return time, interval(reader)


def interval(reader: Reader) -> str:
    """`INTERVAL '5' SECOND` or `INTERVAL '5 seconds'` as a duration."""
    reader.expect("INTERVAL")
    parts = str(reader.value()).split()
    if len(parts) == 1:
        parts.append(reader.word("SECOND, MINUTE, HOUR or DAY"))
    try:
        return duration(*parts)
    except (ValueError, TypeError):
        raise reader.text.error(
            "expected an interval like INTERVAL '5' SECOND or INTERVAL '5 seconds'", reader.here()
        ) from None


_UNITS = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d", "WEEK": "w"}


def duration(number: str, unit: str) -> str:
    """An interval as the API writes it; ValueError if it is none."""
    short = _UNITS.get(unit.upper().removesuffix("S"))
    if short is None or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"{number} {unit}")
    return f"{number}{short}"


def _type(reader: Reader) -> str:
    """The text of a type: up to a comma or the last bracket."""
    depth, start = 0, reader.at
    while reader.at < len(reader.tokens):
        word = reader.peek()
        depth += word.count("<") + (word == "(") - word.count(">")
        if word == ")":
            depth -= 1
        if depth < 0 or (depth == 0 and word == ","):
            break
        reader.at += 1
    if reader.at == start:
        raise reader.refuse("a type")
    taken = reader.tokens[start : reader.at]
    return reader.text.sql[taken[0].start : taken[-1].end + 1]


def _create_view(reader: Reader, materialized: bool) -> CreateView:
    unless = reader.taken("IF", "NOT", "EXISTS")
    name = reader.name("the name of a view")
    options = reader.options()
    reader.expect("AS")
    return CreateView(name, reader.query(), options, unless, materialized)


def _create_sink(reader: Reader) -> CreateSink:
    unless = reader.taken("IF", "NOT", "EXISTS")
    name = reader.name("the name of a sink")
    if reader.taken("FROM"):
        view = reader.name("the name of a view")
        return CreateSink(name, view, None, reader.options(), unless)
    options = reader.options()
    if reader.taken("AS"):
        return CreateSink(name, None, reader.query(), options, unless)
    return CreateSink(name, None, None, options, unless)


def _insert(reader: Reader) -> Insert:
    if reader.peek() == "OVERWRITE":
        raise reader.refuse("INTO (what a sink has is never overwritten)")
    reader.expect("INTO")
    reader.taken("TABLE")
    return Insert(reader.name("the name of a sink"), reader.query())


def _show(reader: Reader) -> Show:
    what = reader.word(", ".join(SHOWN))
    if what not in SHOWN:
        reader.at -= 1
        raise reader.refuse(", ".join(SHOWN))
    return Show(what)


def _describe(reader: Reader) -> Describe:
    for word in ("STREAM", "VIEW", "TABLE"):
        reader.taken(word)
    return Describe(reader.name("the name of a stream or view"))


def _explain(reader: Reader) -> Explain:
    if reader.at < len(reader.tokens) and kind(reader.tokens[reader.at]) in _QUERIES:
        return Explain(reader.query(), None)
    return Explain(None, reader.name("a query or the name of a view"))


def _drop(reader: Reader) -> Drop:
    reader.taken("STREAMED")
    reader.taken("MATERIALIZED")
    what = reader.word("STREAM, VIEW or SINK")
    if what not in ("STREAM", "VIEW", "SINK"):
        reader.at -= 1
        raise reader.refuse("STREAM, VIEW or SINK")
    unless = reader.taken("IF", "EXISTS")
    return Drop(what, reader.name("a name"), unless)


_OTHERS = ("UPDATE", "DELETE", "MERGE", "ALTER", "TRUNCATE", "SET", "USE", "CALL")  # of databases

_READERS: dict[str, Callable[[Reader], Statement]] = {
    "CREATE": _create,
    "INSERT": _insert,
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "EXPLAIN": _explain,
    "DROP": _drop,
}

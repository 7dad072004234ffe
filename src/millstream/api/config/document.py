"""A TOML file: its values, their lines, and mistakes on those lines."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.api.config.positions import Place, Table, lines_of
from millstream.errors import ConfigError

SECTIONS = ("source", "stream", "step", "sink")
_WHERE = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)$")
_MOST = 20  # mistakes told at once


class Mistake(ConfigError):
    """A mistake in a configuration file, with its line."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.line = line


class Document:
    """The values of a file, and where they are."""

    def __init__(self, path: Path) -> None:
        self.file = str(path)
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise Mistake(self.file, line, "is not UTF-8, as TOML has to be") from None
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _syntax(self.file, text, str(error)) from None
        self.lines = lines_of(text)

    def tables(self, section: str) -> dict[str, Table]:
        """The tables of a section by name; what is no table was told before."""
        found = self.values.get(section, {})
        if not isinstance(found, dict):
            return {}
        return {name: table for name, table in found.items() if isinstance(table, dict)}

    def line(self, place: Place) -> int:
        """The line of the nearest thing that has one."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def mistake(self, place: Place, message: str) -> Mistake:
        """A mistake at a place; the message begins with the table it is in."""
        head = ""
        if place[0] in SECTIONS:
            head = f"[{'.'.join(map(as_written, place[:2]))}] "
        elif place[0] == "run":
            head = "[run] "
        return Mistake(self.file, self.line(place), head + message)

    @contextlib.contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """What the API refuses becomes a mistake here, on the line of the option it names."""
        try:
            yield
        except Mistake:
            raise
        except ConfigError as error:
            named = re.findall(r"(\w+)=", str(error))
            better = next((n for n in named if (*place[:2], n) in self.lines), None)
            spot = (*place[:2], better) if better is not None and len(place) < 4 else place
            raise self.mistake(spot, str(error)) from error

    def place_later(self, message: str) -> ConfigError:
        """A mistake found while planning, on the line of the step it names."""
        names = {name: section for section in SECTIONS for name in self.tables(section)}
        first = [name for name in names if message.startswith(f"{name}: ")]
        quoted = [name for name in re.findall(r"'([^']+)'", message) if name in names]
        if not first and not quoted:
            return ConfigError(f"{self.file}: {message}")
        name = max(first, key=len) if first else quoted[0]
        place: Place = (names[name], name)
        table = self.values[names[name]][name]
        spot = _spot(table, message.removeprefix(f"{name}:"))
        return Mistake(self.file, self.line((*place, *spot)), message)


def as_written(key: str | int) -> str:
    """A key as it is written."""
    text = str(key)
    return text if re.fullmatch(r"[\w-]+", text) else json.dumps(text, ensure_ascii=False)


def _spot(table: Table, message: str) -> Place:
    """The key of a table a message is about: it names the key, or quotes its value."""
    leaves = list(_leaves(table))
    for place, _ in leaves:
        if len(place) > 1 and re.search(rf"(?<!\w){re.escape(str(place[-1]))}=", message):
            return place
    quoted = {place: message.find(f"'{text}'") for place, text in leaves}
    found = [place for place, at in quoted.items() if at >= 0]
    if found:
        return min(found, key=lambda place: quoted[place])
    for key in table:
        if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", message):
            return (key,)
    return ()


def _leaves(value: Any, at: Place = ()) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict | list):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, (*at, key))


def _syntax(file: str, text: str, said: str) -> Mistake:
    match = _WHERE.search(said)
    what = said[: match.start()].strip() if match else said
    if match is None or match[1] is None:
        last = max(1, len(text.rstrip().splitlines()))
        return Mistake(file, last, f"not valid TOML at the end of the file: {what}")
    return Mistake(file, int(match[1]), f"not valid TOML at column {match[2]}: {what}")


def together(mistakes: list[Mistake]) -> ConfigError:
    """All mistakes of a file as one error, in the order of lines."""
    ordered = sorted(mistakes, key=lambda one: one.line)
    told = [str(one) for one in ordered[:_MOST]]
    if len(ordered) > _MOST:
        told.append(f"and {len(ordered) - _MOST} more mistakes")
    return ConfigError("\n".join(told))

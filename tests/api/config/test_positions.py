"""Lines of keys: against a writer that knows where it wrote each, and against tomllib's paths."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.api.config.positions import Place, lines_of

EVERYTHING = '''\
# a comment with [a.table] and key = "value"
name = "x"  # another
"quoted \\u00e9 key" . 'literal' = 1

[plain]
text = "with ] and } and # and , \\" inside"
long = """
first = "not a key"
[nor.a.table] \\""" still inside
""" # ends here
raw = \'\'\'a = 1
'' b = 2\'\'\'\'\'
list = [
    1, # one
    "two ]",

    [3, 4],
    { a = 5, b.c = [6] },
]
inline = { x = 1, "y z" = { deep = "}" }, w = [1] }
when = 2026-01-05T09:30:00Z
sum.of.keys = -1e5

[[rows]]
id = 1
[rows.inner]
id = 2
[[rows]]
id = 3
[[rows.parts]]
id = 4
[[rows.parts]]

[later.implied.first]
[later]
last = true'''


def paths(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place tomllib knows."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from paths(inner, (*at, number))


def test_everything_toml_has() -> None:
    lines = lines_of(EVERYTHING)
    assert set(lines) == set(paths(tomllib.loads(EVERYTHING)))
    assert lines["name",] == 2
    assert lines["quoted é key", "literal"] == 3
    assert lines["plain",] == 5
    assert [lines["plain", key] for key in ("text", "long", "raw", "list")] == [6, 7, 11, 13]
    assert [lines["plain", "list", n] for n in range(4)] == [14, 15, 17, 18]
    assert lines["plain", "list", 3, "b", "c", 0] == 18
    assert lines["plain", "inline", "y z", "deep"] == 20
    assert lines["plain", "sum", "of", "keys"] == 22
    assert [lines["rows", 0], lines["rows", 0, "inner"], lines["rows", 1]] == [24, 26, 28]
    assert [lines["rows", 1, "parts", n] for n in range(2)] == [30, 32]
    assert (lines["later",], lines["later", "implied"], lines["later", "last"]) == (35, 34, 36)


def test_lines_are_the_same_with_other_line_ends() -> None:
    assert lines_of(EVERYTHING.replace("\n", "\r\n")) == lines_of(EVERYTHING)


class _Table(dict[str, Any]):
    """An inline table."""


NASTY = st.text(st.sampled_from("ab é[]{}=#,.'\"\\\n\t:-_1"), max_size=8)
SCALARS = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["true", "false", "nan", "2026-01-05", "09:30:00", "2026-01-05T09:30:00+01:00"]
    ),
    NASTY.map(json.dumps),
    NASTY.filter(lambda t: "'" not in t and "\n" not in t).map(lambda t: f"'{t}'"),
    NASTY.map(lambda t: '"""' + t.replace("\\", "\\\\").replace('"', '\\"') + '"""'),
    NASTY.filter(lambda t: "'" not in t).map(lambda t: f"'''{t}'''"),
)
KEYS = st.one_of(st.from_regex(r"\A[A-Za-z0-9_-]{1,4}\Z"), NASTY)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3).map(_Table)
    ),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4)


class Writer:
    """Writes TOML and remembers the line of everything it wrote."""

    def __init__(self, breaks: list[str]) -> None:
        self.text = ""
        self.breaks = breaks
        self.number = 0
        self.lines: dict[Place, int] = {}

    def mark(self, place: Place) -> None:
        self.lines[place] = self.text.count("\n") + 1

    def gap(self) -> str:
        """What may stand between the elements of a list."""
        self.number += 1
        return self.breaks[self.number % len(self.breaks)]

    def value(self, value: Any, place: Place) -> None:
        if isinstance(value, _Table):
            self.text += "{ "
            for number, (key, inner) in enumerate(value.items()):
                self.text += ", " if number else ""
                self.pair(key, inner, place)
            self.text += " }"
        elif isinstance(value, list):
            self.text += "["
            for number, inner in enumerate(value):
                self.text += self.gap()
                self.mark((*place, number))
                self.value(inner, (*place, number))
                self.text += self.gap() + ","
            self.text += self.gap() + "]"
        else:
            self.text += value

    def pair(self, key: str, value: Any, table: Place) -> None:
        self.mark((*table, key))
        self.text += f"{json.dumps(key)} = "
        self.value(value, (*table, key))

    def document(self, tables: dict[str, dict[str, Any]]) -> None:
        for name, table in tables.items():
            self.text += self.gap() + "\n"
            self.mark((name,))
            self.text += f"[{json.dumps(name)}] # [not.a.header]\n"
            for key, value in table.items():
                self.pair(key, value, (name,))
                self.text += " # a = 1\n\n"


@given(DOCUMENTS, st.lists(st.sampled_from(["", " ", "\n", " # ], }\n\t"]), min_size=1, max_size=4))
def test_any_document(tables: dict[str, dict[str, Any]], breaks: list[str]) -> None:
    writer = Writer(breaks)
    writer.document(tables)
    assert set(writer.lines) == set(paths(tomllib.loads(writer.text)))  # the writer is right
    assert lines_of(writer.text) == writer.lines

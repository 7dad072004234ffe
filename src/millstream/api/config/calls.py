"""Texts like "mean(price)", "sliding(10m, 1m)" or "topics:Hot(threshold=3)", read, not evaluated.

An argument is a number, true or false, a word (a column, a duration), a text in quotes, or a list
of these in brackets.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import ConfigError

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<word>[^\W\d]\w*(?:\.\w+)*|\d+(?:\.\d+)?[a-zA-Z]+)
      | (?P<sign>[()\[\],=:])
    )""",
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Call:
    """A name, where it is from, and its arguments; without parentheses it is not `called`."""

    name: str
    module: str | None = None
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    called: bool = False

    def apply(self, fn: Callable[..., Any]) -> Any:
        """Call a function with these arguments; a mistake says what it takes."""
        if not callable(fn):
            raise ConfigError(f"{self.name} is {type(fn).__name__}, which takes no arguments")
        signature = inspect.signature(fn)
        try:
            signature.bind(*self.arguments, **self.options)
        except TypeError as error:
            takes = ", ".join(str(p).split(":")[0] for p in signature.parameters.values())
            raise ConfigError(f"{self.name}({takes}): {error}") from None
        return fn(*self.arguments, **self.options)


def parse_call(text: str) -> Call:
    """The call a text stands for."""
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ConfigError(f"{text!r}: {text[at:].strip()[0]!r} is not expected here")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    def whole(self) -> Call:
        name, module = self._take("word", "a name"), None
        if self._next_is(":"):
            module, name = name, self._take("word", "a name after the colon")
        called = self._next_is("(")
        arguments, options = self._arguments() if called else ((), {})
        if self.tokens[self.at][0] != "end":
            self._refuse("the end")
        return Call(name, module, arguments, options, called)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        while not self._next_is(")"):
            kind, found = self.tokens[self.at]
            if kind == "word" and self.tokens[self.at + 1] == ("sign", "="):
                self.at += 2
                if found in options:
                    raise ConfigError(f"{self.text!r}: {found}= is given twice")
                options[found] = self._value()
            elif options:
                self._refuse("a name= like those before it")
            else:
                arguments.append(self._value())
            if self.tokens[self.at] != ("sign", ")") and not self._next_is(","):
                self._refuse("a comma or )")
        return tuple(arguments), options

    def _value(self) -> Any:
        if self._next_is("["):
            several = []
            while not self._next_is("]"):
                several.append(self._value())
                if self.tokens[self.at] != ("sign", "]") and not self._next_is(","):
                    self._refuse("a comma or ]")
            return several
        kind, found = self.tokens[self.at]
        if kind not in ("number", "text", "word"):
            self._refuse("a value")
        self.at += 1
        if kind == "number":
            return int(found) if re.fullmatch(r"[+-]?\d+", found) else float(found)
        return found[1:-1] if kind == "text" else _WORDS.get(found, found)

    def _next_is(self, sign: str) -> bool:
        if self.tokens[self.at] != ("sign", sign):
            return False
        self.at += 1
        return True

    def _take(self, kind: str, what: str) -> str:
        if self.tokens[self.at][0] != kind:
            self._refuse(what)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _refuse(self, expected: str) -> None:
        kind, found = self.tokens[self.at]
        came = "the end" if kind == "end" else repr(found)
        raise ConfigError(f"{self.text!r}: expected {expected}, got {came}")

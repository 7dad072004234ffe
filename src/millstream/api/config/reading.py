"""Reading tables: which keys they may have, and what their values become."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.api.config.document import Document, Mistake
from millstream.api.config.functions import Functions, LoadModule, Unbuilt, suggest
from millstream.api.config.options import Options, convert, options_of
from millstream.api.config.positions import Place, Table


class Reader:
    """A file, the functions it registers, and the mistakes found so far."""

    def __init__(self, document: Document, path: Path, load: LoadModule) -> None:
        self.document = document
        self.path = path
        self.functions = Functions(path.absolute().parent, load)
        self.mistakes: list[Mistake] = []

    def note(self, mistake: Mistake) -> None:
        """Keep a mistake, to be told with the others."""
        self.mistakes.append(mistake)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Go on after a mistake."""
        try:
            yield
        except Mistake as mistake:
            self.note(mistake)
        except Unbuilt:
            pass

    def check_keys(self, place: Place, table: Table, known: list[str]) -> None:
        """Tell of keys that do not belong there."""
        for key in table:
            if key not in known:
                hint = suggest(key, known) or f"; it has: {', '.join(known) or 'no options'}"
                self.note(self.document.mistake((*place, key), f"there is no option {key!r}{hint}"))

    def read(self, place: Place, table: Table, options: Options) -> dict[str, Any]:
        """The options of a table as the API takes them."""
        found = {}
        failed = False
        for name, option in options.items():
            if name in table:
                try:
                    with self.document.at(*place, name):
                        found[name] = convert(option, table[name], self.functions)
                except Mistake as mistake:
                    self.note(mistake)
                    failed = True
            elif option.required:
                raise self.document.mistake(place, f"{name} is missing")
        if failed:
            raise Unbuilt
        return found

    def spec(self, place: Place, table: Table, kinds: dict[str, type], more: list[str]) -> Any:
        """A source or a sink: its kind, and the options of that kind."""
        kind = table.get("kind")
        if kind is None:
            raise self.document.mistake(place, f"kind is missing; use {', '.join(kinds)}")
        if not isinstance(kind, str) or kind not in kinds:
            hint = suggest(str(kind), kinds) or f"; use {', '.join(kinds)}"
            raise self.document.mistake((*place, "kind"), f"kind: there is no {kind!r}{hint}")
        options = options_of(kinds[kind])
        self.check_keys(place, table, ["kind", *more, *options])
        read = self.read(place, table, options)
        with self.document.at(*place):
            return kinds[kind](**read)

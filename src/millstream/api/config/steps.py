"""Steps: one table of the file as one call of the API, once its inputs are there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from millstream.api.config.document import Document, as_written
from millstream.api.config.functions import LoadModule, suggest
from millstream.api.config.options import KEYING, VERBS, WINDOWING, Option, aggregate, shown
from millstream.api.config.positions import Place, Table
from millstream.api.config.reading import Reader
from millstream.api.keyed import KeyedStream
from millstream.api.stream import Stream
from millstream.api.updater import KeyedStreams
from millstream.api.windowed import WindowedStream
from millstream.api.windows import WHOLE, WindowSpec
from millstream.errors import ConfigError


class StepReader(Reader):
    """Makes steps; knows which names there are, and in which section."""

    def __init__(self, document: Document, path: Path, load: LoadModule) -> None:
        super().__init__(document, path, load)
        self.sections: dict[str, str] = {}  # of every name

    def names_of(self, section: str) -> list[str]:
        """The names of one section, in the order of the file."""
        return [name for name, one in self.sections.items() if one == section]

    def united(self, place: Place, streams: list[Stream]) -> Stream:
        """One stream of several."""
        if len(streams) == 1:
            return streams[0]
        with self.document.at(*place, "from"):
            return streams[0].union(*streams[1:]).named(f"{place[1]}.union")

    def step(
        self, name: str, table: Table, verb: str, inputs: list[Stream], other: Stream | None = None
    ) -> Stream:
        """What one table stands for; `other` is the stream that the verb names."""
        place: Place = ("step", name)
        self._check_step_keys(place, table, verb)
        options = self.read(place, table, VERBS[verb].options)
        if VERBS[verb].keyed:
            return self._keyed(name, table, verb, inputs, options)
        argument = [other] if other is not None else self._argument(place, table, verb)
        stream = self.united(place, inputs)
        with self.document.at(*place, verb):
            if verb == "view":  # it gives nothing on, so that the table is a step of its own
                return stream.select("*").named(name).view(*argument)
            made: Stream = getattr(stream, verb)(*argument, **options)
            return made.named(name)

    def _check_step_keys(self, place: Place, table: Table, verb: str) -> None:
        known = ["from", verb, *VERBS[verb].keys]
        for key in table:
            if key in known:
                continue
            owners = [other for other, one in VERBS.items() if key in one.keys]
            hint = suggest(key, known)
            if owners:
                hint = f" with {verb}; it goes with {', '.join(owners)}"
            self.note(
                self.document.mistake(
                    (*place, key),
                    f"there is no option {key!r}{hint or '; it has: ' + ', '.join(known)}",
                )
            )

    def _argument(self, place: Place, table: Table, verb: str) -> list[Any]:
        """What a verb is called with."""
        value = table[verb]
        spot = (*place, verb)
        if verb in ("select", "distinct", "dedup", "changes"):
            several = [value] if isinstance(value, str) else value
            if not isinstance(several, list) or any(not isinstance(one, str) for one in several):
                what = "SQL expressions" if verb == "select" else "columns"
                raise self.document.mistake(
                    spot, f"{verb}: expected a list of {what}, got {shown(value)}"
                )
            return [several] if verb == "changes" else several
        if verb == "top":
            if not isinstance(value, int):
                told = f"top: expected a whole number, got {shown(value)}"
                raise self.document.mistake(spot, told)
            return [value]
        if verb == "last":
            return [self.read(place, table, {"last": Option("last", timedelta)})["last"]]
        texts = {"where": "a SQL condition", "at": "a SQL expression", "view": "the name of a view"}
        if not isinstance(value, str):
            what = texts.get(verb, 'a function like "module:name"')
            raise self.document.mistake(spot, f"{verb}: expected {what}, got {shown(value)}")
        if verb in texts:
            return [value]
        with self.document.at(*spot):
            try:
                return [self.functions.find(value)]
            except ConfigError as error:
                raise ConfigError(f"{verb}: {error}") from None

    # -- keyed ------------------------------------------------------------------------------------

    def _keyed(
        self, name: str, table: Table, verb: str, inputs: list[Stream], options: dict[str, Any]
    ) -> Stream:
        place: Place = ("step", name)
        if "key_by" not in table and verb != "map_reduce":
            raise self.document.mistake(
                place, "key_by is missing; for one group of everything write key_by = []"
            )
        if verb == "update":
            (fn,) = self._argument(place, table, verb)
            self._check_published(place, options)
            keyed = self._subscribed(place, table, inputs)
            with self.document.at(*place, verb):
                return keyed.update(fn, name=name, **options)
        stream = self.united(place, inputs)
        columns, nulls = self._keys(place, table, None)
        if "key_by" not in table:
            nulls = {"nulls": "keep"}
        with self.document.at(*place, "key_by"):
            by_key = stream.key_by(*columns, **nulls)
        if verb == "top":
            with self.document.at(*place, verb):
                return by_key.top(*self._argument(place, table, verb), **options).named(name)
        if verb == "agg" and "window" not in table:
            return self._grouped(name, table, by_key)
        windowed = self._windowed(place, table, by_key)
        with self.document.at(*place, verb):
            if verb == "agg":
                return windowed.agg(**self._aggregates(place, table[verb])).named(name)
            (argument,) = self._argument(place, table, verb)
            made: Stream = getattr(windowed, verb)(argument, **options)
            return made.named(name)

    def _grouped(self, name: str, table: Table, keyed: KeyedStream) -> Stream:
        """Aggregates without a window."""
        place: Place = ("step", name)
        options = self.read(place, table, WINDOWING)
        self._refuse_window(place, {key: one for key, one in options.items() if key != "emit"})
        with self.document.at(*place, "agg"):
            aggs = self._aggregates(place, table["agg"])
            return keyed.agg(emit=options.get("emit"), **aggs).named(name)

    def _refuse_window(self, place: Place, options: dict[str, Any]) -> None:
        for key in options:
            raise self.document.mistake((*place, key), f"{key}: goes with a window")

    def _windowed(self, place: Place, table: Table, keyed: KeyedStream) -> WindowedStream:
        options = self.read(place, table, WINDOWING)
        if "window" not in table:
            self._refuse_window(place, options)
            return keyed.window(WHOLE)
        spec = self.read(place, table, {"window": Option("window", WindowSpec)})
        with self.document.at(*place, "window"):
            return keyed.window(spec["window"], **options)

    def _subscribed(self, place: Place, table: Table, inputs: list[Stream]) -> KeyedStreams:
        """The inputs of an updater, each with its own key columns."""
        given = table["from"]
        names = [given] if isinstance(given, str) else given
        for option in ("key_by", *KEYING):
            per_input = table.get(option)
            for key in per_input if isinstance(per_input, dict) else ():
                if key not in names:
                    raise self.document.mistake(
                        (*place, option, key),
                        f"{option}: {key!r} is not in from{suggest(key, names)}",
                    )
        keyed = []
        for stream, name in zip(inputs, names, strict=True):
            columns, nulls = self._keys(place, table, name)
            with self.document.at(*place, "key_by"):
                keyed.append(stream.key_by(*columns, **nulls))
        with self.document.at(*place, "from"):
            return KeyedStreams((keyed[0],)).union(*keyed[1:])

    def _keys(
        self, place: Place, table: Table, name: str | None
    ) -> tuple[list[str], dict[str, Any]]:
        """Key columns and what becomes of nulls; for a named input, if each has its own."""
        given = table.get("key_by", [])
        spot: Place = (*place, "key_by")
        if name is not None and isinstance(given, dict):
            if name not in given:
                raise self.document.mistake(spot, f"key_by: columns of {name!r} are missing")
            given, spot = given[name], (*spot, name)
        columns = [given] if isinstance(given, str) else given
        if not isinstance(columns, list) or any(not isinstance(one, str) for one in columns):
            only = "" if name is not None else "; a table of them is for the inputs of update"
            raise self.document.mistake(
                spot, f"key_by: expected a column or a list of them, got {shown(given)}{only}"
            )
        own = dict(table)
        for option in KEYING:
            if name is not None and isinstance(table.get(option), dict):
                own.pop(option)
                own |= {option: table[option][name]} if name in table[option] else {}
        return columns, self.read(place, own, KEYING)

    def _check_published(self, place: Place, options: dict[str, Any]) -> None:
        for number, stream in enumerate(options.get("publishes", [])):
            if stream not in self.names_of("stream"):
                missing = f"; declare [stream.{as_written(stream)}]"
                hint = suggest(stream, self.names_of("stream")) or missing
                raise self.document.mistake(
                    (*place, "publishes", number), f"publishes: there is no stream {stream!r}{hint}"
                )

    def _aggregates(self, place: Place, table: Any) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.document.mistake(
                (*place, "agg"),
                f'agg: expected a table like {{ n = "count()" }}, got {shown(table)}',
            )
        found = {}
        for name, value in table.items():
            with self.document.at(*place, "agg", name):
                found[name] = aggregate(name, value, self.functions)
        return found

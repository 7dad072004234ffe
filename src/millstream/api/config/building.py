"""From a TOML file to a flow: every mistake with its line, as many as can be found at once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from millstream.api.config.document import SECTIONS, Document, Mistake, together
from millstream.api.config.functions import LoadModule, suggest
from millstream.api.config.options import SETTINGS, SINKS, SOURCES, TWO, VERBS, Option, shown
from millstream.api.config.positions import Place, Table
from millstream.api.config.steps import StepReader
from millstream.api.config.trust import foreign_variable, untrusted
from millstream.api.flow import Flow
from millstream.api.sources import Rate
from millstream.api.stream import Stream
from millstream.errors import CheckpointError, ConfigError
from millstream.graph.nodes import Node
from millstream.settings import Settings

_TOP = ("name", "functions", "run", *SECTIONS)
_LATE = ".late"


@dataclass(frozen=True)
class Query:
    """Steps that were added to a flow from a file of their own."""

    name: str
    file: Path
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Application:
    """What a configuration file describes: a flow, and how it is to be run."""

    flow: Flow
    settings: dict[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    document: Document | None = None
    sql: Path | None = None  # the file, if it is one of SQL
    queries: tuple[Query, ...] = ()  # that were added to it

    def check_trust(self) -> Self:
        """Refuse what runs code or takes secrets: a file may not, who starts it may."""
        for query in self.queries:
            if query.file.suffix == ".sql" and (found := foreign_variable(query.nodes)) is not None:
                raise ConfigError(f"{query.file}: {found}")
        if self.document is None and self.sql is None:
            return self  # a program
        variable = foreign_variable(self.flow.nodes)
        if variable is not None and self.document is not None:
            place = (variable.section, variable.step, variable.option)
            raise self.document.mistake(place, str(variable))
        if variable is not None:
            raise ConfigError(f"{self.sql}: {variable}")
        if self.document is None:
            return self
        master = self.settings.get("master", "local")
        if not str(master).startswith("local"):
            raise self.document.mistake(
                ("run", "master"),
                f"master: {master!r} gets the functions of the flow and may run code here; give it "
                "as --master, or run with --trust-config if you trust this file as you trust a "
                "program",
            )
        name = untrusted(self.settings.get("spark", {}))
        if name is not None:
            raise self.document.mistake(
                ("run", "spark", name),
                f"spark: {name!r} is not a plain size or time and may run code; take it out, or "
                "run with --trust-config if you trust this file as you trust a program",
            )
        return self

    @contextlib.contextmanager
    def locating(self) -> Iterator[None]:
        """Add file and line to mistakes that are found later: when columns are known."""
        try:
            yield
        except (Mistake, CheckpointError):
            raise
        except ConfigError as error:
            if self.document is None:
                raise
            raise self.document.place_later(str(error)) from error


def read_application(path: Path, load: LoadModule) -> Application:
    """The application a file describes; `load` runs the Python files it registers."""
    return _Builder(Document(path), path, load).build()


class _Builder(StepReader):
    def __init__(self, document: Document, path: Path, load: LoadModule) -> None:
        super().__init__(document, path, load)
        self.flow = Flow("unnamed")
        self.streams: dict[str, Stream | None] = {}  # None: could not be built

    def build(self) -> Application:
        values = self.document.values
        for key in values:
            if key not in _TOP:
                hint = suggest(key, _TOP) or f"; a file has: {', '.join(_TOP)}"
                self.note(self.document.mistake((key,), f"there is no {key!r}{hint}"))
        with self.collecting():
            self._name(values.get("name", self.path.stem))
        with self.collecting():
            self._register(values.get("functions", []))
        settings, checkpoint = self._run(values.get("run", {}))
        self._names()
        for name, table in self._tables("source"):
            with self._building(name):
                self.streams[name] = self._source(name, table)
        for name, table in self._tables("stream"):
            with self._building(name):
                self.check_keys(("stream", name), table, [])
                with self.document.at("stream", name):
                    self.streams[name] = self.flow.stream(name)
        for name in self._order():
            with self._building(name):
                self.streams[name] = self._step(name, self.document.values["step"][name])
        for name, table in self._tables("sink"):
            with self.collecting():
                self._sink(name, table)
        if self.mistakes:
            raise together(self.mistakes)
        return Application(self.flow, settings, checkpoint, self.document)

    # -- what is not the graph --------------------------------------------------------------------

    def _name(self, name: Any) -> None:
        with self.document.at("name"):
            if not isinstance(name, str):
                raise ConfigError(f"name: expected a text, got {shown(name)}")
            self.flow = Flow(name)

    def _register(self, files: Any) -> None:
        if isinstance(files, str):
            files = [files]
        if isinstance(files, dict):
            entries = [(("functions", name), file, name) for name, file in files.items()]
        elif isinstance(files, list):
            entries = [(("functions", n), file, None) for n, file in enumerate(files)]
        else:
            raise self.document.mistake(
                ("functions",), 'functions: expected Python files, like ["topics.py"]'
            )
        for place, file, name in entries:
            with self.collecting(), self.document.at(*place):
                if not isinstance(file, str):
                    raise ConfigError(f"functions: expected a Python file, got {shown(file)}")
                try:
                    self.functions.register(file, name)
                except ConfigError as error:
                    raise ConfigError(f"functions: {error}") from None

    def _run(self, table: Any) -> tuple[dict[str, Any], Path | None]:
        if not isinstance(table, dict):
            self.note(self.document.mistake(("run",), f"expected a table, got {shown(table)}"))
            return {}, None
        options = {**SETTINGS, "checkpoint": Option("checkpoint", str)}
        self.check_keys(("run",), table, list(options))
        settings: dict[str, Any] = {}
        with self.collecting():
            settings = self.read(("run",), table, options)
            checkpoint = settings.pop("checkpoint", None)
            try:
                Settings.from_options(settings)
            except ConfigError as error:
                key = next((k for k in settings if re.match(rf"{k}\b", str(error))), None)
                place: Place = ("run",) if key is None else ("run", key)
                raise self.document.mistake(place, str(error)) from None
            return settings, None if checkpoint is None else Path(checkpoint)
        return {}, None

    def _names(self) -> None:
        """All names are of one flow: none may be there twice."""
        for section in SECTIONS:
            tables = self.document.values.get(section, {})
            if not isinstance(tables, dict):
                hint = f"write [{section}.NAME]"
                self.note(self.document.mistake((section,), f"expected tables; {hint}"))
                continue
            for name, table in tables.items():
                if not isinstance(table, dict):
                    told = f"expected a table, got {shown(table)}; write [{section}.NAME] above it"
                    self.note(self.document.mistake((section, name), told))
                elif name in self.sections:
                    other = self.sections[name]
                    line = self.document.line((other, name))
                    told = f"{name!r} is already the name of a {other}, in line {line}"
                    self.note(self.document.mistake((section, name), told))
                else:
                    self.sections[name] = section

    @contextlib.contextmanager
    def _building(self, name: str) -> Iterator[None]:
        """After a mistake, what was to be built counts as not there."""
        self.streams[name] = None
        with self.collecting():
            yield

    # -- the graph --------------------------------------------------------------------------------

    def _source(self, name: str, table: Table) -> Stream:
        spec = self.spec(("source", name), table, SOURCES, [])
        with self.document.at("source", name):
            return self.flow.source(spec, name=name)

    def _sink(self, name: str, table: Table) -> None:
        spec = self.spec(("sink", name), table, SINKS, ["from"])
        stream = self.united(("sink", name), self._inputs(("sink", name), table))
        with self.document.at("sink", name):
            stream.sink(spec, name=name)

    def _order(self) -> list[str]:
        """The steps, each after those it takes from; otherwise in the order of the file."""
        order: dict[str, None] = {}
        for first in self.names_of("step"):
            path = [first]
            waiting = [self._before(first)]
            while waiting:
                for name in waiting[-1]:
                    if name in path:
                        self._tell_cycle([*path[path.index(name) :], name])
                    elif name not in order:
                        path.append(name)
                        waiting.append(self._before(name))
                        break
                else:
                    waiting.pop()
                    order[path.pop()] = None
        return list(order)

    def _before(self, step: str) -> Iterator[str]:
        """The steps a step takes from."""
        table = self.document.values["step"][step]
        given = table.get("from", [])
        others = [table[verb] for verb in TWO if verb in table]
        for one in [*(given if isinstance(given, list) else [given]), *others]:
            if not isinstance(one, str):
                continue
            name = one if one in self.sections else one.removesuffix(_LATE)
            if self.sections.get(name) == "step":
                yield name

    def _tell_cycle(self, cycle: list[str]) -> None:
        self.note(
            self.document.mistake(
                ("step", cycle[-2], "from"),
                f"from: a cycle: {' -> '.join(reversed(cycle))}; only a published stream may lead "
                "back: declare [stream.NAME], take from it, and ctx.publish to it",
            )
        )

    def _inputs(self, place: Place, table: Table) -> list[Stream]:
        """The streams a step or sink takes from."""
        given = table.get("from")
        names = [given] if isinstance(given, str) else given
        if given is None:
            raise self.document.mistake(place, "from is missing; name the step it takes from")
        if not isinstance(names, list) or not names or any(not isinstance(n, str) for n in names):
            raise self.document.mistake(
                (*place, "from"), f"from: expected a name or a list of names, got {shown(given)}"
            )
        streams = []
        for number, name in enumerate(names):
            spot: Place = (*place, "from", number) if given is names else (*place, "from")
            streams.append(self._stream(spot, name))
        return streams

    def _stream(self, place: Place, name: str) -> Stream:
        late = name.removesuffix(_LATE) if name.endswith(_LATE) and not self._known(name) else None
        wanted = name if late is None else late
        if not self._known(wanted):
            if wanted in self.sections:
                told = f"{place[2]}: {name!r} is a sink; nothing comes out"
                raise self.document.mistake(place, told)
            known = [one for one in self.sections if self._known(one)]
            hint = suggest(wanted, known) or f"; there are: {', '.join(sorted(known))}"
            raise self.document.mistake(place, f"{place[2]}: there is no step {name!r}{hint}")
        stream = self.streams.get(wanted)
        if stream is None:  # told before; what takes from it is looked at all the same
            return self.flow.source(Rate())
        if late is None:
            return stream
        if name not in self.streams:
            with self.document.at(*place):
                self.streams[name] = stream.late()
        made = self.streams[name]
        assert made is not None
        return made

    def _known(self, name: str) -> bool:
        """Whether there is something of that name to take from."""
        return self.sections.get(name, "sink") != "sink"

    def _tables(self, section: str) -> list[tuple[str, Table]]:
        return [(name, self.document.values[section][name]) for name in self.names_of(section)]

    def _step(self, name: str, table: Table) -> Stream:
        place: Place = ("step", name)
        verbs = [key for key in table if key in VERBS]
        if len(verbs) > 1:
            raise self.document.mistake(
                (*place, verbs[1]),
                f"has {' and '.join(verbs)}; a step does one thing: make a step of each",
            )
        if not verbs:
            return self._union(name, table)
        verb = verbs[0]
        return self.step(
            name, table, verb, self._inputs(place, table), self._other(table, place, verb)
        )

    def _other(self, table: Table, place: Place, verb: str) -> Stream | None:
        """The stream that a verb like join names."""
        if verb not in TWO:
            return None
        if not isinstance(table[verb], str):
            told = f"{verb}: expected the name of a step, got {shown(table[verb])}"
            raise self.document.mistake((*place, verb), told)
        return self._stream((*place, verb), table[verb])

    def _union(self, name: str, table: Table) -> Stream:
        place: Place = ("step", name)
        for key in table:
            near = suggest(key, VERBS)
            if key != "from" and near:
                raise self.document.mistake((*place, key), f"there is no {key!r}{near}")
        self.check_keys(place, table, ["from"])
        inputs = self._inputs(place, table)
        if len(inputs) == 1:
            raise self.document.mistake(
                place, f"does nothing; give it one of: {', '.join(VERBS)}, or several in from"
            )
        with self.document.at(*place, "from"):
            return inputs[0].union(*inputs[1:]).named(name)

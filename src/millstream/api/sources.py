"""Sources: where records come from. A source is a description; nothing is opened here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from millstream.durations import Duration, micros
from millstream.errors import ConfigError

_FORMATS = ("csv", "json", "parquet", "text", "debezium")
_UNITS = ("s", "ms", "us", "ns", "seconds", "milliseconds", "microseconds", "nanoseconds")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What all sources share: where event time comes from, and how long to wait for it.

    time: the column of event time; None takes the time of arrival.
    time_unit: for numbers in that column, what they count since the epoch.
    time_format: for texts in that column that are not ISO-8601, how they are written, as for
        `datetime.strptime`: "%m/%d/%Y %H:%M".
    time_pattern: for texts in that column that hold more than a time: a regular expression whose
        group, or all that it matches, is the time, like "at=([^ ]+)".
    zone: for times without an offset, the zone they are in, like "UTC" or "Europe/Berlin".
    lateness: how far records may be out of order. None on bounded input means: nothing is late,
        windows leave at the end of the input; on unbounded input it means "0s".
    idle_timeout: a participant silent for so long does not hold the watermark back; None: it does
        for ever.
    max_future_skew: a time further ahead of the clock than this cannot move the watermark.
    participant: a column whose values (nodes, devices ...) report progress separately. Without it
        every file is a participant, and any other source is one as a whole.
    participants: values of that column that are expected: until each has been seen (or has been
        silent for the idle timeout), nothing leaves. None and an empty list declare nobody.
    """

    time: str | None = None
    time_unit: str = "s"
    time_format: str | None = None
    time_pattern: str | None = None
    zone: str | None = None
    lateness: Duration | None = None
    idle_timeout: Duration | None = "10s"
    max_future_skew: Duration = "1d"
    participant: str | None = None
    participants: Sequence[str] | None = ()

    def __post_init__(self) -> None:
        step = type(self).__name__
        if self.lateness is not None:
            micros(self.lateness, f"{step}(lateness=)", zero=True)
        if self.idle_timeout is not None:
            micros(self.idle_timeout, f"{step}(idle_timeout=)")
        micros(self.max_future_skew, f"{step}(max_future_skew=)", zero=True)
        declared = () if self.participants is None else self.participants
        if (
            isinstance(declared, str)
            or not isinstance(declared, Iterable)
            or not all(isinstance(who, str) for who in declared)
        ):
            raise ConfigError(
                f"{step}(participants={self.participants!r}): expected a list of names, like "
                '["web-1", "web-2"]'
            )
        if self.participants and self.participant is None:
            raise ConfigError(
                f"{step}(participants=): say with participant= which column has these names"
            )
        if self.time_format is not None:
            if not isinstance(self.time_format, str):
                raise ConfigError(
                    f'{step}(time_format={self.time_format!r}): expected a text like "%m/%d/%Y"'
                )
            if self.time is None:
                raise ConfigError(f"{step}(time_format=): say with time= which column has these")
        if self.time_pattern is not None:
            if not isinstance(self.time_pattern, str):
                raise ConfigError(
                    f"{step}(time_pattern={self.time_pattern!r}): expected a regular expression"
                )
            if self.time is None:
                raise ConfigError(f"{step}(time_pattern=): say with time= which column has these")
        if self.time_unit not in _UNITS:
            raise ConfigError(
                f"{step}(time_unit={self.time_unit!r}): use one of {', '.join(_UNITS)}"
            )

    @property
    def bounded(self) -> bool:
        """Whether all of it is there when it is begun."""
        return False

    @property
    def endless(self) -> bool:
        """Whether it is sure never to end; what others send may."""
        return False

    def lateness_micros(self) -> int | None:
        """How long windows wait, None for "until the end"."""
        if self.lateness is None:
            return None if self.bounded else 0
        return micros(self.lateness, "lateness", zero=True)


@dataclass(frozen=True)
class Files(Timing):
    """Files in a directory, one file, or a glob: csv, json (lines), parquet or text; also .gz.

    Format "debezium" is lines of JSON with changes of a table: its columns are those of the table
    and `__op`, for `changes(key=, op="__op")`.

    With `follow=True` new files are taken up as they appear and text files as they grow.
    delimiter: what parts the fields of csv; without it a comma, semicolon, tab or bar, if the first
        lines show which.
    nulls: fields of csv that stand for a missing value, like ["NA", ""], in every column. Without
        it, if columns are inferred, NA, NULL and the like are null in all columns but texts.
    comment: lines of csv that begin with it are skipped, like "#".
    encoding: of csv and text that is not UTF-8, like "cp1252"; positions stay those of the file.
    multiline: quoted fields of csv may run over line ends; every file is then read whole, by one
        task, and is taken to be finished when it is seen.
    links: whoever may put files into a directory could link any file of this machine there, so
        links in it are refused (and with `follow=True` left out, with a warning) unless True.
    reader: a function of your own for other formats: it gets the open file (bytes, decompressed,
        with a `name`) and gives (position, record), positions ascending, records as dicts.
    """

    path: str | Path = ""
    format: str | None = None
    schema: Any = None
    follow: bool = False
    max_files_per_batch: int | None = None
    header: bool = True
    delimiter: str | None = None
    nulls: Sequence[str] | None = None
    comment: str | None = None
    encoding: str | None = None
    multiline: bool = False
    reader: Callable[[Any], Iterable[tuple[int, Any]]] | None = None
    links: bool = False

    def __init__(self, path: str | Path, format: str | None = None, **options: Any) -> None:
        _set(self, Files, {"path": path, "format": format, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise ConfigError(f"Files(path): expected a path, got {self.path!r}")
        if self.format is not None and self.format not in _FORMATS:
            raise ConfigError(
                f"Files(format={self.format!r}): use one of {', '.join(_FORMATS)}, or leave it "
                "out to go by the file names"
            )
        if self.nulls is not None and (
            isinstance(self.nulls, str) or not all(isinstance(one, str) for one in self.nulls)
        ):
            raise ConfigError(
                f'Files(nulls={self.nulls!r}): expected a list of texts, like ["NA", ""]'
            )
        if self.comment is not None and (not isinstance(self.comment, str) or not self.comment):
            raise ConfigError(f'Files(comment={self.comment!r}): expected a text, like "#"')
        if self.reader is not None and not callable(self.reader):
            raise ConfigError(
                f"Files(reader={self.reader!r}): expected a function that gets an open file and "
                "gives (position, record)"
            )
        if self.reader is not None and self.format is not None:
            raise ConfigError(
                f"Files(format={self.format!r}, reader=): a reader decides itself what the bytes "
                "mean; leave format= out"
            )
        if self.max_files_per_batch is not None and self.max_files_per_batch < 1:
            raise ConfigError("Files(max_files_per_batch=): must be at least 1")

    @property
    def bounded(self) -> bool:
        return not self.follow

    @property
    def endless(self) -> bool:
        return self.follow


@dataclass(frozen=True)
class Lines(Timing):
    """What line-based receivers share."""

    format: str = "text"
    schema: Any = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        step = type(self).__name__
        if self.format not in ("text", "json", "csv", "debezium"):
            raise ConfigError(f"{step}(format={self.format!r}): use text, json, csv or debezium")
        if self.format != "text" and self.schema is None:
            raise ConfigError(
                f'{step}(format={self.format!r}): give a schema, like schema="ts timestamp, '
                'symbol string, price double"; a live source has no sample to infer it from'
            )


@dataclass(frozen=True)
class Socket(Lines):
    """Lines from a TCP server. Received data is spooled durably before it is processed.

    The source ends when the server closes the connection, unless `reconnect=True`.
    """

    host: str = "localhost"
    port: int = 0
    reconnect: bool = False

    def __init__(self, host: str, port: int, **options: Any) -> None:
        _set(self, Socket, {"host": host, "port": port, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise ConfigError(f"Socket(port={self.port!r}): expected a number from 1 to 65535")

    @property
    def endless(self) -> bool:
        return self.reconnect


@dataclass(frozen=True)
class Stdin(Lines):
    """Lines from standard input, spooled durably; it ends with the input."""


@dataclass(frozen=True)
class Http(Lines):
    """Lines that others POST to this machine; each request is answered once it is durable.

    A request with an `Idempotency-Key` header is taken once, however often it is sent. The source
    ends when the flow is stopped.

    port, host: where it listens; beyond this machine only with a token.
    path: what requests are posted to.
    token_file, token_env: where the token is that requests must bring, as a file or as the name of
        an environment variable.
    """

    format: str = "json"
    port: int = 0
    host: str = "127.0.0.1"
    path: str = "/"
    token_file: str | Path | None = None
    token_env: str = "MILLSTREAM_INPUT_TOKEN"

    def __init__(self, port: int, host: str = "127.0.0.1", **options: Any) -> None:
        _set(self, Http, {"port": port, "host": host, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise ConfigError(f"Http(port={self.port!r}): expected a number from 1 to 65535")
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError(f'Http(host={self.host!r}): expected an address, like "127.0.0.1"')
        if not isinstance(self.path, str) or set(self.path) & set("?# %"):
            raise ConfigError(f'Http(path={self.path!r}): expected a path, like "/events"')
        if not isinstance(self.token_env, str) or not self.token_env:
            raise ConfigError("Http(token_env=): expected the name of an environment variable")

    @property
    def route(self) -> str:
        """The path with its slash."""
        return "/" + self.path.lstrip("/")

    @property
    def endless(self) -> bool:
        return True


@dataclass(frozen=True)
class Generator(Timing):
    """Records from a Python generator function: dicts, or Arrow tables for speed.

    After a restart the function is called again and as many records as were already taken are
    skipped; with `replayable=False` nothing is skipped.
    """

    fn: Callable[[], Iterable[Any]] = field(default=tuple)
    schema: Any = None
    replayable: bool = True

    def __init__(self, fn: Callable[[], Iterable[Any]], **options: Any) -> None:
        _set(self, Generator, {"fn": fn, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise ConfigError(
                f"Generator(fn): expected a generator function, got {type(self.fn).__name__}; "
                "give the function itself, not what it returns"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fn": tuple}  # the generator runs in the driver only


@dataclass(frozen=True)
class Rate(Timing):
    """Numbered records at a steady rate, for trying things out: columns `ts` and `value`.

    With `limit` it ends after so many records.
    """

    rows_per_second: float = 1.0
    limit: int | None = None

    def __init__(self, rows_per_second: float = 1.0, **options: Any) -> None:
        _set(self, Rate, {"rows_per_second": rows_per_second, "time": "ts", **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rows_per_second, int | float) or not self.rows_per_second > 0:
            raise ConfigError(
                f"Rate(rows_per_second={self.rows_per_second!r}): expected a number above zero"
            )
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ConfigError(
                f"Rate(limit={self.limit!r}): expected how many records there are, at least 1; "
                "leave it out if it has no end"
            )

    @property
    def endless(self) -> bool:
        return self.limit is None


@dataclass(frozen=True)
class HostStats(Timing):
    """Figures of the machine it runs on, one record `every` so long; it needs psutil.

    Columns: `ts`, `host`, `cpu`, `memory` and `swap` (percent), `load` (of one minute), and bytes
    since the record before: `swapped_in`, `swapped_out`, `disk_read`, `disk_written`, `sent` and
    `received`.

    host: what stands in the column `host`; the name of the machine if it is left out.
    """

    every: Duration = "1s"
    host: str | None = None
    time: str | None = field(default="ts", init=False)
    time_unit: str = field(default="s", init=False)
    time_format: str | None = field(default=None, init=False)
    time_pattern: str | None = field(default=None, init=False)
    zone: str | None = field(default=None, init=False)

    def __init__(self, every: Duration = "1s", **options: Any) -> None:
        _set(self, HostStats, {"every": every, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        micros(self.every, "HostStats(every=)")
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise ConfigError(f"HostStats(host={self.host!r}): expected a name")

    schema: ClassVar[str] = (
        "ts timestamp, host string, cpu double, memory double, swap double, load double, "
        "swapped_in bigint, swapped_out bigint, disk_read bigint, disk_written bigint, "
        "sent bigint, received bigint"
    )
    replayable: ClassVar[bool] = False  # what was not kept is past

    @property
    def endless(self) -> bool:
        return True

    def fn(self) -> Iterator[dict[str, Any]]:
        """Its records, without end."""
        from millstream.io.hosts import figures

        return figures(micros(self.every, "every") / 1e6, self.host)


@dataclass(frozen=True)
class Collector(Timing):
    """What agents on other machines read there: only what the first steps made of it travels.

    Every agent reads `reads` on its own machine and runs the flow up to the first exchange. Each is
    a participant: nothing leaves before all that are expected have come so far.

    address: where it listens for agents, as "host:port".
    reads: the source that every agent has, ms.Files("/var/log/app/*.log", ...) or ms.HostStats().
    agents: the names of those that are expected, or how many.
    boundary: how often an agent says that it is there, also when it has nothing to send.
    idle_timeout: an agent silent for so long does not hold the watermark back; None: it does.
    token_file, token_env: where the token is that agents must bring, as a file or as the name of
        an environment variable.
    certificate, private_key: files (PEM) for TLS; beyond this machine it is needed.
    """

    address: str = ""
    reads: Any = None
    agents: Sequence[str] | int = 1
    boundary: Duration = "1s"
    token_file: str | Path | None = None
    token_env: str = "MILLSTREAM_AGENT_TOKEN"
    certificate: str | Path | None = None
    private_key: str | Path | None = None
    idle_timeout: Duration | None = None
    time: str | None = field(default=None, init=False)
    time_unit: str = field(default="s", init=False)
    time_format: str | None = field(default=None, init=False)
    time_pattern: str | None = field(default=None, init=False)
    zone: str | None = field(default=None, init=False)
    lateness: Duration | None = field(default=None, init=False)
    max_future_skew: Duration = field(default="1d", init=False)
    participant: str | None = field(default=None, init=False)
    participants: Sequence[str] | None = field(default=(), init=False)

    def __init__(self, address: str, reads: Any = None, **options: Any) -> None:
        _set(self, Collector, {"address": address, "reads": reads, **options})
        self.__post_init__()

    def __post_init__(self) -> None:
        reads, names = self.reads, self.agents
        if not isinstance(reads, Files | HostStats):
            raise ConfigError(
                "Collector(reads=): expected what agents read on their machines, like "
                f'ms.Files("/var/log/app/*.log", time="ts"), got {reads!r}'
            )
        if reads.time is None:
            raise ConfigError(
                "Collector(reads=): the clocks of machines differ, so records need a time of their "
                "own; say with time= which column has it"
            )
        own = {"idle_timeout", "participant", "participants"}
        for name in Timing.__dataclass_fields__.keys() - own:
            object.__setattr__(self, name, getattr(reads, name))
        super().__post_init__()
        host, _, port = self.address.rpartition(":") if isinstance(self.address, str) else ("",) * 3
        if not host or not port.isdigit() or not int(port) < 65536:
            raise ConfigError(f'Collector({self.address!r}): expected "host:port"')
        micros(self.boundary, "Collector(boundary=)")
        named = not isinstance(names, int | str) and all(isinstance(one, str) for one in names)
        counted = isinstance(names, int) and not isinstance(names, bool) and names > 0
        if not (counted or (named and len(set(names)) == len(names) > 0)):  # type: ignore[arg-type]
            raise ConfigError(
                f"Collector(agents={names!r}): expected the names of agents, each once, or how many"
            )
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("Collector(certificate=, private_key=): TLS needs both")
        object.__setattr__(self, "participant", "agent")
        object.__setattr__(self, "participants", () if counted else tuple(names))  # type: ignore[arg-type]

    @property
    def bounded(self) -> bool:
        return bool(self.reads.bounded)

    @property
    def endless(self) -> bool:
        return bool(self.reads.endless)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def expected(self, known: Iterable[str]) -> frozenset[str]:
        """Who is expected, given those that are known: by name, or so many others."""
        if not isinstance(self.agents, int):
            return frozenset(self.agents)
        there = set(known)
        return frozenset({*there, *(f"agent {n + 1}" for n in range(len(there), self.agents))})


SourceSpec = Files | Socket | Stdin | Http | Generator | Rate | HostStats | Collector


def _set(self: Any, cls: type, options: dict[str, Any]) -> None:
    """Fill a frozen source, refusing options it does not have."""
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    fields = {name: one for name, one in fields.items() if one.init or name not in options}
    unknown = sorted(set(options) - set(fields))
    if unknown:
        near = difflib.get_close_matches(unknown[0], fields, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(fields))}"
        raise ConfigError(f"{cls.__name__}: no option {', '.join(unknown)}; {hint}")
    for name, described in fields.items():
        object.__setattr__(self, name, options.get(name, described.default))

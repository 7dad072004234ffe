"""What the API can do, a file can say: an option that is added to one is an option of the other."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import millstream as ms
from millstream.api import aggregates, sinks, sources, tables, windows
from millstream.api.config import options
from millstream.api.updater import KeyedStreams
from millstream.durations import micros

# A value for every option of sources, sinks and updaters, as it is written and as it arrives. A
# new option needs a line here, and nothing else.
SAMPLES: dict[str, tuple[str, Any]] = {
    # sources
    "time": ('"at"', "at"),
    "time_unit": ('"ms"', "ms"),
    "time_format": ('"%d.%m.%Y %z"', "%d.%m.%Y %z"),
    "time_pattern": ('"at=([^ ]+)"', "at=([^ ]+)"),
    "zone": ('"Europe/Berlin"', "Europe/Berlin"),
    "lateness": ('"5s"', "5s"),
    "idle_timeout": ('"1m"', "1m"),
    "max_future_skew": ('"2h"', "2h"),
    "participant": ('"node"', "node"),
    "participants": ('["a", "b"]', ("a", "b")),
    "overload": ('"drop(oldest, when=8MB, lag=30s)"', ms.drop("oldest", when="8MB", lag="30s")),
    "path": ('"somewhere"', "somewhere"),
    "format": ('"json"', "json"),
    "schema": ('"at timestamp, text string"', "at timestamp, text string"),
    "follow": ("true", True),
    "max_files_per_batch": ("3", 3),
    "links": ("true", True),
    "header": ("false", False),
    "reader": ('"topics:mentions"', "mentions"),
    "delimiter": ('";"', ";"),
    "files.nulls": ('["NA", ""]', ("NA", "")),
    "comment": ('"#"', "#"),
    "encoding": ('"cp1252"', "cp1252"),
    "multiline": ("true", True),
    "host": ('"localhost"', "localhost"),
    "port": ("9999", 9999),
    "reconnect": ("true", True),
    "token_file": ('"token"', "token"),
    "token_env": ('"SECRET"', "SECRET"),
    "fn": ('"topics:count"', "count"),
    "replayable": ("false", False),
    "rows_per_second": ("2.5", 2.5),
    "address": ('"127.0.0.1:9410"', "127.0.0.1:9410"),
    "reads": ('{{ kind = "files", path = "log", time = "at" }}', ms.Files("log", time="at")),
    "agents": ('["a", "b"]', ("a", "b")),
    "boundary": ('"2s"', "2s"),
    "clock_skew": ('"2m"', "2m"),
    "modules": ('["app.toml"]', ("app.toml",)),
    "trees": ("2", 2),
    "certificate": ('"cert.pem"', "cert.pem"),
    "private_key": ('"key.pem"', "key.pem"),
    "servers": ('"h:9092"', "h:9092"),
    "topic": ('"trades"', "trades"),
    "pattern": ('"trades-.*"', "trades-.*"),
    "start": ('"latest"', "latest"),
    "lost": ('"count"', "count"),
    "headers": ('["trace"]', ("trace",)),
    "kafka.key": ('"shop"', "shop"),
    "kafka.wait": ('"5s"', "5s"),
    "options": ('{{ "client.id" = "x" }}', {"client.id": "x"}),
    # sinks
    "changes": ('"upsert"', "upsert"),
    "registry": ('"http://h:8081"', "http://h:8081"),
    "subject": ('"trade"', "trade"),
    "progress": ('"far"', "far"),
    "limit": ("7", 7),
    "url": ('"redis://localhost:7/1"', "redis://localhost:7/1"),
    "postgres.url": ('"postgresql://localhost/x"', "postgresql://localhost/x"),
    "table": ('"shop.orders"', "shop.orders"),
    "catalog": ('"prod"', "prod"),
    "partition_by": ('"day"', "day"),
    "target_size": ('"128MB"', "128MB"),
    "at_latest": ('"5m"', "5m"),
    "prefix": ('"app:"', "app:"),
    "key": ('["day", "shop"]', ("day", "shop")),
    "wait": ('"5s"', "5s"),
    "password_env": ('"SECRET"', "SECRET"),
    # updaters
    "ttl": ('"1h"', "1h"),
    "on_timer": ('"topics:tick"', "tick"),
    "order": ('"arrival"', "arrival"),
    "late": ('"divert"', "divert"),
    "clock": ('"wall"', "wall"),
    "merge": ('"topics:add"', "add"),
    "codec": ('"topics:Numbers"', "Numbers"),
    "publishes": ('["hot"]', ("hot",)),
    "max_slate": ("1000", 1000),
    "flush": ('"10s"', "10s"),
    # windows and keys
    "nulls": ('"keep"', "keep"),
    "partition": ('"topics:mentions"', "mentions"),
    "emit": ('"early"', "early"),
    "scheduler": ('"hybrid(threshold=0.7)"', ms.Hybrid(threshold=0.7)),
    "memory": ('"2GB"', "2GB"),
    "every": ('"10s"', "10s"),
    "every_rows": ("100", 100),
    "every_event": ('"1m"', "1m"),
    "close": ('"evict(timeout=60s)"', ms.evict(timeout="60s")),
    "fidelity": ("true", True),
}


def named(value: Any) -> Any:
    """Functions and objects by their name."""
    if inspect.isfunction(value):
        return value.__name__
    in_app = type(value).__module__.startswith("millstream_app")
    return type(value).__name__ if in_app else value


def value_of(kind: str, name: str) -> tuple[str, Any]:
    """An option as it is written and as it arrives; kinds may mean different things by a name."""
    assert name in SAMPLES, f"{name} is new: give it a value in SAMPLES"
    return SAMPLES.get(f"{kind}.{name}", SAMPLES[name])


def written(names: list[str], kind: str = "") -> str:
    """These options as lines of a table."""
    return "\n".join(f"{name} = {value_of(kind, name)[0]}" for name in names) + "\n"


def sample(option: str) -> Any:
    """What arrives; durations in microseconds, as nodes have them."""
    value = SAMPLES[option][1]
    return micros(value, option) if option in ("ttl", "flush", "every", "every_event") else value


def classes(module: Any) -> set[str]:
    """The public descriptions of a module."""
    return {
        name
        for name in ms.__all__
        if f"{getattr(getattr(ms, name), '__module__', '')}.".startswith(f"{module.__name__}.")
    }


def test_every_source_and_sink_has_a_kind() -> None:
    made = {"Frame", "FrameStream"}  # by a program only
    assert {one.__name__ for one in options.SOURCES.values()} == classes(sources) - made
    known = classes(sinks) | classes(tables) | {"Delta", "Kafka"}
    assert {one.__name__ for one in options.SINKS.values()} == known - {"Memory"}


def test_every_window_and_aggregate_has_a_name() -> None:
    assert set(options.WINDOWS) == classes(windows)
    assert set(options.AGGREGATES) == classes(aggregates) - {"Aggregate"}


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (kind, field.name)
        for kinds in (options.SOURCES, options.SINKS)
        for kind, cls in kinds.items()
        for field in fields(cls)
        if field.init
    ],
)
def test_every_option_of_sources_and_sinks(load: Any, kind: str, option: str) -> None:
    cls = {**options.SOURCES, **options.SINKS}[kind]
    needed = [name for name, one in options.options_of(cls).items() if one.required]
    names = dict.fromkeys([option, *needed])
    if (option == "format" and kind in ("socket", "stdin")) or kind == "http":
        names["schema"] = None
    if option in ("time_format", "time_pattern") and kind != "rate":
        names["time"] = None
    if option == "participants":
        names["participant"] = None
    if kind == "redis":
        names["key"] = None
    if kind == "collector":
        names["reads"] = None
    written_to = option in ("changes", "progress")  # what a topic has both as source and as sink
    if kind == "kafka":
        registered = option in ("registry", "subject")
        names |= dict.fromkeys(["key"] if written_to else [] if registered else ["schema"])
        names |= dict.fromkeys([] if option == "pattern" else ["topic"])
    if option in ("certificate", "private_key"):
        names |= {"certificate": None, "private_key": None}
    text = f'functions = ["topics.py"]\n[{{}}.x]\nkind = "{kind}"\n{written(list(names), kind)}'
    if kind == "kafka" and registered:
        text += 'format = "avro"\n' + 'registry = "http://h:8081"\n' * (option == "subject")
    if kind in options.SOURCES and not written_to:
        node = load(text.format("source")).flow.nodes[0]
    else:
        rate = '[source.r]\nkind = "rate"\n'
        node = load(text.format("sink") + 'from = "r"\n' + rate).flow.nodes[-1]
    assert type(node.spec) is cls
    assert named(getattr(node.spec, option)) == value_of(kind, option)[1]


UPDATING = set(inspect.signature(KeyedStreams.update).parameters) - {"self", "fn", "name"}


@pytest.mark.parametrize("option", sorted(UPDATING))
def test_every_option_of_update(load: Any, option: str) -> None:
    names = [option, "clock"] if option == "merge" else [option]
    node = load(
        'functions = ["topics.py"]\n[source.r]\nkind = "rate"\n[stream.hot]\n'
        f'[step.x]\nfrom = "r"\nkey_by = "value"\nupdate = "topics:count"\n{written(names)}'
    ).flow.nodes[-1]
    found = node.publishes if option == "publishes" else getattr(node.job, option)
    assert named(found) == sample(option)


@pytest.mark.parametrize("option", sorted({*options.WINDOWING, *options.KEYING}))
def test_every_option_of_windows_and_keys(load: Any, option: str) -> None:
    early = ["emit", "every_rows"] if option not in ("partition", "close", "fidelity") else []
    names = list(dict.fromkeys([option, *early]))
    node = load(
        'functions = ["topics.py"]\n'
        '[source.r]\nkind = "rate"\n[step.x]\nfrom = "r"\nkey_by = "value"\n'
        f'window = "tumbling(1m)"\nagg.n = "count"\n{written(names)}'
    ).flow.nodes[-1]
    emission = node.emission
    found = {
        "nulls": node.null_keys,
        "partition": named(node.partition),
        "emit": emission.mode,
        "every": emission.every,
        "every_rows": emission.every_rows,
        "every_event": emission.every_event,
        "close": node.policy,
        "fidelity": node.fidelity,
    }
    assert found[option] == sample(option)


@pytest.mark.parametrize("name", options.SETTINGS)
def test_every_setting_can_be_written(name: str) -> None:
    assert options.members(options.SETTINGS[name])


# What is said in another way than by a key of the same name.
OTHERWISE = {
    "name": "the table's name",
    "named": "the table's name",
    "sink": "[sink.NAME]",
    "late": 'from = "NAME.late"',
    "key_by": "a key of every keyed step",
    "window": "a key of every windowed step",
    "union": "several names in from",
    "with_column": 'select = ["*", ...]',
    **dict.fromkeys(("head", "show", "schema", "collect", "to_frame"), "looking, before it runs"),
}


@pytest.mark.parametrize(
    "cls", [ms.Stream, ms.KeyedStream, ms.KeyedStreams, ms.WindowedStream], ids=lambda c: c.__name__
)
def test_every_method_of_streams_can_be_said(cls: type) -> None:
    public = {name for name in dir(cls) if not name.startswith("_")}
    assert public <= {*options.VERBS, *OTHERWISE}
    for name in public & set(options.VERBS):
        taken = inspect.signature(getattr(cls, name)).parameters.values()
        by_name = {p.name for p in taken if p.kind is inspect.Parameter.KEYWORD_ONLY}
        # With these WindowedStream hands on what window(emit=, close=) said.
        assert by_name - {"name", "emission", "policy", "fidelity"} <= set(options.VERBS[name].keys)

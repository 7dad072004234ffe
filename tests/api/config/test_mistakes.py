"""Bad files: every mistake has its line, says what was expected, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms

HEAD = """\
name = "app"
functions = ["topics.py"]

[source.tweets]
kind = "files"
path = "tweets.jsonl"
time = "at"

"""
FIRST = HEAD.count("\n") + 1  # the line on which what follows HEAD begins
UPDATE = '[step.n]\nfrom = "tweets"\nkey_by = "text"\nupdate = "topics:count"\n'
AGG = '[step.n]\nfrom = "tweets"\nkey_by = "text"\n'

# What follows HEAD, the line of it (from 1) with the mistake, and parts of the message.
MISTAKES: dict[str, tuple[str, int, list[str]]] = {
    # -- keys and types
    "table": ("[sources.x]\n", 1, ["there is no 'sources'", "did you mean 'source'?"]),
    "far table": ("[zebra]\n", 1, ["there is no 'zebra'; a file has: name, functions, run"]),
    "a section is a value": ("[[step]]\n", 1, ["[step.NAME]"]),
    "a step is a value": ("[step]\nx = 1\n", 2, ["[step.x] expected a table, got the number 1"]),
    "option of a source": (
        '[source.b]\nkind = "files"\n# .\npath = "x"\nlatenes = "5s"\n',
        5,
        ["[source.b] there is no option 'latenes'; did you mean 'lateness'?"],
    ),
    "option of another source": (
        '[source.b]\nkind = "stdin"\nport = 7\n',
        3,
        ["there is no option 'port'; it has: kind, time"],
    ),
    "source kind": ('[source.b]\nkind = "fils"\n', 2, ["there is no 'fils'", "'files'"]),
    "no source kind": (
        '[source.b]\npath = "x"\n',
        1,
        ["kind is missing; use files, socket, stdin, http, generator, rate"],
    ),
    "sink in memory": (
        '[sink.m]\nfrom = "tweets"\nkind = "memory"\n',
        3,
        ["kind: there is no 'memory'; use parquet, csv, jsonl, text, console, call"],
    ),
    "missing path": ('[source.b]\nkind = "files"\n', 1, ["[source.b] path is missing"]),
    "text for a flag": (
        '[source.b]\nkind = "files"\npath = "x"\nfollow = "yes"\n',
        4,
        ['follow: expected true or false, got "yes"'],
    ),
    "flag for a number": (
        '[source.b]\nkind = "rate"\nlimit = true\n',
        3,
        ["limit: expected a whole number, got true"],
    ),
    "number for a duration": (
        '[source.b]\nkind = "rate"\nlateness = 5\n',
        3,
        ['lateness: expected a duration like "5m", got the number 5'],
    ),
    "number for a path": (
        '[source.b]\nkind = "files"\npath = 5\n',
        3,
        ["path: expected a text, got the number 5"],
    ),
    "list for a schema": (
        '[source.b]\nkind = "files"\npath = "x"\nschema = ["a"]\n',
        4,
        ['schema: expected a text like "ts timestamp, price double" or a table of texts', "a list"],
    ),
    "duration": (
        '[source.b]\nkind = "files"\npath = "x"\nlateness = "5 parsecs"\n',
        4,
        ["[source.b] Files(lateness=): '5 parsecs' is not a duration"],
    ),
    "format": (
        '[source.b]\nkind = "files"\nformat = "cvs"\npath = "x"\n',
        3,
        ["use one of csv, json, parquet, text"],
    ),
    "port": (
        '[source.b]\nkind = "socket"\nhost = "h"\nport = 99999\n',
        4,
        ["Socket(port=99999): expected a number from 1 to 65535"],
    ),
    "a stream has no options": (
        "[stream.hot]\nttl = 3\n",
        2,
        ["no option 'ttl'; it has: no options"],
    ),
    # -- how it is run
    "setting": (
        "[run]\nbatch_row = 5\n",
        2,
        ["[run] there is no option 'batch_row'", "'batch_rows'"],
    ),
    "setting's type": (
        '[run]\nparallelism = "4"\n',
        2,
        ['[run] parallelism: expected a whole number, got "4"'],
    ),
    "setting's value": (
        "[run]\nretain = 3\nshards = 0\n",
        3,
        ["shards must be a whole number from 1, got 0"],
    ),
    "checkpoint": ("[run]\ncheckpoint = 7\n", 2, ["checkpoint: expected a text"]),
    "spark properties": (
        '[run]\nspark = { "spark.x" = 7 }\n',
        2,
        ["spark: expected a table of texts, got a table"],
    ),
    # -- the graph
    "from": (
        '[step.a]\nwhere = "true"\nfrom = "tweet"\n',
        3,
        ["[step.a] from: there is no step 'tweet'; did you mean 'tweets'?"],
    ),
    "one of several": (
        '[step.a]\nfrom = [\n  "tweets",\n  "nothing like it",\n]\n',
        4,
        ["there is no step 'nothing like it'; there are: a, tweets"],
    ),
    "no from": ('[step.a]\nwhere = "true"\n', 1, ["[step.a] from is missing"]),
    "from is a number": ('[step.a]\nfrom = 7\nwhere = "true"\n', 2, ["got the number 7"]),
    "from a sink": (
        '[sink.a]\nfrom = "tweets"\nkind = "console"\n[sink.b]\nfrom = "a"\nkind = "console"\n',
        5,
        ["'a' is a sink; nothing comes out"],
    ),
    "cycle": (
        '[step.a]\nfrom = "c"\nwhere = "true"\n[step.b]\nfrom = "a"\nwhere = "true"\n'
        '[step.c]\nfrom = "b"\nwhere = "true"\n',
        5,
        ["a cycle: a -> b -> c -> a", "declare [stream.NAME]", "ctx.publish"],
    ),
    "cycle of one": (
        '[step.a]\nfrom = ["tweets", "a"]\nwhere = "true"\n',
        2,
        ["a cycle: a -> a"],
    ),
    "cycle through late": (
        '[step.a]\nfrom = "a.late"\nkey_by = []\nagg.n = "count"\n',
        2,
        ["a cycle: a -> a"],
    ),
    "late of what has none": (
        '[step.a]\nfrom = "tweets.late"\nwhere = "true"\n',
        2,
        ["late(): 'tweets' is not windowed"],
    ),
    "late of an updater that applies": (
        UPDATE + '[sink.l]\nfrom = "n.late"\nkind = "console"\n',
        6,
        ["[sink.l] late(): 'n' applies late events", 'late="divert"'],
    ),
    "the same name twice": (
        '[step.a]\nfrom = "tweets"\nwhere = "true"\n[sink.a]\nfrom = "a"\nkind = "console"\n',
        4,
        [f"[sink.a] 'a' is already the name of a step, in line {FIRST}"],
    ),
    "a name that is none": (
        '[step."a/b"]\nfrom = "tweets"\nwhere = "true"\n',
        3,
        ["'a/b' is not a name; use letters"],
    ),
    # -- steps
    "two verbs": (
        '[step.a]\nfrom = "tweets"\nwhere = "true"\nselect = ["text"]\n',
        4,
        ["has where and select; a step does one thing"],
    ),
    "no verb": ('[step.a]\nfrom = "tweets"\n', 1, ["does nothing; give it one of: select, where"]),
    "nearly a verb": (
        '[step.a]\nfrom = "tweets"\nwher = "true"\n',
        3,
        ["there is no 'wher'; did you mean 'where'?"],
    ),
    "option of another verb": (
        '[step.a]\nfrom = "tweets"\nwhere = "true"\nttl = "1h"\n',
        4,
        ["there is no option 'ttl' with where; it goes with update"],
    ),
    "option of no verb": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:upper"\nschem = "a int"\n',
        4,
        ["there is no option 'schem'; did you mean 'schema'?"],
    ),
    "SQL": (
        '[step.a]\nfrom = "tweets"\nselect = [\n  "text",\n  "text +",\n]\n',
        3,
        ["[step.a]", "text +"],
    ),
    "SQL is a number": ('[step.a]\nfrom = "tweets"\nwhere = 1\n', 3, ["expected a SQL condition"]),
    "select is a table": (
        '[step.a]\nfrom = "tweets"\nselect = { a = "b" }\n',
        3,
        ["select: expected a list of SQL expressions, got a table"],
    ),
    "schema": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:upper"\nschema = "at timestmp"\n',
        3,
        ["timestmp"],
    ),
    # -- windows and aggregates
    "no key": (
        '[step.n]\nfrom = "tweets"\nagg.n = "count()"\n',
        1,
        ["key_by is missing; for one group of everything write key_by = []"],
    ),
    "key is a number": (
        '[step.n]\nfrom = "tweets"\nkey_by = 7\nagg.n = "count()"\n',
        3,
        ["key_by: expected a column or a list of them, got the number 7"],
    ),
    "keys per input without update": (
        '[step.n]\nfrom = "tweets"\nkey_by = { tweets = "text" }\nagg.n = "count()"\n',
        3,
        ["a table of them is for the inputs of update"],
    ),
    "the same key twice": (
        '[step.n]\nfrom = "tweets"\nkey_by = ["a", "a"]\nagg.n = "count()"\n',
        3,
        ["a column is named twice"],
    ),
    "nulls": (AGG + 'nulls = "drop"\nagg.n = "count()"\n', 4, ['use "dead" or "keep"']),
    "window": (
        AGG + 'window = "tumblin(1m)"\nagg.n = "count()"\n',
        4,
        ["[step.n] window: there is no window 'tumblin'; did you mean 'tumbling'?"],
    ),
    "window's size": (
        AGG + 'window = "tumbling(1 fortnight)"\nagg.n = "count()"\n',
        4,
        ["expected a comma or ), got 'fortnight'"],
    ),
    "window's unit": (
        AGG + 'window = "tumbling(1f)"\nagg.n = "count()"\n',
        4,
        ["'1f' is not a duration"],
    ),
    "window's arguments": (
        AGG + 'window = "sliding(1m)"\nagg.n = "count()"\n',
        4,
        ["sliding(size, slide): missing a required argument: 'slide'"],
    ),
    "window is a number": (
        AGG + 'window = 60\nagg.n = "count()"\n',
        4,
        ['window: expected a window like "tumbling(1m)", got the number 60'],
    ),
    "emit without a window": (
        AGG + 'emit = "early"\nagg.n = "count()"\n',
        4,
        ["early results go with a window"],
    ),
    "emit": (
        AGG + 'window = "tumbling(1m)"\nemit = "erly"\nagg.n = "count()"\n',
        5,
        ['use "final", "early" or "delta"'],
    ),
    "every": (
        AGG + 'window = "tumbling(1m)"\nemit = "early"\nevery = "often"\nagg.n = "count()"\n',
        6,
        ["'often' is not a duration"],
    ),
    "aggregate": (
        AGG + '[step.n.agg]\na = "count()"\nb = "averag(price)"\nc = "maen(price)"\n',
        6,
        ["b: there is no aggregate 'averag'; use count, sum"],
    ),
    "nearly an aggregate": (
        AGG + 'agg = { a = "count()", c = "maen(price)" }\n',
        4,
        ["c: there is no aggregate 'maen'; did you mean 'mean'?"],
    ),
    "aggregate's arguments": (
        AGG + 'agg.c = "top_k(price, by=qty, n=3)"\n',
        4,
        ["top_k(column, k", "'n'"],
    ),
    "aggregate's column": (AGG + 'agg.c = "mean(7)"\n', 4, ["needs the name of a column, got 7"]),
    "aggregate is code": (AGG + 'agg.c = "price.__class__()"\n', 4, ["there is no aggregate"]),
    "aggregate is no text": (AGG + "agg.c = 7\n", 4, ['expected an aggregate like "mean(price)"']),
    "agg is a text": (AGG + 'agg = "count()"\n', 4, ["agg: expected a table like", '"count()"']),
    "empty agg": (AGG + "agg = {}\n", 4, ["agg() needs at least one name=aggregate"]),
    "result named as the key": (
        AGG + 'agg.text = "count()"\n',
        4,
        ["'text' is already a column of the result"],
    ),
    "not a job": (
        AGG + 'map_reduce = "topics:Count"\n',
        4,
        ["there is no method reduce"],
    ),
    # -- updaters
    "option of update": (UPDATE + 'tll = "1h"\n', 5, ["there is no option 'tll'", "'ttl'"]),
    "ttl": (UPDATE + 'ttl = "long"\n', 5, ["update(ttl=): 'long' is not a duration"]),
    "order": (UPDATE + 'late = "apply"\norder = "time"\n', 6, ['use "event" or "arrival"']),
    "codec": (UPDATE + 'codec = "topics:Count"\n', 5, ["an object with new, encode and decode"]),
    "timer": (UPDATE + 'on_timer = "topics:tik"\n', 5, ["no 'tik'; did you mean 'tick'?"]),
    "published": (
        "[stream.hot]\n" + UPDATE + 'publishes = [\n  "hot",\n  "hit",\n]\n',
        8,
        ["there is no stream 'hit'; did you mean 'hot'?"],
    ),
    "published to nothing": (UPDATE + 'publishes = "hot"\n', 5, ["declare [stream.hot]"]),
    "keys of something else": (
        '[step.n]\nfrom = "tweets"\nupdate = "topics:count"\n[step.n.key_by]\ntwets = "text"\n',
        5,
        ["key_by: 'twets' is not in from; did you mean 'tweets'?"],
    ),
    "keys of one missing": (
        '[stream.hot]\n[step.n]\nfrom = ["tweets", "hot"]\nkey_by = { hot = "key" }\n'
        'update = "topics:count"\n',
        4,
        ["key_by: columns of 'tweets' are missing"],
    ),
    # -- functions
    "function": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:uper"\n',
        3,
        ["[step.a] map: topics.py defines no 'uper'; did you mean 'upper'?"],
    ),
    "module": (
        '[step.a]\nfrom = "tweets"\nmap = "topic:upper"\n',
        3,
        ["no module 'topic' is registered; did you mean 'topics'?; registered: topics"],
    ),
    "no module": (
        '[step.a]\nfrom = "tweets"\nmap = "upper"\n',
        3,
        ["'upper' is not module:name; did you mean 'topics:upper'?"],
    ),
    "a module of Python": (
        '[step.a]\nfrom = "tweets"\nmap = "os:system"\n',
        3,
        ["no module 'os' is registered", "registered: topics"],
    ),
    "what a file imports": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:system"\n',
        3,
        ["topics.py defines no 'system'"],
    ),
    "a module a file imports": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:subprocess.run"\n',
        3,
        ["topics.py defines no 'subprocess.run'"],
    ),
    "what a file hides": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:_hidden"\n',
        3,
        ["topics.py defines no '_hidden'"],
    ),
    "not a function": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:THRESHOLD"\n',
        3,
        ["map(): expected a function, got int 3"],
    ),
    "an argument of a function": (
        '[step.a]\nfrom = "tweets"\nmap = "topics:THRESHOLD(1)"\n',
        3,
        ["THRESHOLD is int, which takes no arguments"],
    ),
    "a class that raises": (
        UPDATE.replace("topics:count", "topics:Count(by=-1)"),
        4,
        ["topics:Count(by=-1) raised ValueError: counts only grow"],
    ),
    "a class with another argument": (
        UPDATE.replace("topics:count", "topics:Count(up=1)"),
        4,
        ["Count(by=1)", "'up'"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(load: Any, name: str) -> None:
    text, line, parts = MISTAKES[name]
    with pytest.raises(ms.ConfigError) as refused:
        load(HEAD + text)
    (told,) = str(refused.value).splitlines()
    assert told.startswith(f"app.toml:{FIRST + line - 1}: "), told
    for part in parts:
        assert part in told, told
    assert refused.value.exit_code == 2


FILES: dict[str, tuple[str, list[str]]] = {
    "no file": (
        'functions = ["topic.py"]',
        ["1: functions: there is no file topic.py", "topics.py"],
    ),
    "no Python": ('functions = ["tweets.jsonl"]', ["'tweets.jsonl' is not a Python file"]),
    "above": ('functions = [\n"topics.py",\n"../x.py"]', ["3: functions: '../x.py' is outside of"]),
    "absolute": ('functions = ["/etc/x.py"]', ["'/etc/x.py' is outside of the directory"]),
    "a number": ("functions = 7", ["expected Python files"]),
    "numbers": ("functions = [7]", ["expected a Python file, got the number 7"]),
    "twice": ('functions = ["topics.py", "topics.py"]', ["'topics' is already topics.py"]),
    "no name": ('[functions]\n"a b" = "topics.py"', ["2: functions: 'a b' cannot stand before"]),
    "the flow's name": ('name = "a/b"', ["1: Flow: 'a/b' is not a name"]),
    "the flow's name is a number": ("\nname = 7", ["2: name: expected a text, got the number 7"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_at_the_top(load: Any, name: str) -> None:
    text, parts = FILES[name]
    with pytest.raises(ms.ConfigError) as refused:
        load(text)
    (told,) = str(refused.value).splitlines()
    assert told.startswith("app.toml:")
    for part in parts:
        assert part in told, told


SYNTAX = {
    "a = 1\nb = \n": "app.toml:2: not valid TOML at column 5: Invalid value",
    "[step.a]\n[step.b]\n[step.a]\n": "app.toml:3: not valid TOML at column 8: Cannot declare",
    '[step.a]\nfrom = "x"\nfrom = "y"\n': "app.toml:3: not valid TOML at column 11: Cannot",
    'a = 1\nb = "open\n': "app.toml:2: not valid TOML at column 10: Illegal character",
    "a = 1\nb = [1,\n\n": "app.toml:2: not valid TOML at the end of the file: Invalid value",
}


@pytest.mark.parametrize("text", SYNTAX)
def test_a_file_that_is_not_toml(load: Any, text: str) -> None:
    with pytest.raises(ms.ConfigError) as refused:
        load(text)
    assert str(refused.value).startswith(SYNTAX[text])


def test_a_file_that_is_not_text(load: Any, place: Path) -> None:
    Path("app.toml").write_bytes(b'name = "x"\n# \xff\n')
    from millstream.cli.loading import load_application

    with pytest.raises(ms.ConfigError, match=r"^app.toml:2: is not UTF-8"):
        load_application(Path("app.toml"))


def test_all_mistakes_are_told_at_once_in_order(load: Any) -> None:
    with pytest.raises(ms.ConfigError) as refused:
        load(
            """
            functions = ["topics.py", "none.py"]
            [sink.out]
            from = "mentions"
            kind = "jsn"
            [step.mentions]
            from = "tweets"
            map = "topics:mentoins"
            [step.counts]
            from = "mentions"
            key_by = "topic"
            window = "tumbling(1x)"
            agg.n = "cont()"
            [source.tweets]
            kind = "files"
            pat = "tweets.jsonl"
            """
        )
    lines = [int(told.split(":")[1]) for told in str(refused.value).splitlines()]
    assert lines == [2, 5, 8, 12, 14, 16]


def test_a_file_of_functions_that_raises_is_told_once(
    load: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("topics.py").write_text("import millstream\n\n1 / 0\n")
    with pytest.raises(ms.ConfigError) as refused:
        load(HEAD + '[step.a]\nfrom = "tweets"\nmap = "topics:upper"\n')
    assert str(refused.value) == (
        f"app.toml:2: functions: {place / 'topics.py'} could not be loaded (line 3): "
        "ZeroDivisionError: division by zero"
    )
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_very_many_mistakes(load: Any) -> None:
    with pytest.raises(ms.ConfigError) as refused:
        load("".join(f"x{n} = 1\n" for n in range(30)))
    told = str(refused.value).splitlines()
    assert len(told) == 21 and told[-1] == "and 10 more mistakes"


# -- found when columns are known ---------------------------------------------------------------

LATER: dict[str, tuple[str, int, list[str]]] = {
    "column": (
        '[step.a]\nfrom = "tweets"\nwhere = "txt = 1"\n[sink.o]\nfrom = "a"\nkind = "console"\n',
        3,
        ["a: ", "txt", "text"],
    ),
    "key": (
        '[step.n]\nfrom = "tweets"\nkey_by = "txt"\nagg.n = "count()"\n'
        '[sink.o]\nfrom = "n"\nkind = "console"\n',
        3,
        ["n: key: there is no column 'txt'; did you mean 'text'?"],
    ),
    "column of an aggregate": (
        AGG
        + '[step.n.agg]\na = "count()"\nb = "max(txt)"\n[sink.o]\nfrom = "n"\nkind = "console"\n',
        6,
        ["b=max(txt)", "did you mean 'text'?"],
    ),
    "shared directory": (
        '[sink.a]\nfrom = "tweets"\nkind = "jsonl"\npath = "out"\n'
        '[sink.b]\nfrom = "tweets"\nkind = "jsonl"\npath = "out"\n',
        1,
        ["sinks 'a' and 'b' both write to out"],
    ),
    "no such input": (
        '[source.b]\nkind = "files"\npath = "no.csv"\n[sink.a]\nfrom = "b"\nkind = "console"\n',
        3,
        ["no.csv does not exist"],
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_a_mistake_found_while_planning(load: Any, name: str) -> None:
    from millstream.run.planning import plan_flow

    text, line, parts = LATER[name]
    found = load(HEAD + text)
    with pytest.raises(ms.ConfigError) as refused, found.locating():
        plan_flow(found.flow)
    told = str(refused.value)
    assert told.startswith(f"app.toml:{FIRST + line - 1}: "), told
    for part in parts:
        assert part in told, told

"""Whatever is in a file: it gives a flow, or mistakes with lines, and nothing else."""

from __future__ import annotations

import copy
import json
import random
import re
import tomllib
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.loading import load_application
from tests.variants import variants

GOOD = """
name = "all"
functions = ["topics.py"]
[run]
shards = 3
spark = { "spark.x" = "y" }
[source.tweets]
kind = "files"
path = "tweets.jsonl"
time = "at"
lateness = "5s"
[source.more]
kind = "generator"
fn = "topics:tweets"
schema = { at = "timestamp", text = "string" }
[stream.hot]
[step.both]
from = ["tweets", "more"]
[step.mentions]
from = "both"
flat_map = "topics:mentions"
schema = "topic string, at timestamp"
[step.some]
from = "mentions"
where = "topic > 'a'"
[step.named]
from = "some"
select = ["topic", "at"]
[step.averages]
from = "named"
key_by = ["topic"]
nulls = "keep"
window = "sliding(10m, 1m)"
emit = "early"
every_rows = 10
agg = { n = "count()", q = "quantile(at, [0.5])", own = "topics:Spread(topic)" }
[step.words]
from = "tweets"
map_reduce = "topics:Words"
sorted = true
[step.counts]
from = ["some", "hot"]
key_by = { some = "topic", hot = "key" }
update = "topics:Count(by=2)"
on_timer = "topics:tick"
late = "divert"
publishes = ["hot"]
ttl = "1h"
[sink.out]
from = ["counts.late", "averages"]
kind = "jsonl"
path = "out"
"""
VALUES: list[Any] = [
    *(0, -1, 7, 1.5, float("nan"), True, False, "", "x", "x(", "topics:", ":", "topics:upper(1)"),
    *(
        "mean(at)",
        "tumbling(1m)",
        "tweets",
        "tweets.late",
        "counts",
        ".late",
        "late",
        "5s",
        "\0é\n",
    ),
    *([], [[]], [1], ["x", "x"], ["tweets", 7], [{}], {}, {"x": 1}, {"": {}}, {"some": 7}),
    *(datetime(2026, 1, 5, 9, 30), date(2026, 1, 5), time(9, 30), 2**70, "topics:Count(by='x')"),
]
KEYS = [
    "from",
    "kind",
    "map",
    "update",
    "agg",
    "window",
    "key_by",
    "x",
    "",
    "a.b",
    "ttl",
    "late",
    "a\nb",
]


def written(value: Any) -> str:
    """A value in TOML."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(k)} = {written(v)}' for k, v in value.items())}}}"
        case datetime() | date() | time():
            return value.isoformat()
    return repr(value)


def document(values: dict[str, Any]) -> str:
    """A whole file, one line per table of a section."""
    return "\n".join(f"{json.dumps(key)} = {written(value)}" for key, value in values.items())


def change(values: dict[str, Any], dice: random.Random) -> None:
    """Do something silly at some place."""
    spot: Any = values
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = dice.choice(keys) if keys else None
        deeper = key is not None and isinstance(spot[key], dict | list)
        if deeper and dice.random() < 0.8:
            spot = spot[key]
            continue
        value = copy.deepcopy(dice.choice(VALUES))
        if isinstance(spot, list):
            spot.append(value)
        elif key is None or dice.random() < 0.3:
            spot[dice.choice(KEYS)] = value
        elif dice.random() < 0.3:
            del spot[key]
        else:
            spot[key] = value
        return


@pytest.mark.parametrize("seed", variants(range(40), 6))
def test_any_change_of_a_good_file(place: Path, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(25):
        values = tomllib.loads(GOOD)
        for _ in range(dice.choice((1, 1, 2, 5))):
            change(values, dice)
        text = document(values)
        Path("app.toml").write_text(text)
        try:
            load_application(Path("app.toml"))
        except ms.ConfigError as error:
            for told in str(error).splitlines():
                assert re.match(r"app\.toml:\d+: |and \d+ more mistakes$", told), (told, text)
                assert "object at 0x" not in told, (told, text)


def test_the_good_file_is_good(place: Path) -> None:
    for text in (GOOD, document(tomllib.loads(GOOD))):
        Path("app.toml").write_text(text)
        assert len(load_application(Path("app.toml")).flow.nodes) == 14

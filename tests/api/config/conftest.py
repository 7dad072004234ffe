"""Configuration files beside a file of functions."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.api.config import Application
from millstream.cli.loading import load_application

FUNCTIONS = """
import re
import subprocess
from os import system
from functools import partial

import millstream as ms

THRESHOLD = 3


def mentions(tweet):
    for topic in re.findall(r"#(\\w+)", tweet["text"]):
        yield {"topic": topic, "at": tweet["at"]}


def upper(row):
    return {**row, "topic": row["topic"].upper()}


def same_table(table):
    return table


def tweets():
    yield {"at": "2026-01-05T09:30:00Z", "text": "#mill #stream"}


def hand_over(row):
    print(row)


def watch(progress):
    pass


def longest(key, records, window):
    return {"longest": max(len(r["text"]) for r in records)}


def count(event, slate, ctx):
    slate["n"] = slate.get("n", 0) + 1


def tick(event, slate, ctx):
    return {"topic": event.key, **slate}


def add(left, right):
    return {"n": left.get("n", 0) + right.get("n", 0)}


class Count:
    def __init__(self, by=1):
        if by < 0:
            raise ValueError("counts only grow")
        self.by = by

    def update(self, event, slate, ctx):
        slate["n"] = slate.get("n", 0) + self.by


class Numbers:
    def new(self):
        return 0

    def encode(self, slate):
        return b"%d" % slate

    def decode(self, data):
        return int(data)


class Spread(ms.Aggregate):
    def zero(self):
        return []

    def add(self, state, value):
        return [min([*state[:1], value]), max([*state[1:], value])]

    def combine(self, left, right):
        both = [*left, *right]
        return [min(both), max(both)] if both else []


class Words(ms.MapReduce):
    def map(self, key, value, ts):
        for word in value["text"].split():
            yield word, 1

    def reduce(self, key, values, window):
        yield key, sum(values)


by_two = Count(by=2)
shout = partial(upper)
_hidden = upper
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with `topics.py` and some tweets, in which the test stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topics.py").write_text(FUNCTIONS)
    (tmp_path / "tweets.jsonl").write_text('{"at": "2026-01-05T09:30:00Z", "text": "#mill"}\n')
    return tmp_path


Load = Callable[[str], Application]


@pytest.fixture
def load(place: Path) -> Load:
    """Loads a configuration file with this text, as the command line does."""

    def load(text: str) -> Application:
        Path("app.toml").write_text(textwrap.dedent(text))
        return load_application(Path("app.toml"))

    return load

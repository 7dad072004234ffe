"""Configuration files on the real command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
name = "prices"

[source.trades]
kind = "files"
path = "trades.csv"
time = "ts"

[step.real]
from = "trades"
where = "price > 0"

[step.averages]
from = "real"
key_by = "symbol"
window = "tumbling(1m)"
agg = { avg = "mean(price)", n = "count()" }

[sink.out]
from = "averages"
kind = "jsonl"
path = "out"

[run]
checkpoint = "ck/prices"
shards = 3
"""


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of a Jsonl sink, in an order of their own."""
    found = [
        json.loads(line)
        for file in folder.glob("part-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return sorted(found, key=lambda row: (row["symbol"], row["window_start"]))


@pytest.mark.spark
@pytest.mark.long
def test_a_file_gives_what_the_program_gives(here: Any) -> None:
    here.file("app.toml", CONFIG)
    result = here.run("run", "app.toml", "--shards", "5")
    assert result.code == 0, result.err
    assert "complete" in result.out and "600 records" in result.out
    told = json.loads((here.path / "ck/prices/flow.json").read_text())
    assert told["shards"] == 5  # the command line comes first, the file second

    from_file = rows(here.path / "out")
    (here.path / "out").rename(here.path / "first")
    assert here.run("run", here.app()).code == 0
    assert from_file == rows(here.path / "out")
    assert sum(row["n"] for row in from_file) == 600


def test_plan(here: Any) -> None:
    here.file("app.toml", CONFIG)
    result = here.run("plan", "app.toml", "--picture", "plan.svg")
    assert result.code == 0, result.err
    assert "averages = key by symbol, window tumbling(1m) <- real" in result.out
    assert (here.path / "plan.svg").read_text().startswith("<svg")


def test_settings_of_the_file_are_used(here: Any) -> None:
    here.file("app.toml", CONFIG.replace("shards = 3", 'master = "sprak://x"'))
    result = here.run("run", "app.toml")
    assert result.code == 2 and "sprak://x" in result.err, result.err


def test_mistakes(here: Any) -> None:
    here.file("app.toml", CONFIG.replace("price > 0", "prise > 0").replace("shards", "sharts"))
    for command in ("run", "plan"):
        result = here.run(command, "app.toml")
        assert result.code == 2 and result.out == ""
        assert result.err == (
            "error: app.toml:26: [run] there is no option 'sharts'; did you mean 'shards'?\n"
        )
    here.file("app.toml", CONFIG.replace("price > 0", "prise > 0"))
    for command in ("run", "plan"):
        result = here.run(command, "app.toml")
        assert result.code == 2
        assert result.err.startswith("error: app.toml:11: real: ") and "price" in result.err
    here.file("app.toml", CONFIG + "\n[run\n")
    result = here.run("plan", "app.toml")
    assert result.code == 2
    assert result.err.startswith("error: app.toml:28: not valid TOML at column 5: ")


def test_no_file(here: Any) -> None:
    result = here.run("run", "nope.toml")
    assert result.code == 2 and "there is no file nope.toml" in result.err
    assert here.run("plan", "app.toml", "--flow", "x").code == 2

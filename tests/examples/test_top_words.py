"""The most frequent words: settled places are right, and the last ranking is DuckDB's."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from millstream.cli.loading import load_module
from millstream.testing import snapshots_in_process

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_top_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("CHAPTERS", "10"),
        ("CHAPTER_LINES", "900"),
        ("TEXT", "text"),
        ("K", "12"),
    ):
        monkeypatch.setenv(name, value)
    example = load_module(EXAMPLES / "top_words.py")
    found = list(snapshots_in_process(example.build("out"), "ck", [0.3, 0.6, 0.9]))
    exact = duckdb.sql(
        "SELECT word, count(*) AS n FROM (SELECT unnest(string_split(line, ' ')) AS word FROM "
        "read_csv('text/*.txt', columns={'line': 'VARCHAR'}, header=false, delim='|')) "
        "GROUP BY word ORDER BY n DESC, word LIMIT 12"
    ).fetchall()
    last = found[-1].table.to_pylist()
    assert [(row["word"], row["n"]) for row in last] == exact
    for one in found:
        for row in one.table.to_pylist():
            assert not row["settled"] or exact[row["place"] - 1][0] == row["word"]
    settled = [sum(row["settled"] for row in one.table.to_pylist()) for one in found]
    assert settled[0] <= settled[-2] <= settled[-1] == 12
    assert example.right(found[0], found[-1]) <= example.right(found[-1], found[-1]) == 12
    (out,) = Path("out").glob("part-*")
    written = json.loads(out.read_text())["top"]
    assert [(one["value"], one["total"]) for one in written] == exact

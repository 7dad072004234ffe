"""`millstream sql FILE`, and files of SQL for the other commands."""

from __future__ import annotations

from typing import Any

import pytest

FILE = """
CREATE STREAM trades (ts TIMESTAMP, symbol STRING, price DOUBLE, qty INT)
WITH (path = 'trades.csv', time = 'ts');
CREATE SINK dear WITH (sink = 'jsonl', path = 'dear') AS SELECT * FROM trades WHERE price > 16;
"""


def test_a_mistake_is_told_with_its_place(here: Any) -> None:
    here.file("wrong.sql", FILE + "SELECT simbol FROM trades;\n")
    result = here.run("sql", "wrong.sql")
    assert result.code == 2
    assert (
        "wrong.sql, line 5, column 8: unknown column 'simbol'; did you mean symbol?" in result.err
    )
    assert "^^^^^^" in result.err


def test_plan_and_statements_that_look(here: Any) -> None:
    here.file("looks.sql", FILE + "DESCRIBE trades;\n")
    result = here.run("plan", "looks.sql")
    assert result.code == 0, result.err
    assert "qty: int\nflow looks\n" in result.out and "where price > 16 <- trades" in result.out


@pytest.mark.spark
def test_a_file_runs(here: Any) -> None:
    here.file("runs.sql", FILE + "SELECT DISTINCT symbol AS found FROM trades;\n")
    result = here.run("sql", "runs.sql", "--master", "local[1]")
    assert result.code == 0, result.err
    assert "found" in result.out and "complete" in result.out
    lines = [r for one in (here.path / "dear").glob("*.jsonl") for r in one.read_text().split()]
    assert len(lines) == 85  # 600 trades, every seventh at 16.5

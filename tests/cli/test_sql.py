"""`millstream sql FILE`, and files of SQL for the other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.loading import load_sql
from millstream.testing import run_in_process

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


def test_views_are_asked(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view = "CREATE MATERIALIZED VIEW counts AS SELECT symbol, COUNT(*) AS n FROM trades GROUP BY 1;"
    path = here.file("views.sql", FILE.partition("CREATE SINK")[0] + view)
    monkeypatch.chdir(here.path)
    run_in_process(load_sql(Path(path)), "ck")
    ask = "SELECT symbol, n FROM counts WHERE n > 0 ORDER BY symbol LIMIT 2"
    result = here.run("sql", ask, "--checkpoint", "ck")
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert len(lines) == 2 and lines == sorted(lines, key=lambda row: row["symbol"])
    result = here.run("sql", ask, "--checkpoint", "ck", "--output", "csv")
    assert result.out.splitlines()[0] == '"symbol","n"' and len(result.out.splitlines()) == 3
    result = here.run("sql", ask, "--checkpoint", "ck", "--output", "table")
    assert "symbol" in result.out and "\u2502" in result.out
    result = here.run("sql", "SHOW VIEWS; DESCRIBE counts", "--checkpoint", "ck")
    assert result.out == "counts\nsymbol: string\nn: bigint\n"
    result = here.run("sql", "SELECT simbol FROM counts", "--checkpoint", "ck")
    assert result.code == 2 and "line 1, column 8: unknown column 'simbol'" in result.err
    result = here.run("sql", "DROP VIEW counts", "--checkpoint", "ck")
    assert result.code == 2 and "views of a checkpoint are only read" in result.err

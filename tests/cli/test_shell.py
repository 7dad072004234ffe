"""`millstream sql` without a file: a terminal that is typed into, and what it shows."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from millstream.cli.loading import load_sql
from millstream.cli.shell import Shell, is_whole
from millstream.sql.grammar import texts_of
from millstream.sql.places import Text as Sql
from millstream.testing import run_in_process

pytest.importorskip("prompt_toolkit")

TABLES = """
CREATE STREAM trades (ts TIMESTAMP, symbol STRING, price DOUBLE, qty INT)
WITH (path = 'trades.csv', time = 'ts');
CREATE MATERIALIZED VIEW counts AS SELECT symbol, COUNT(*) AS n FROM trades GROUP BY symbol;
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()=>][0B]?|\r")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self.seen = ""
        environment = {**os.environ, "TERM": "xterm", "MILLSTREAM_HISTORY": str(cwd / "history")}
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.chdir(cwd)
            command = [sys.executable, "-m", "millstream.cli", *arguments]
            code = "import sys; from millstream.cli import main; sys.argv[0] = 'millstream'; main()"
            os.execve(sys.executable, [sys.executable, "-c", code, *command[3:]], environment)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def until(self, told: str, seconds: float = 60) -> str:
        """What came up to a text, without colours and moves of the cursor."""
        end = time.monotonic() + seconds
        while told not in self.seen:
            ready, _, _ = select.select([self.file], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{told!r} did not come: {self.seen[-2000:]}"
            try:
                piece = os.read(self.file, 65536)
            except OSError:  # it has ended
                piece = b""
            assert piece, f"it ended without {told!r}: {self.seen[-2000:]}"
            if b"\x1b[6n" in piece:  # where is the cursor?
                os.write(self.file, b"\x1b[1;1R")
            self.seen += _ESCAPES.sub("", piece.decode(errors="replace"))
        before, _, self.seen = self.seen.partition(told)
        return before + told

    def end(self) -> int:
        """Ctrl-D at the prompt; gives the exit code."""
        self.until("millstream>")
        self.type("\x04")
        while True:
            try:
                if not os.read(self.file, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_a_shell_over_a_checkpoint(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here.path)
    run_in_process(load_sql(Path(here.file("views.sql", TABLES))), "ck")
    terminal = Terminal(here.path, "sql", "--checkpoint", "ck")
    terminal.until("SQL over the views of ck")
    terminal.until("millstream>")
    terminal.type("SELECT symbol, n\rFROM counts ORDER BY n DESC, symbol;\r")
    told = terminal.until("└")
    assert "symbol" in told and "│" in told
    terminal.until("millstream>")
    terminal.type("SELECT simbol FROM counts;\r")
    assert "did you mean symbol?" in terminal.until("^^^^^^")
    terminal.until("millstream>")
    terminal.type("DESCRIBE cou\t")
    terminal.until("nts")  # completed
    terminal.type(";\r")
    assert "n: bigint" in terminal.until("n: bigint")
    assert terminal.end() == 0
    history = (here.path / "history").read_text()
    assert "FROM counts ORDER BY n DESC" in history
    assert (here.path / "history").stat().st_mode & 0o077 == 0


@pytest.mark.spark
@pytest.mark.long
def test_a_live_table(here: Any) -> None:
    terminal = Terminal(here.path, "sql", "--master", "local[1]")
    terminal.until("millstream>")
    terminal.type("CREATE STREAM n WITH (source = 'rate', rows_per_second = 50);\r")
    terminal.until("made stream n")
    terminal.type("SELECT value % 3 AS rest, COUNT(*) AS c FROM n GROUP BY 1 ORDER BY rest;\r")
    terminal.until("3 rows · batch ")
    first = terminal.until(" ")
    while terminal.until(" ") == first:  # it goes on
        terminal.until("3 rows · batch ")
    terminal.type("\x03")
    terminal.until("stopped")
    terminal.until("millstream>")
    terminal.type("SELECT COUNT(*) AS c FROM n;\r")  # Spark is there already
    terminal.until("1 row · batch ")
    terminal.type("\x03")
    terminal.until("stopped")
    assert terminal.end() == 0


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; ", True),
        ("SELECT ';'", False),
        ("SELECT ';';", True),
        ("SELECT 1 -- ;", False),
        ("SELECT 1; -- done", True),
        ("SELECT 1; SELECT", False),
        ("/* ; */", False),
        ("\\help", True),
        ("quit", True),
        ("", True),
    ],
)
def test_when_a_statement_is_whole(text: str, whole: bool) -> None:
    assert is_whole(text) is whole


def test_statements_are_parted() -> None:
    text = "SELECT ';' AS a; -- one; two\n SELECT `b;` ;; "
    assert [one.strip() for one in texts_of(Sql(text))] == [
        "SELECT ';' AS a",
        "-- one; two\n SELECT `b;`",
    ]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    console = Console(record=True, width=100, file=io.StringIO())
    made = Shell(console, None, "local[1]", debug=False)
    made.do(
        "CREATE STREAM cars (id INT, make STRING, PRIMARY KEY (id)) "
        "WITH (source = 'http', port = 8401);"
    )
    made.do("CREATE STREAMED VIEW models AS SELECT id FROM cars;")
    yield made
    made.close()


def completed(shell: Shell, text: str) -> list[str]:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    return [one.text for one in shell.get_completions(Document(text), CompleteEvent())]


def test_words_are_completed(shell: Shell) -> None:
    assert completed(shell, "SELECT * FROM ") == ["cars", "models"]
    assert completed(shell, "SELECT * FROM c") == ["cars"]
    assert completed(shell, "SELECT ma") == ["make", "MATERIALIZED", "MAX"]
    assert completed(shell, "DESCRIBE mo") == ["models"]
    assert "SELECT" in completed(shell, "sel")


def test_statements_look_drop_and_are_saved(shell: Shell, tmp_path: Path) -> None:
    shell.do("SHOW TABLES; DESCRIBE cars; EXPLAIN models;")
    shell.do("DROP VIEW modles;")
    shell.do("DROP VIEW models;")
    shell.do("CREATE SINK out WITH (sink = 'jsonl', path = 'out') AS SELECT id FROM cars;")
    shell.do("\\save all.sql")
    assert shell.do("\\help") and not shell.do("\\quit")
    told = shell.console.export_text()  # type: ignore[attr-defined]
    for piece in (
        "made stream cars",
        "models: view",
        "make: string",
        "changes of the latest record",
    ):
        assert piece in told
    assert "did you mean models?" in told and "dropped view models" in told
    assert "made sink out; it gets rows when" in told
    saved = (tmp_path / "all.sql").read_text()
    assert saved.count(";\n") == 4 and load_sql(tmp_path / "all.sql").name == "all"

"""`millstream sql` without a file: a shell for SQL, with completion, history and live tables.

Statements build one flow. A query over its streams runs until it has ended or is interrupted, and
its rows are a table that changes in place (`watching.py`). With a checkpoint the shell reads the
views of that flow instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from millstream.api.flow import Flow
from millstream.cli.asking import answers, print_answer
from millstream.cli.watching import Watching
from millstream.errors import ConfigError, MillstreamError, SqlError
from millstream.serve.following import Follower
from millstream.showing import visible_lines
from millstream.sql.grammar import ends_with_semicolon, statements_of, texts_of
from millstream.sql.places import Text as Sql
from millstream.sql.statements import Query, read_statement

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

KEYWORDS = """
ALL AND ANTI AS ASC AVG BETWEEN BY CASE CAST COUNT CREATE CROSS CUBE CUMULATE CURRENT DATE DECIMAL
DENSE_RANK DESC DESCRIBE DESCRIPTOR DISTINCT DROP ELSE END EXCEPT EXISTS EXPLAIN FALSE FILTER FIRST
FIRST_VALUE FOLLOWING FROM FULL FUNCTIONS GROUP GROUPING HAVING HOP IF IN INNER INSERT INTERSECT
INTERVAL INTO IS JOIN KEY LAG LAST LAST_VALUE LEAD LEFT LIKE LIMIT MATERIALIZED MAX MEDIAN MIN NOT
NULL NULLS ON OR ORDER OUTER OVER PARTITION PERCENTILE PRECEDING PRIMARY RANGE RANK RIGHT ROLLUP ROW
ROWS ROW_NUMBER SELECT SEMI SESSION SETS SHOW SINK SINKS STDDEV STREAM STREAMED STREAMS SUM TABLE
TABLES THEN TIMESTAMP TRUE TUMBLE UNBOUNDED UNION USING VARIANCE VIEW VIEWS WATERMARK WHEN WHERE
WITH
""".split()  # noqa: SIM905 - a list of words is easier to read
_HELP = """\
A statement ends with ; and may have many lines.
  CREATE STREAM, CREATE STREAMED VIEW, CREATE MATERIALIZED VIEW, CREATE SINK, INSERT INTO, DROP
  SELECT ...;            rows as they come, until Ctrl-C
  SHOW TABLES; DESCRIBE name; EXPLAIN query;
  \\save FILE             write the statements so far, for `millstream sql FILE`
  \\help, \\quit           this, and the end (as Ctrl-D)"""
_HELP_OF_VIEWS = """\
A statement ends with ; and may have many lines.
  SELECT ...;            rows of views as the last committed batch left them
  SHOW VIEWS; DESCRIBE name;
  \\help, \\quit           this, and the end (as Ctrl-D)"""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Shell:
    """What is known in one shell, and what its statements do."""

    def __init__(self, console: Console, checkpoint: Path | None, master: str, debug: bool) -> None:
        self.console = console
        self.flow = Flow("shell")
        self.follower = None if checkpoint is None else Follower(checkpoint)
        self.watching = Watching(console, master, debug)
        self.done: list[str] = []  # statements that made something

    def do(self, text: str) -> bool:
        """What one input asks for; False if that is the end."""
        text = text.strip()
        if text.startswith("\\") or text.lower().rstrip(";") in ("quit", "exit", "help"):
            return self._command(text.lstrip("\\").rstrip(";"))
        try:
            if self.follower is not None:
                for answer in answers(self.follower, text):
                    print_answer(answer, None)
            elif text.rstrip("; \n"):
                self._run(text)
        except MillstreamError as error:
            self._complain(error)
        return True

    def _run(self, text: str) -> None:
        """Build with all statements of a text; run the queries among them one after the other."""
        for statement in texts_of(Sql(text)):
            if _is_query(statement):
                self.watching.watch(self.flow, statement)
                continue
            found = self.flow.answers(statement)[0]
            if found.text is not None:
                self.console.print(Text(found.text))
            else:
                self.done.append(statement)
                self.console.print(Text(_told(statement), style="dim"))

    def _command(self, text: str) -> bool:
        word, _, rest = text.strip().partition(" ")
        match word.lower():
            case "quit" | "exit" | "q":
                return False
            case "save" if rest.strip():
                path = Path(rest.strip())
                try:
                    path.write_text(
                        "".join(f"{one.rstrip().rstrip(';')};\n\n" for one in self.done)
                    )
                except OSError as error:
                    self._complain(ConfigError(f"{path} cannot be written ({error.strerror})"))
                    return True
                self.console.print(Text(f"{len(self.done)} statements are in {path}", style="dim"))
            case _:
                self.console.print(Text(_HELP if self.follower is None else _HELP_OF_VIEWS))
        return True

    def _complain(self, error: MillstreamError) -> None:
        """What is wrong, with the text it is about underlined."""
        head, _, shown = visible_lines(str(error)).partition("\n")
        told = Text.assemble(("error: ", "bold red"), head)
        for line in shown.splitlines() if isinstance(error, SqlError) else ():
            told.append("\n")
            told.append(line, "bold red" if set(line.strip()) == {"^"} else "")
        self.console.print(told, highlight=False)

    def close(self) -> None:
        """End what queries were run with."""
        self.watching.close()

    # -- completion -----------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """What can stand in FROM."""
        if self.follower is not None:
            self.follower.advance()
            return list(self.follower.current.views)
        return [one.name for one in self.flow.catalog.entries.values() if one.kind != "sink"]

    def columns(self, before: str) -> list[str]:
        """The columns of the tables that a text names; of all, if it names none yet."""
        named = {word.lower() for word in _WORD.findall(before)}
        tables = self.tables()
        chosen = [one for one in tables if one.lower() in named] or tables
        return list(dict.fromkeys(column for one in chosen for column in self._columns_of(one)))

    def _columns_of(self, table: str) -> Iterable[str]:
        if self.follower is not None:
            return (name for name, _ in self.follower.current.view(table).columns)
        relation = self.flow.catalog.find(table)
        return () if relation is None else (one.name for one in relation.columns)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        """Words that the one before the cursor may become."""
        from prompt_toolkit.completion import Completion

        word = document.get_word_before_cursor(pattern=_WORD)
        before = document.text_before_cursor[: len(document.text_before_cursor) - len(word)]
        last = before.split()[-1].upper() if before.split() else ""
        groups = [("table", self.tables())]
        if last not in ("FROM", "JOIN", "INTO", "DESCRIBE"):
            columns = ("column", self.columns(document.text))
            groups = [columns, *groups, ("", KEYWORDS)]
        for kind, names in groups:
            for name in sorted(names) if word or kind == "table" else ():
                if name.lower().startswith(word.lower()) and name != word:
                    yield Completion(name, -len(word), display_meta=kind)


def begin_shell(checkpoint: Path | None, master: str, debug: bool) -> None:
    """Read statements and do them, until the end of the input."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer
        from prompt_toolkit.history import FileHistory
    except ImportError:
        raise ConfigError(
            "the shell needs prompt_toolkit: pip install 'millstream[shell]'; or give a file, as "
            "in `millstream sql queries.sql`"
        ) from None
    console = Console()
    shell = Shell(console, checkpoint, master, debug)

    class Names(Completer):  # type: ignore[misc]
        def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
            return shell.get_completions(document, event)

    session: Any = PromptSession(
        "millstream> ",
        multiline=True,
        prompt_continuation=lambda width, number, wrapped: "." * (width - 1) + " ",
        completer=Names(),
        complete_while_typing=False,
        history=FileHistory(str(history_file())),
        key_bindings=_bindings(),
        enable_open_in_editor=True,
    )
    what = "a new flow" if checkpoint is None else f"the views of {checkpoint}"
    console.print(Text(f"SQL over {what}; \\help says what there is", style="dim"))
    try:
        while True:
            try:
                text = session.prompt()
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
            if text.strip() and not shell.do(text):
                break
    finally:
        shell.close()


def _bindings() -> Any:
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)  # type: ignore[untyped-decorator]
    def _(event: KeyPressEvent) -> None:
        """The end of a statement, or the next line of it."""
        buffer = event.current_buffer
        at_end = not buffer.document.text_after_cursor.strip()
        if at_end and is_whole(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def is_whole(text: str) -> bool:
    """Whether an input is done with: it ends with ; outside of quotes, or is a command."""
    plain = text.strip()
    if not plain or plain.startswith("\\") or plain.lower() in ("quit", "exit", "help"):
        return True
    try:
        return ends_with_semicolon(Sql(text))
    except SqlError:  # a quote or a comment is not closed
        return False


def _is_query(statement: str) -> bool:
    sql = Sql(statement)
    (tokens,) = statements_of(sql)
    return isinstance(read_statement(sql, tokens), Query)


def _told(statement: str) -> str:
    """What a statement did, in its own words."""
    (tokens,) = statements_of(Sql(statement))
    words = [str(one.text) for one in tokens]
    verb = {"CREATE": "made", "DROP": "dropped", "INSERT": "filled"}.get(words[0].upper(), "done")
    plain = [one for one in words if one.upper() not in ("IF", "NOT", "EXISTS")]
    at = next(n for n, word in enumerate(plain) if word.upper() in _KINDS)
    sink = plain[at].upper() in ("SINK", "INTO")
    later = "; it gets rows when these statements run as a file (\\save)"
    told = f"{verb} {'sink' if sink else plain[at].lower()} {plain[at + 1]}"
    return told + later if sink and verb != "dropped" else told


_KINDS = ("STREAM", "VIEW", "SINK", "INTO")


def history_file() -> Path:
    """Where what was typed is kept, for its owner only."""
    given = os.environ.get("MILLSTREAM_HISTORY")
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = Path(given) if given else base / "millstream" / "history"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path

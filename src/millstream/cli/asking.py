"""`millstream sql QUERY`: what the views of a checkpoint hold, printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millstream.serve.following import Follower
from millstream.serve.slates import KeptView
from millstream.serve.telling import to_json
from millstream.showing import visible

_STATEMENTS = ("SELECT", "SHOW VIEWS", "DESCRIBE name")


class Output(StrEnum):
    """How rows are printed."""

    table = "table"
    jsonl = "jsonl"
    csv = "csv"


def is_query(text: str) -> bool:
    """Whether an argument is SQL and not the name of a file."""
    return not text.endswith(".sql") and len(text.split()) > 1 and not Path(text).is_file()


def print_answers(checkpoint: Path, text: str, output: Output | None) -> None:
    """Print what a text of statements over the views of a checkpoint gives."""
    follower = Follower(checkpoint)
    for answer in answers(follower, text):
        print_answer(answer, output)


def answers(follower: Follower, text: str) -> Iterator[pa.Table | str]:
    """What statements over views give: tables for queries, texts for SHOW and DESCRIBE."""
    from millstream.run.asking import query_views
    from millstream.sql import statements as ask
    from millstream.sql.grammar import place_of, statements_of
    from millstream.sql.places import Text as Sql

    sql = Sql(text)
    for tokens in statements_of(sql):
        match ask.read_statement(sql, tokens, there=_STATEMENTS):
            case ask.Query():
                place = place_of(tokens)
                # The rest stays as blanks, so that errors have their place in the whole text.
                piece = "".join(
                    sign if place.start <= at < place.end or sign == "\n" else " "
                    for at, sign in enumerate(text)
                )
                yield query_views(follower, piece)
            case ask.Show(what) if what in ("VIEWS", "TABLES"):
                yield "\n".join(follower.read(lambda now: list(now.views)))
            case ask.Describe(name):
                follower.advance()
                yield described(follower.current.view(name.text))
            case _:
                raise sql.error(
                    f"views of a checkpoint are only read: {', '.join(_STATEMENTS)}",
                    place_of(tokens[:1]),
                )


def described(view: KeptView) -> str:
    """The columns of a view."""
    lines = [f"{name}: {kind or 'unknown'}" for name, kind in view.columns]
    return "\n".join(lines or ["columns are not known before rows come"])


def print_answer(answer: pa.Table | str, output: Output | None) -> None:
    """Print a table or a text."""
    if isinstance(answer, str):
        print(answer)
        return
    match output or (Output.table if sys.stdout.isatty() else Output.jsonl):
        case Output.table:
            Console().print(as_table(answer))
        case Output.csv:
            from millstream.io.writers import csv_lines

            sys.stdout.flush()
            sys.stdout.buffer.write(csv_lines(answer))
        case Output.jsonl:
            for piece in answer.to_batches(1000):
                for row in piece.to_pylist():
                    sys.stdout.buffer.write(to_json(row) + b"\n")
    sys.stdout.flush()


def as_table(rows: pa.Table) -> Table:
    """Rows as a table of the terminal; what is in them is text and nothing else."""
    table = Table()
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(Text(visible(field.name)), justify="right" if number else "left")
    for row in rows.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    return Text(visible(value if isinstance(value, str) else to_json(value).decode().strip('"')))

"""The commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

import millstream
from millstream.cli.commands import beginning, checkpoints, flows, gathering, lines, statements
from millstream.cli.commands.installing import flow
from millstream.cli.slates import slates

app = typer.Typer(
    name="millstream",
    help="Continuous MapReduce in Python on Apache Spark.",
    epilog="Start with: [bold]millstream demo[/bold]",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"millstream {millstream.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Continuous MapReduce in Python on Apache Spark."""


for group in (flows, statements, lines, checkpoints, gathering, beginning):
    app.add_typer(group.commands)
app.add_typer(flow, name="flow")
app.add_typer(slates, name="slates")

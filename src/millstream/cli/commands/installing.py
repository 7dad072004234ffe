"""`millstream flow`: queries of a flow, added and taken away while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import AppFile, Debug, DryRun, FlowName, RunningCheckpoint

flow = typer.Typer(
    help="Add queries to a flow and take them away, while it runs.", no_args_is_help=True
)
Later = Annotated[
    bool,
    typer.Option(
        "--later",
        help="Ask no running flow: its next start takes it up, or an agent that runs this file.",
    ),
]


@flow.command(epilog="Example: [bold]millstream flow add app.py slow.sql[/bold]")
def add(
    file: AppFile,
    query: Annotated[
        Path,
        typer.Argument(
            metavar="QUERY", help="A file of SQL, or of Python with `def query(flow):`."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What it is called.  [dim]\\[default: as its file][/dim]"
        ),
    ] = None,
    which: FlowName = None,
    checkpoint: RunningCheckpoint = None,
    dry_run: DryRun = False,
    later: Later = False,
    debug: Debug = False,
) -> None:
    """Add a query to a flow that runs with `millstream run`, without stopping it.

    The file is copied into the folder <flow>.queries beside APP.PY, from where every start takes
    it, and agents too. If the run refuses it, nothing changes, and the flow goes on.

    Exit codes: 0 done, 1 the run ended or failed before it answered, 2 refused.
    """
    from millstream.cli import queries

    typer.echo(queries.add(file, which, query, name, checkpoint, dry_run=dry_run, later=later))


@flow.command(epilog="Example: [bold]millstream flow remove app.py slow[/bold]")
def remove(
    file: AppFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The query's name.")],
    which: FlowName = None,
    checkpoint: RunningCheckpoint = None,
    dry_run: DryRun = False,
    later: Later = False,
    debug: Debug = False,
) -> None:
    """Take away a query that was added; what is stored for it is dropped.

    Exit codes: 0 done, 1 the run ended or failed before it answered, 2 refused.
    """
    from millstream.cli import queries

    typer.echo(queries.remove(file, which, name, checkpoint, dry_run=dry_run, later=later))


@flow.command("list", epilog="Example: [bold]millstream flow list app.py[/bold]")
def list_queries(file: AppFile, which: FlowName = None, debug: Debug = False) -> None:
    """The queries that were added to a flow: what each keeps, and where its results go."""
    from millstream.cli import queries

    typer.echo(queries.listed(file, which))

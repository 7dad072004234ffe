"""`millstream sql`: files of statements, queries over views, a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.api.config import Application
from millstream.cli.asking import Output, is_query, print_answers
from millstream.cli.options import Debug, Master, Quiet, TrustConfig, checkpoint_option
from millstream.cli.slates import find_checkpoint
from millstream.graph.nodes import Sink
from millstream.operators.view import Kept

commands = typer.Typer()


@commands.command(epilog="Example: [bold]millstream sql queries.sql --checkpoint ck/queries[/bold]")
def sql(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A file of SQL to run, or a query over the views of a checkpoint. Without either, "
            "a shell.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        checkpoint_option(
            "Of a file: where state and progress are kept; the same directory goes on where "
            "the last run stopped. Of a query or a shell: whose views are read.  "
            "[dim]\\[default: .millstream/<name of the file>, or the only one there][/dim]"
        ),
    ] = None,
    output: Annotated[
        Output | None,
        typer.Option(
            help="How the rows of a query are printed.  "
            "[dim]\\[default: table on a terminal, else jsonl][/dim]"
        ),
    ] = None,
    master: Master = "local[*]",
    trust_config: TrustConfig = False,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run the statements of a file, or ask what views hold; without either, begin a shell.

    A file makes streams, views and sinks; rows of queries in it are printed. `run`, `plan` and
    `reload` take a file of SQL too, if its name ends in .sql.

    A query like 'SELECT * FROM fast WHERE speed > 60' reads the views of a checkpoint as its last
    committed batch left them, whether its flow runs or not. Spark is not needed for that.
    """
    from millstream.cli.loading import load_queries, load_sql
    from millstream.cli.running import run_flow

    if file is None:
        from millstream.cli.shell import begin_shell

        begin_shell(checkpoint, master, debug)
        return
    if is_query(file):
        print_answers(find_checkpoint(checkpoint), file, output)
        return
    path = Path(file)

    def load() -> Application:
        flow = load_sql(path)
        found = Application(flow, sql=path, queries=load_queries(path, flow))
        return found if trust_config else found.check_trust()

    flow = load().flow
    if not any(isinstance(node, Sink | Kept) for node in flow.nodes):
        return  # statements that only look or declare
    where = checkpoint or Path(".millstream") / flow.name
    options = {"master": master, "debug": debug}
    run_flow(flow, where, options, quiet=quiet, file=path.absolute(), load=load)

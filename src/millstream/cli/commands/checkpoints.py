"""`millstream doctor`, `status`, `reshard` and `serve`: a checkpoint by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import Checkpoint, Debug, FlowName, token_option
from millstream.cli.serving import DEFAULT_HOST, DEFAULT_PORT

commands = typer.Typer()


@commands.command(epilog="Example: [bold]millstream doctor .millstream/prices[/bold]")
def doctor(checkpoint: Checkpoint, debug: Debug = False) -> None:
    """Check a checkpoint: every manifest and state file, against their checksums.

    Nothing is changed. Exit code 0 if it is sound, 1 if it is damaged.
    """
    from millstream.state.doctor import examine

    lines, sound = examine(checkpoint)
    typer.echo("\n".join(lines))
    raise typer.Exit(0 if sound else 1)


@commands.command(epilog="Example: [bold]millstream status .millstream/prices[/bold]")
def status(
    checkpoint: Checkpoint,
    json: Annotated[
        bool, typer.Option("--json", help="All figures, as `GET /status` gives them.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Say how far a flow is, and what waits where: its queues after the last batch.

    The flow may be running or ended; its state is only read.
    """
    from millstream.cli.standing import told_status

    typer.echo(told_status(checkpoint, as_json=json))


@commands.command(epilog="Example: [bold]millstream reshard .millstream/prices --shards 64[/bold]")
def reshard(
    checkpoint: Checkpoint,
    shards: Annotated[
        int, typer.Option(metavar="N", min=1, max=2**20, help="Parts of the state from now on.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "--app",
            metavar="APP.PY",
            help="The file with the flow; needed only if it has key_by(partition=).",
        ),
    ] = None,
    flow: FlowName = None,
    debug: Debug = False,
) -> None:
    """Change the number of shards of a stopped flow.

    All that is stored is dealt to the new shards and committed as one batch; a kill before that
    leaves everything as it was. Results are the same as without it.
    """
    from millstream.cli.loading import load_application
    from millstream.run.planning import plan_flow
    from millstream.run.resharding import reshard as deal

    plan = None
    if file is not None:
        found = load_application(file, flow)
        with found.locating():
            plan = plan_flow(found.flow, checkpoint)
    done = deal(checkpoint, shards, plan)
    if done.before == done.now:
        typer.echo(f"{checkpoint} has {done.now} shards already")
        return
    for owner, rows in done.rows.items():
        typer.echo(f"  {owner}: {rows:,} rows")
    for table in done.again:
        typer.echo(f"  {table}: computed again with the next windows")
    committed = f", committed as batch {done.batch}" if done.batch >= 0 else ""
    typer.echo(f"{checkpoint} has {done.now} shards now, {done.before} before{committed}")


@commands.command(epilog="Example: [bold]millstream serve .millstream/prices --port 8400[/bold]")
def serve(
    checkpoint: Checkpoint,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen. Anything but this machine's own address needs a token.",
        ),
    ] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port.")] = (
        DEFAULT_PORT
    ),
    token_file: Annotated[
        Path | None, token_option("A file with the token that requests must carry.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve a checkpoint over HTTP: slates, changes, status, metrics and a page.

    The flow may be running or ended; its state is only read. Ctrl-C stops the server.
    """
    from millstream.cli.serving import serve_checkpoint

    serve_checkpoint(checkpoint, host, port, token_file)

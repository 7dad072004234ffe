"""`millstream agent`: the first steps of a flow where the records are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from millstream.api.flow import Flow
from millstream.cli.loading import load_trusted
from millstream.cli.options import AppFile, Debug, FlowName, TrustConfig, token_option
from millstream.errors import ConfigError

commands = typer.Typer()


@commands.command(
    epilog="Example: [bold]millstream agent app.py --to collector:9410 --name web-07[/bold]"
)
def agent(
    file: AppFile,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="HOST:PORT",
            help="Where the collector or a relay listens; with Collector(trees=) once for all "
            "trees, or once for each in their order.",
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the collector knows it by, for ever.")
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where it keeps what is not committed yet.  "
            "[dim]\\[default: .millstream/agents/NAME][/dim]",
        ),
    ] = None,
    flow: FlowName = None,
    token_file: Annotated[
        Path | None,
        token_option("A file with the token of the collector.", "MILLSTREAM_AGENT_TOKEN"),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="The certificate (PEM) the collector is known by; with it the connection is "
            "encrypted.",
        ),
    ] = None,
    spool: Annotated[
        str, typer.Option(metavar="SIZE", help="Disk space for what is not committed yet.")
    ] = "1GB",
    relay: Annotated[
        bool,
        typer.Option(
            "--relay", help="Read nothing here, but put together what other agents send to it."
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where a relay takes messages."),
    ] = None,
    children: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many agents send to a relay.")
    ] = 16,
    tree: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Which tree a relay is in, from 0 on.  [dim]\\[default: all][/dim]",
        ),
    ] = None,
    overload: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="When that is full: [bold]wait[/bold], or [bold]drop[/bold] the oldest and count "
            "it.",
        ),
    ] = "wait",
    function_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long one call of a function may take; then the agent ends, and says which.  "
            "[dim]\\[default: 5m][/dim]",
        ),
    ] = None,
    accept_code: Annotated[
        bool,
        typer.Option(
            "--accept-code",
            help="Run the collector's program, and every later one, instead of APP.PY where they "
            "differ. Needs --ca and a token, by which the collector is known.",
        ),
    ] = False,
    trust_config: TrustConfig = False,
    debug: Debug = False,
) -> None:
    """Run the first steps of a flow on this machine, and send what they make to its collector.

    It needs neither Spark nor Java. It reads what Collector(reads=) says, here; what it has read
    and the collector has not committed survives a crash of either. It ends when all is committed,
    if what it reads has an end, or with Ctrl-C.
    """
    from millstream.cli.agents import load_accepted, run_agent
    from millstream.cli.modules import imported_again

    if relay != (listen is not None):
        raise ConfigError("agent: --relay and --listen HOST:PORT go together")
    found = load_trusted(file, flow, trust_config)
    if tree is not None and not relay:
        raise ConfigError("agent: --tree is for a relay; an agent sends to all trees")

    def again() -> Flow:
        with imported_again(file.parent, keep=True):
            return load_trusted(file, flow, trust_config).flow

    timeout = function_timeout or found.settings.get("function_timeout")
    run_agent(
        found.flow,
        to,
        name,
        directory,
        token_file,
        ca,
        spool,
        overload,
        listen,
        children,
        tree,
        function_timeout=timeout,
        reload=again,
        accept=partial(load_accepted, file, trust_config) if accept_code else None,
    )

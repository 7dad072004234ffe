"""`millstream run`, `reload` and `plan`: the flow in a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import millstream
from millstream.cli.loading import load_application, load_trusted
from millstream.cli.options import (
    AppFile,
    AppFiles,
    Debug,
    DryRun,
    FlowName,
    Master,
    Quiet,
    RunningCheckpoint,
    TrustConfig,
    checkpoint_option,
    properties_of,
    token_option,
)
from millstream.cli.serving import DEFAULT_PORT, OptionalPort
from millstream.errors import ConfigError

commands = typer.Typer()

_SETTINGS = (
    *("master", "runner", "parallelism", "shards", "batch_rows", "scheduler", "memory"),
    *("dead_letter_limit", "incremental", "serve", "ui", "debug", "quiet"),
)


@commands.command(
    cls=OptionalPort,
    epilog="Example: [bold]millstream run app.py --checkpoint ck/prices --parallelism 4[/bold]",
)
def run(
    context: typer.Context,
    files: AppFiles,
    flow: FlowName = None,
    checkpoint: Annotated[
        Path | None,
        checkpoint_option(
            "Where state and progress are kept. The same directory goes on where the last "
            "run stopped. For several files: the directory that has one for each flow.  "
            "[dim]\\[default: .millstream/<flow name>][/dim]"
        ),
    ] = None,
    master: Master = "local[*]",
    spark: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A property of Spark; may be repeated."),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            metavar="rdd|frames",
            help="Run tasks on RDDs or on DataFrames.  "
            "[dim]\\[default: rdd, and frames over Spark Connect][/dim]",
        ),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tasks per stage.  [dim]\\[default: Spark's cores][/dim]"
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Parts of the state, fixed at the first start.  [dim]\\[default: 4 x cores][/dim]",
        ),
    ] = None,
    batch_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most records one batch takes in per core.")
    ] = millstream.Settings.batch_rows,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="odf|mem|hybrid", help="Who is served first if more waits than a batch takes."
        ),
    ] = str(millstream.Settings.scheduler),
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What driver, JVM and workers may have together, like 2GB.  "
            "[dim]\\[default: 0.8 of the machine's][/dim]",
        ),
    ] = None,
    dead_letter_limit: Annotated[
        float,
        typer.Option(
            metavar="F", min=0, max=1, help="Stop when more than this share are dead letters."
        ),
    ] = millstream.Settings.dead_letter_limit,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An operator (or operator.aggregate) that the program no longer has: drop what "
            "is stored for it. May be given several times.",
        ),
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option(
            "--incremental",
            help="If there is more input than the last run had: results over the whole input of "
            "what is new alone, not totals of everything.",
        ),
    ] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="[PORT]",
            help="Serve slates, status and a page while the flow runs: a port or host:port; "
            f"{DEFAULT_PORT} if none is given.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, token_option("With --serve: a file with the token that requests must carry.")
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="10%,25%,...",
            help="Read stored files in random order, and show estimates with bounds when so much "
            "was read.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="1%", help="End once every estimate is within so much of itself."),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="30s", help="End after so long, with the estimates so far."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The aggregate that is looked at, if the flow has several."
        ),
    ] = None,
    publish: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where each snapshot appears as a file.")
    ] = None,
    trust_config: TrustConfig = False,
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's web interface.")] = False,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run the flow in a file, to the end of its input or until it is stopped.

    With several files their flows run on one Spark, each with a checkpoint of its own; one that
    fails ends by itself, and the exit code is 1 when the others have ended.

    APP.TOML may say how to run it in its table \\[run]; options given here come first.

    Ctrl-C (or SIGTERM) stops after the current batch, which is committed; the exit code is then 0.
    A second Ctrl-C aborts at once with 130. Either way nothing is lost: the same command goes on.

    Exit codes: 0 complete or stopped, 1 failed while running, 2 could not start.
    """
    from millstream.cli.early import looks_of
    from millstream.cli.running import run_flow
    from millstream.cli.several import Program, check_several, run_flows

    looks = looks_of(snapshots, until, within, publish, step)
    spark_properties = properties_of(spark or [])
    given = {
        **{option: context.params[option] for option in _SETTINGS},
        "remove": tuple(remove or ()),
        "spark": spark_properties,
        "token_file": token_file,
    }
    if len(files) > 1:
        check_several(flow, looks, remove)
    programs = []
    for file in files:
        found, place = load_trusted(file, flow, trust_config), file.absolute()
        own = Path(".millstream") / found.flow.name
        if checkpoint is not None:
            own = checkpoint if len(files) == 1 else checkpoint / found.flow.name
        elif found.checkpoint is not None:
            own = found.checkpoint
        chosen = _chosen(context, given, found.settings)
        load = partial(load_trusted, place, flow, trust_config)
        programs.append(Program(found, own, chosen, place, load))
    if len(programs) > 1:
        run_flows(programs)
        return
    (one,) = programs
    with one.found.locating():
        run_flow(
            one.found.flow,
            one.checkpoint,
            one.options,
            quiet=one.options["quiet"],
            file=one.file,
            load=one.load,
            looks=looks,
        )


def _chosen(
    context: typer.Context, given: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """What the command line says, then the file, then the defaults."""
    origins = {name: context.get_parameter_source(name) for name in given}
    typed = {n: v for n, v in given.items() if (o := origins[n]) is None or o.name != "DEFAULT"}
    return {**given, **settings, **typed}


@commands.command(epilog="Example: [bold]millstream reload app.py --dry-run[/bold]")
def reload(
    file: AppFile,
    flow: FlowName = None,
    checkpoint: RunningCheckpoint = None,
    dry_run: DryRun = False,
    debug: Debug = False,
) -> None:
    """Let a flow that runs with `millstream run` load its file again, without stopping it.

    Windows, aggregates, updaters and sinks are added and taken away after the current batch; what
    changes is printed. If something is not possible, nothing changes, and the flow goes on.

    Exit codes: 0 done, 1 the run ended or failed before it answered, 2 refused.
    """
    from millstream.cli.reloading import ask_to_reload, unchanged

    try:
        found = load_application(file, flow)
    except ConfigError as error:
        raise ConfigError(unchanged(error)) from error
    where = checkpoint or found.checkpoint or Path(".millstream") / found.flow.name
    typer.echo(ask_to_reload(where, file, dry_run=dry_run))


@commands.command(epilog="Example: [bold]millstream plan app.py --picture plan.svg[/bold]")
def plan(
    file: AppFile,
    flow: FlowName = None,
    checkpoint: Annotated[
        Path | None,
        checkpoint_option(
            "Add what happened up to the last batch committed there; the flow may be running."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.SVG", help="Draw the plan into this file too.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Check a flow and print its plan: stages, steps, and how each window is computed.

    The sources are looked at, so that a wrong path or column is found; neither Spark nor Java is
    started.
    """
    from millstream.run.planning import plan_flow
    from millstream.run.program.program import check_unchanged
    from millstream.state.checkpoint import Checkpoint

    found = load_application(file, flow)
    with found.locating():
        planned = plan_flow(found.flow)
        typer.echo(found.flow.explain(checkpoint))
        if picture is not None:
            found.flow.picture(picture, checkpoint)
        if checkpoint is not None:
            check_unchanged(planned, Checkpoint(checkpoint, create=False))

"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import millstream
from millstream.api.config import Application
from millstream.cli.asking import Output, is_query, print_answers
from millstream.cli.loading import load_application
from millstream.cli.serving import DEFAULT_HOST, DEFAULT_PORT, OptionalPort
from millstream.cli.slates import find_checkpoint, slates
from millstream.errors import ConfigError
from millstream.graph.nodes import Sink
from millstream.operators.view import Kept

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

app.add_typer(slates, name="slates")

AppFile = Annotated[
    Path,
    typer.Argument(
        metavar="APP.PY",
        help="The file with the flow: Python, a configuration (APP.TOML) or SQL (APP.SQL).",
        show_default=False,
    ),
]
FlowName = Annotated[
    str | None,
    typer.Option(
        "--flow",
        metavar="NAME",
        help="Which flow, by its variable or its name, if the file has several. Without this "
        "option it is the only one, or the one in the variable `flow`.",
        show_default=False,
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show Spark's log and stack traces, and check running values."),
]
TrustConfig = Annotated[
    bool,
    typer.Option(
        "--trust-config",
        help="Let APP.TOML set any Spark property, those that run code too, and APP.TOML and "
        "APP.SQL name any environment variable for a password or token.",
    ),
]


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


@app.command(
    cls=OptionalPort,
    epilog="Example: [bold]millstream run app.py --checkpoint ck/prices --parallelism 4[/bold]",
)
def run(
    context: typer.Context,
    file: AppFile,
    flow: FlowName = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where state and progress are kept. The same directory goes on where the last "
            "run stopped.  [dim]\\[default: .millstream/<flow name>][/dim]",
            show_default=False,
        ),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master, like local[4] or spark://host:7077.")
    ] = "local[*]",
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
            show_default=False,
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
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --serve: a file with the token that requests must carry.  "
            "[dim]\\[default: the variable MILLSTREAM_TOKEN][/dim]",
            show_default=False,
        ),
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="10%,25%,...",
            help="Read stored files in random order, and show estimates with bounds when so much "
            "was read.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="1%",
            help="End once every estimate is within so much of itself.",
            show_default=False,
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="30s", help="End after so long, with the estimates so far.", show_default=False
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The aggregate that is looked at, if the flow has several.",
            show_default=False,
        ),
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where each snapshot appears as a file.",
            show_default=False,
        ),
    ] = None,
    trust_config: TrustConfig = False,
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's web interface.")] = False,
    debug: Debug = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but errors and what the flow prints.")
    ] = False,
) -> None:
    """Run the flow in a file, to the end of its input or until it is stopped.

    APP.TOML may say how to run it in its table \\[run]; options given here come first.

    Ctrl-C (or SIGTERM) stops after the current batch, which is committed; the exit code is then 0.
    A second Ctrl-C aborts at once with 130. Either way nothing is lost: the same command goes on.

    Exit codes: 0 complete or stopped, 1 failed while running, 2 could not start.
    """
    from millstream.cli.early import looks_of
    from millstream.cli.running import run_flow

    looks = looks_of(snapshots, until, within, publish, step)
    found = _load(file, flow, trust_config)
    given = {
        "master": master,
        "parallelism": parallelism,
        "shards": shards,
        "batch_rows": batch_rows,
        "dead_letter_limit": dead_letter_limit,
        "remove": tuple(remove or ()),
        "incremental": incremental,
        "serve": serve,
        "token_file": token_file,
        "ui": ui,
        "debug": debug,
        "quiet": quiet,
    }
    where = checkpoint or found.checkpoint or Path(".millstream") / found.flow.name
    chosen, place = _chosen(context, given, found.settings), file.absolute()
    with found.locating():
        run_flow(
            found.flow,
            where,
            chosen,
            quiet=chosen["quiet"],
            file=place,
            load=lambda: _load(place, flow, trust_config),
            looks=looks,
        )


def _load(file: Path, flow: str | None, trusted: bool) -> Application:
    found = load_application(file, flow)
    return found if trusted else found.check_trust()


def _chosen(
    context: typer.Context, given: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """What the command line says, then the file, then the defaults."""
    origins = {name: context.get_parameter_source(name) for name in given}
    typed = {n: v for n, v in given.items() if (o := origins[n]) is None or o.name != "DEFAULT"}
    return {**given, **settings, **typed}


@app.command(epilog="Example: [bold]millstream reload app.py --dry-run[/bold]")
def reload(
    file: AppFile,
    flow: FlowName = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The checkpoint of the running flow.  "
            "[dim]\\[default: .millstream/<flow name>][/dim]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would change, or why it cannot.")
    ] = False,
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


@app.command(epilog="Example: [bold]millstream plan app.py --picture plan.svg[/bold]")
def plan(
    file: AppFile,
    flow: FlowName = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Add what happened up to the last batch committed there; the flow may be running.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.SVG", help="Draw the plan into this file too.", show_default=False
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Check a flow and print its plan: stages, steps, and how each window is computed.

    The sources are looked at, so that a wrong path or column is found; neither Spark nor Java is
    started.
    """
    from millstream.run.planning import plan_flow

    found = load_application(file, flow)
    with found.locating():
        plan_flow(found.flow)
        typer.echo(found.flow.explain(checkpoint))
        if picture is not None:
            found.flow.picture(picture, checkpoint)


@app.command(epilog="Example: [bold]millstream prepare[/bold]")
def prepare(debug: Debug = False) -> None:
    """Let Spark start faster on this machine: keep an archive of its classes (about 90 MB).

    Takes some ten seconds, once per installation; every later run starts about three seconds
    sooner. After another version of Java or Spark was installed the archive is not used; run it
    again then.
    """
    from millstream.run.preparing import prepare as make_archive

    typer.echo(f"Spark's classes are in {make_archive(debug)}; every run from now on uses them")


@app.command(epilog="Example: [bold]millstream sql queries.sql --checkpoint ck/queries[/bold]")
def sql(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A file of SQL to run, or a query over the views of a checkpoint. Without either, "
            "a shell.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Of a file: where state and progress are kept; the same directory goes on where "
            "the last run stopped. Of a query or a shell: whose views are read.  "
            "[dim]\\[default: .millstream/<name of the file>, or the only one there][/dim]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Output | None,
        typer.Option(
            help="How the rows of a query are printed.  "
            "[dim]\\[default: table on a terminal, else jsonl][/dim]",
            show_default=False,
        ),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master, like local[4] or spark://host:7077.")
    ] = "local[*]",
    trust_config: TrustConfig = False,
    debug: Debug = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but errors and what the flow prints.")
    ] = False,
) -> None:
    """Run the statements of a file, or ask what views hold; without either, begin a shell.

    A file makes streams, views and sinks; rows of queries in it are printed. `run`, `plan` and
    `reload` take a file of SQL too, if its name ends in .sql.

    A query like 'SELECT * FROM fast WHERE speed > 60' reads the views of a checkpoint as its last
    committed batch left them, whether its flow runs or not. Spark is not needed for that.
    """
    from millstream.cli.loading import load_sql
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
        found = Application(load_sql(path), sql=path)
        return found if trust_config else found.check_trust()

    flow = load().flow
    if not any(isinstance(node, Sink | Kept) for node in flow.nodes):
        return  # statements that only look or declare
    where = checkpoint or Path(".millstream") / flow.name
    options = {"master": master, "debug": debug}
    run_flow(
        flow,
        where,
        options,
        quiet=quiet,
        file=path.absolute(),
        load=load,
    )


# A call is a whole task of a program here, and a command that does nothing is noticed by itself.
TASK_TIMEOUT = "1h"
Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="SIZE[,SLIDE]",
        help="Windows of time, like 10m,1m; each line of the result begins with its window. "
        "Without it the whole input is one.",
        show_default=False,
    ),
]
TimePattern = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="REGEX",
        help="Where in a line its time stands: what the group of a regular expression matches, or "
        "all of it. Without it the time is that of arrival.",
        show_default=False,
    ),
]
TimeFormat = Annotated[
    str | None,
    typer.Option(
        "--time-format",
        metavar="FORMAT",
        help="How that time is written, as for strptime.  [dim]\\[default: ISO-8601 or seconds]"
        "[/dim]",
        show_default=False,
    ),
]
Zone = Annotated[
    str | None,
    typer.Option("--zone", metavar="ZONE", help="The zone of times without one, like UTC."),
]
Lateness = Annotated[
    str | None,
    typer.Option("--lateness", metavar="5s", help="How far lines may be out of order."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with files as they grow and appear.")]
Reducers = Annotated[
    int | None,
    typer.Option("--reducers", metavar="N", min=1, help="Parts that keys are dealt to."),
]
Ordered = Annotated[bool, typer.Option("--sorted", help="Write parts in the order of reducers.")]
JobCheckpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where state and progress are kept; the same command goes on after a kill.",
        show_default=False,
    ),
]
JobMaster = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="Spark's master, like local[4]."),
]
JobParallelism = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="Tasks per stage."),
]
JobSnapshots = Annotated[
    str | None,
    typer.Option(
        "--snapshots",
        metavar="10%,25%,...",
        help="Read stored files in random order, and show the answer so far when so much was read.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and results.")]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: [bold]millstream mrjob mr_word_freq_count.py book.txt[/bold]",
)
def mrjob(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT [INPUT...]",
            help="A script with a job of the package mrjob, then its inputs and its own options; "
            "what follows -- is all for the script.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where results go; without it they are printed.", show_default=False
        ),
    ] = None,
    window: Window = None,
    time: TimePattern = None,
    time_format: TimeFormat = None,
    zone: Zone = None,
    lateness: Lateness = None,
    follow: Follow = False,
    reducers: Reducers = None,
    ordered: Ordered = False,
    checkpoint: JobCheckpoint = None,
    master: JobMaster = "local[*]",
    parallelism: JobParallelism = None,
    snapshots: JobSnapshots = None,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run a job of the package mrjob as it is, unmodified.

    All its steps run as one flow. Results are the lines its own runner would give.
    """
    from millstream.adapters.flows import Reading
    from millstream.adapters.mrjobs import load_job
    from millstream.cli.early import looks_of
    from millstream.cli.jobs import Request, run_program

    program = load_job(script, context.args, reducers)
    if program.ignored and not quiet:
        typer.echo(f"without meaning here, ignored: {', '.join(program.ignored)}", err=True)
    if output is None and program.output is not None:
        output = Path(program.output)
    request = Request(
        program.name,
        Reading(program.inputs, time, time_format, zone, lateness, follow),
        output,
        window,
        ordered,
        checkpoint,
        {
            "master": master,
            "parallelism": parallelism,
            "debug": debug,
            "function_timeout": TASK_TIMEOUT,
        },
        quiet,
        script,
        looks_of(snapshots, None, None, None),
    )
    run_program(program.stages, request)


@app.command(
    epilog="Example: [bold]millstream streaming --mapper 'cut -f1' --reducer 'uniq -c' "
    "--input logs/ --output counts/[/bold]"
)
def streaming(
    input: Annotated[
        list[str],
        typer.Option(
            metavar="PATH",
            help="A file, directory or glob; may be given several times.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Where results go.", show_default=False)
    ],
    mapper: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Reads lines, writes lines.  [dim]\\[default: cat][/dim]"),
    ] = None,
    reducer: Annotated[
        str | None,
        typer.Option(
            metavar="CMD",
            help="Reads lines sorted by key, writes lines; without it (or NONE) the mapper's are "
            "the result.",
        ),
    ] = None,
    combiner: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The same on the map side, before lines travel."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH[#NAME]", help="A file the commands find beside them."),
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("-D", metavar="NAME=VALUE", help="A property of Hadoop, or of the program."),
    ] = None,
    cmdenv: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable in the environment of commands."),
    ] = None,
    combine_files: Annotated[
        bool,
        typer.Option(
            "--combine-files",
            help="Give small files to a mapper together, if it does not care where files begin.",
        ),
    ] = False,
    window: Window = None,
    time: TimePattern = None,
    time_format: TimeFormat = None,
    zone: Zone = None,
    lateness: Lateness = None,
    follow: Follow = False,
    reducers: Reducers = None,
    ordered: Ordered = False,
    checkpoint: JobCheckpoint = None,
    master: JobMaster = "local[*]",
    parallelism: JobParallelism = None,
    snapshots: JobSnapshots = None,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run programs written for Hadoop Streaming: any executables that read and write lines.

    A key is what stands before the first tab. Reducers get lines sorted by key, as bytes.
    """
    from millstream.adapters.flows import Reading
    from millstream.adapters.streaming import properties, streaming_stage
    from millstream.cli.early import looks_of
    from millstream.cli.jobs import Request, run_program

    stage = streaming_stage(
        mapper,
        reducer,
        combiner,
        files=file or (),
        jobconf=properties("-D", define or ()),
        environment=properties("--cmdenv", cmdenv or ()),
        reducers=reducers,
        combine_files=combine_files,
    )
    request = Request(
        "streaming",
        Reading(input, time, time_format, zone, lateness, follow),
        output,
        window,
        ordered,
        checkpoint,
        {
            "master": master,
            "parallelism": parallelism,
            "debug": debug,
            "function_timeout": TASK_TIMEOUT,
        },
        quiet,
        output,
        looks_of(snapshots, None, None, None),
    )
    run_program((stage,), request)


@app.command(epilog="Example: [bold]millstream doctor .millstream/prices[/bold]")
def doctor(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A directory given as --checkpoint.")
    ],
    debug: Debug = False,
) -> None:
    """Check a checkpoint: every manifest and state file, against their checksums.

    Nothing is changed. Exit code 0 if it is sound, 1 if it is damaged.
    """
    from millstream.state.doctor import examine

    lines, sound = examine(checkpoint)
    typer.echo("\n".join(lines))
    raise typer.Exit(0 if sound else 1)


@app.command(epilog="Example: [bold]millstream reshard .millstream/prices --shards 64[/bold]")
def reshard(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A directory given as --checkpoint.")
    ],
    shards: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=2**20,
            help="Parts of the state from now on.",
            show_default=False,
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "--app",
            metavar="APP.PY",
            help="The file with the flow; needed only if it has key_by(partition=).",
            show_default=False,
        ),
    ] = None,
    flow: FlowName = None,
    debug: Debug = False,
) -> None:
    """Change the number of shards of a stopped flow.

    All that is stored is dealt to the new shards and committed as one batch; a kill before that
    leaves everything as it was. Results are the same as without it.
    """
    from millstream.cli.resharding import reshard_checkpoint

    reshard_checkpoint(checkpoint, shards, file, flow)


@app.command(epilog="Example: [bold]millstream serve .millstream/prices --port 8400[/bold]")
def serve(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A directory given as --checkpoint.")
    ],
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
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the token that requests must carry.  "
            "[dim]\\[default: the variable MILLSTREAM_TOKEN][/dim]",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve a checkpoint over HTTP: slates, changes, status, metrics and a page.

    The flow may be running or ended; its state is only read. Ctrl-C stops the server.
    """
    from millstream.cli.serving import serve_checkpoint

    serve_checkpoint(checkpoint, host, port, token_file)


@app.command(
    epilog="Example: [bold]millstream agent app.py --to collector:9410 --name web-07[/bold]"
)
def agent(
    file: AppFile,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="HOST:PORT", help="Where the collector listens.", show_default=False
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What the collector knows it by, for ever.", show_default=False
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where it keeps what is not committed yet.  "
            "[dim]\\[default: .millstream/agents/NAME][/dim]",
            show_default=False,
        ),
    ] = None,
    flow: FlowName = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the token of the collector.  "
            "[dim]\\[default: the variable MILLSTREAM_AGENT_TOKEN][/dim]",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="The certificate (PEM) the collector is known by; with it the connection is "
            "encrypted.",
            show_default=False,
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
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where a relay takes messages.",
            show_default=False,
        ),
    ] = None,
    children: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many agents send to a relay.")
    ] = 16,
    overload: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="When that is full: [bold]wait[/bold], or [bold]drop[/bold] the oldest and count "
            "it.",
        ),
    ] = "wait",
    trust_config: TrustConfig = False,
    debug: Debug = False,
) -> None:
    """Run the first steps of a flow on this machine, and send what they make to its collector.

    It needs neither Spark nor Java. It reads what Collector(reads=) says, here; what it has read
    and the collector has not committed survives a crash of either. It ends when all is committed,
    if what it reads has an end, or with Ctrl-C.
    """
    from millstream.cli.agents import Below, run_agent

    if relay != (listen is not None):
        raise ConfigError("agent: --relay and --listen HOST:PORT go together")
    found = _load(file, flow, trust_config)
    below = Below(listen, children) if relay else None
    run_agent(found.flow, to, name, directory, token_file, ca, spool, overload, below)


@app.command(epilog="Example: [bold]millstream demo --trades 2000000 --seed 7[/bold]")
def demo(
    trades: Annotated[
        int, typer.Option(metavar="N", min=10_000, help="How many trades to invent.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed, the same trades.")] = 42,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where everything goes; emptied at the start.")
    ] = Path("demo-out"),
    debug: Debug = False,
) -> None:
    """Watch a flow at work: moving averages over a stream of invented trades.

    A million trades in 300 symbols go through sliding windows and a second job on their results.
    The results are shown live, drawn as a picture, kept as Parquet, and compared with the same
    windows computed by DuckDB. It ends by itself within a minute or two.
    """
    from millstream.demo import run_demo

    raise typer.Exit(run_demo(trades, seed, out, debug=debug))

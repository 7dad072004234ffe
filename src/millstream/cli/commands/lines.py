"""`millstream mrjob` and `streaming`: programs that read and write lines."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.options import Debug, Master, checkpoint_option

if TYPE_CHECKING:
    from millstream.cli.jobs import Request

commands = typer.Typer()


TASK_TIMEOUT = "1h"
Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="SIZE[,SLIDE]",
        help="Windows of time, like 10m,1m; each line of the result begins with its window. "
        "Without it the whole input is one.",
    ),
]
TimePattern = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="REGEX",
        help="Where in a line its time stands: what the group of a regular expression matches, or "
        "all of it. Without it the time is that of arrival.",
    ),
]
TimeFormat = Annotated[
    str | None,
    typer.Option(
        "--time-format",
        metavar="FORMAT",
        help="How that time is written, as for strptime.  [dim]\\[default: ISO-8601 or seconds]"
        "[/dim]",
    ),
]
Zone = Annotated[
    str | None,
    typer.Option("--zone", metavar="ZONE", help="The zone of times without one, like UTC."),
]
Lateness = Annotated[
    str | None, typer.Option("--lateness", metavar="5s", help="How far lines may be out of order.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with files as they grow and appear.")]
Reducers = Annotated[
    int | None, typer.Option("--reducers", metavar="N", min=1, help="Parts that keys are dealt to.")
]
Ordered = Annotated[bool, typer.Option("--sorted", help="Write parts in the order of reducers.")]
JobCheckpoint = Annotated[
    Path | None,
    checkpoint_option("Where state and progress are kept; the same command goes on after a kill."),
]
JobParallelism = Annotated[
    int | None, typer.Option("--parallelism", metavar="N", min=1, help="Tasks per stage.")
]
JobSnapshots = Annotated[
    str | None,
    typer.Option(
        "--snapshots",
        metavar="10%,25%,...",
        help="Read stored files in random order, and show the answer so far when so much was read.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and results.")]


@commands.command(
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
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go; without it they are printed."),
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
    master: Master = "local[*]",
    parallelism: JobParallelism = None,
    snapshots: JobSnapshots = None,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run a job of the package mrjob as it is, unmodified.

    All its steps run as one flow. Results are the lines its own runner would give.
    """
    from millstream.adapters.mrjobs import load_job
    from millstream.cli.jobs import run_program

    program = load_job(script, context.args, reducers)
    if program.ignored and not quiet:
        typer.echo(f"without meaning here, ignored: {', '.join(program.ignored)}", err=True)
    if output is None and program.output is not None:
        output = Path(program.output)
    request = _request(context, program.name, program.inputs, output, script)
    run_program(program.stages, request)


@commands.command(
    epilog="Example: [bold]millstream streaming --mapper 'cut -f1' --reducer 'uniq -c' "
    "--input logs/ --output counts/[/bold]"
)
def streaming(
    context: typer.Context,
    input: Annotated[
        list[str],
        typer.Option(metavar="PATH", help="A file, directory or glob; may be given several times."),
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")],
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
    master: Master = "local[*]",
    parallelism: JobParallelism = None,
    snapshots: JobSnapshots = None,
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Run programs written for Hadoop Streaming: any executables that read and write lines.

    A key is what stands before the first tab. Reducers get lines sorted by key, as bytes.
    """
    from millstream.adapters.streaming import properties, streaming_stage
    from millstream.cli.jobs import run_program

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
    run_program((stage,), _request(context, "streaming", input, output, output))


def _request(
    context: typer.Context, name: str, inputs: Sequence[str], output: Path | None, file: Path
) -> Request:
    """What the options say that both commands have."""
    from millstream.adapters.flows import Reading
    from millstream.cli.early import looks_of
    from millstream.cli.jobs import Request

    given = context.params
    timing = (given[option] for option in ("time", "time_format", "zone", "lateness", "follow"))
    return Request(
        name,
        Reading(inputs, *timing),
        output,
        given["window"],
        given["ordered"],
        given["checkpoint"] or _usual_checkpoint(context, name, output),
        {
            **{option: given[option] for option in ("master", "parallelism", "debug")},
            "function_timeout": TASK_TIMEOUT,
        },
        given["quiet"],
        file,
        looks_of(given["snapshots"], None, None, None),
    )


def _usual_checkpoint(context: typer.Context, name: str, output: Path | None) -> Path | None:
    """Where the same command goes on, and another one begins anew; nowhere if lines are printed."""
    if output is None:
        return None
    how = ("checkpoint", "master", "parallelism", "snapshots", "debug", "quiet")
    what = {option: value for option, value in context.params.items() if option not in how}
    digest = hashlib.sha256(repr((sorted(what.items()), context.args)).encode()).hexdigest()
    return Path(".millstream") / f"{name}-{digest[:8]}"

"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.errors import ConfigError

AppFile = Annotated[
    Path,
    typer.Argument(
        metavar="APP.PY",
        help="The file with the flow: Python, a configuration (APP.TOML) or SQL (APP.SQL).",
    ),
]
AppFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="APP.PY...",
        help="The file with the flow: Python, a configuration (APP.TOML) or SQL (APP.SQL). "
        "Several files: all their flows, on one Spark.",
    ),
]
FlowName = Annotated[
    str | None,
    typer.Option(
        "--flow",
        metavar="NAME",
        help="Which flow, by its variable or its name, if the file has several. Without this "
        "option it is the only one, or the one in the variable `flow`.",
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
Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A directory given as --checkpoint.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would change, or why it cannot.")
]
Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Spark's master, like local[4] or spark://host:7077."
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Print nothing but errors, overload and what the flow prints."),
]


def properties_of(given: list[str]) -> dict[str, str]:
    """Properties of Spark as they are written on the command line."""
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"--spark {one}: expected NAME=VALUE, like spark.executor.memory=2g")
        found[name.strip()] = value
    return found


def checkpoint_option(help: str) -> Any:
    """A directory for state and progress."""
    return typer.Option("--checkpoint", metavar="DIR", help=help)


def token_option(help: str, variable: str = "MILLSTREAM_TOKEN") -> Any:
    """A file with a token; without it an environment variable has it."""
    return typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"{help}  [dim]\\[default: the variable {variable}][/dim]",
    )


RunningCheckpoint = Annotated[
    Path | None,
    checkpoint_option(
        "The checkpoint of the running flow.  [dim]\\[default: .millstream/<flow name>][/dim]"
    ),
]

"""`millstream slates`: reading slates from a checkpoint, while its flow runs or afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.options import checkpoint_option
from millstream.errors import ConfigError
from millstream.serve.following import Follower
from millstream.serve.slates import Page, Slate, Snapshot
from millstream.serve.telling import to_json, told

slates = typer.Typer(
    help="Read slates from a checkpoint, while its flow runs or afterwards.", no_args_is_help=True
)
_EVERYTHING = 10_000  # slates per page when all are wanted

UpdaterName = Annotated[str, typer.Argument(metavar="UPDATER", help="The name of the updater.")]
Place = Annotated[
    Path | None,
    checkpoint_option(
        "The checkpoint of the flow.  [dim]\\[default: the only one in .millstream/][/dim]"
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces with errors.")]


@slates.command(epilog="Example: [bold]millstream slates get counts walmart[/bold]")
def get(
    updater: UpdaterName,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The key: a string, or else JSON like 42, true or '[\"a\", 1]'."
        ),
    ],
    checkpoint: Place = None,
    debug: Debug = False,
) -> None:
    """Print the slate of one key as JSON: key, slate, ts and batch.

    Exit code 1 if there is none.
    """

    def read(snapshot: Snapshot) -> tuple[Snapshot, Slate | None]:
        return snapshot, snapshot.get_text(updater, key)

    snapshot, found = Follower(find_checkpoint(checkpoint)).read(read)
    if found is None:
        print(f"error: {updater} has no slate for {key!r}", file=sys.stderr)
        raise typer.Exit(1)
    about = snapshot.updater(updater)
    _print({**told(about, found), "batch": snapshot.batch_of(about)})


@slates.command("list", epilog="Example: [bold]millstream slates list counts --prefix wal[/bold]")
def list_slates(
    updater: UpdaterName,
    prefix: Annotated[str, typer.Option(metavar="P", help="Only keys that begin with this.")] = "",
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most so many.  [dim]\\[default: all][/dim]"),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="K", help="Only keys after this one.")
    ] = None,
    checkpoint: Place = None,
    debug: Debug = False,
) -> None:
    """Print slates as JSON lines, in the order of their keys."""
    follower = Follower(find_checkpoint(checkpoint))
    shown = 0

    def read(snapshot: Snapshot) -> tuple[Snapshot, Page]:
        wanted = _EVERYTHING if limit is None else min(limit - shown, _EVERYTHING)
        return snapshot, snapshot.page(updater, prefix, after, wanted)

    while limit is None or shown < limit:
        snapshot, page = follower.read(read)
        about = snapshot.updater(updater)
        for slate in page.slates:
            _print({**told(about, slate), "batch": snapshot.batch_of(about)})
        shown += len(page.slates)
        after = page.next
        if after is None:
            break


@slates.command(epilog="Example: [bold]millstream slates export counts --to counts.parquet[/bold]")
def export(
    updater: UpdaterName,
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Where to: a file that ends in .parquet, .csv or .jsonl."
        ),
    ],
    checkpoint: Place = None,
    debug: Debug = False,
) -> None:
    """Write all slates to a file: key, one column per field of the slates, and ts."""
    from millstream.serve.bulk import Slates
    from millstream.serve.exporting import export_slates

    count = export_slates(Slates(find_checkpoint(checkpoint), updater), to)
    print(f"{count:,} slates written to {to}", file=sys.stderr)


def find_checkpoint(given: Path | None) -> Path:
    """The checkpoint asked for, or the only one there is."""
    if given is not None:
        return given
    found = sorted(path.parent for path in Path(".millstream").glob("*/flow.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError("there is no checkpoint in .millstream/ here; give one with --checkpoint")
    names = ", ".join(map(str, found))
    raise ConfigError(f"there are several checkpoints: {names}; choose one with --checkpoint")


def _print(value: Any) -> None:
    sys.stdout.buffer.write(to_json(value) + b"\n")
    sys.stdout.buffer.flush()

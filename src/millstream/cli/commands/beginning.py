"""`millstream prepare` and `demo`: setting up and trying out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import Debug

commands = typer.Typer()


@commands.command(epilog="Example: [bold]millstream prepare[/bold]")
def prepare(debug: Debug = False) -> None:
    """Let Spark start faster on this machine: keep an archive of its classes (about 90 MB).

    Takes some ten seconds, once per installation; every later run starts about three seconds
    sooner. After another version of Java or Spark was installed the archive is not used; run it
    again then.
    """
    from millstream.run.spark.preparing import prepare as make_archive

    typer.echo(f"Spark's classes are in {make_archive(debug)}; every run from now on uses them")


@commands.command(epilog="Example: [bold]millstream demo --trades 2000000 --seed 7[/bold]")
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

"""`millstream reshard`: what it prints."""

from __future__ import annotations

from pathlib import Path

import typer

from millstream.cli.loading import load_application


def reshard_checkpoint(path: Path, shards: int, file: Path | None, flow: str | None) -> None:
    """Change the number of shards of a stopped flow, and say what was done."""
    from millstream.run.planning import plan_flow
    from millstream.run.resharding import reshard

    plan = None
    if file is not None:
        found = load_application(file, flow)
        with found.locating():
            plan = plan_flow(found.flow, path)
    done = reshard(path, shards, plan)
    if done.before == done.now:
        typer.echo(f"{path} has {done.now} shards already")
        return
    for owner, rows in done.rows.items():
        typer.echo(f"  {owner}: {rows:,} rows")
    for table in done.again:
        typer.echo(f"  {table}: computed again with the next windows")
    committed = f", committed as batch {done.batch}" if done.batch >= 0 else ""
    typer.echo(f"{path} has {done.now} shards now, {done.before} before{committed}")

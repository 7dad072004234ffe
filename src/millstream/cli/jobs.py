"""Programs of lines on the command line: mrjob scripts and Hadoop Streaming."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from millstream.adapters.early import GONE, write_answer
from millstream.adapters.flows import COUNTERS, Reading, build_flow, parse_window
from millstream.adapters.lines import Stage
from millstream.api.config import Application
from millstream.api.early import Looks
from millstream.api.flow import Flow
from millstream.cli.running import run_flow
from millstream.errors import ConfigError
from millstream.showing import visible

SNAPSHOTS = "_snapshots"  # beside the results; readers of these skip it
_SHOWN = 10  # lines of a snapshot


@dataclass(frozen=True)
class Request:
    """How a program of lines is to run."""

    name: str
    reading: Reading
    output: Path | None  # None: printed
    window: str | None
    ordered: bool
    checkpoint: Path | None
    options: dict[str, Any]
    quiet: bool
    file: Path
    looks: Looks | None = None


def run_program(stages: Sequence[Stage], request: Request) -> None:
    """Run to the end; lines go to files, or are printed when all is done."""
    if request.output is not None:
        assert request.checkpoint is not None
        _run(stages, request, request.output, request.checkpoint)
        return
    if request.reading.follow:
        raise ConfigError("--follow: results of an input that goes on need a place, with --output")
    with tempfile.TemporaryDirectory(prefix="millstream-") as directory:
        output = Path(directory) / "lines"
        where = request.checkpoint or Path(directory) / "checkpoint"
        if request.checkpoint is not None:  # results of an earlier start must be found again
            output = request.checkpoint.absolute().with_name(request.checkpoint.name + ".lines")
        _run(stages, request, output, where)
        for part in sorted(output.glob("part-*")):
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _run(stages: Sequence[Stage], request: Request, output: Path, checkpoint: Path) -> None:
    window = None if request.window is None else parse_window(request.window)

    def load() -> Flow:
        return build_flow(
            request.name, stages, request.reading, output, window, ordered=request.ordered
        )

    run_flow(
        load(),
        checkpoint,
        request.options,
        quiet=request.quiet,
        file=request.file,
        load=lambda: Application(load()),
        looks=request.looks,
        console=Console(stderr=True),
        on_look=None if request.looks is None else Glimpses(stages, checkpoint, output),
    )
    if not request.quiet:
        _show_counters(output / COUNTERS)


class Glimpses:
    """Shows what a program gives for what was read so far, and keeps it beside the results.

    It is computed in a process of its own: a program may change the directory it stands in.
    """

    def __init__(self, stages: Sequence[Stage], checkpoint: Path, output: Path) -> None:
        self.stages, self.checkpoint, self.place = stages, checkpoint, output / SNAPSHOTS

    def __call__(self, share: float, batch: int) -> None:
        """Take one of what was committed by a batch; what an earlier run has taken is there."""
        self.place.mkdir(parents=True, exist_ok=True)
        path = self.place / f"{100 * share:05.1f}%.txt"
        if path.exists():
            return
        begun = multiprocessing.get_context("spawn").Process(
            target=write_answer,
            args=(tuple(self.stages), self.checkpoint.absolute(), batch, path.absolute()),
        )
        begun.start()
        begun.join()
        if begun.exitcode:
            gone = begun.exitcode == GONE
            why = "batches went by faster than it" if gone else "the program failed on it"
            print(f"no snapshot at {path.stem}: {why}", file=sys.stderr)
            return
        with path.open("rb") as lines:
            shown = [
                line.decode(errors="replace").rstrip().expandtabs(4)
                for line in islice(lines, _SHOWN)
            ]
            more = sum(1 for _ in lines)
        print(f"{path.stem} read, {len(shown) + more:,} lines in {path}:", file=sys.stderr)
        print("\n".join(f"  {visible(line)}" for line in shown), file=sys.stderr, flush=True)


def _show_counters(directory: Path) -> None:
    """What the program counted, by step."""
    amounts: Counter[tuple[str, str, str]] = Counter()
    for part in sorted(directory.glob("part-*")):
        for line in part.read_text().splitlines():
            one = json.loads(line)
            amounts[one["step"], one["group"], one["counter"]] += one["amount"]
    if amounts:
        print("counters:", file=sys.stderr)
    for (step, group, counter), amount in sorted(amounts.items()):
        print(f"  {visible(f'{step}  {group}: {counter}')} = {amount:,}", file=sys.stderr)

"""What the benchmarks share: sides in processes of their own, answers by DuckDB, goals, plots."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CLOSE = 1e-9  # answers are equal if they differ by no more than this share: sums of doubles


@contextlib.contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    work = Path(tempfile.mkdtemp(prefix=f"millstream-{name}-"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def side(command: list[str], limit: float) -> dict[str, Any]:
    """Run one side in a process of its own; what it says last is JSON.

    Gives that, with the `seconds` of the whole process, start-up included; or only `timed_out`.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"timed_out": limit}
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{out[-2000:]}\n{err[-4000:]}")
    return {**json.loads(out.strip().splitlines()[-1]), "seconds": round(seconds, 2)}


def module(name: str, *args: object) -> list[str]:
    """The command that runs a side of a benchmark in this very interpreter."""
    return [sys.executable, "-m", f"benchmarks.{name}", *map(str, args)]


def steady(batches: list[float]) -> float:
    """The median batch, the first two (warming up) and the last (what is still open) left out."""
    return round(statistics.median(batches[2:-1] or batches), 4)


def goal(what: str, wanted: str, seen: float | None, met: bool | None, note: str = "") -> Any:
    """One goal beside what was seen; `met` is None if it could not be judged."""
    text = "not measured" if seen is None else f"{seen:.2f}"
    said = {None: "-", True: "met", False: "MISSED"}[met]
    print(
        f"  goal: {what}: {wanted}; seen {text}: {said}{f' ({note})' if note else ''}", flush=True
    )
    return {"what": what, "wanted": wanted, "seen": seen, "met": met, "note": note}


class Truth:
    """Answers by DuckDB for windows of any size, from the trades themselves."""

    def __init__(self, data: Path, slide: int) -> None:
        self.slide = slide
        self.con = duckdb.connect()
        self.con.sql("set timezone = 'UTC'")
        self.con.sql("set preserve_insertion_order = false")
        # A window is a union of slides here, so slides are grouped first: 600 times fewer rows.
        self.con.sql(
            f"""create table slides as
            select epoch_us(ts) // {slide * 1_000_000} slot, symbol, sum(price) s, count(*) n,
                   min(price) lo, max(price) hi
            from '{data}/*.parquet' group by all"""
        )

    def window(self, size: int) -> int:
        """Compute all windows of a size into the table `truth`; gives the number of rows."""
        panes = size // self.slide
        self.con.sql(
            f"""create or replace table truth as
            select (slot - back) * {self.slide * 1_000_000} st, symbol, sum(s) s, sum(n) n,
                   min(lo) lo, max(hi) hi
            from slides, range({panes}) as backs(back) group by all"""
        )
        return self._count("truth")

    def compare(
        self, query: str, values: tuple[str, ...] = ("s", "n"), whole: bool = True
    ) -> dict[str, Any]:
        """Whether the rows of a query (st in microseconds, symbol, values) are those of `truth`.

        If not `whole`, windows may be missing (still open), but none may differ and some must be.
        """
        self.con.sql(f"create or replace table given as {query}")
        same = " and ".join(f"abs(t.{v} - g.{v}) <= {CLOSE} * abs(t.{v})" for v in values)
        rows, given = self._count("truth"), self._count("given")
        equal = self._count(f"truth t join given g using (st, symbol) where {same}")
        agree = given == equal and (equal == rows if whole else equal > 0)
        return {"rows": given, "agree": agree}

    def _count(self, what: str) -> int:
        return int(self.con.execute(f"select count(*) from {what}").fetchall()[0][0])


def spark_context() -> Any:
    """The Spark context millstream starts by itself, kept for several flows of one process."""
    from millstream.run.spark.session import open_session
    from millstream.settings import Settings

    context, _ = open_session("benchmarks", Settings())
    return context


def plot_path(name: str, quick: bool) -> Path:
    """Where the plot of a benchmark goes; quick runs do not overwrite full ones."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{name}{'.quick' if quick else ''}.png"


@contextlib.contextmanager
def plot(name: str, quick: bool, panels: int = 1) -> Iterator[Any]:
    """A figure with some panels side by side, saved when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(5.5 * panels, 4.2), squeeze=False)
    yield axes[0]
    for axis in axes[0]:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    if quick:
        figure.suptitle("quick run: small data, figures mean little", fontsize=8)
    figure.tight_layout()
    figure.savefig(plot_path(name, quick), dpi=110)
    pyplot.close(figure)


def cell(value: Any, digits: int = 2) -> str:
    """A figure in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """A table of figures; the first column is text."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in rows]
    return "\n".join(lines)

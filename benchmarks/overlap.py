"""Claim: a result costs the same however far windows overlap.

The same trades in windows of 10 to 600 s that slide by 1 s: millstream, PySpark's `window()` and
Flink SQL's `HOP`, each in a process of its own, start-up included, on all cores. PySpark writes
every trade out once per window, so at the large sizes it gets the first files only, and the time of
its batches is scaled to all of them: its start and its first batch (not warm) are counted once. Its
state is still growing by then, so this flatters it.

All answers are compared with DuckDB before any time is looked at. PySpark leaves the last windows
open; the rows it gave must be right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import flink, trades, windows
from benchmarks.common import Truth, cell, goal, markdown, module, plot, side, steady, workspace

SLIDE = 1
SIZES = (10, 60, 300, 600)
TRADES, SECONDS, FILES = 2_000_000, 1200, 8
SAMPLE = {300: 3, 600: 2}  # files PySpark gets
LIMIT = 400.0  # seconds a run may take, of any side


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all sides at all sizes."""
    sizes = (10, 60) if quick else SIZES
    count, seconds, files = (200_000, 120, 4) if quick else (TRADES, SECONDS, FILES)
    sample = {60: 2} if quick else SAMPLE
    figures: dict[str, Any] = {
        "trades": count,
        "slide": SLIDE,
        "files": files,
        "sizes": {},
        "agree": True,
    }
    with workspace("overlap") as work:
        data = trades.make(work / "in", count, seconds, files)
        python, why = flink.environment()
        figures["flink"] = {"version": flink.VERSION, "missing": why or None}
        if python:
            csv = _as_csv(data, work / "trades.csv")
            reading = [python, "-I", flink.__file__, str(csv), str(work / "none"), "0", "1"]
            read = side(reading, LIMIT)
            figures["flink"]["reading"] = read.get("seconds")
            print(f"  Flink {flink.VERSION}: {read.get('seconds')} s to start and read the input")
        else:
            print(f"  without Flink: {why}", flush=True)
        truth = Truth(data, SLIDE)
        for size in sizes:
            found = _size(size, data, work, truth, python, sample.get(size, files))
            figures["sizes"][str(size)] = found
            figures["agree"] &= all(
                found[s].get("agree", True) for s in ("millstream", "pyspark", "flink")
            )
    figures["goals"] = _goals(figures)
    _plot(figures, quick)
    return figures


def _as_csv(data: Path, path: Path) -> Path:
    duckdb.sql(
        f"""copy (select epoch_ms(ts), symbol, price from '{data}/*.parquet' order by ts)
        to '{path}' (header false)"""
    )
    return path


def _size(
    size: int, data: Path, work: Path, truth: Truth, python: str | None, sample: int
) -> dict[str, Any]:
    rows = truth.window(size)
    files = sorted(data.iterdir())
    part = work / f"part-{sample}"
    part.mkdir(exist_ok=True)
    for file in files[:sample]:
        if not (part / file.name).exists():
            (part / file.name).hardlink_to(file)

    out = work / f"millstream-{size}"
    ours = side(module("overlap", "millstream", data, out, size), LIMIT)
    if "timed_out" not in ours:
        ours |= truth.compare(
            f"select epoch_us(window_start) st, symbol, s, n from '{out}/*.parquet'"
        )
        ours["steady"] = steady(ours["batches"])
        # The first batch waits for Spark's workers to start: its time and results are left out.
        warm, results = sum(ours["batches"][1:]), rows - ours["results"][0]
        ours["microseconds_per_row"] = round(warm / results * 1e6, 3)
        ours["whole_microseconds_per_row"] = round(ours["seconds"] / rows * 1e6, 3)
    else:
        ours["agree"] = False

    out = work / f"pyspark-{size}"
    spark = side(module("overlap", "pyspark", part, out, size), LIMIT)
    spark["sample"] = sample / len(files)
    if "timed_out" not in spark:
        spark |= truth.compare(
            f"select epoch_us(st) st, symbol, s, n from '{out}/*.parquet'", whole=False
        )
        spark["steady"] = steady(spark["batches"])
        if sample < len(files):  # batches beyond these have no data
            warm = sum(spark["batches"][1:sample])
            more = warm * (len(files) - sample) / (sample - 1)
            spark["scaled"] = round(spark["seconds"] + more, 2)

    peer: dict[str, Any] = {"missing": True}
    if python:
        out = work / f"flink-{size}"
        csv = str(work / "trades.csv")
        peer = side([python, "-I", flink.__file__, csv, str(out), str(size), str(SLIDE)], LIMIT)
        if "timed_out" not in peer:
            names = "{'st': 'timestamp', 'symbol': 'varchar', 's': 'double', 'n': 'bigint'}"
            peer |= truth.compare(
                f"""select epoch_us(st) st, symbol, s, n
                from read_csv('{out}/**', columns = {names}, header = false)"""
            )
    _print(size, rows, ours, spark, peer)
    return {"rows": rows, "millstream": ours, "pyspark": spark, "flink": peer}


def _print(
    size: int, rows: int, ours: dict[str, Any], spark: dict[str, Any], peer: dict[str, Any]
) -> None:
    print(f"  {size} s every {SLIDE} s, {rows:,} results")
    for name, one in (("millstream", ours), ("PySpark", spark), ("Flink", peer)):
        if "missing" in one:
            continue
        if "timed_out" in one:
            print(f"    {name:11} not done after {one['timed_out']:.0f} s")
            continue
        text = f"{one['seconds']:8.2f} s"
        if "microseconds_per_row" in one:
            text += f", {one['microseconds_per_row']:.2f} us per result in batches"
        if "steady" in one:
            text += f", steady batch {one['steady']:.3f} s"
        if one.get("sample", 1) < 1:
            text += f", on {one['sample']:.0%} of the trades: {one['scaled']:.0f} s scaled to all"
        print(f"    {name:11} {text}; answers agree: {one['agree']}", flush=True)


def _times_slower(peer: dict[str, Any], ours: dict[str, Any]) -> tuple[float | None, str]:
    """How many times our time a peer needs, and how that was found."""
    if "timed_out" in peer:
        at_least = peer["timed_out"] / ours["seconds"]
        return round(at_least, 2), "at least: it was stopped"
    seconds = peer.get("scaled", peer.get("seconds"))
    if seconds is None:
        return None, "not run"
    sampled = peer.get("sample", 1) < 1
    note = f"scaled from {peer['sample']:.0%} of the trades" if sampled else ""
    return round(seconds / ours["seconds"], 2), note


def _goals(figures: dict[str, Any]) -> list[Any]:
    small, large = min(figures["sizes"], key=int), max(figures["sizes"], key=int)
    least, most = figures["sizes"][small], figures["sizes"][large]
    if any("timed_out" in one["millstream"] for one in (least, most)):
        return [goal("millstream in time", f"{LIMIT:.0f} s", None, False)]
    goals = []
    for name, what in (
        ("microseconds_per_row", "time in batches after the first"),
        ("whole_microseconds_per_row", "time of the whole run"),
    ):
        grown = round(most["millstream"][name] / least["millstream"][name], 3)
        text = f"{what} per result at {large} s beside {small} s"
        goals.append(goal(text, "at most 1.3 times", grown, grown <= 1.3))
    for name, wanted in (("pyspark", 30), ("flink", 4)):
        times, note = _times_slower(most[name], most["millstream"])
        what = f"{'PySpark' if name == 'pyspark' else 'Flink'} beside millstream at {large} s"
        met = None if times is None else times >= wanted
        if "timed_out" in most[name] and not met:
            met = None
        goals.append(goal(what, f"at least {wanted} times", times, met, note))
    return goals


def _plot(figures: dict[str, Any], quick: bool) -> None:
    with plot("overlap", quick, 2) as (whole, each):
        for name, label in (
            ("millstream", "millstream"),
            ("pyspark", "PySpark window()"),
            ("flink", "Flink SQL HOP"),
        ):
            found = [
                (int(size), one[name].get("scaled", one[name].get("seconds")), one["rows"])
                for size, one in figures["sizes"].items()
                if "seconds" in one[name]
            ]
            if found:
                sizes, seconds, rows = zip(*found, strict=True)
                per_row = [s / n * 1e6 for s, n in zip(seconds, rows, strict=True)]
                whole.plot(sizes, seconds, "o-", label=label)
                each.plot(sizes, per_row, "o-", label=label)
        for axis, what in ((whole, "seconds, whole run"), (each, "microseconds per result")):
            axis.set(xscale="log", yscale="log", xlabel="window size, s (slide 1 s)", ylabel=what)


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for size, one in figures["sizes"].items():
        ours, spark, peer = one["millstream"], one["pyspark"], one["flink"]
        if "timed_out" in ours:
            continue
        against, other = _times_slower(spark, ours)[0], _times_slower(peer, ours)[0]
        mine = (ours["seconds"], ours["microseconds_per_row"], ours["steady"])
        theirs = (_seconds(spark), against, _seconds(peer), other)
        rows.append([f"{size} s", one["rows"], *mine, *theirs])
    head = ["window", "results", "millstream, s", "µs per result in batches"]
    head += ["steady batch, s", "PySpark, s", "times", "Flink, s", "times"]
    text = (
        markdown(head, rows) + "\n\n~: scaled from a part of the trades; >: stopped at its limit."
    )
    missing = figures["flink"]["missing"]
    if missing:
        return text + f" Without Flink: {missing}."
    return text + f" Flink starts and reads the input in {cell(figures['flink']['reading'])} s."


def _seconds(peer: dict[str, Any]) -> str | None:
    if "timed_out" in peer:
        return f"> {peer['timed_out']:,.0f}"
    if "seconds" not in peer:
        return None
    sampled = peer.get("sample", 1) < 1
    return f"~ {peer['scaled']:,.0f}" if sampled else f"{peer['seconds']:,.2f}"


def millstream_side(data: Path, out: Path, size: int) -> dict[str, Any]:
    """The flow under test, one file a batch; seconds of every batch, results after every batch."""
    import millstream as ms

    batches: dict[int, tuple[float, int]] = {}
    flow = ms.Flow("overlap")
    source = ms.Files(data, time="ts", lateness="1s", max_files_per_batch=1)
    (
        flow.source(source, name="trades")
        .key_by("symbol")
        .window(ms.sliding(f"{size}s", f"{SLIDE}s"))
        .agg(s=ms.sum("price"), n=ms.count())
        .sink(ms.Parquet(out))
    )
    flow.run(
        checkpoint=Path(f"{out}-checkpoint"),
        on_progress=lambda p: batches.update({p.batch: (p.batch_seconds, p.windows)}),
    )
    seconds, results = zip(*batches.values(), strict=True)
    return {"batches": [round(s, 4) for s in seconds], "results": results}


if __name__ == "__main__":
    name, given, place, wide = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    if name == "millstream":
        said = millstream_side(given, place, wide)
    else:
        times = windows.pyspark_query(given, place, wide, SLIDE)
        said = {"batches": [round(t, 4) for t in times]}
    print(json.dumps(said))

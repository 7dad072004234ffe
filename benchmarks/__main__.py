"""`make bench`, or `python -m benchmarks [NAME[:WAY] ...] [--quick | --table]`: run, keep figures.

Figures go to benchmarks/results/<name>.json; those of quick runs to <name>.quick.json. A benchmark
whose answers differ from its peer's fails; a missed goal is only printed. `--table` runs nothing
and fills the figures of full runs, of those named or of all, into docs/benchmarks.md. Of one that
measures in several `WAYS`, one may be run by itself (`burst:calm`); the others keep their figures.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

NAMES = (
    "windows",
    "latency",
    "overlap",
    "sharing",
    "minmax",
    "live",
    "choice",
    "updates",
    "slates",
    "warm",
    "http",
    "topics",
    "places",
    "mapreduce",
    "scale",
    "large",
    "changes",
    "nexmark",
    "early",
    "pipelining",
    "failure",
    "burst",
    "overload",
    "insitu",
    "boundary",
    "flows",
    "elastic",
)
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> int:
    """Run the named benchmarks, or all of them."""
    options = {arg for arg in sys.argv[1:] if arg.startswith("-")}
    names = [arg for arg in sys.argv[1:] if not arg.startswith("-")] or list(NAMES)
    unknown = [name for name in names if not _known(*name.split(":", 1))]
    if unknown or options - {"--quick", "--table"}:
        wrong = ", ".join([*unknown, *sorted(options - {"--quick", "--table"})])
        print(f"no benchmark or option {wrong}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if "--table" in options:
        return fill_in(names)
    failed = [name for name in names if not run(name, "--quick" in options)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _known(name: str, way: str | None = None) -> bool:
    if name not in NAMES:
        return False
    return way is None or way in getattr(importlib.import_module(f"benchmarks.{name}"), "WAYS", ())


def run(name: str, quick: bool) -> bool:
    """Run one and keep its figures; False if it failed or the answers differ."""
    print(f"== {name}", flush=True)
    started, load = time.time(), os.getloadavg()[0]
    name, _, way = name.partition(":")
    file = RESULTS / f"{name}{'.quick' if quick else ''}.json"
    try:
        measured = importlib.import_module(f"benchmarks.{name}")
        if way:
            new = {way: measured.measure(way, quick)}
            found = (json.loads(file.read_text())["found"] if file.exists() else {}) | new
            figures = measured.summary({one: found[one] for one in measured.WAYS if one in found})
        else:
            figures = measured.run(quick=quick)
    except Exception:
        traceback.print_exc()
        return False
    figures |= {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
        "seconds": round(time.time() - started, 1),
        "quick": quick,
    }
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(figures, indent=2) + "\n")
    agree = bool(figures.get("agree", True))
    if not agree:
        print("  ANSWERS DIFFER: the times mean nothing", flush=True)
    return agree


def fill_in(names: list[str]) -> int:
    """Write the figures of full runs into the page, between the marks of each benchmark."""
    page = PAGE.read_text()
    for name in names:
        marks = f"<!-- figures: {name} -->", f"<!-- end: {name} -->"
        if not all(mark in page for mark in marks):
            print(f"{PAGE.name} has no marks for {name}", file=sys.stderr)
            return 1
        between = re.compile(f"({re.escape(marks[0])}\n).*?({re.escape(marks[1])})", re.DOTALL)
        text = _section(name)
        page = between.sub(lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page)
    PAGE.write_text(page)
    print(f"filled in {PAGE}")
    return 0


def _section(name: str) -> str:
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return "not run yet"
    figures = json.loads(file.read_text())
    parts = [importlib.import_module(f"benchmarks.{name}").table(figures)]
    goals = figures.get("goals", [])
    if goals:
        parts.append("\n".join(map(_goal, goals)))
    load = figures.get("load_before")
    note = f"{figures['cores']} cores, Python {figures['python']}"
    note += f", load before the run {load}" if load is not None else ""
    note += "; answers agreed" if figures.get("agree") else ""
    parts.append(f"({'QUICK RUN, small data: ' if figures['quick'] else ''}{note})")
    if (RESULTS / f"{name}.png").exists():
        parts.append(f"![{name}](../benchmarks/results/{name}.png)")
    return "\n\n".join(parts)


def _goal(goal: dict[str, Any]) -> str:
    seen = "not measured" if goal["seen"] is None else f"{goal['seen']:,.2f}"
    said = {None: "not judged", True: "met", False: "missed"}[goal["met"]]
    note = f" ({goal['note']})" if goal["note"] else ""
    return f"- {goal['what']}: {goal['wanted']}; seen {seen}{note}: {said}"


if __name__ == "__main__":
    raise SystemExit(main())

"""`make bench`, or `python -m benchmarks [NAME ...] [--quick]`: run them and keep the figures.

Results go to benchmarks/results/<name>.json; a benchmark whose answers differ from its peer fails.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

NAMES = ("windows", "latency")
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the named benchmarks, or all of them."""
    quick = "--quick" in sys.argv
    names = [arg for arg in sys.argv[1:] if not arg.startswith("-")] or list(NAMES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    failed = False
    for name in names:
        print(f"== {name}", flush=True)
        started = time.time()
        figures = importlib.import_module(f"benchmarks.{name}").run(quick=quick)
        figures |= {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "seconds": round(time.time() - started, 1),
            "quick": quick,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        failed |= not figures.get("agree", True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Spark's parent of Python workers, with what every task needs imported before it forks them.

Each worker would otherwise import it by itself, which is most of what a first batch waits for.
Nothing is computed here: Arrow starts its threads with the first computation, and a process that
has threads must not be forked.
"""

from __future__ import annotations

import gc
import importlib

from pyspark import daemon

_NEEDED = ("pyspark.worker", "millstream.run.spark.onspark")


def main() -> None:
    """Import, then wait for Spark's requests as its own daemon does."""
    for name in _NEEDED:
        importlib.import_module(name)
    gc.freeze()  # pages shared with all workers stay shared
    daemon.manager()


if __name__ == "__main__":
    main()

"""Modules beside a user's file: imported again when the file is loaded again."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from millstream.run.spark.installed import is_installed


@contextlib.contextmanager
def imported_again(directory: Path, *, keep: bool) -> Iterator[Callable[[], list[ModuleType]]]:
    """While a file is loaded again, the modules beside it are imported again, too.

    Gives those imported so far. After an error, and unless they are to be kept, the modules from
    before take their places again.
    """
    before = _beside(directory)
    for name in before:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        with _from_source():
            yield lambda: list(_beside(directory).values())
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            for name in _beside(directory):
                del sys.modules[name]
        for name, module in before.items():
            sys.modules.setdefault(name, module)


@contextlib.contextmanager
def _from_source() -> Iterator[None]:
    """Import without stored bytecode: an edit of the same length within a second goes unnoticed."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True  # nothing lies below it
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def leave_path(directory: Path) -> None:
    """Modules below a directory are no longer found."""
    root = directory.absolute()
    sys.path[:] = [one for one in sys.path if not Path(one).absolute().is_relative_to(root)]


def _beside(directory: Path) -> dict[str, ModuleType]:
    """The modules that were imported from a directory, without what is installed there."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("__main__", "millstream", "pyspark", "py4j")
        and (file := getattr(module, "__file__", None)) is not None
        and Path(file).absolute().is_relative_to(directory.absolute())
        and not is_installed(module)
    }

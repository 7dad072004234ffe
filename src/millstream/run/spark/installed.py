"""Which modules are everywhere, and which are a user's own."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any


def is_installed(module: Any) -> bool:
    """Whether workers have a module as it is here: of Python, a package, or our own."""
    if module.__name__ == "__main__":
        return True  # always sent by value
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    roots = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
    own = str(Path(__file__).parents[2])
    path = str(Path(file).resolve())
    return any(path.startswith(str(Path(root).resolve())) for root in (*roots, own))

"""The last rows of a stream in a notebook: one table per sink, which refreshes in place.

Nothing of IPython is imported here unless it runs already.
"""

from __future__ import annotations

import sys
from html import escape
from typing import Any

import pyarrow as pa

from millstream.api.sinks import Console
from millstream.ops.chunks import concat
from millstream.showing import table_html

_shown: dict[tuple[int, int, str], tuple[Any, pa.Table, int]] = {}  # cell, sink -> table so far
_MOST = 64  # tables that are kept up to date


def refresh(name: str, sink: Console, rows: pa.Table, batch: int) -> bool:
    """Show the last rows that came; False where there is no notebook to show them in."""
    shell = _shell()
    if shell is None:
        return False
    from IPython import display

    key = (shell.execution_count, id(sink), name)
    handle, before, count = _shown.get(key, (None, rows.slice(0, 0), 0))
    last = concat([before, rows]) if before.schema == rows.schema else rows
    last, count = last.slice(max(0, len(last) - sink.limit)), count + len(rows)
    note = f"{name}: {count:,} rows up to batch {batch}"
    table = table_html(last.column_names, [list(row.values()) for row in last.to_pylist()])
    page = display.HTML(f"{table}<p><small>{escape(note)}</small></p>")  # type: ignore[no-untyped-call]
    if handle is None:
        handle = display.display(page, display_id=True)  # type: ignore[no-untyped-call]
    else:
        handle.update(page)
    _shown[key] = (handle, last, count)
    while len(_shown) > _MOST:
        del _shown[next(iter(_shown))]
    return True


def _shell() -> Any:
    """The notebook this process runs for; a terminal of IPython is none."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None

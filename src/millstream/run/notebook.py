"""How far a run is and the last rows of its streams, in a notebook: both refresh in place.

Nothing of IPython is imported here unless it runs already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    shell = shell_here()
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


@contextmanager
def moving_bars(flows: list[str]) -> Iterator[Callable[[str, float | None, str], None]]:
    """A bar for every flow, with its fraction (None: not known) and words; gone at the end."""
    from IPython import display

    shown: dict[str, tuple[float | None, str]] = dict.fromkeys(flows, (None, "starting Spark"))

    def page() -> Any:
        return display.HTML("".join(_bar(flow, *one) for flow, one in shown.items()))  # type: ignore[no-untyped-call]

    handle: Any = display.display(page(), display_id=True)  # type: ignore[no-untyped-call]

    def move(flow: str, fraction: float | None, told: str) -> None:
        if shown[flow] != (fraction, told):
            shown[flow] = fraction, told
            handle.update(page())

    try:
        yield move
    finally:
        shown.clear()
        handle.update(page())


def _bar(flow: str, fraction: float | None, told: str) -> str:
    value = "" if fraction is None else f' value="{fraction:.3f}"'
    return f'<div>{escape(flow)} <progress max="1"{value}></progress> {escape(told)}</div>'


def shell_here() -> Any:
    """The notebook this process runs for; a terminal of IPython is none."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None

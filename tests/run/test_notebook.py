"""In a notebook: streams and plans show their pictures, rows refresh in place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.run.console import _bars
from millstream.run.reporting import Progress
from millstream.testing import run_in_process


def flow_of(sink: Any) -> tuple[ms.Flow, ms.Stream, ms.Stream]:
    flow = ms.Flow("shown")
    rows = [{"k": "ab"[n % 2], "ts": n, "v": n} for n in range(30)]
    source = ms.Generator(lambda: iter(rows), schema="k string, ts bigint, v bigint", time="ts")
    read = flow.source(source, name="read")
    positive, odd = read.where("v >= 0").named("positive"), read.where("v % 2 = 1").named("odd")
    positive.sink(sink, name="last")
    odd.sink(ms.Memory(), name="others")
    return flow, positive, odd


def test_a_stream_shows_what_leads_to_it_and_a_plan_its_picture() -> None:
    flow, positive, _ = flow_of(ms.Memory())
    whole, part = flow._repr_svg_(), positive._repr_svg_()
    assert whole is not None and part is not None
    assert "odd" in whole and "odd" not in part and "positive" in part
    text = flow.explain()
    assert text.startswith("flow shown") and text._repr_svg_() == whole  # type: ignore[attr-defined]


def test_the_last_rows_refresh_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    made: list[str] = []
    updated: list[str] = []
    shell = SimpleNamespace(kernel=object(), execution_count=1)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)

    def display(page: Any, display_id: bool) -> Any:
        made.append(page.data)
        return SimpleNamespace(update=lambda page: updated.append(page.data))

    monkeypatch.setattr(IPython.display, "display", display)
    flow, _, _ = flow_of(ms.Console(limit=3))
    run_in_process(flow, tmp_path / "ck", batch_rows=10)
    assert len(made) == 1
    last = [*made, *updated][-1]
    assert "last: 30 rows up to batch" in last and last.count("<tr>") == 1 + 3
    assert all(f">{n}</td>" in last for n in (27, 28, 29))
    shell.execution_count = 2  # another cell has a table of its own
    run_in_process(flow_of(ms.Console(limit=3))[0], tmp_path / "other")
    assert len(made) == 2


def test_how_far_a_run_is_moves_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    pages: list[str] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))

    def display(page: Any, display_id: bool) -> Any:
        pages.append(page.data)
        return SimpleNamespace(update=lambda page: pages.append(page.data))

    monkeypatch.setattr(IPython.display, "display", display)
    with _bars(["a<b", "c"]) as shown:
        far = Progress(batch=0, new_rows=1200, fraction=0.25)
        shown("a<b", Progress())
        shown("a<b", far)
        shown("a<b", far)
    first, moved, last = pages
    assert first.count('<progress max="1"></progress> starting Spark') == 2 and "a&lt;b" in first
    assert 'value="0.250"></progress> 1,200 records, 0 results' in moved and "c <progress" in moved
    assert last == ""


def test_elsewhere_rows_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace())  # on a terminal
    run_in_process(flow_of(ms.Console(limit=3))[0], tmp_path / "ck")
    assert "last, batch" in capsys.readouterr().out

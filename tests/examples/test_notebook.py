"""The notebook runs, and what it shows is what is stored in it.

What runs it is among the packages of `[dev]`: where it is missing this fails and is not skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "flights.ipynb"


def shown(notebook: Any) -> list[tuple[str, list[dict[str, str]]]]:
    """Per cell its code and what it shows, of every kind."""
    return [
        (
            cell.source,
            [dict(one.get("data", {"text": one.get("text", "")})) for one in cell.outputs],
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_shows_what_is_stored_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    stored = nbformat.read(NOTEBOOK, 4)
    fresh = nbformat.read(NOTEBOOK, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=600, resources=resources).execute()
    assert shown(fresh) == shown(stored)
    kinds = {kind for _, outputs in shown(fresh) for one in outputs for kind in one}
    assert {"text/html", "image/svg+xml", "text/plain", "text"} <= kinds

"""A Delta table that is followed: what is looked at again, and what is not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import millstream as ms
from millstream.run.sources import versions
from millstream.run.sources.versions import Versions
from millstream.state.storage import open_storage

deltalake = pytest.importorskip("deltalake")


def test_a_file_of_a_table_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, sources = tmp_path / "table", open_storage(tmp_path / "sources")
    sources.create()
    looked: list[str] = []
    look = versions.look
    monkeypatch.setattr(versions, "look", lambda path: looked.append(path) or look(path))
    deltalake.write_deltalake(str(table), pa.table({"n": [0]}))
    found = Versions(ms.Delta(table, follow=True), sources, "in")
    for count in range(1, 6):
        assert len(found()) == len(found()) == count == len(looked)
        deltalake.write_deltalake(str(table), pa.table({"n": [count]}), mode="append")
    again = Versions(ms.Delta(table, follow=True), sources, "in")
    assert sorted(again()) == sorted(found()) and len(again()) == 6

"""A checkpoint that the version before left is continued as if nothing had happened."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa

import millstream as ms
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine
from millstream.state.manifests import FLUSHED
from millstream.testing import Driver
from tests.state import before

SINKS = ("slid", "grown", "numbered", "apart")


def old(tmp_path: Path) -> Path:
    with tarfile.open(before.ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "ck"


def columns(path: Path, table: str) -> set[str]:
    """The columns of all segments of a table that the newest manifest names."""
    place = Checkpoint(path, create=False)
    manifest = place.latest()
    assert manifest is not None
    names = [name for name in manifest.files if f"/{table}/" in name]
    schemas = [pa.ipc.open_file(place.state.map(name)).schema for name in names]
    return {column for schema in schemas for column in schema.names}


def test_it_goes_on(tmp_path: Path) -> None:
    path = old(tmp_path)
    for table in ("slates", "timers", "waiting", "totals", "tails"):
        assert "pane" in columns(path, table), table  # else this test is about nothing
    assert examine(path)[1]
    options = before.OPTIONS
    with Driver(before.flow(), checkpoint=tmp_path / "whole", **options) as whole:
        before.run(whole, 0, before.HALF)
        slates = whole.slates("tally")
        told = {sink: len(whole.output(sink)) for sink in SINKS}
        with Driver(before.flow(), checkpoint=path, **options) as driver:
            assert driver.slates("tally") == dict(ms.slates(path, "tally")) == slates
            for number in range(before.HALF, before.ALL, 5):
                for one in (whole, driver):
                    before.run(one, number, number + 5)
                assert driver.slates("tally") == dict(ms.slates(path, "tally"))
                assert driver.slates("tally") == whole.slates("tally")
            for one in (whole, driver):
                one.end()
            for sink in SINKS:
                assert driver.output(sink) == whole.output(sink)[told[sink] :], sink
                assert driver.output(sink)
    newest = Checkpoint(path, create=False).latest()
    assert newest is not None
    assert newest.format == FLUSHED
    assert "expires" in columns(path, "slates")
    assert "pane" not in columns(path, "slates")

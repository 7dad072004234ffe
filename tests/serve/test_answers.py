"""Published snapshots: whole, the newest found, of one run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.api.early import Unseen
from millstream.errors import ConfigError, RunError
from millstream.serve.answers import publish_snapshot
from millstream.state.storage import open_storage
from tests.prepared import start


def snapshot(progress: float, exact: bool = False) -> ms.Snapshot:
    table = pa.table({"k": ["a"], "n": [progress], "m": pa.nulls(1)})
    return ms.Snapshot(
        progress, table, exact, unseen=Unseen(3, 0.1), notes=("m: none",), heavy=("n",)
    )


def test_the_newest_is_found_with_all_it_says(tmp_path: Path) -> None:
    place = open_storage(tmp_path / "answers")
    assert ms.newest_snapshot(tmp_path / "answers") is None
    for progress in (0.1, 0.25, 0.9999999):
        publish_snapshot(place, snapshot(progress), "run")
        found = ms.newest_snapshot(tmp_path / "answers")
        assert found is not None
        said = (found.progress, found.exact, found.unseen, found.notes, found.heavy)
        assert said == (progress, False, Unseen(3, 0.1), ("m: none",), ("n",))
    publish_snapshot(place, snapshot(1.0, exact=True), "run")
    found = ms.newest_snapshot(tmp_path / "answers")
    assert found is not None
    assert found.exact
    assert [path.name for path in sorted((tmp_path / "answers").iterdir())] == [
        "snapshot-0.100000.parquet",
        "snapshot-0.250000.parquet",
        "snapshot-0.999999.parquet",
        "snapshot-1.000000.parquet",
    ]
    table = pq.read_table(tmp_path / "answers" / "snapshot-0.250000.parquet")
    assert table.to_pylist() == [{"k": "a", "n": 0.25, "m": None}]


def test_a_half_written_file_is_not_seen(tmp_path: Path) -> None:
    publish_snapshot(open_storage(tmp_path), snapshot(0.1), "run")
    (tmp_path / ".snapshot-0.500000.parquet.tmp").write_bytes(b"PAR1")
    found = ms.newest_snapshot(tmp_path)
    assert found is not None
    assert found.progress == 0.1


def test_snapshots_of_another_run_are_refused(tmp_path: Path) -> None:
    place = open_storage(tmp_path)
    publish_snapshot(place, snapshot(0.5), "one")
    with pytest.raises(ConfigError, match="another run"):
        publish_snapshot(place, snapshot(0.1), "two")


def test_other_files_are_not_snapshots(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "snapshot-0.100000.parquet")
    with pytest.raises(RunError, match="is not a snapshot"):
        ms.newest_snapshot(tmp_path)


LOOKING = """
import os, sys
from pathlib import Path
import millstream as ms
before = set(os.listdir("/proc/self/task"))
assert ms.newest_snapshot(Path(sys.argv[1])).progress == 0.1
print(len(set(os.listdir("/proc/self/task")) - before))
"""


def test_no_thread_of_arrow_holds_what_belongs_to_python(tmp_path: Path) -> None:
    """Such a thread aborts its process now and then, if the process ends right after."""
    publish_snapshot(open_storage(tmp_path / "answers"), snapshot(0.1), "run")
    app = tmp_path / "looking.py"
    app.write_text(LOOKING)
    command = (str(app), str(tmp_path / "answers"))
    process = start(*command, cwd=tmp_path, env=dict(os.environ), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.communicate(60)[0] == "0\n"
    assert process.returncode == 0

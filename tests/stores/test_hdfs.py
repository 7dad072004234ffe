"""HDFS as a bucket, on a name node and a data node of its own; jars come from Maven Central."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.state.buckets import OnHdfs, open_bucket
from millstream.state.doctor import examine
from millstream.state.storage import open_storage
from millstream.testing import run_in_process
from tests.services import create_at_once, unavailable
from tests.stores.apps import averages
from tests.stores.test_runs import expected, make_input, outputs

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from hdfs import MiniDfs  # type: ignore[import-not-found]
from kafka import Unavailable  # type: ignore[import-not-found]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("hdfs_native")
    try:
        cluster = MiniDfs(tmp_path_factory.mktemp("hdfs")).start()
    except Unavailable as error:
        unavailable(f"no HDFS: {error}")
    open_bucket.cache_clear()
    yield cluster.address
    cluster.stop()


@pytest.mark.long
def test_objects_are_written_whole_listed_and_created_once(where: str) -> None:
    hdfs = OnHdfs(where)
    hdfs.put("a/b/one", b"0123456789")
    hdfs.put("a/b/one", b"9876543210")
    assert hdfs.read("a/b/one") == b"9876543210" and hdfs.read("a/b/one", 2, 3) == b"765"
    assert hdfs.read("a/b/one", 8, 100) == b"10" and hdfs.read("a/b/one", 8) == b"10"
    hdfs.create("a/c", b"first")
    with pytest.raises(FileExistsError):
        hdfs.create("a/c", b"second")
    assert hdfs.read("a/c") == b"first"
    hdfs.copy("a/c", "a/d")
    assert [one.key for one in hdfs.list("a")] == ["a/b/one", "a/c", "a/d"]
    left = [one.path for one in hdfs._files.list_status("/a", True)]
    assert not [path for path in left if ".making-" in path]
    hdfs.delete("a/c")
    hdfs.delete("a/c")
    assert hdfs.look("a/c") is None and hdfs.list("none") == []
    with pytest.raises(FileNotFoundError):
        hdfs.read("a/c")


@pytest.mark.long
def test_of_many_that_create_an_object_one_does(where: str) -> None:
    won = create_at_once(lambda mine: OnHdfs(where).create("race/one", mine))
    assert OnHdfs(where).read("race/one") == won


@pytest.mark.long
def test_a_checkpoint_is_taken_over_there_too(where: str) -> None:
    old, new = open_storage(f"hdfs://{where}/ck"), open_storage(f"hdfs://{where}/ck")
    assert old.begin() == 1 and new.begin() == 2
    new.put("flow.json", b"new")
    old.put("flow.json", b"old")
    assert open_storage(f"hdfs://{where}/ck").read("flow.json") == b"new"
    OnHdfs(where).put("ck/published", b"of no epoch")  # a file is no folder there
    new.put("published", b"new")
    old.put("published", b"old")
    reader = open_storage(f"hdfs://{where}/ck")
    assert reader.read("published") == b"new"
    assert {"flow.json", "published"} <= set(reader.names())
    new.delete("published")
    assert reader.read("published") == b"of no epoch"


@pytest.mark.long
def test_a_flow_on_hdfs_gives_what_duckdb_gives(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    root = f"hdfs://{where}/team/flow"
    want = expected(make_input(root))
    run_in_process(averages.make_flow(root, max_files_per_batch=2), f"{root}/ck")
    assert outputs(root) == want
    lines, sound = examine(f"{root}/ck")
    assert sound, lines


def test_what_is_not_there_or_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hdfs_native")
    open_bucket.cache_clear()
    with pytest.raises(ConfigError, match=r"hdfs://127\.0\.0\.1:1 cannot be reached"):
        open_storage("hdfs://127.0.0.1:1/ck").read("flow.json")
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError, match=r"pip install 'millstream\[hdfs\]'"):
        open_storage("hdfs://127.0.0.1:1/ck").read("flow.json")

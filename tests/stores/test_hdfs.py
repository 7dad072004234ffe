"""HDFS as a bucket, over Arrow's file system; a local one stands in for a name node."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from millstream.errors import ConfigError
from millstream.state.buckets import OnHdfs, open_bucket
from millstream.state.storage import open_storage


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnHdfs:
    local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(fs, "HadoopFileSystem", lambda host, port: local)
    open_bucket.cache_clear()
    return OnHdfs("name:8020")


def test_objects_are_written_whole_listed_and_created_once(hdfs: OnHdfs, tmp_path: Path) -> None:
    hdfs.put("a/b/one", b"0123456789")
    hdfs.put("a/b/one", b"9876543210")
    assert hdfs.read("a/b/one") == b"9876543210" and hdfs.read("a/b/one", 2, 3) == b"765"
    hdfs.create("a/c", b"first")
    with pytest.raises(FileExistsError):
        hdfs.create("a/c", b"second")
    assert hdfs.read("a/c") == b"first"
    hdfs.copy("a/c", "a/d")
    assert [one.key for one in hdfs.list("a")] == ["a/b/one", "a/c", "a/d"]
    hdfs.delete("a/c")
    hdfs.delete("a/c")
    assert hdfs.look("a/c") is None and hdfs.list("none") == []
    assert not list(tmp_path.rglob(".making-*"))
    with pytest.raises(FileNotFoundError):
        hdfs.read("a/c")


def test_a_checkpoint_is_taken_over_there_too(hdfs: OnHdfs) -> None:
    old, new = open_storage("hdfs://name:8020/ck"), open_storage("hdfs://name:8020/ck")
    assert old.begin() == 1 and new.begin() == 2
    new.put("flow.json", b"new")
    old.put("flow.json", b"old")
    assert open_storage("hdfs://name:8020/ck").read("flow.json") == b"new"
    open_bucket.cache_clear()


def test_what_arrow_lacks_is_said() -> None:
    open_bucket.cache_clear()
    with pytest.raises(ConfigError, match="HADOOP_HOME, JAVA_HOME and CLASSPATH"):
        open_storage("hdfs://nowhere:1/ck").read("flow.json")

"""Object stores as storage: what a name means, who wins, what is kept here."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import CheckpointError, ConfigError
from millstream.state import buckets, cache
from millstream.state import checkpoint as checkpoints
from millstream.state.checkpoint import Checkpoint
from millstream.state.locations import Url, located
from millstream.state.manifests import Manifest
from millstream.state.objects import ObjectStore, open_object
from millstream.state.segments import SegmentFile
from millstream.state.storage import open_storage
from tests.services import create_at_once


def store(url: str) -> ObjectStore:
    found = open_storage(url)
    assert isinstance(found, ObjectStore)
    return found


def test_a_url_stays_one_whatever_a_path_makes_of_it() -> None:
    for given in ("s3://b/x/y", Path("s3://b/x/y"), "s3:/b/x/y", located("s3://b/x/y")):
        found = located(given)
        assert isinstance(found, Url) and str(found) == "s3://b/x/y"
        assert str(found / "z") == "s3://b/x/y/z" and found.resolve() == found
    assert not isinstance(located("s3"), Url) and not isinstance(located("/s3:/b"), Url)


def test_objects_are_read_whole_and_by_range(bucket: str) -> None:
    place = store(f"{bucket}/ck").within("dead")
    place.put("a.jsonl", b"0123456789")
    place.within("deep").put("b", b"x")
    assert place.read("a.jsonl") == b"0123456789"
    assert place.read_range("a.jsonl", 3, 4) == b"3456"
    assert place.read_range("a.jsonl", 8, 100) == b"89"
    assert place.read_range("a.jsonl", 8, -1) == b"89"
    assert place.names() == ["a.jsonl"] and place.walk() == ["a.jsonl", "deep/b"]
    assert place.size("a.jsonl") == 10 and place.exists("a.jsonl") and not place.exists("b")
    with pytest.raises(FileNotFoundError):
        place.read("nothing")
    place.delete("nothing")
    place.delete("a.jsonl")
    assert place.names() == []


def test_of_many_that_create_an_object_one_does(bucket: str) -> None:
    place = store(f"{bucket}/ck/manifests")
    won = create_at_once(lambda mine: place.put_new("00000001.json", mine))
    assert place.read("00000001.json") == won
    place.put_new("00000001.json", won)  # one's own, said to be there: it is


def test_a_create_that_is_refused_in_error_is_tried_again(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, tries = store(f"{bucket}/ck/manifests"), []
    real = buckets.OnStore.create

    def refusing(self: buckets.OnStore, key: str, data: bytes) -> None:
        tries.append(key)
        if len(tries) == 1:
            raise FileExistsError(key)
        real(self, key, data)

    monkeypatch.setattr(buckets.OnStore, "create", refusing)
    place.put_new("00000007.json", b"mine")
    assert place.read("00000007.json") == b"mine" and len(tries) == 2


def test_a_run_that_was_overtaken_changes_nothing_its_successor_sees(bucket: str) -> None:
    old, new = store(f"{bucket}/ck"), store(f"{bucket}/ck")
    assert old.begin() == 1
    old.put("flow.json", b"old")
    old.within("sources").append("a.jsonl", 0, b"first")
    assert new.begin() == 2
    assert new.read("flow.json") == b"old"
    new.put("flow.json", b"new")
    new.within("sources").append("a.jsonl", 5, b", second")
    old.put("flow.json", b"older")
    old.within("sources").append("a.jsonl", 5, b", other")
    old.delete("flow.json")
    reader = store(f"{bucket}/ck")
    assert reader.read("flow.json") == b"new"
    assert reader.within("sources").read("a.jsonl") == b"first, second"
    assert reader.within("sources").names() == ["a.jsonl"]


def test_a_run_that_is_taken_over_may_commit_first(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MANY_FILES", 1)
    first, second = Checkpoint(f"{bucket}/it"), Checkpoint(f"{bucket}/it")
    first.take_over()
    files = {name: SegmentFile(name, 1, number) for number, name in enumerate("ab")}
    first.commit(Manifest(1, files={"a": files["a"]}))
    begun = second.latest

    def overtaken() -> Manifest | None:
        found = begun()
        if found is not None and found.batch == 1:  # as the second is about to commit its own
            first.commit(Manifest(2, files=files))
        return found

    monkeypatch.setattr(second, "latest", overtaken)
    taken = second.take_over()
    assert taken is not None and (taken.batch, taken.files) == (3, files)
    found = Checkpoint(f"{bucket}/it").latest()
    assert found is not None and found.files == files


def test_a_store_that_ignores_conditions_is_refused(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets.OnStore, "create", buckets.OnStore.put)
    with pytest.raises(CheckpointError, match="ignores If-None-Match"):
        store(f"{bucket}/ck").begin()


def test_the_answer_to_the_first_request_of_a_run_may_be_lost(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, and is told of its own object that it is there already."""
    create, lost = buckets.OnStore.create, []

    def lossy(self: buckets.OnStore, key: str, data: bytes) -> None:
        create(self, key, data)
        if not lost:
            lost.append(key)
            create(self, key, data)

    monkeypatch.setattr(buckets.OnStore, "create", lossy)
    assert store(f"{bucket}/ck").begin() == 1
    assert len(lost) == 1


def test_a_bucket_that_is_missing_and_keys_that_are_wrong_are_told_without_secrets(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="s3://no-such does not exist; create it") as error:
        store("s3://no-such/ck").put("a", b"x")
    assert "never-printed" not in str(error.value)
    assert "never-printed" not in repr(store(bucket)) + repr(buckets.open_bucket("s3", "x"))


def test_credentials_come_from_a_file_where_the_environment_has_none(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[work]\naws_access_key_id = k\naws_secret_access_key = s\nregion = eu-west-1\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert buckets._aws() == {
        "access_key_id": "k",
        "secret_access_key": "s",
        "region": "eu-west-1",
    }
    store(f"{bucket}/ck").put("a", b"x")
    assert store(f"{bucket}/ck").read("a") == b"x"


def test_segments_are_kept_here_within_a_bound(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE_BYTES", "10000")
    state = store(f"{bucket}/ck").within("state")
    for number in range(30):
        state.put(f"{number}.arrow", bytes([number]) * 1000)
        assert state.map(f"{number}.arrow").to_pybytes() == bytes([number]) * 1000
    kept = list((tmp_path / "cache").iterdir())
    assert sum(file.stat().st_size for file in kept) <= 10000 and len(kept) == 10
    state.delete("29.arrow")
    assert state.map("29.arrow").to_pybytes() == bytes([29]) * 1000  # it was fetched before
    monkeypatch.setenv("MILLSTREAM_CACHE_BYTES", "much")
    with pytest.raises(ConfigError, match="MILLSTREAM_CACHE_BYTES='much'"):
        cache.cached("s3://b/x", lambda: b"")


def test_inputs_are_read_by_ranges(bucket: str) -> None:
    data = bytes(range(256)) * 20_000
    store(bucket).put("in/big", data)
    with open_object(f"{bucket}/in/big") as stream:
        stream.seek(3_000_001)
        assert stream.read(10) == data[3_000_001:3_000_011]
        stream.seek(-5, 2)
        assert stream.read() == data[-5:] and stream.read(1) == b""


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_compressed_and_columnar_inputs_are_read_there_too(bucket: str, kind: str) -> None:
    table = pa.table({"n": list(range(1_000))})
    out = pa.BufferOutputStream()
    if kind == "csv":
        out.write(gzip.compress(b"n\n" + b"".join(b"%d\n" % n for n in range(1_000))))
    else:
        pq.write_table(table, out)
    name = "a.csv.gz" if kind == "csv" else "a.parquet"
    store(bucket).within("in").put(name, out.getvalue())
    rows = ms.Flow("stored").source(ms.Files(f"{bucket}/in")).collect()
    assert sorted(rows.column("n").to_pylist()) == list(range(1_000))

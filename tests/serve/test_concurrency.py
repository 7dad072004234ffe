"""Reading while a flow commits: nothing torn, nothing older than before, across restarts too."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from millstream.serve.following import Follower
from tests.serve.conftest import Serve
from tests.serve.writing import Put, Writer

_KEYS = [f"k{i}" for i in range(40)]


class Writing:
    """A thread that commits batches in which all slates say the same."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.done, self.committed = writer, threading.Event(), -1
        self.thread = threading.Thread(target=self._main)

    def __enter__(self) -> Writing:
        self._commit()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _main(self) -> None:
        while not self.done.is_set():
            self._commit()

    def _commit(self) -> None:
        number = self.committed + 1
        self.writer.commit(*(Put(key, {"n": number}, ts=number) for key in _KEYS))
        self.committed = number


def test_a_snapshot_is_one_batch(tmp_path: Path) -> None:
    with Writing(Writer(tmp_path, retain=1)) as writing:
        follower = Follower(tmp_path)
        seen = -1
        while seen < 60:
            batch, values = follower.read(
                lambda now: (now.batch, {now.get("counts", key).slate["n"] for key in _KEYS})
            )
            assert values == {batch}
            assert batch >= seen
            seen = batch
        assert writing.committed >= seen - 1  # it is read before the writer has counted it


def test_versions_never_go_back_over_http(tmp_path: Path, serve: Serve) -> None:
    with Writing(Writer(tmp_path, retain=1)) as writing:
        latest = -1
        for _ in range(3):  # servers come and go, the flow goes on
            client = serve(tmp_path)
            for _ in range(50):
                latest = max(latest, _read(client, latest))
            assert 0 <= latest <= writing.committed + 1  # it is noted just after the commit
    newest = writing.committed
    for _ in range(200):
        latest = max(latest, _read(client, latest))
        if latest == newest:
            return
    raise AssertionError(f"batch {latest} is shown, {newest} is committed")


def _read(client: httpx.Client, latest: int) -> int:
    """One page and one slate, each of one batch and not older than what was seen."""
    page = client.get("/slates/counts").json()
    assert {slate["slate"]["n"] for slate in page["slates"]} == {page["batch"]}
    assert len(page["slates"]) == len(_KEYS)
    assert page["batch"] >= latest
    one = client.get("/slates/counts/k7").json()
    assert one["slate"]["n"] == one["batch"]
    assert one["batch"] >= page["batch"]
    return int(one["batch"])

"""Kafka in, slates and windows, Kafka and Delta out, the checkpoint in a store: nothing twice.

Runs are killed at random and at named points, so are the broker and the store, which come back; the
store is forgetful besides, and a driver is paused until another has finished its work.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.state.buckets import OnStore
from tests.flaky import FlakyStore
from tests.kafka.test_kill import POINTS, Running, restart, struck
from tests.services import S3

pytest.importorskip("obstore")
deltalake = pytest.importorskip("deltalake")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    found = S3(tmp_path_factory.mktemp("s3"))
    yield found
    found.stop()


class Outside(Running):
    """Topics, a bucket behind a proxy, and the answer."""

    app = Path(__file__).with_name("outside.py")

    def __init__(self, topics: Any, place: Path, server: S3, name: str, seed: int) -> None:
        super().__init__(topics, place, seed)
        server.make_bucket(name)
        self.store, self.root = FlakyStore(server.url, seed), f"s3://{name}/team"
        self.env = {**server.environment, "AWS_ENDPOINT_URL": self.store.url}
        self.env["MILLSTREAM_CACHE"] = str(place / "cache")

    def _where(self, checkpoint: str) -> str:
        return self.root

    def check(self) -> None:
        """The topics as before, and the tables as others read them."""
        super().check()
        found = Counter(
            (row["k"], int(row["window_start"].timestamp()), row["n"], row["total"])
            for row in self.table("windows")
        )
        assert found == self.windows
        sums: dict[str, list[int]] = {}
        for (key, _, n, total), _ in self.windows.items():
            both = sums.setdefault(key, [0, 0])
            both[0], both[1] = both[0] + n, both[1] + total
        totals = Counter((row["k"], row["n"], row["total"]) for row in self.table("totals"))
        assert totals == Counter((key, n, total) for key, (n, total) in sums.items())

    def table(self, name: str) -> list[dict[str, Any]]:
        options = {
            "AWS_ENDPOINT_URL": self.store.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        table = deltalake.DeltaTable(f"{self.root}/{name}", storage_options=options)
        rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return rows

    def overtaken(self, stop_at: str) -> bool:
        """Pause a run, let another finish, and wake it; False if it had ended before that."""
        zombie = self.start(MILLSTREAM_PAUSE_AT=stop_at)
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            zombie.returncode = os.waitstatus_to_exitcode(status)
            return False
        self.finish()
        self.check()
        os.kill(zombie.pid, signal.SIGCONT)
        _, told = zombie.communicate(timeout=300)
        refused = ("taken over by", "no longer belongs to this run", "another run of this flow")
        assert zombie.returncode != 0 and any(word in told for word in refused), told
        self.check()
        return True

    def close(self) -> None:
        self.store.close()


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_zombie_at_every_point(topics: Any, tmp_path: Path, server: S3, point: str) -> None:
    running = Outside(topics, tmp_path, server, f"zombie-{point}", 7)
    assert running.overtaken(f"{point}:3")
    running.close()


@pytest.mark.long
def test_the_store_comes_back_with_what_it_had(server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.make_bucket("outlives")
    bucket = OnStore("s3", "outlives")
    bucket.create("a/one", b"first")
    bucket.put("a/two", b"second")
    bucket.put("a/two", b"third")
    bucket.put("a/three", b"gone")
    bucket.delete("a/three")
    before = bucket.list("a")
    restart_store(server, random.Random(0))
    assert bucket.list("a") == before and [one.key for one in before] == ["a/one", "a/two"]
    assert bucket.read("a/one") == b"first" and bucket.read("a/two") == b"third"
    with pytest.raises(FileExistsError):
        bucket.create("a/one", b"again")


def restart_store(server: S3, dice: random.Random) -> None:
    """Kill the store; it comes back soon, with what it had."""
    server.stop()
    time.sleep(dice.uniform(0, 3))
    server.start()


@pytest.mark.long
def test_random_kills_of_all_that_takes_part(topics: Any, tmp_path: Path, server: S3) -> None:
    """`KILLS` (300) runs are killed in all, a part of them while broker or store fail as well."""
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    dice, kills, rounds, met = random.Random(seed), 0, 0, Counter[str]()
    wanted = int(os.environ.get("KILLS", "300"))
    while kills < wanted:
        rounds += 1
        running = Outside(
            topics, tmp_path / str(rounds), server, f"killed-{seed}-{rounds}", seed + rounds
        )
        usual = 8.0
        for attempt in range(dice.randrange(3, 9)):
            begun, point = time.monotonic(), None
            if dice.random() < 0.7:
                point = f"{dice.choice(POINTS)}:{attempt + dice.randrange(5)}+"
            running.store.share = dice.choice([0.0, 0.0, 0.05])
            trouble = dice.choice(["", "", "", "broker", "store"])
            met.update([trouble] if trouble else [])
            happens = {
                "broker": partial(restart, topics.broker, dice),
                "store": partial(restart_store, server, dice),
            }
            code, told = struck(running, dice, usual, point, happens.get(trouble))
            away = ("Kafka at", "the store did not answer", "cannot be used (")
            refused = bool(trouble) and any(words in told for words in away)
            met["refused at its start"] += refused
            assert refused or code in (0, -signal.SIGKILL), (seed, rounds, told)
            kills += code == -signal.SIGKILL
            if code == 0:
                usual = max(2.0, min(usual, time.monotonic() - begun))
                break
        running.store.share = 0.0
        met["zombie"] += running.overtaken(f"{dice.choice(POINTS)}:{attempt}+")
        running.finish()
        running.check()
        met.update(running.store.met)
        running.close()
        print(f"seed {seed}: {kills} kills in {rounds} rounds; {dict(met)}", flush=True)

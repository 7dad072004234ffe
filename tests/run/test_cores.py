"""Cores are waited for before anything is decided, and followed from batch to batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.run.spark.cores import Decided, wait_for_cores
from millstream.settings import Settings


class Cluster:
    """A Spark context whose executors of 4 cores register at given times."""

    def __init__(self, *joins: float, master: str = "spark://host:7077") -> None:
        self.now, self.joins, self.master = 0.0, joins, master
        size = SimpleNamespace(size=lambda: self._there() + 1)
        inner = SimpleNamespace(getExecutorMemoryStatus=lambda: size)
        self._jsc = SimpleNamespace(sc=lambda: inner)

    def _there(self) -> int:
        return sum(at <= self.now for at in self.joins)

    @property
    def defaultParallelism(self) -> int:
        return max(2, 4 * self._there())

    def wait(self, **options: Any) -> Decided:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return wait_for_cores(self, Settings(**options), lambda: self.now, sleep)


def test_a_declared_minimum_is_waited_for_and_no_more() -> None:
    cluster = Cluster(1.0, 5.0, 9.0)
    found = cluster.wait(min_cores=8)
    assert found.cores == 8
    assert 5.0 <= cluster.now < 6.0
    assert found.note == "Spark at spark://host:7077 has 8 cores: so many tasks at once for now"


def test_without_one_it_waits_until_no_more_come() -> None:
    cluster = Cluster(1.0, 1.5, 3.0, 20.0)
    assert cluster.wait().cores == 12
    assert cluster.now < 6.0


def test_too_few_are_an_error_after_a_while() -> None:
    with pytest.raises(ms.MillstreamError, match="has 4 of the 8 cores declared with min_cores"):
        Cluster(1.0).wait(min_cores=8, cores_wait=10)
    with pytest.raises(ms.MillstreamError, match=r"no executor .* registered within 10 s"):
        Cluster().wait(cores_wait=10)


def test_one_machine_waits_for_nothing() -> None:
    cluster = Cluster(0.0, master="local[*]")
    assert cluster.wait() == Decided(4, 8)
    assert cluster.now == 0.0


def test_a_cluster_has_shards_for_more_cores_than_came() -> None:
    assert Cluster(0.0).wait().least_shards == 256


@pytest.mark.parametrize(("name", "value"), [("min_cores", 0), ("cores_wait", -1)])
def test_settings_that_cannot_be(name: str, value: int) -> None:
    with pytest.raises(ms.MillstreamError, match=name):
        Settings(**{name: value})

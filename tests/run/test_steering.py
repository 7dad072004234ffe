"""What Spark says of tasks is understood, and tasks are steered without changing what they give."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.run.spark.sidelining import Ran
from millstream.run.spark.steering import Steering, _Place
from tests.run.test_sidelining import Clock

pytestmark = pytest.mark.spark


def steering(context: Any, places: dict[str, _Place]) -> Steering:
    """As on a cluster, where the second executor is out."""
    found = Steering(context)
    found._several, found._places = True, places
    found.sidelines.sideline(list(places)[1:2], places)
    return found


def test_tasks_prefer_executors_that_keep_up(spark: Any) -> None:
    places = {"0": _Place("host-a", 4), "1": _Place("host-b", 4), "2": _Place("host-c", 2)}
    steered = steering(spark, places)
    tasks = spark.parallelize([{"n": n} for n in range(6)], 3)
    sent = tasks.map(lambda task: (task["n"] % 2, task)).partitionBy(2, lambda part: part)
    for rdd in (tasks, sent):
        found = steered.steer(rdd)
        assert found.glom().collect() == rdd.glom().collect()
        for part in range(rdd.getNumPartitions()):
            preferred = spark._jsc.sc().getPreferredLocs(found._jrdd.rdd(), part).mkString(" ")
            assert preferred == "executor_host-a_0 executor_host-c_2"
    assert steered.steer(sent).keys().sum() == 3


def test_while_all_keep_up_nothing_is_steered(spark: Any) -> None:
    unsteered, tasks = Steering(spark), spark.parallelize([1], 1)
    assert unsteered.steer(tasks) is tasks
    assert unsteered.cores == 2


def test_what_tasks_took_is_read_from_spark(spark: Any) -> None:
    looking = Steering(spark)
    looking._ran()  # of other tests
    spark.parallelize(range(4), 2).map(lambda n: (n % 2, n)).groupByKey(2).count()
    spark._jsc.sc().listenerBus().waitUntilEmpty(60_000)  # Spark keeps what it hears of, later
    found = looking._ran()
    assert len({one.stage for one in found}) == 2
    assert len(found) == 4
    assert {one.executor for one in found} == {"driver"}
    assert all(one.seconds > 0 for one in found)
    assert looking._ran() == []


def test_a_trial_says_which_executor_did_it(spark: Any) -> None:
    looking = steering(spark, {"0": _Place("host-a", 4), "1": _Place("host-b", 4)})
    looking._ran()  # of other tests
    looking._try_again()
    assert looking._trial is not None
    looking._trial.join()
    assert looking._told is not None
    due, took = looking._told
    assert due == ["1"]
    assert took.keys() == {"driver"}
    assert took["driver"] > 0
    assert looking._ran() == []  # tasks of trials are compared with no others
    looking._take_up()
    assert list(looking.sidelines.out) == ["1"]  # the one that was asked did not do it


def test_who_does_not_come_to_do_a_trial_gets_no_tasks_meanwhile(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, places = Clock(), {"0": _Place("host-a", 4), "1": _Place("host-b", 4)}
    looking = steering(spark, places)
    looking.sidelines._clock = clock
    looking.sidelines.tried(["1"], {"0": 0.1, "1": 0.1})  # well, and spared for a while
    assert not looking.sidelines.accuse([Ran(0, "0", 0.1, True), Ran(0, "1", 9.0, True)])
    waiting = threading.Event()

    def took(placed: str) -> dict[str, float]:
        return {placed: 0.1} if placed == "0" or waiting.wait(60) else {}

    monkeypatch.setattr(looking, "_placed", lambda groups: groups[0][0])
    monkeypatch.setattr(looking, "_took", took)
    looking._try_again()
    begun = looking._tried[1]
    looking._give_up(begun + 0.5)
    assert not looking.sidelines.out
    looking._give_up(begun + 1.5)
    assert list(looking.sidelines.out) == ["1"]
    waiting.set()
    assert looking._trial is not None
    looking._trial.join()
    looking._take_up()
    assert not looking.sidelines.out


def test_executors_that_are_gone_are_no_longer_out(spark: Any) -> None:
    looking = steering(spark, {"0": _Place("host-a", 4), "1": _Place("host-b", 4)})
    assert looking.cores == 2  # of the context: neither is there
    assert not looking.sidelines.out


def test_nothing_is_asked_of_one_machine() -> None:
    Steering(SimpleNamespace(master="local[2]")).learn()  # type: ignore[arg-type]


def test_an_executor_that_comes_is_tried_with_as_many_tasks_as_it_has_cores(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"0": _Place("host-a", 4)}
    looking = Steering(spark)
    looking._several = True

    def look() -> None:
        looking._places = dict(places)
        looking.sidelines.keep(places)

    monkeypatch.setattr(looking, "_look_for_places", look)
    assert looking.cores == 2  # those of the context
    places["1"], looking._cores = _Place("host-b", 3), 0
    assert looking.cores == 4
    assert looking.sidelines.is_new("1")
    tried = list[int]()
    monkeypatch.setattr(
        looking, "_took", lambda placed: tried.append(placed.getNumPartitions()) or {}
    )
    looking._try_again()
    assert looking._trial is not None
    looking._trial.join()
    assert sorted(tried) == [1, 3]  # side by side, so in any order


def test_one_that_hangs_in_a_trial_does_not_keep_others_out(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    places = {name: _Place(f"host-{name}", 1) for name in "012"}
    looking = steering(spark, places)
    looking.sidelines._clock, clock.now = clock, time.monotonic()
    hanging, asked = threading.Event(), list[str]()

    def took(placed: str) -> dict[str, float]:
        asked.append(placed)
        if placed == "1":
            hanging.wait(60)
        return {placed: 0.1}

    monkeypatch.setattr(looking, "_placed", lambda groups: groups[0][0])
    monkeypatch.setattr(looking, "_took", took)
    with monkeypatch.context() as hurried:
        hurried.setattr("millstream.run.spark.steering._LONGEST", 0.2)
        looking._try_again()
        assert looking._trial is not None
        looking._trial.join(30)
    looking._take_up()
    looking._places["3"] = _Place("host-3", 1)
    looking.sidelines.keep(looking._places)  # comes while the first is still tried
    clock.now += 60
    looking._try_again()
    looking._trial.join(30)
    looking._take_up()
    assert list(looking.sidelines.out) == ["1"]
    while len(asked) < 4:  # the first two may have been given up before they began
        time.sleep(0.01)
    assert sorted(asked) == ["0", "0", "1", "3"]  # who is at it is not asked once more
    hanging.set()

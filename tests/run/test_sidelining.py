"""Executors that are far slower than others get no tasks, until they are as fast again."""

from __future__ import annotations

from millstream.run.spark.sidelining import Ran, Sidelines

THREE = ["a", "b", "c"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ran(*seconds: float, stage: int = 0, executors: list[str] = THREE) -> list[Ran]:
    """One task on each executor, all of which counted."""
    return [Ran(stage, one, s, True) for one, s in zip(executors, seconds, strict=True)]


def sidelined(clock: Clock) -> Sidelines:
    """Where c is out."""
    sidelines = Sidelines(clock)
    assert sidelines.sideline(sidelines.accuse(ran(0.2, 0.3, 2.5)), THREE) == ["c"]
    return sidelines


def test_who_takes_several_times_as_long_as_others_is_accused() -> None:
    assert Sidelines().accuse(ran(0.2, 0.3, 2.5)) == {"c": 10.0}
    assert Sidelines().accuse(ran(0.2, 0.3, 0.7)) == {}
    assert Sidelines().accuse([]) == {}


def test_little_time_is_no_reason() -> None:
    assert Sidelines().accuse(ran(0.01, 0.01, 0.2)) == {}


def test_tasks_are_compared_with_those_of_their_own_stage() -> None:
    mixed = ran(2.0, 2.1, 1.9) + ran(0.1, 0.1, 0.1, stage=1)
    # Tasks of the long stage alone on one executor, those of the short one on others.
    assert Sidelines().accuse([mixed[0], mixed[4], mixed[5]]) == {}
    assert Sidelines().accuse(mixed) == {}


def test_a_task_whose_backup_was_faster_counts_as_long_as_it_has_taken() -> None:
    backed = [Ran(0, "a", 0.2, True), Ran(0, "a", 0.25, True), Ran(0, "b", 2.25, False)]
    assert Sidelines().accuse(backed) == {"b": 10.0}


def test_who_ran_alone_is_compared_with_nobody() -> None:
    assert Sidelines().accuse([Ran(0, "a", 9.0, True)]) == {}


def test_small_batches_of_one_task_are_compared_with_each_other() -> None:
    sidelines = Sidelines()
    for stage, (executor, seconds) in enumerate([("a", 0.1), ("b", 0.12), ("a", 0.11)]):
        assert sidelines.accuse([Ran(stage, executor, seconds, True)]) == {}
    accused = sidelines.accuse([Ran(3, "c", 1.1, True)])
    assert list(accused) == ["c"]
    assert sidelines.sideline(accused, THREE) == ["c"]
    assert sidelines.accuse([Ran(4, "b", 0.1, True)]) == {}  # what c took is forgotten


def test_at_least_half_of_all_are_left() -> None:
    sidelines = Sidelines()
    accused = sidelines.accuse(ran(0.2, 3.0, 6.0, 0.2, 0.2, executors=list("abcde")))
    assert list(accused) == ["c", "b"]
    assert sidelines.sideline(accused, ["a", "b", "c"]) == ["c"]
    assert Sidelines().sideline(accused, list("abcde")) == ["c", "b"]
    assert Sidelines().sideline(accused, ["c"]) == []
    sidelines.keep(["c"])  # the others have gone
    assert not sidelines.out


def test_who_is_gone_is_forgotten() -> None:
    sidelines = sidelined(Clock())
    assert sidelines.sideline(["gone"], THREE) == []
    sidelines.keep(["a", "b", "d"])
    assert list(sidelines.out) == ["d"]  # it has just come


def test_who_is_out_is_tried_at_once_and_then_ever_less_often() -> None:
    clock = Clock()
    sidelines, waits = sidelined(clock), []
    for _ in range(9):
        begun = clock.now
        while not sidelines.due():
            clock.now += 0.5
        waits.append(clock.now - begun)
        assert sidelines.tried(["c"], {"a": 0.02, "b": 0.03, "c": 0.2}) == ([], [])
    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_who_is_as_fast_as_others_is_back() -> None:
    sidelines = sidelined(Clock())
    assert sidelines.tried(["c"], {"a": 0.02, "b": 0.03, "c": 0.04}) == (["c"], [])
    assert not sidelines.out
    assert sidelines.tried(["c"], {"a": 0.02, "c": 0.02}) == ([], [])  # once


def test_a_trial_without_an_answer_proves_nothing() -> None:
    sidelines = sidelined(Clock())
    assert sidelines.tried(["c"], {"a": 0.02}) == ([], [])
    assert sidelines.tried(["c"], {"c": 0.02}) == ([], [])  # there is nothing to compare it with
    assert list(sidelines.out) == ["c"]


def test_who_was_well_is_not_accused_again_for_a_while() -> None:
    """With records that take long in one task of each batch, somebody would always be out."""
    clock = Clock()
    sidelines, spared = sidelined(clock), []
    for _ in range(7):
        assert sidelines.tried(["c"], {"a": 0.02, "c": 0.02}) == (["c"], [])
        begun = clock.now
        while not (accused := sidelines.accuse(ran(0.2, 0.3, 2.5))):
            clock.now += 1
        spared.append(clock.now - begun)
        sidelines.sideline(accused, THREE)
    assert spared == [10, 20, 40, 80, 160, 300, 300]


def test_who_is_accused_in_that_while_is_tried_and_has_tasks() -> None:
    clock = Clock()
    sidelines = sidelined(clock)
    sidelines.tried(["c"], {"a": 0.02, "c": 0.02})
    assert sidelines.due() == []
    assert sidelines.accuse(ran(0.2, 0.3, 2.5)) == {}
    assert sidelines.due() == ["c"] and not sidelines.out
    assert sidelines.tried(["c"], {"a": 0.02, "c": 0.02}) == ([], [])  # its records take long
    assert sidelines.accuse(ran(0.2, 0.3, 2.5)) == {}
    assert sidelines.due() == []  # not every time
    clock.now += 1
    assert sidelines.due() == ["c"]
    assert sidelines.tried(["c"], {"a": 0.02, "c": 0.2}) == ([], ["c"])  # it is slow again
    assert list(sidelines.out) == ["c"]


def test_who_is_too_busy_for_a_trial_is_slow() -> None:
    sidelines = sidelined(Clock())
    sidelines.tried(["c"], {"a": 0.02, "c": 0.02})
    sidelines.accuse(ran(0.2, 0.3, 2.5))
    assert sidelines.tried(["c"], {"a": 0.02}) == ([], ["c"])  # another one did it
    assert sidelines.tried(["c"], {"a": 0.02, "c": 0.02}) == (["c"], [])


def with_newcomer(clock: Clock) -> Sidelines:
    """Where d has come after the others."""
    sidelines = Sidelines(clock)
    sidelines.keep(THREE)
    assert not sidelines.out
    sidelines.keep([*THREE, "d"])
    return sidelines


def test_who_has_come_gets_tasks_once_it_has_done_a_trial() -> None:
    sidelines = with_newcomer(Clock())
    assert sidelines.due() == ["d"]
    assert sidelines.is_new("d")
    assert sidelines.tried(["d"], {"a": 0.02}) == ([], [])  # it was done elsewhere
    assert sidelines.tried(["d"], {"a": 0.02, "d": 0.5}) == (["d"], [])
    assert not sidelines.out
    accused = sidelines.accuse(ran(0.2, 0.3, 2.5, executors=["a", "b", "d"]))
    assert list(accused) == ["d"]  # it was compared with nobody yet, so it is not spared
    assert sidelines.sideline(accused, [*THREE, "d"]) == ["d"]
    assert not sidelines.is_new("d")


def test_who_has_come_does_not_keep_slow_ones_in() -> None:
    sidelines = with_newcomer(Clock())
    assert sidelines.sideline(sidelines.accuse(ran(0.2, 0.3, 2.5)), [*THREE, "d"]) == ["c"]
    assert set(sidelines.out) == {"c", "d"}
    sidelines.keep(["a", "c", "d"])  # c is half of those that had tasks
    assert set(sidelines.out) == {"c", "d"}
    sidelines.keep(["c", "d"])
    assert set(sidelines.out) == {"d"}
    sidelines.keep(["d"])  # nobody else is left
    assert not sidelines.out


def test_who_comes_back_is_new() -> None:
    sidelines = Sidelines(Clock())
    sidelines.keep(THREE)
    sidelines.keep(["a", "b"])
    sidelines.keep(THREE)
    assert sidelines.is_new("c")

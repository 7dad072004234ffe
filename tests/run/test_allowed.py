"""What is said where the machine allows a process too little."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import _limited
from millstream.run.spark.allowed import too_little
from millstream.run.spark.onspark import _marked, meant_for_people
from millstream.run.spark.session import _why_not
from millstream.run.tasks.watching import Attempt, Notes, watched

ENOUGH = {resource.RLIMIT_NOFILE: (1_024, 1 << 20), resource.RLIMIT_NPROC: (1 << 15, 1 << 15)}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, None),
        ({resource.RLIMIT_NOFILE: (256, -1), resource.RLIMIT_NPROC: (-1, -1)}, None),
        ({resource.RLIMIT_NOFILE: (256, 256)}, "may open 256 files.*ulimit -n"),
        ({resource.RLIMIT_NPROC: (40, 80)}, "may have 40 processes and threads.*ulimit -u"),
    ],
)
def test_limits_are_named_where_spark_does_not_start(
    monkeypatch: pytest.MonkeyPatch, limits: dict[int, tuple[int, int]], said: str | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", (ENOUGH | limits).__getitem__)
    told = _why_not("local[*]", ValueError("a class is not found"), [])
    if said is None:
        assert too_little() is None and "check --master" in told
        return
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(told)
    assert told.endswith("(a class is not found)")


def test_a_thread_that_cannot_be_started_is_no_defect() -> None:
    told = _limited(RuntimeError("can't start new thread"))
    assert told is not None and "ulimit -u" in told
    assert _limited(RuntimeError("another")) is None


def test_what_cannot_be_written_is_told_by_who_wanted_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A task that is tried again writes notes; that these cannot be written is not the cause."""

    def refuse(self: Notes, name: str) -> int:
        raise PermissionError(13, "Permission denied", str(self.path))

    def work() -> Any:
        with watched(Attempt(str(tmp_path), "0-0", 1, None)):
            raise PermissionError(13, "Permission denied", "segment")
        yield

    monkeypatch.setattr(Notes, "open", refuse)
    with pytest.raises(RuntimeError) as raised:
        list(_marked(work))
    assert meant_for_people(raised.value) == (
        "[Errno 13] Permission denied: 'segment'; what was committed stays valid: correct that and "
        "start again"
    )

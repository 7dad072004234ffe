"""Modules that functions import where they run; Spark over Connect, without a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.errors import RunError
from millstream.run.spark.remote import _configure
from millstream.run.spark.sharing import Spark
from millstream.testing import run_in_process


class Session:
    """What is asked of a session."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.conf = self

    def set(self, name: str, value: str) -> None:
        self.asked.append((name, value))

    def addArtifacts(self, *paths: str, **how: bool) -> None:
        self.asked.append((*paths, how))


def test_modules_are_sent_and_the_rest_is_set() -> None:
    session = Session()
    _configure(session, {"spark.submit.pyFiles": "a.py,b.zip", "spark.app": "x"})
    assert session.asked == [
        ("a.py", "b.zip", {"pyfile": True}),
        ("spark.app", "x"),
    ]


def test_a_flow_that_is_given_up_is_interrupted_in_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "millstream.run.spark.sharing.end_java", lambda **_: told.append("java ended")
    )
    executor: Any = SimpleNamespace(cancel=lambda: told.append("query interrupted"))
    Spark("alone", ms.Settings(master="sc://host:15002")).give_up(object(), executor)
    assert told == ["query interrupted"]


@pytest.mark.parametrize("records", [3, 2_000])
def test_a_module_that_workers_lack_is_told_with_its_remedy(tmp_path: Path, records: int) -> None:
    def importing(row: dict[str, Any]) -> None:
        import nobody_has_this  # type: ignore[import-not-found]  # noqa: F401

    flow = ms.Flow("importing")
    source = ms.Generator(lambda: iter({"a": n} for n in range(records)), schema="a int")
    flow.source(source).map(importing).sink(ms.Memory())
    with pytest.raises(RunError, match=r"'nobody_has_this'.*spark\.submit\.pyFiles"):
        run_in_process(flow, tmp_path)

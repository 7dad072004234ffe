"""Spark over Connect, without a server."""

from __future__ import annotations

from typing import Any

from millstream.run.remote import _configure


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

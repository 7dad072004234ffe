"""What a function reads of a record is known only where nothing else is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.ops.usage import columns_read, is_read

NAME = "a"


def branches(row: Any) -> Any:
    if row["n"] > 3:
        return None
    try:
        return {"a": float(row["a"])}
    except KeyError:
        return {"a": row.get("z", None)}


class Job:
    def map(self, key: Any, value: Any, ts: Any) -> Any:
        yield value["symbol"], value["price"]


@pytest.mark.parametrize(
    ("fn", "columns"),
    [
        (lambda r: r["a"], {"a"}),
        (lambda r: {"a": r["a"], "b": r.get("b"), "c": r.get("c", 0)}, {"a", "b", "c"}),
        (lambda r: "x" in r and r["y"], {"x", "y"}),
        (lambda r: r["a"]["b"], {"a"}),
        (lambda r: None, set()),
        (branches, {"n", "a", "z"}),
    ],
)
def test_columns_that_are_named(fn: Callable[..., Any], columns: set[str]) -> None:
    assert columns_read(fn, 0) == columns


def assigned(row: Any) -> Any:
    row["x"] = 2
    return row["y"]


def replaced(row: Any) -> Any:
    row = row["x"]
    return row["y"]


def deleted(row: Any) -> Any:
    del row["x"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda r: r,
        lambda r: {**r},
        lambda r: list(r),
        lambda r: r["a" + NAME],
        lambda r: r["a" if NAME else "b"],
        lambda r: ("a" if NAME else "b") in r,
        lambda r: r.get("a" + NAME),
        lambda r: r.get("a" if NAME else "b"),
        lambda r: r.get("a", NAME),
        lambda r: print(r.get, "a"),
        lambda r: r.pop("a"),
        lambda r: lambda: r["a"],
        lambda r: r["a"](r),
        lambda r: locals(),
        lambda *r: r[0]["a"],
        assigned,
        replaced,
        deleted,
        len,
        dict,
    ],
)
def test_anything_else_may_read_all(fn: Callable[..., Any]) -> None:
    assert columns_read(fn, 0) is None


def test_methods_and_what_nobody_looks_at() -> None:
    function = Job().map
    assert columns_read(function, 1) == {"symbol", "price"}
    assert not is_read(function, 0)
    assert is_read(function, 1)
    assert not is_read(function, 2)
    assert is_read(len, 0)
    assert is_read(lambda *given: 1, 0)
    assert is_read(lambda ts: lambda: ts, 0)

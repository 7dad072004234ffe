"""Views over HTTP: pages, conditions, what is refused, and the stream of changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream as ms
from millstream.serve.keys import LONGEST_TEXT
from millstream.testing import Driver
from tests.serve.conftest import Serve
from tests.serve.test_views import cars


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        yield driver


def drive(driver: Driver, *some: tuple[int, str | None, int]) -> None:
    names = ("id", "make", "speed")
    driver.push("cars_records", [dict(zip(names, one, strict=True)) for one in some]).step()


def test_pages_of_a_view(driver: Driver, tmp_path: Path, serve: Serve) -> None:
    drive(driver, *((n, "ab"[n % 2], 2 * n) for n in range(60)))
    client = serve(tmp_path / "ck")
    found, after, asked = [], None, 0
    while asked == 0 or after is not None:
        more = {} if after is None else {"after": after}
        page = client.get("/views/fast", params={"limit": "5", **more}).json()
        assert page["view"] == "fast" and page["batch"] == 0 and len(page["rows"]) <= 5
        found, after, asked = [*found, *page["rows"]], page["next"], asked + 1
    assert sorted(row["id"] for row in found) == list(range(26, 60)) and asked >= 7

    def ids(where: str) -> list[int]:
        answer = client.get("/views/FAST", params={"where": where, "limit": "1000"})
        assert answer.status_code == 200, answer.text
        return sorted(row["id"] for row in answer.json()["rows"])

    assert ids("id BETWEEN 30 AND 33 AND make = 'a'") == [30, 32]
    assert ids("speed / 2 = 40 OR id IN (41, 42)") == [40, 41, 42]
    assert ids("make LIKE 'c%'") == []
    names = [one["name"] for one in client.get("/views").json()["views"]]
    assert names == ["fast", "makes"]


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ({"where": "sped > 1"}, 400, "did you mean"),
        ({"where": "speed >"}, 400, "something is missing"),
        ({"where": "make RLIKE '(a+)+b'"}, 400, "REGEXPLIKE cannot be used here"),
        ({"where": "speed"}, 400, "true or false"),
        ({"where": "1 / (speed - speed) > 0"}, 400, "divide by zero"),
        ({"where": "x" * (LONGEST_TEXT + 1)}, 400, "characters"),
        ({"where": "NOT " * 250 + "make = 'a'"}, 400, "nested too deeply"),
        ({"where": "make = 'a'; DROP TABLE x"}, 400, "where"),
        ({"after": "../../etc/passwd"}, 400, "is not what a page gave"),
        ({"limit": "0"}, 400, "whole number"),
    ],
)
def test_what_is_refused(
    driver: Driver, tmp_path: Path, serve: Serve, query: dict[str, str], status: int, told: str
) -> None:
    drive(driver, (1, "a", 60))
    answer = serve(tmp_path / "ck").get("/views/fast", params=query)
    assert answer.status_code == status and told in answer.json()["error"]


def test_a_view_that_is_not_there(driver: Driver, tmp_path: Path, serve: Serve) -> None:
    client = serve(tmp_path / "ck")
    for path in ("/views/fats", "/views/fats/events"):
        answer = client.get(path)
        assert answer.status_code == 404 and "did you mean 'fast'" in answer.json()["error"]
    assert client.get("/views/fast").json() == {
        "view": "fast",
        "batch": -1,
        "rows": [],
        "next": None,
    }
    assert client.post("/views/fast").status_code == 405
    assert client.get("/views/fast", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/views", headers={"origin": "http://evil.example"}).status_code == 403


def test_views_need_the_token_too(driver: Driver, tmp_path: Path, serve: Serve) -> None:
    client = serve(tmp_path / "ck", token="secret-secret-secret")
    for path in ("/views", "/views/fast", "/views/fast/events"):
        assert client.get(path).status_code == 401


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_the_changes_of_a_view(driver: Driver, tmp_path: Path, serve: Serve) -> None:
    drive(driver, (1, "a", 60), (2, "b", 70))
    client = serve(tmp_path / "ck")

    def told(client: httpx.Client, since: int, until: int, **query: str) -> list[Any]:
        params = {"since": str(since), **query}
        with client.stream("GET", "/views/fast/events", params=params) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            found = []
            for kind, data in events(answer.iter_lines()):
                if kind == "batch" and data["batch"] >= until:
                    return found
                if kind == "row":
                    before = data.get("before", {}).get("speed")
                    found.append((data["op"], data["row"]["id"], before, data["row"]["speed"]))
        raise AssertionError("the stream ended")

    assert Counter(told(client, -1, 0)) == Counter([("+", 1, None, 60), ("+", 2, None, 70)])
    drive(driver, (1, "a", 65), (2, "b", 20), (3, "c", 90))
    seen = told(client, 0, 1)
    assert seen == [("-", 2, None, 70), ("u", 1, 60, 65), ("+", 3, None, 90)]
    assert told(client, 0, 1, where="speed > 60") == [
        ("-", 2, None, 70),
        *sorted([("+", 1, None, 65), ("+", 3, None, 90)], key=seen_order(client)),
    ]


def seen_order(client: httpx.Client) -> Any:
    """Rows come in the order in which pages have them."""
    rows = client.get("/views/fast").json()["rows"]
    return lambda one: [row["id"] for row in rows].index(one[1])


def test_a_view_of_a_flow_in_python(tmp_path: Path, serve: Serve) -> None:
    flow = ms.Flow("python")
    source = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, n long"), name="in")
    source.map(lambda row: {"n": row["n"], "tags": ["a", None], "deep": {"x": b"\x00"}}).view("v")
    with Driver(flow, checkpoint=tmp_path / "ck") as driver:
        driver.push("in", [{"ts": "2026-01-01T00:00:00Z", "n": 1}]).step()
        found = serve(tmp_path / "ck").get("/views/v", params={"where": "n = 1"}).json()
        assert found.get("rows") == [{"n": 1, "tags": ["a", None], "deep": {"x": "AA=="}}]

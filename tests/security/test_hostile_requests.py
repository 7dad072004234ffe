"""Requests made to break something: hosts, cookies, keys, parameters, and what the log says."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from millstream.serve.guard import COOKIE, HEADERS
from millstream.serve.slates import Snapshot
from tests.security.conftest import LAST, Attack, Target, eventually, rest
from tests.serve.writing import Put, Writer

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with one slate."""
    writer = Writer(tmp_path_factory.mktemp("attacked"))
    writer.commit(Put("a", {"n": 1}))
    return writer.path


@pytest.fixture(scope="module")
def target(path: Path, attack_all: Attack) -> Target:
    """Without a token."""
    return attack_all(path)


@pytest.fixture(scope="module")
def closed(path: Path, attack_all: Attack) -> Target:
    """With a token."""
    return attack_all(path, token=TOKEN)


def asking(path: str = "/slates", *headers: str) -> bytes:
    """A request as bytes."""
    lines = [f"GET {path} HTTP/1.1", *headers, "connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.com",
        "[::1]evil.com",
        "[::1]:80.evil.com",
        "[::1",
        "[localhost]",
        "::1",
        "localhost:80.evil.com",
        "localhost:evil",
        "localhost:80:80",
        "localhost:99999999999",
        "127.0.0.1:8x",
        "localhost.",
        "localhost\x20evil.com",
        "user@localhost",
        "localhost/",
        "loc\xe4lhost",
    ],
)
def test_a_host_is_wholly_understood_or_refused(target: Target, host: str) -> None:
    assert target.raw(asking("/slates", f"host: {host}"))[0] == 400


COOKIES = {
    "backslashes": '"' + "\\" * 50_000 + '"',
    "quotes": '"' * 50_000,
    "octal": '"' + "\\101" * 12_000 + '"',
    "many": "; ".join(f"c{i}=x" for i in range(5_000)),
    "short enough to be looked at": '"' + "\\" * 3_000 + '"',
    "not ASCII": "\xff" * 1_000,
}


@pytest.mark.parametrize("cookie", COOKIES.values(), ids=COOKIES)
@pytest.mark.parametrize("name", [COOKIE, "other"])
def test_a_cookie_costs_nothing(closed: Target, cookie: str, name: str) -> None:
    request = asking("/slates", "host: localhost", f"cookie: {name}={cookie}")
    assert closed.raw(request)[0] in (401, 431)


def test_the_cookie_is_found_among_others(closed: Target) -> None:
    moved = closed.client.get("/", params={"token": TOKEN})
    ours = moved.headers["set-cookie"].partition(";")[0]
    for cookie in (ours, f"a=b; {ours}", f'x="\\";{ours};y=;=', f"{ours} ; z"):
        request = asking("/slates", "host: localhost", f"cookie: {cookie}")
        assert closed.raw(request)[0] == 200, cookie
    for cookie in (f"x{ours}", f'a="{ours}"', f"{COOKIE}=", ours[:-1]):
        request = asking("/slates", "host: localhost", f"cookie: {cookie}")
        assert closed.raw(request)[0] == 401, cookie


@pytest.mark.parametrize(
    "key",
    [
        "0001-01-01T00:00+14:00",
        '"0001-01-01T00:00+14:00"',
        "9999-12-31T23:59-14:00",
        '["0001-01-01T00:00+14:00"]',
        '["a",["9999-12-31T23:59-14:00"]]',
        "0000-01-01T00:00",
        "2026-02-30T00:00Z",
        "[" * 30 + "]" * 30,
        "[" * 500 + "]" * 500,
        "[" * 900 + "1" + "]" * 900,
        "[" * 4000 + "]" * 4000,
        "[" * 8000,
        '{"a":' * 1000 + "1" + "}" * 1000,
        "[{}]",
        '[{"a":[]}]',
        "1e999",
        "-1e999",
        "1" * 5000,
        "[" + "9" * 400 + "]",
        '"\\ud800"',
        '["\\ud800"]',
        "[1e308,null,true]",
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_key_that_nobody_has_is_not_found(target: Target, key: str) -> None:
    for path in (f"/slates/counts/{quote(key, safe='')}", f"/slates/counts/{quote(key, ':+,')}"):
        status, _, answer = target.raw(asking(path, "host: localhost"))
        assert (status, list(answer)) == (404, ["error"])


def test_a_long_key_is_understood_in_pieces(target: Target) -> None:
    wire = target.wire(b"GET /slates/counts/" + quote("\U0001f600" * 4000).encode())
    for piece in (quote("\U0001f600" * 4000).encode(), b" HTTP/1.1\r\n" + LAST):
        time.sleep(0.05)  # it has come in part
        wire.sendall(piece)
    assert rest(wire).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("/slates/counts?" + "a&" * 50_000, 400),
        ("/slates/counts?" + "&".join(f"a{i}=1" for i in range(17)), 400),
        ("/slates/counts?limit=" + "9" * 5000, 400),
        ("/slates/counts?limit=1" + "0" * 5000, 400),
        ("/slates/counts?prefix=%ff%00%ed%a0%80", 200),
        ("/slates/counts?after=%ff%00", 200),
        ("/slates/" + "x" * 60_000, 414),
        ("/events?since=" + "9" * 5000, 400),
    ],
    ids=lambda value: str(value)[:24],
)
def test_parameters(target: Target, asked: str, status: int) -> None:
    assert target.raw(asking(asked, "host: localhost"))[0] == status


# -- every answer -------------------------------------------------------------------------------

ANSWERS = {
    "no HTTP": (b"\x16\x03\x01\x02\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nhost: a\r\n" + LAST, 400),
    "two lengths": (b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n" + LAST, 400),
    "an endless line": (b"GET /" + b"x" * 300_000, 400),
    "a wrong host": (b"GET / HTTP/1.1\r\nhost: evil\r\nconnection: close\r\n\r\n", 400),
    "long headers": (b"GET / HTTP/1.1\r\na: " + b"x" * 20_000 + b"\r\n" + LAST, 431),
    "a body": (b"GET / HTTP/1.1\r\ncontent-length: 5\r\n" + LAST, 413),
    "another method": (b"DELETE / HTTP/1.1\r\n" + LAST, 405),
    "another site": (b"GET / HTTP/1.1\r\norigin: http://evil\r\n" + LAST, 403),
    "no route": (b"GET /nowhere HTTP/1.1\r\n" + LAST, 404),
    "no slate": (b"GET /slates/counts/b HTTP/1.1\r\n" + LAST, 404),
    "no file": (b"GET /static/none HTTP/1.1\r\n" + LAST, 404),
    "a long key": (b"GET /slates/counts/" + b"x" * 9000 + b" HTTP/1.1\r\n" + LAST, 414),
    "a wrong number": (b"GET /slates/counts?limit=x HTTP/1.1\r\n" + LAST, 400),
    "a slate": (b"GET /slates/counts/a HTTP/1.1\r\n" + LAST, 200),
    "garbage in a pipeline": (b"GET / HTTP/9\r\n\r\n", 400),
}


@pytest.mark.parametrize(("request_", "status"), ANSWERS.values(), ids=ANSWERS)
def test_every_answer_has_its_headers(target: Target, request_: bytes, status: int) -> None:
    found, headers, _ = target.raw(request_)
    assert found == status
    assert {name.decode(): headers.get(name.decode()) for name, _ in HEADERS} == {
        name.decode(): value.decode().lower() for name, value in HEADERS
    }


def test_a_failure_has_its_headers_and_one_line(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("broken\n" * 1000)

    monkeypatch.setattr(Snapshot, "page", fails)
    monkeypatch.setattr(Snapshot, "get_text", fails)
    for path in ("/slates/counts", "/slates/counts/a"):
        caplog.clear()
        status, headers, answer = target.raw(asking(path, "host: localhost"))
        assert status == 500
        assert "broken" not in answer["error"]
        assert headers["x-content-type-options"] == "nosniff"
        (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
        said = line.getMessage()
        assert f"GET {path} failed: ValueError at" in said
        assert "\n" not in said
        assert len(said) < 1200
        assert not line.exc_info


def test_a_request_is_one_bounded_line(closed: Target, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream.serve")

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "millstream.serve"]

    hostile = ("/slates/counts/" + "x" * 10_000, "/%0a%1b[31m", f"/nowhere?token={TOKEN}")
    for path, status in [(f"/?token={TOKEN}", 303), *((path, 401) for path in hostile)]:
        caplog.clear()
        assert closed.raw(asking(path, "host: localhost"))[0] == status
        eventually(lambda: bool(lines()))
        (said,) = lines()
        assert f" {status} " in said
        assert TOKEN not in said
        assert said.isprintable()
        assert len(said) < 700

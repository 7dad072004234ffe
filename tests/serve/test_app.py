"""Every route, over real sockets: what it says, and how it refuses."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.conftest import Serve
from tests.serve.writing import Put, Writer

HOSTILE = [
    "a/b",
    "/",
    "..",
    "../../etc/passwd",
    ".",
    "%2F",
    "%",
    "%zz",
    "\0",
    "a\0b",
    "\r\nSet-Cookie: a=b",
    "😀👩‍👩‍👧",
    "\u202eעברית العربية",
    "\ufeff",
    "<script>alert(1)</script>",
    '"quoted"',
    "a?b#c&d=e;f",
    "a b+c",
    "\\",
    "'; DROP TABLE slates; --",
    "{}",
    "null",
    "x" * 1024,
    "é" * 512,
    "",
]


def raw(url: httpx.URL, request: bytes) -> tuple[int, bytes]:
    """Bytes a client library would not send; gives status and body."""
    with socket.create_connection((url.host, url.port), timeout=60) as wire:
        wire.sendall(request)
        answer = b""
        while piece := wire.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_slate(writer: Writer, serve: Serve) -> None:
    at = datetime(2026, 1, 5, 9, 30, 0, 250_000, UTC)
    writer.commit(Put("walmart", {"n": 17, "of": [1.5, None]}, ts=int(at.timestamp() * 1e6)))
    answer = serve(writer.path).get("/slates/counts/walmart")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "key": "walmart",
        "slate": {"n": 17, "of": [1.5, None]},
        "ts": "2026-01-05T09:30:00.250000Z",
        "batch": 0,
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> httpx.Client:
    """A server with the slates of hostile keys."""
    writer = Writer(tmp_path_factory.mktemp("served"))
    writer.commit(*(Put(key, {"key": key}) for key in [*HOSTILE, "a"]))
    return serve(writer.path)


@pytest.mark.parametrize("key", HOSTILE)
def test_any_string_is_a_key(client: httpx.Client, key: str) -> None:
    path = f"/slates/counts/{quote(key, safe='').replace('.', '%2E')}"
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.json()["key"] == key
    assert answer.json()["slate"] == {"key": key}
    request = f"GET {path.replace('%2E', '.')} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close"
    status, body = raw(client.base_url, request.encode() + b"\r\n\r\n")
    assert status == 200
    assert json.loads(body)["key"] == key
    listed = client.get("/slates/counts", params={"prefix": key}).json()["slates"]
    assert key in [slate["key"] for slate in listed]


@pytest.mark.parametrize(
    ("segment", "key"),
    [("42", 42), ("1.5", 1.5), ("true", True), ("null", None), ("%5B%22a%22,1%5D", ["a", 1])],
)
def test_keys_of_other_types(writer: Writer, serve: Serve, segment: str, key: Any) -> None:
    stored = tuple(key) if isinstance(key, list) else key
    writer.commit(Put(stored, {"type": type(stored).__name__}))
    answer = serve(writer.path).get(f"/slates/counts/{segment}").json()
    assert answer["key"] == key
    assert type(answer["key"]) is type(key)
    assert answer["slate"] == {"type": type(stored).__name__}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/slates/counts/absent", 404),
        ("/slates/count/a", 404),
        ("/slates/count", 404),
        ("/slates/counts/a/b", 404),
        ("/slates/counts/%FF", 400),
        ("/slates/%FF/a", 400),
        ("/slates/counts/" + "x" * 30_000, 414),
        ("/slates/counts/" + "%C3%A9" * 9000, 414),
        ("/slates/counts?limit=0", 400),
        ("/slates/counts?limit=1001", 400),
        ("/slates/counts?limit=many", 400),
        ("/slates/counts?prefix=" + "x" * 9000, 400),
        ("/events?updater=count", 404),
        ("/events?since=-2", 400),
        ("/events?since=x", 400),
        ("/nowhere", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/static/..%2fapp.py", 404),
        ("//", 404),
        ("/slates/", 404),
    ],
)
def test_refusals_are_json_and_tell_nothing_else(
    client: httpx.Client, path: str, status: int
) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found, body = raw(client.base_url, request.encode())
    assert found == status, body
    answer = json.loads(body)
    assert list(answer) == ["error"]
    assert "/tmp" not in answer["error"]
    assert "site-packages" not in answer["error"]
    assert "Traceback" not in answer["error"]


def test_a_key_of_a_mebibyte(client: httpx.Client) -> None:
    for count in (1 << 15, 1 << 16, 1 << 20):
        request = b"GET /slates/counts/" + b"x" * count + b" HTTP/1.1\r\nhost: localhost\r\n"
        try:
            status, body = raw(client.base_url, request + b"connection: close\r\n\r\n")
        except ConnectionError:  # closed while it was still being sent
            continue
        assert status in (400, 414)
        assert list(json.loads(body)) == ["error"]
    assert client.get("/slates/counts/a").status_code == 200


@pytest.mark.parametrize("garbage", [b"\r\n\r\nx", b"\x16\x03\x01\x02", b"GET /\xff HTTP/1.1"])
def test_garbage_is_refused_in_json(client: httpx.Client, garbage: bytes) -> None:
    status, body = raw(client.base_url, garbage + b"\r\n\r\n")
    assert status == 400
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/", "/slates/counts/a", "/nowhere"])
def test_nothing_but_reading_is_possible(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    "path",
    ["/slates", "/slates/counts", "/slates/counts/a", "/slates/counts/b", "/status", "/events"],
)
def test_head_is_get_without_the_body(client: httpx.Client, path: str) -> None:
    head = client.head(path)
    assert head.content == b""
    with client.stream("GET", path) as get:
        assert head.status_code == get.status_code
        assert head.headers["content-type"] == get.headers["content-type"]
        if path != "/status":  # the time of day is in it
            assert head.headers.get("content-length") == get.headers.get("content-length")


def test_updaters(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {}), Put("b", {}))
    assert serve(writer.path).get("/slates").json() == {
        "batch": 0,
        "updaters": [{"name": "counts", "keys": ["k"], "slates": 2, "ttl": None, "clock": "event"}],
    }


def test_updaters_of_any_name(tmp_path: Any, serve: Serve) -> None:
    name = "żółw/🐢 ..%"
    writer = Writer(tmp_path / "ck", updater=name)
    writer.commit(Put("a", {"n": 1}))
    client = serve(writer.path)
    assert client.get(f"/slates/{quote(name, safe='')}/a").json()["slate"] == {"n": 1}
    page = client.get(f"/slates/{quote(name, safe='')}").json()
    assert page["updater"] == name
    assert [slate["key"] for slate in page["slates"]] == ["a"]


def test_pages(writer: Writer, serve: Serve) -> None:
    writer.commit(*(Put(f"k{i:03d}", {"n": i}) for i in range(250)), Put("z", {}))
    client = serve(writer.path)
    found, after = [], None
    while True:
        params = {"prefix": "k", "limit": 100} | ({} if after is None else {"after": after})
        page = client.get("/slates/counts", params=params).json()
        assert page["batch"] == 0
        found += page["slates"]
        after = page["next"]
        if after is None:
            break
    assert [slate["key"] for slate in found] == [f"k{i:03d}" for i in range(250)]
    assert [slate["slate"]["n"] for slate in found] == list(range(250))


def test_slates_json_cannot_say(writer: Writer, serve: Serve) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    slates = {
        "bytes": {"b": b"\0\xff"},
        "float": {"nan": float("nan"), "inf": float("inf")},
        "keys": {1: "int", "x": {(1, 2): "tuple"}},
        "time": {"t": datetime(2026, 1, 1, tzinfo=UTC)},
        "deep": {"d": deep},
        "html": {"</script>": "<b>\u2028"},
    }
    writer.commit(*(Put(key, slate) for key, slate in slates.items()))
    client = serve(writer.path)
    got = {key: client.get(f"/slates/counts/{key}") for key in slates}
    assert {answer.status_code for answer in got.values()} == {200}
    found = {key: answer.json()["slate"] for key, answer in got.items()}
    assert found["bytes"] == {"b": "AP8="}
    assert found["float"] == {"nan": None, "inf": None}
    assert found["keys"] == {"1": "int", "x": {"(1, 2)": "tuple"}}
    assert found["time"] == {"t": "2026-01-01T00:00:00Z"}
    assert found["deep"] == {"d": deep}
    assert found["html"] == slates["html"]


def test_slates_of_a_codec_nobody_has_here(tmp_path: Any, serve: Serve) -> None:
    writer = Writer(tmp_path / "ck", about={"codec": "Sketch"})
    writer.commit(Put("a", b"\1\2"))
    answer = serve(writer.path).get("/slates/counts/a").json()
    assert answer["slate"] == {"codec": "Sketch", "base64": "AQI="}


def test_status(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {}), closed=1_000_000)
    writer.commit(Put("b", {}), closed=2_000_000, dead=3)
    status = serve(writer.path).get("/status").json()
    assert status["flow"] == "made"
    assert status["batch"] == 1
    assert status["at"] == writer.manifest.at
    assert status["running"] is False
    assert status["watermark"] == "1970-01-01T00:00:02Z"
    assert status["lag_seconds"] is None
    assert status["dead"] == 3
    assert status["sources"][0]["name"] == "in"
    assert status["sources"][0]["rows"] == 20
    assert status["operators"][0]["slates"] == 2
    assert status["graph"]["edges"] == [["in", "counts"]]
    assert status["history"] == []
    seconds = status["rates"]["batch_seconds"]
    assert status["rates"]["rows_per_second"] == pytest.approx(10 / seconds)


def test_records_of_the_future_are_counted(writer: Writer, serve: Serve) -> None:
    writer.commit(ledger={"in": {"offered": 9, "aggregated": 9, "future": 2}})
    client = serve(writer.path)
    assert client.get("/status").json()["future"] == 2
    assert 'millstream_records_total{step="in",way="future"} 2.0' in client.get("/metrics").text


def test_status_says_whether_a_driver_holds_the_checkpoint(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {}))
    client = serve(writer.path)
    writer.place.lock()
    assert client.get("/status").json()["running"] is True
    writer.place.close()
    assert client.get("/status").json()["running"] is False


def test_metrics(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {}), Put("b", {}), dead=4)
    answer = serve(writer.path).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["millstream_batch", "made"] == 0
    assert samples["millstream_dead_letters_total", "made"] == 4
    assert samples["millstream_slates", "counts"] == 2
    assert samples["millstream_records_total", "in", "offered"] == 10


def test_a_checkpoint_without_a_batch(tmp_path: Any, serve: Serve) -> None:
    writer = Writer(tmp_path / "ck")
    client = serve(writer.path)
    assert client.get("/slates").json()["batch"] == -1
    assert client.get("/slates/counts/a").status_code == 404
    assert client.get("/slates/counts").json()["slates"] == []
    assert client.get("/status").json()["batch"] == -1
    assert client.get("/metrics").status_code == 200


def test_the_page_and_its_parts(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    parts = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
    assert len(parts) >= 2
    for part in parts:
        answer = client.get(f"/{part}")
        assert answer.status_code == 200
        kind = answer.headers["content-type"]
        assert kind.startswith("text/css" if part.endswith("css") else "text/javascript")

"""Who may ask: one test for each rule, which fails without it."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from millstream.errors import ConfigError
from millstream.serve.following import Follower
from millstream.serve.guard import COOKIE
from millstream.serve.server import open_server, parse_address
from millstream.serve.status import Served
from millstream.serve.tokens import find_token
from tests.serve.conftest import Serve
from tests.serve.writing import Put, Writer

TOKEN = "correct-horse-battery-staple"
ROUTES = [
    "/",
    "/slates",
    "/slates/counts",
    "/slates/counts/a",
    "/events",
    "/status",
    "/metrics",
    "/openapi.json",
    "/static/app.js",
    "/nowhere",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with one slate."""
    writer = Writer(tmp_path_factory.mktemp("guarded"))
    writer.commit(Put("a", {"n": 1}))
    return writer.path


@pytest.fixture(scope="module")
def client(path: Path, serve: Serve) -> httpx.Client:
    """Without a token, for this machine."""
    return serve(path)


@pytest.fixture(scope="module")
def closed(path: Path, serve: Serve) -> httpx.Client:
    """With a token, for every address."""
    return serve(path, host="0.0.0.0", token=TOKEN)


def asked(client: httpx.Client, path: str, **headers: str) -> int:
    """The status of a request with these headers."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with client.stream("GET", path, headers=given) as answer:
        return answer.status_code


# -- host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:80", "localhost:8"]
)
def test_its_own_names_are_answered(client: httpx.Client, host: str) -> None:
    assert asked(client, "/slates", host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8321",
        "10.0.0.1",
        "",
        "[",
        "a:b",
    ],
)
@pytest.mark.parametrize("route", ["/slates/counts/a", "/", "/events"])
def test_another_name_is_not(client: httpx.Client, host: str, route: str) -> None:
    assert asked(client, route, host=host) == 400


def test_a_request_without_a_host_is_refused(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port)) as wire:
        wire.sendall(b"GET /slates HTTP/1.0\r\n\r\n")
        assert wire.recv(65536).startswith(b"HTTP/1.1 400")


def test_beyond_this_machine_addresses_are_names_but_foreign_names_are_not(
    closed: httpx.Client,
) -> None:
    mine = {"authorization": f"Bearer {TOKEN}"}
    assert asked(closed, "/slates", host="10.0.0.1:8321", **mine) == 200
    assert asked(closed, "/slates", host=socket.gethostname(), **mine) == 200
    assert asked(closed, "/slates", host="evil.example", **mine) == 400


def test_further_names_can_be_allowed(path: Path, serve: Serve) -> None:
    client = serve(path, names=("flows.example",))
    assert asked(client, "/slates", host="flows.example") == 200


# -- origin -------------------------------------------------------------------------------------


def test_a_page_of_its_own_may_ask(client: httpx.Client) -> None:
    host = f"{client.base_url.host}:{client.base_url.port}"
    assert asked(client, "/slates", origin=f"http://{host}") == 200
    assert asked(client, "/slates", sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200
    assert asked(client, "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "https://localhost"]
)
def test_pages_of_other_sites_may_not(client: httpx.Client, origin: str) -> None:
    assert asked(client, "/slates/counts/a", origin=origin) == 403
    assert asked(client, "/events", origin=origin) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("mode", ["cors", "no-cors", ""])
def test_nor_what_such_pages_embed(client: httpx.Client, site: str, mode: str) -> None:
    assert asked(client, "/slates/counts/a", sec_fetch_site=site, sec_fetch_mode=mode) == 403


@pytest.mark.parametrize("route", ROUTES)
def test_no_route_opens_itself_to_other_sites(client: httpx.Client, route: str) -> None:
    headers = client.head(route).headers
    assert not [name for name in headers if name.startswith("access-control")]


# -- headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_answer_has_its_headers(client: httpx.Client, route: str, method: str) -> None:
    with client.stream(method, route) as answer:
        headers = answer.headers
    policy = dict(
        part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"x", b"x" * 100_000])
def test_a_body_is_refused(client: httpx.Client, body: bytes) -> None:
    assert client.request("GET", "/slates", content=body).status_code == 413
    assert client.request("GET", "/slates", content=iter([body])).status_code == 413
    assert client.get("/slates").status_code == 200


def test_listeners_are_bounded(path: Path, serve: Serve) -> None:
    client = serve(path, listeners=2)
    with client.stream("GET", "/events") as one, client.stream("GET", "/events") as two:
        talks = [one.iter_raw(), two.iter_raw()]
        assert all(next(talk) for talk in talks)
        refused = client.get("/events")
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        assert client.get("/slates/counts/a").status_code == 200


# -- token --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_open_without_the_token(closed: httpx.Client, route: str) -> None:
    assert asked(closed, route) == 401
    assert asked(closed, route, authorization="Bearer wrong") == 401
    assert asked(closed, route, authorization=f"Basic {TOKEN}") == 401
    assert asked(closed, route, authorization="Bearer") == 401
    assert asked(closed, route, cookie=f"{COOKIE}={TOKEN}") == 401
    assert asked(closed, route, cookie=f"{COOKIE}=; a=b") == 401
    assert asked(closed, f"{route}?token=wrong") == 401


def test_the_token_opens(closed: httpx.Client) -> None:
    mine = {"authorization": f"Bearer {TOKEN}"}
    assert closed.get("/slates/counts/a", headers=mine).json()["slate"] == {"n": 1}


def test_the_page_gets_a_cookie_once(closed: httpx.Client) -> None:
    answer = closed.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    value = cookie.partition(";")[0]
    closed.cookies.clear()
    assert asked(closed, "/slates", cookie=value) == 200
    assert asked(closed, f"/slates?token={TOKEN}") == 401


def test_other_addresses_need_a_token(path: Path) -> None:
    view = Served(Follower(path))
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        with pytest.raises(ConfigError, match="needs a token"):
            open_server(view, host, 0)


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_TOKEN", raising=False)
    assert find_token(None) is None
    monkeypatch.setenv("MILLSTREAM_TOKEN", TOKEN)
    assert find_token(None) == TOKEN
    file = tmp_path / "token"
    file.write_text("another-token-of-some-length\n")
    assert find_token(file) == "another-token-of-some-length"
    for weak in ("short", "", "with spaces in it, quite a few", "ünïcödé-is-not-for-headers"):
        file.write_text(weak)
        with pytest.raises(ConfigError, match="at least 16") as refused:
            find_token(file)
        assert not weak or weak not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        find_token(tmp_path / "absent")


# -- addresses ----------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_one_clear_line(path: Path) -> None:
    view = Served(Follower(path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken") as refused:
            open_server(view, "127.0.0.1", port)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "address"),
    [(8321, ("127.0.0.1", 8321)), ("80", ("127.0.0.1", 80)), ("0.0.0.0:1", ("0.0.0.0", 1))],
)
def test_addresses(given: int | str, address: tuple[str, int]) -> None:
    assert parse_address(given) == address


def test_ipv6_addresses() -> None:
    assert parse_address("[::1]:8321") == ("::1", 8321)


@pytest.mark.parametrize("given", ["x", "host:", ":80", "host:x", 70000, -1, ""])
def test_no_addresses(given: int | str) -> None:
    with pytest.raises(ConfigError, match="expected a port"):
        parse_address(given)


def test_small_answers_are_sent_at_once(path: Path) -> None:
    server = open_server(Served(Follower(path)), "127.0.0.1", 0)
    assert server._socket.proto == socket.IPPROTO_TCP  # what asyncio looks at for TCP_NODELAY
    server.stop()

"""The mirror itself: keys as they are, one writer at a time, and losses that are noticed."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import time
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.io import mirrors
from millstream.io.mirrors import Address, Away, Entry, Lost, Mirror
from millstream.run.outputs.mirroring import as_text

HOSTILE = [
    "",
    "\0",
    "a\0b",
    " ",
    "a b\r\n*3\r\n$3\r\nDEL",
    "ключ",
    "键🗝",
    "é",
    "e\u0301",
    "*",
    "?",
    "[a-z]",
    "\\",
    "a:b",
    ":",
    "{tag}",
    "\uffff",
    "x" * 1000,
]


def make(server: Any, head: str = "t:counts", owner: str = "one", patience: float = 5) -> Mirror:
    return Mirror(Address.parse(server.url, "NO_SUCH_VARIABLE"), head, owner, patience)


def contents(server: Any, head: str = "t:counts") -> dict[str, str]:
    client = server.client()
    return {
        key.decode()[len(head) + 1 :]: client.get(key).decode()
        for key in client.scan_iter(count=1000)
        if key.startswith(head.encode() + b":")
    }


def fill(mirror: Mirror, batch: int, values: dict[str, str | None]) -> None:
    mirror.begin(whole=False)
    mirror.write(
        Entry(mirror.key(key), None if value is None else value.encode())
        for key, value in values.items()
    )
    mirror.finish(batch)


# -- keys and values ------------------------------------------------------------------------------


def test_any_key_is_set_and_removed(server: Any) -> None:
    mirror = make(server)
    assert mirror.where() == (None, -1)
    fill(mirror, 0, {key: f"value of {key}" for key in HOSTILE})
    assert mirror.where() == ("one", 0)
    assert contents(server) == {key: f"value of {key}" for key in HOSTILE}
    fill(mirror, 1, dict.fromkeys(HOSTILE[::2]))
    assert contents(server) == {key: f"value of {key}" for key in HOSTILE[1::2]}


def test_pages_have_all_keys_of_one_mirror_and_no_others(server: Any) -> None:
    heads = ["p:a", "p:a*", "p:[ab]", "p:ab", "p:?", "p:a\\"]
    for head in heads:
        fill(make(server, head), 0, {f"{head} {n}": "x" for n in range(1200)})
    for head in heads:
        found = [key for page in make(server, head).pages() for key in page]
        assert set(found) == {f"{head}:{head} {n}".encode() for n in range(1200)}


def test_pieces_are_bounded_in_keys_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(3)
    sizes = [random_.choice((10, 1000, 700_000, 3_000_000)) for _ in range(3000)]
    seen = 0
    for piece in mirrors._pieces(Entry(b"k", b"x" * size) for size in sizes):
        assert 1 <= len(piece) <= mirrors._PIECE_KEYS
        assert sum(len(e.value or b"") for e in piece[:-1]) < mirrors._PIECE_BYTES
        seen += len(piece)
    assert seen == len(sizes)


def test_entries_are_made_as_they_are_sent(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = make(server)
    mirror.begin(whole=False)
    made = sent = ahead = 0
    real = mirror._send

    def counting(group: list[Any]) -> None:
        nonlocal sent, ahead
        ahead = max(ahead, made - sent)
        real(group)
        sent = made

    def entries() -> Any:
        nonlocal made
        for n in range(20_000):
            made += 1
            yield Entry(mirror.key(str(n)), b"1")

    monkeypatch.setattr(mirror, "_send", counting)
    assert mirror.write(entries()) == made == 20_000
    assert ahead == mirrors._PIECE_KEYS * mirrors._IN_FLIGHT
    assert len(contents(server)) == 20_000


def test_texts_of_keys_of_different_types_differ() -> None:
    strings = [
        "42",
        "-1",
        "1.5",
        "true",
        "null",
        "NaN",
        '"42"',
        '["a"]',
        "{}",
        " 42",
        "a",
        "",
        "x y",
    ]
    others = ["42", "-1", "1.5", "true", "null", '["a"]', "{}", '"2024-01-01T00:00:00Z"']
    texts = [as_text(key, True) for key in strings] + [as_text(key, False) for key in others]
    assert len(set(texts)) == len(texts)
    assert as_text("AAPL", True) == "AAPL"
    assert as_text("42", False) == "42"


def test_times_to_live_are_kept_by_redis(server: Any) -> None:
    mirror = make(server)
    now = int(time.time() * 1000)
    mirror.begin(whole=False)
    mirror.write(
        [
            Entry(b"t:counts:at", b"1", f"@{now + 60_000}"),
            Entry(b"t:counts:in", b"1", "+90000"),
            Entry(b"t:counts:past", b"1", f"@{now - 5}"),
            Entry(b"t:counts:soon", b"1", "+150"),
            Entry(b"t:counts:never", b"1"),
        ]
    )
    client = server.client()
    assert 55_000 < client.pttl("t:counts:at") <= 60_000
    assert 85_000 < client.pttl("t:counts:in") <= 90_000
    assert client.pttl("t:counts:never") == -1
    assert client.get("t:counts:past") is None
    time.sleep(0.3)
    assert set(contents(server)) == {"at", "in", "never"}
    mirror.write([Entry(b"t:counts:at", b"2")])  # a value without an end has none any more
    assert client.pttl("t:counts:at") == -1


# -- one writer, and losses -----------------------------------------------------------------------


def test_a_writer_that_was_overtaken_changes_nothing(server: Any) -> None:
    old, new = make(server), make(server)
    fill(old, 5, {"a": "5", "b": "5"})
    old.begin(whole=False)
    fill(new, 6, {"a": "6", "b": None})
    with pytest.raises(RunError, match="another run has taken over"):
        old.write([Entry(old.key("a"), b"5"), Entry(old.key("b"), b"5")])
    with pytest.raises(RunError, match="another run has taken over"):
        old.finish(5)
    assert contents(server) == {"a": "6"}
    assert new.where() == ("one", 6)


def test_an_emptied_redis_is_noticed(server: Any) -> None:
    mirror = make(server)
    mirror.begin(whole=False)
    mirror.write([Entry(mirror.key("a"), b"1")])
    server.client().flushall()
    with pytest.raises(Lost):
        mirror.write([Entry(mirror.key("b"), b"1")])
    assert contents(server) == {}
    with pytest.raises(Lost):
        mirror.finish(0)
    assert mirror.where() == (None, -1)


def test_a_redis_that_went_back_to_a_snapshot_is_noticed(server: Any) -> None:
    """Also within a batch: what was written after the snapshot is missing."""
    mirror = make(server)
    mirror.begin(whole=False)
    mirror.write([Entry(mirror.key("a"), b"1")])
    server.client().save()
    mirror.write([Entry(mirror.key("b"), b"1")])
    server.kill()
    server.start()
    assert contents(server) == {"a": "1"}
    with pytest.raises(Lost):
        mirror.write([Entry(mirror.key("c"), b"1")])
    with pytest.raises(Lost):
        mirror.finish(0)
    assert contents(server) == {"a": "1"}


def test_pieces_sent_twice_leave_the_same(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to what was written is lost, so it is written again."""
    mirror = make(server)
    mirror.begin(whole=False)
    real = mirror.client.pipeline
    failures = iter([True, False, True, False, False])

    def flaky(**options: Any) -> Any:
        pipe = real(**options)
        execute = pipe.execute

        def lossy() -> Any:
            answers = execute()
            if next(failures, False):
                raise ConnectionResetError("gone")
            return answers

        pipe.execute = lossy
        return pipe

    monkeypatch.setattr(mirror.client, "pipeline", flaky)
    wanted = {f"k{n}": str(n) for n in range(3 * mirrors._PIECE_KEYS)}
    mirror.write(Entry(mirror.key(k), v.encode()) for k, v in wanted.items())
    mirror.finish(7)
    assert contents(server) == wanted
    assert mirror.where() == ("one", 7)


# -- away -----------------------------------------------------------------------------------------


def test_redis_away_is_waited_for_as_long_as_was_said(server: Any) -> None:
    said: list[str | None] = []
    mirror = make(server, patience=0.6)
    mirror.waiting = said.append
    server.kill()
    with pytest.raises(Away, match=r"has been away for 0\.6 s .*refused"):
        mirror.where()
    assert said and all(text and f"127.0.0.1:{server.port}" in text for text in said)


def test_redis_that_comes_back_is_found(server: Any) -> None:
    said: list[str | None] = []
    mirror = make(server, patience=30)
    mirror.waiting = said.append
    server.kill()
    back = threading.Timer(0.5, server.start)
    back.start()
    try:
        fill(mirror, 0, {"a": "1"})
    finally:
        back.join()
    assert contents(server) == {"a": "1"}
    assert said[-1] is None and len(said) > 1


# -- secrets --------------------------------------------------------------------------------------


def test_a_password_is_needed_and_never_shown(locked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    open_url = f"redis://127.0.0.1:{locked.port}/0"
    for url in (open_url, f"redis://:wr0ng-word@127.0.0.1:{locked.port}/0"):
        with pytest.raises(ConfigError, match="does not let us in") as caught:
            Mirror(Address.parse(url, "REDIS_TEST_PASSWORD"), "t", "o", 1).where()
        assert "wr0ng" not in str(caught.value)
    monkeypatch.setenv("REDIS_TEST_PASSWORD", locked.password)
    assert Mirror(Address.parse(open_url, "REDIS_TEST_PASSWORD"), "t", "o", 1).where()[0] is None
    assert Mirror(Address.parse(locked.url, "NOT_SET"), "t", "o", 1).where()[0] is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cret@db.example:7000/2", "redis://db.example:7000/2"),
        ("rediss://:s3cret@db.example", "rediss://db.example:6379"),
        ("redis://db.example/0?password=s3cret", "redis://db.example:6379/0"),
        ("redis://[::1]:6380/1", "redis://[::1]:6380/1"),
        ("unix:///run/redis.sock?db=1&password=s3cret", "unix:///run/redis.sock"),
    ],
)
def test_secrets_are_left_out_wherever_a_sink_is_shown(url: str, shown: str) -> None:
    sink = ms.Redis(url, key="k")
    flow = ms.Flow("secret")
    flow.source(ms.Rate(1, limit=1)).select("value AS k").sink(sink)
    pictures = [repr(sink), str(sink), flow.explain(), repr(sink.address), repr(flow.nodes)]
    assert all("s3cret" not in text for text in pictures)
    assert shown in flow.explain()
    assert "s3cret" not in pickle.dumps(sink).decode("latin-1")
    assert copy.copy(sink).address.shown == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://:s3cret@x/",
        "redis://x:s3cret",
        "redis://:s3cret@",
        "s3cret",
        "redis://x:s3cret@h:99999999/0",
        "redis://x/0?s3cret",
        7,
    ],
)
def test_a_refused_url_is_not_repeated(url: Any) -> None:
    with pytest.raises(ConfigError, match="expected an address like redis://") as caught:
        ms.Redis(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefix": 7}, "prefix"),
        ({"key": ("a", "")}, "names of columns"),
        ({"ttl": "soon"}, "ttl"),
        ({"wait": "-"}, "wait"),
        ({"password_env": ""}, "password_env"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ms.Redis(**options)

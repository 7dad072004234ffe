"""An honest client among three hundred hostile connections: answered, and how fast."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np

from tests.security.conftest import HEAD, LAST, Attack, Target, eventually, rest
from tests.serve.writing import Put, Writer

SECOND = b"GET /slates HTTP/1.1\r\n" + HEAD
HOSTILE = {  # how many send what, and then nothing, and read nothing
    "half a head": (60, b"GET /slates HTTP/1.1\r\nhost: local"),
    "half a body": (60, b"POST /slates HTTP/1.1\r\ncontent-length: 1000\r\n" + HEAD + b"half"),
    "half a second request": (60, SECOND + b"GET /sla"),
    "unread pages": (60, b"GET /slates/counts?limit=1000 HTTP/1.1\r\n" + HEAD),
    "listeners": (60, b"GET /events?since=-1&prefix=zzz HTTP/1.1\r\n" + HEAD),
}
DEEP = b"%5B" * 2000 + b"%5D" * 2000
SHORT = [  # on connections of their own, again and again
    b'GET / HTTP/1.1\r\ncookie: millstream="' + b"\\" * 4000 + b'"\r\n' + LAST,
    b'GET / HTTP/1.1\r\ncookie: millstream="' + b"\\" * 50_000 + b'"\r\n' + LAST,
    b"GET /slates/counts/" + DEEP + b" HTTP/1.1\r\n" + LAST,
    b"GET /slates/counts?prefix=zzz HTTP/1.1\r\n" + LAST,
    b"POST /slates HTTP/1.1\r\ncontent-length: 1000\r\n" + HEAD + b"half",
    b"GET /slates HTTP/1.1\r\nhost: [::1].evil.com\r\nconnection: close\r\n\r\n",
    b"\0" * 1000 + b"\r\n\r\n",
]
ROUTES = ["/slates/counts/k7", "/slates/counts/k7", "/slates", "/status", "/slates/counts?limit=10"]


def test_an_honest_client_does_not_notice(tmp_path: Path, attack: Attack) -> None:
    writer = Writer(tmp_path / "ck")
    writer.commit(*(Put(f"k{i}", {"t": "x" * 1000}) for i in range(2_000)))
    target = attack(writer.path, patience=6, idle=6, stalled=6)
    quiet = latencies(target, 50)
    held = [target.wire(sent, takes=4096) for many, sent in HOSTILE.values() for _ in range(many)]
    eventually(lambda: len(target.server.crowd.open) >= len(held))
    ended = threading.Event()
    shooting = threading.Thread(target=shoot, args=(target, ended))
    shooting.start()
    try:
        during = latencies(target, 100)
        still = len(target.server.crowd.open) - 1  # without the honest one
    finally:
        ended.set()
        shooting.join()
    for name, took in (("alone", quiet), (f"among {still} hostile connections", during)):
        p50, p99 = np.percentile(took, [50, 99])
        print(f"honest client {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(took):.1f}")
    listeners = HOSTILE["listeners"][0]
    eventually(lambda: len(target.server.crowd.open) <= listeners + 1)  # and the honest one
    for wire in held[: len(held) - listeners]:
        rest(wire)  # comes to an end
    assert target.client.get("/slates/counts/k7").status_code == 200


def latencies(target: Target, count: int) -> list[float]:
    """How long an honest client waited for each of its answers, in milliseconds."""
    took = []
    for number in range(count):
        begun = time.perf_counter()
        answer = target.client.get(ROUTES[number % len(ROUTES)])
        took.append((time.perf_counter() - begun) * 1e3)
        assert answer.status_code == httpx.codes.OK
    return took


def shoot(target: Target, ended: threading.Event) -> None:
    """Short attacks, one after the other."""
    number = 0
    while not ended.wait(0.01):
        with socket.create_connection(("127.0.0.1", target.server.port), timeout=30) as wire:
            try:
                wire.sendall(SHORT[number % len(SHORT)])
            except ConnectionError:  # refused before all was sent
                continue
            rest(wire)
        number += 1

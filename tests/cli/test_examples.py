"""Examples on Spark, computed again in plain Python; one of them by the command line, live."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millstream.cli.loading import load_application, load_module
from tests.cli.conftest import COMMAND
from tests.examples import oracles

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.spark


@pytest.fixture
def run(here: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs an example in an empty directory, all in one Spark session."""
    monkeypatch.chdir(here.path)

    def run_one(name: str, **env: str) -> None:
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        progress = load_application(EXAMPLES / name).flow.run("ck")
        assert progress.done and progress.dead == progress.late == 0

    return run_one


def lines(folder: Path) -> list[dict[str, Any]]:
    """All rows of a Jsonl sink."""
    files = sorted(folder.glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def floor(at: datetime, minutes: int) -> datetime:
    """The start of the window of so many minutes a time is in."""
    return at - timedelta(
        minutes=at.minute % minutes, seconds=at.second, microseconds=at.microsecond
    )


def test_every_example_is_tested() -> None:
    tested = {"wordcount.py", "moving_average.py", "clicks_live.py", "two_jobs.py"}
    tested |= {
        "flash_sale.py",
        "macd.py",
        "monitoring.py",
        "orders_posted.py",
        "requests.py",
        "several.py",
    }  # in tests/examples
    tested |= {"trades_kafka.py"}  # in tests/kafka
    tested |= {"nexmark.py", "page_views.py", "top_words.py"}  # there too
    applications = {
        "cars",
        "checkins",
        "grep",
        "hot_topics",
        "reputation",
        "site_requests",
        "top_urls",
    }  # there too, as TOML as well
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested | {
        f"{name}.py" for name in applications
    }
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == applications


def test_wordcount(here: Any, run: Any) -> None:
    texts = here.path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("The mill and the stream\nthe mill\n" * 50)
    (texts / "b.txt").write_text("A stream of words, words, words")
    run("wordcount.py", TEXTS=str(texts / "*.txt"))
    words = [w for p in texts.iterdir() for w in re.findall("[a-z]+", p.read_text().lower())]
    found = lines(here.path / "out/wordcount")
    assert {row["word"]: row["n"] for row in found} == Counter(words)
    assert len(found) == len(set(words))


def test_moving_average(here: Any, run: Any) -> None:
    run("moving_average.py")
    windows: dict[tuple[str, datetime], list[float]] = defaultdict(list)
    with open(here.path / "trades/morning.csv") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["ts"])
            for back in range(10):
                start = floor(at, 1) - timedelta(minutes=back)
                windows[row["symbol"], start].append(float(row["price"]))
    found = pq.read_table(here.path / "out/moving_average").to_pylist()
    assert len(found) == len(windows)
    for row in found:
        prices = windows[row["symbol"], row["window_start"]]
        assert row["n"] == len(prices)
        assert (row["low"], row["high"]) == (min(prices), max(prices))
        assert row["avg"] == pytest.approx(sum(prices) / len(prices), rel=1e-12)
        assert row["window_end"] - row["window_start"] == timedelta(minutes=10)


def test_clicks_live(here: Any, run: Any) -> None:
    run("clicks_live.py", CLICKS="300", RATE="1000")
    found = lines(here.path / "out/clicks")
    assert sum(row["clicks"] for row in found) == 300
    assert {row["page"] for row in found} == {"/", "/about", "/buy", "/help"}
    assert len({(row["page"], row["window_start"]) for row in found}) == len(found)


def test_two_jobs(here: Any, run: Any) -> None:
    run("two_jobs.py")
    orders = [json.loads(line) for line in (here.path / "orders.jsonl").read_text().splitlines()]
    out = here.path / "out/two_jobs"

    large = Counter((o["shop"], o["cents"]) for o in orders if o["cents"] >= 45_000)
    assert Counter((row["shop"], row["cents"]) for row in lines(out / "large")) == large

    per_minute: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    per_ten: dict[datetime, Counter[str]] = defaultdict(Counter)
    for order in orders:
        at = datetime.fromisoformat(order["at"]).astimezone(UTC)
        per_minute[order["shop"], floor(at, 1)].append(order["cents"])
        per_ten[floor(at, 10)][order["shop"]] += order["cents"]
    shops = pq.read_table(out / "shops").to_pylist()
    assert {(row["shop"], row["window_start"]): (row["sales"], row["orders"]) for row in shops} == {
        key: (sum(cents), len(cents)) for key, cents in per_minute.items()
    }
    assert len(shops) == len(per_minute)

    found = lines(out / "best")
    expected = set(_best(per_ten))
    assert len(found) == len(expected)
    assert {
        (row["window_start"], row["key"], row["value"]["shop"], row["value"]["sales"])
        for row in found
    } == expected


# -- the applications of the MapUpdate paper -------------------------------------------------------


def slates(here: Any, flow: str, updater: str) -> dict[str, Any]:
    """The slates of an updater as the command line lists them."""
    result = here.run("slates", "list", updater, "--checkpoint", f".millstream/{flow}")
    assert result.code == 0, result.err
    found = [json.loads(line) for line in result.out.splitlines()]
    return {one["key"]: one["slate"] for one in found}


@pytest.mark.long
def test_checkins_are_counted_live(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an end, read over HTTP while it runs, then stopped: the counts are what was read."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [COMMAND, "run", str(EXAMPLES / "checkins.py"), "--serve", str(port), "--quiet"]
    with subprocess.Popen(
        command, cwd=here.path, env={**os.environ, "CHECKINS": "0"}, stderr=subprocess.PIPE
    ) as running:
        try:
            seen = _growing(f"http://127.0.0.1:{port}", 3)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0, running.stderr and running.stderr.read()
    assert seen == sorted(set(seen))
    found = {name: slate["checkins"] for name, slate in slates(here, "checkins", "counts").items()}
    assert found["Walmart"] >= seen[-1]
    offered = _ledger(here.path / ".millstream/checkins")["checkins"]["offered"]
    monkeypatch.setenv("RATE", "1e9")
    invented = load_module(EXAMPLES / "checkins.py").checkins()  # the same, without the waiting
    venues = [checkin["venue"] for checkin in islice(invented, offered)]
    assert found == oracles.per_retailer(venues)


def _growing(url: str, times: int) -> list[int]:
    """The count of one retailer, each time it has changed."""
    seen: list[int] = []
    until = time.monotonic() + 300
    while len(seen) < times:
        assert time.monotonic() < until, f"only {seen} came"
        time.sleep(0.1)
        try:
            with urllib.request.urlopen(f"{url}/slates/counts/Walmart", timeout=5) as answer:
                count = json.load(answer)["slate"]["checkins"]
        except (urllib.error.URLError, ConnectionError):
            continue  # not up yet, or nothing counted yet
        if count not in seen:
            seen.append(count)
    with urllib.request.urlopen(url, timeout=5) as page:
        assert "text/html" in page.headers["content-type"]
    return seen


def _ledger(checkpoint: Path) -> dict[str, dict[str, int]]:
    newest = max((checkpoint / "manifests").iterdir())
    found: dict[str, dict[str, int]] = json.loads(newest.read_text().splitlines()[0])["ledger"]
    return found


def _best(per_ten: dict[datetime, Counter[str]]) -> Iterator[tuple[str, int, str, int]]:
    for start, sales in per_ten.items():
        best = sorted(sales, key=lambda shop: (-sales[shop], shop))[:3]
        for place, shop in enumerate(best, 1):
            yield f"{start:%Y-%m-%dT%H:%M:%SZ}", place, shop, sales[shop]

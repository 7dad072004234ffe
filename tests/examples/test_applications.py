"""The applications of the MapUpdate paper, as programs and as configurations, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.loading import load_flow, load_module
from millstream.testing import run_in_process
from tests.examples import oracles

EXAMPLES = Path(__file__).parents[2] / "examples"
FORMS = [".py", ".toml"]
BATCHES = [1_000_000, 400]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and nothing said about where data is."""
    monkeypatch.chdir(tmp_path)
    for name in ("TWEETS", "ENDORSEMENTS", "OUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHECKINS", "2000")
    monkeypatch.setenv("RATE", "1e9")


def run(name: str, form: str, batch_rows: int) -> dict[str, dict[str, int]]:
    """Run one application to its end; every record is accounted for, and none is dead or late."""
    flow = load_flow(EXAMPLES / f"{name}{form}")
    ledger = run_in_process(flow, "ck", parallelism=2, batch_rows=batch_rows)
    for step, account in ledger.items():
        assert account["offered"] == account["aggregated"], (step, account)
    return ledger


def slates(updater: str) -> dict[Any, Any]:
    """All slates, as another program reads them."""
    return dict(ms.slates("ck", updater))


def rows(folder: str) -> list[dict[str, Any]]:
    """What a Jsonl sink wrote, batch by batch."""
    files = sorted(Path(folder).glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_rows", BATCHES)
def test_checkins(form: str, batch_rows: int) -> None:
    ledger = run("checkins", form, batch_rows)
    module: Any = load_module(EXAMPLES / "checkins.py")
    venues = [checkin["venue"] for checkin in module.checkins()]
    expected = oracles.per_retailer(venues)
    assert len(venues) == 2000 and len(expected) == 4
    assert slates("counts") == {name: {"checkins": n} for name, n in expected.items()}
    assert ledger["counts"]["offered"] == sum(expected.values()) < 2000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_rows", BATCHES)
def test_hot_topics(form: str, batch_rows: int) -> None:
    ledger = run("hot_topics", form, batch_rows)
    expected = oracles.hot_topics(Path("tweets.jsonl"))
    found = [tuple(row.values()) for row in rows("out/hot_topics")]
    assert sorted(found) == expected
    assert len(expected) >= 10  # the invented tweets have something to find
    assert slates("counts") == {}  # every minute is over
    assert ledger["averages"]["offered"] == 7 * 20 * 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_rows", [*BATCHES, 7])
def test_reputation(form: str, batch_rows: int) -> None:
    ledger = run("reputation", form, batch_rows)
    expected = oracles.reputation(Path("endorsements.csv"))
    assert slates("scores") == expected
    assert len(expected) == 10 and all(slate["score"] > 0 for slate in expected.values())
    assert ledger["changes"]["offered"] > 1_000  # most of what happens, happens in the cycle


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_rows", BATCHES)
def test_top_urls(form: str, batch_rows: int) -> None:
    run("top_urls", form, batch_rows)
    tweets = Path("url_tweets.jsonl")
    assert slates("top") == {"all": {"urls": oracles.top_urls(tweets)}}
    expected = oracles.changes_of_the_top(tweets)
    assert [row["urls"] for row in rows("out/top_urls")] == expected
    assert len(expected) > 50 and expected[-1] == [url for url, _ in oracles.top_urls(tweets)]


def test_data_is_the_same_every_time(tmp_path: Path) -> None:
    for name, fn, file in (
        ("hot_topics", "invent_tweets", "tweets.jsonl"),
        ("reputation", "invent_endorsements", "endorsements.csv"),
        ("top_urls", "invent_tweets", "url_tweets.jsonl"),
    ):
        module = load_module(EXAMPLES / f"{name}.py")
        again = tmp_path / "again" / file
        getattr(module, fn)(again)
        assert again.read_bytes() == Path(file).read_bytes()

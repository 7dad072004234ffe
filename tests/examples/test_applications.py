"""The applications of the papers, as programs and as configurations; all of them on Spark, too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.loading import load_application, load_module
from millstream.testing import Driver, run_in_process
from tests.examples import oracles
from tests.variants import variants

EXAMPLES = Path(__file__).parents[2] / "examples"
BOTH = variants([(".py", 400), (".toml", 1_000_000), (".toml", 400), (".py", 1_000_000)], 2)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and nothing said about where data is."""
    monkeypatch.chdir(tmp_path)
    for name in ("TWEETS", "ENDORSEMENTS", "OUT", "LOG", "FOLLOW", "TEXTS", "PATTERN", "DEPLOYED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHECKINS", "2000")
    monkeypatch.setenv("RATE", "1e9")


def run(name: str, form: str, batch_rows: int) -> dict[str, dict[str, int]]:
    """Run one application to its end; every record is accounted for, and none is dead or late."""
    flow = load_application(EXAMPLES / f"{name}{form}").flow
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


@pytest.mark.parametrize(("form", "batch_rows"), BOTH)
def test_checkins(form: str, batch_rows: int) -> None:
    ledger = run("checkins", form, batch_rows)
    assert ledger["counts"]["offered"] == check_checkins() < 2000


def check_checkins() -> int:
    module: Any = load_module(EXAMPLES / "checkins.py")
    venues = [checkin["venue"] for checkin in module.checkins()]
    expected = oracles.per_retailer(venues)
    assert len(venues) == 2000 and len(expected) == 4
    assert slates("counts") == {name: {"checkins": n} for name, n in expected.items()}
    return sum(expected.values())


@pytest.mark.parametrize(("form", "batch_rows"), BOTH)
def test_hot_topics(form: str, batch_rows: int) -> None:
    ledger = run("hot_topics", form, batch_rows)
    check_hot_topics()
    assert ledger["averages"]["offered"] == oracles.topic_minutes(Path("tweets.jsonl")) < 7 * 20 * 4


def check_hot_topics() -> None:
    expected = oracles.hot_topics(Path("tweets.jsonl"))
    found = [tuple(row.values()) for row in rows("out/hot_topics")]
    assert sorted(found) == expected
    assert len(expected) >= 10  # the invented tweets have something to find
    assert slates("counts") == {}  # every minute is over


def test_days_without_a_mention_count_for_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out by hand from Example 5 of the paper."""
    days = {5: 4, 9: 4, 10: 4}  # of January, deployed on the 5th: mentions of a topic at 00:14
    tweets = [
        {"at": f"2026-01-{day:02d}T00:14:{second:02d}Z", "text": "#mill"}
        for day, times in days.items()
        for second in range(times)
    ]
    tweets.append({"at": "2026-01-10T00:20:00Z", "text": "#slate"})  # 1 / (0 / 5): as hot as can be
    Path("own.jsonl").write_text("".join(json.dumps(tweet) + "\n" for tweet in tweets))
    monkeypatch.setenv("TWEETS", "own.jsonl")
    run("hot_topics", ".py", 1_000)
    found = {(r["topic"], r["day"]): (r["mentions"], r["usual"]) for r in rows("out/hot_topics")}
    assert found == {
        ("mill", "2026-01-09"): (4, 4 / 4),  # 4 / 1 > 2.5
        ("slate", "2026-01-10"): (1, 0.0),
    }  # on the 10th the usual is 8 / 5, and 4 / 1.6 is no more than 2.5
    assert len(oracles.hot_topics(Path("own.jsonl"))) == 2


@pytest.mark.parametrize(("form", "batch_rows"), [*BOTH, (".py", 7)])
def test_reputation(form: str, batch_rows: int) -> None:
    ledger = run("reputation", form, batch_rows)
    check_reputation()
    assert ledger["changes"]["offered"] > 1_000  # most of what happens, happens in the cycle


def check_reputation() -> None:
    expected = oracles.reputation(Path("endorsements.csv"))
    assert slates("scores") == expected
    assert len(expected) == 10 and all(slate["score"] > 0 for slate in expected.values())


@pytest.mark.parametrize(("form", "batch_rows"), BOTH)
def test_top_urls(form: str, batch_rows: int) -> None:
    run("top_urls", form, batch_rows)
    check_top_urls()


def check_top_urls() -> None:
    tweets = Path("url_tweets.jsonl")
    assert slates("top") == {"all": {"urls": oracles.top_urls(tweets)}}
    expected = oracles.changes_of_the_top(tweets)
    assert [row["urls"] for row in rows("out/top_urls")] == expected
    assert len(expected) > 50 and expected[-1] == [url for url, _ in oracles.top_urls(tweets)]


@pytest.mark.parametrize(("form", "batch_rows"), BOTH)
def test_site_requests(form: str, batch_rows: int) -> None:
    assert run("site_requests", form, batch_rows)["log"]["offered"] == 5_000
    check_site_requests()


def check_site_requests() -> None:
    expected = oracles.requests_per_part(Path("access.log"))
    assert slates("parts") == expected
    assert set(expected) == {"/", "/shop", "/blog", "/api"}


ODD = {  # request as it stands in the log, status -> the part of the site
    ("-", 408): "(no path)",
    ("OPTIONS * HTTP/1.0", 200): "(no path)",
    ("CONNECT example.com:443 HTTP/1.1", 405): "(no path)",
    (r"\x16\x03\x01\x02", 400): "(no path)",
    ("", 400): "(no path)",
    ("GET http://example.com/shop/cart HTTP/1.1", 404): "/shop",
    ("GET https://example.com HTTP/1.1", 404): "/",
    ("GET /blog?u=http://example.com/shop HTTP/1.1", 200): "/blog",
    ("GET /shop", 200): "/shop",
    ("GET /api#top HTTP/1.1", 200): "/api",
    (r"GET /a\"b/c HTTP/1.1", 200): r"/a\"b",
}


def test_odd_requests_are_requests() -> None:
    module = load_module(EXAMPLES / "site_requests.py")
    head = "192.0.2.1 - John Doe [05/Jan/2026:09:00:00 +0000]"
    lines = [f'{head} "{request}" {status} 7 "-" "curl/8"\n' for request, status in ODD]
    Path("access.log").write_text("".join(lines))
    ledger = run_in_process(module.flow, "ck")
    assert ledger["requests"]["dead"] == 0
    assert {part: slate["requests"] for part, slate in slates("parts").items()} == dict(
        Counter(ODD.values())
    )


def test_a_line_that_is_no_request_is_a_dead_letter() -> None:
    module = load_module(EXAMPLES / "site_requests.py")
    log = Path("access.log")
    log.write_text("nonsense\n" + "".join(log.read_text().splitlines(keepends=True)[:200]))
    ledger = run_in_process(module.flow, "ck")
    assert ledger["requests"]["dead"] == 1 and ledger["parts"]["aggregated"] == 200
    (file,) = Path("ck/dead").glob("[0-9]*.jsonl")
    assert "expected a line of an access log" in file.read_text()


@pytest.mark.parametrize(("form", "batch_rows"), BOTH)
def test_grep(form: str, batch_rows: int) -> None:
    run("grep", form, batch_rows)
    check_grep()


def check_grep() -> None:
    found = {row["match"]: row["n"] for row in rows("out/grep")}
    texts = sorted(Path("texts").glob("*.txt"))
    words = Counter(word for path in texts for word in path.read_text().split())
    assert found == {
        "mill": words["mill"],
        "mills": words["mills"],
        "stream": oracles.occurrences(texts, ["stream"])["stream"],
        "water": words["water"],
    }
    assert found["stream"] > words["stream"] > 0


def test_grep_slides_over_time() -> None:
    """As in the paper: what leaves the window is taken away, and what is left is right."""
    module: Any = load_module(EXAMPLES / "grep.py")

    class Lines(module.Grep):  # type: ignore[misc, name-defined]
        def map(self, key: Any, value: Any, ts: Any) -> Any:
            return super().map(key, value["line"], ts)

    flow = ms.Flow("sliding grep")
    lines = flow.source(
        ms.Files("x", schema="ts bigint, line string", time="ts", lateness="0s"), name="lines"
    )
    windowed = lines.key_by().window(ms.sliding("60s", "5s")).map_reduce(Lines("a+"))
    windowed.sink(ms.Memory())
    text = {second: "a" * (second % 3) + " b" for second in range(200)}
    with Driver(flow) as driver:
        for start in range(0, 200, 20):
            batch = [{"ts": s, "line": text[s]} for s in range(start, start + 20)]
            driver.push("lines", batch).step()
        found = {(r["window_start"].timestamp(), r["key"]): r["value"] for r in driver.output()}
    for (start, match), n in found.items():
        inside = [line for s, line in text.items() if start <= s < start + 60]
        assert n == sum(line.startswith(f"{match} ") for line in inside)
    assert len(found) > 40


def test_all_of_them_on_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session for all; each as its tests above, in one form."""
    applications: dict[str, tuple[str, Callable[[], object]]] = {
        "checkins": (".toml", check_checkins),
        "hot_topics": (".py", check_hot_topics),
        "reputation": (".toml", check_reputation),
        "top_urls": (".py", check_top_urls),
        "site_requests": (".toml", check_site_requests),
        "grep": (".py", check_grep),
    }
    for name, (form, check) in applications.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        progress = load_application(EXAMPLES / f"{name}{form}").flow.run(
            "ck", parallelism=2, batch_rows=2_000
        )
        assert progress.done and progress.dead == progress.late == 0, name
        check()


def test_data_is_the_same_every_time(tmp_path: Path) -> None:
    for name, fn, file in (
        ("hot_topics", "invent_tweets", "tweets.jsonl"),
        ("reputation", "invent_endorsements", "endorsements.csv"),
        ("top_urls", "invent_tweets", "url_tweets.jsonl"),
        ("site_requests", "invent_log", "access.log"),
    ):
        module = load_module(EXAMPLES / f"{name}.py")
        again = tmp_path / "again" / file
        getattr(module, fn)(again)
        assert again.read_bytes() == Path(file).read_bytes()

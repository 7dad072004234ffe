"""The ten URLs most passed around.

    millstream run examples/top_urls.py
    TWEETS=tweets.jsonl OUT=top millstream run examples/top_urls.py --checkpoint ck/urls
    millstream slates get top all --checkpoint .millstream/top_urls

One updater counts per URL, and publishes every new count under one key; a second one keeps the ten
largest of them, and tells when another URL is among them or their order has changed. Without TWEETS
it invents some first, in `url_tweets.jsonl`.
"""

import json
import os
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

TWEETS = Path(os.environ.get("TWEETS", "url_tweets.jsonl"))
OUT = os.environ.get("OUT", "out/top_urls")


def invent_tweets(path: Path, number: int = 5_000) -> None:
    """An hour of tweets; few URLs are in many of them, and not always the same few."""
    dice = random.Random(19)
    at = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for tweet in range(number):
            at += timedelta(microseconds=dice.randint(1_000, 1_400_000))
            page = (int(dice.paretovariate(0.6)) + 5 * (tweet // 800)) * 37 % 500
            url = f" https://example.org/{page}" if dice.random() < 0.9 else ""
            text = f"Read this{url} - it is good"
            out.write(json.dumps({"at": at.isoformat(), "text": text}) + "\n")


def find_url(tweet):
    """The URL a tweet has, if it has one."""
    found = re.search(r"https?://[^\s]+", tweet["text"])
    return {"url": found[0]} if found else None


def count(event, slate, ctx):
    """One more of this URL, told to who keeps the list."""
    slate["n"] = slate.get("n", 0) + 1
    ctx.publish("counted", "all", [event.key, slate["n"]])


class Top:
    """The largest counts; of equal ones, the URL that comes first."""

    def __init__(self, places=10):
        self.places = places

    def update(self, event, slate, ctx):
        url, n = event.value
        counts = dict(slate.get("urls", []))
        before = list(counts)
        counts[url] = n
        best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.places]
        slate["urls"] = [list(item) for item in best]
        after = [url for url, _ in best]
        if after != before:
            return {"at": event.ts, "urls": after}


if not TWEETS.exists():
    invent_tweets(TWEETS)

flow = ms.Flow("top_urls")
tweets = flow.source(ms.Files(TWEETS, format="json", time="at", lateness="1s"), name="tweets")
counted = flow.stream("counted")
tweets.map(find_url, schema="url string").named("urls").key_by("url").update(count, name="counts")
top = counted.key_by("key").update(Top(places=10), name="top")
top.sink(ms.Jsonl(OUT), name="changes")

if __name__ == "__main__":
    flow.run(checkpoint="ck/top_urls")
    for url, n in ms.slates("ck/top_urls", "top").get("all")["urls"]:
        print(f"{n:6,} {url}")

"""Topics that are hot: mentioned far more often in a minute than in that minute of other days.

    millstream run examples/hot_topics.py
    TWEETS=tweets.jsonl OUT=hot millstream run examples/hot_topics.py --checkpoint ck/topics

Two updaters. The first counts the mentions of a topic in a minute, and publishes the count when the
minute is over. The second compares a count with the average of the same minute on the days before:
all mentions in it so far, divided by the days since deployment, whether there were any on a day or
not. DEPLOYED is the first day. Without TWEETS it invents a week of tweets first, in `tweets.jsonl`.
"""

import json
import os
import random
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import millstream as ms

TWEETS = Path(os.environ.get("TWEETS", "tweets.jsonl"))
OUT = os.environ.get("OUT", "out/hot_topics")
DEPLOYED = os.environ.get("DEPLOYED", "2026-01-05")
TOPICS = ("mill", "stream", "slate", "spark")
MINUTE = timedelta(minutes=1)


def invent_tweets(path: Path, days: int = 7, minutes: int = 20) -> None:
    """Twenty minutes of every morning; now and then everybody talks about one topic, or nobody."""
    dice = random.Random(13)
    tweets = []
    for day in range(days):
        for minute in range(minutes):
            begin = datetime(2026, 1, 5 + day, 9, minute, tzinfo=UTC)
            excited = dice.choice(TOPICS) if dice.random() < 0.15 else None
            for topic in TOPICS:
                if dice.random() < 0.25:
                    continue
                for _ in range(dice.randint(3, 6) * (5 if topic == excited else 1)):
                    second = dice.choice(("", f" and #{dice.choice(TOPICS).upper()}"))
                    at = begin + timedelta(milliseconds=dice.randrange(60_000))
                    tweets.append((at, f"Look at #{topic}{second}!"))
    tweets.sort(key=lambda tweet: tweet[0] + timedelta(seconds=dice.uniform(0, 3)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for at, text in tweets:
            out.write(json.dumps({"at": at.isoformat(), "text": text}) + "\n")


def mentions(tweet):
    """One record per topic of a tweet; its minute is that of the day."""
    for topic in sorted(set(re.findall(r"#(\w+)", tweet["text"].lower()))):
        yield {"topic_minute": f"{topic} {tweet['at']:%H:%M}"}


def count(event, slate, ctx):
    """Count a mention; with the first one, ask to be called at the end of the minute."""
    if not slate:
        begin = event.ts.replace(second=0, microsecond=0)
        ctx.timer(at=begin + MINUTE)
    slate["mentions"] = slate.get("mentions", 0) + 1


def tell(event, slate, ctx):
    """The minute is over: publish the count, and begin anew tomorrow."""
    day = event.ts - MINUTE
    ctx.publish("minutes", event.key, {"day": f"{day:%Y-%m-%d}", "mentions": slate["mentions"]})
    ctx.delete()


class Compare:
    """A minute is hot if it has `threshold` times the mentions it had on average before.

    Days since deployment are the same in all slates, so a topic nobody mentioned yesterday has the
    lower average for it. On the first day there is none to compare with.
    """

    def __init__(self, threshold=2.5, deployed=DEPLOYED):
        self.threshold = threshold
        self.deployed = date.fromisoformat(deployed)

    def update(self, event, slate, ctx):
        mentions, total = event.value["mentions"], slate.get("total", 0)
        days = (date.fromisoformat(event.value["day"]) - self.deployed).days
        slate["total"], slate["days"] = total + mentions, days
        if days > 0 and mentions * days > self.threshold * total:
            topic, minute = event.key.split()
            return {
                "topic": topic,
                "day": event.value["day"],
                "minute": minute,
                "mentions": mentions,
                "usual": total / days,
            }


if not TWEETS.exists():
    invent_tweets(TWEETS)

flow = ms.Flow("hot topics")
tweets = flow.source(ms.Files(TWEETS, format="json", time="at", lateness="5s"), name="tweets")
minutes = flow.stream("minutes")
(
    tweets.flat_map(mentions, schema="topic_minute string")
    .named("mentions")
    .key_by("topic_minute")
    .update(count, name="counts", on_timer=tell)
)
hot = minutes.key_by("key").update(Compare(threshold=2.5), name="averages")
hot.sink(ms.Jsonl(OUT), name="hot")

if __name__ == "__main__":
    flow.run(checkpoint="ck/hot_topics")

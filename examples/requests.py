"""Requests by the second in which they began, from a log that is written when they end.

    millstream run examples/requests.py

A map that sees events: it gives each request the time at which it began (at most a minute earlier),
and publishes failures and slow requests to streams of their own.
"""

import os
import random
from datetime import UTC, datetime, timedelta

import millstream as ms

OUT = os.environ.get("OUT", "out/requests")
REQUESTS = int(os.environ.get("REQUESTS", "2000"))
PARTS = ("search", "shop", "help")


def log():
    """One line per request, in the order in which they ended."""
    dice = random.Random(11)
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for _ in range(REQUESTS):
        now += timedelta(milliseconds=dice.randrange(40))
        yield {
            "ended": now,
            "part": dice.choice(PARTS),
            "millis": int(dice.expovariate(1 / 400)),
            "status": dice.choices((200, 500), weights=(40, 1))[0],
        }


def request(event, ctx):
    """One request: where it belongs in time, and who else wants to know of it."""
    line = event.value
    began = event.ts - timedelta(milliseconds=line["millis"])
    ctx.emit({"part": line["part"], "status": line["status"]}, ts=began)
    if line["status"] >= 500:
        ctx.publish("failures", line["part"], line["status"])
    if line["millis"] > 2000:
        ctx.publish("slow", line["part"], line["millis"])


def longest(event, slate, ctx):
    """The longest requests of a part of the site, and how many were slow or failed."""
    slate[event.stream] = slate.get(event.stream, 0) + 1
    if event.stream == "slow":
        slate["longest"] = max(event.value, slate.get("longest", 0))


flow = ms.Flow("requests")
began = flow.source(
    ms.Generator(
        log, schema="ended timestamp, part string, millis bigint, status bigint", time="ended"
    ),
    name="log",
).process(request, behind="1m", schema="part string, status bigint")
began.key_by("part").window(ms.tumbling("1s")).agg(requests=ms.count()).sink(ms.Jsonl(OUT))
failures, slow = flow.stream("failures"), flow.stream("slow")
failures.key_by("key").union(slow.key_by("key")).update(longest, name="parts")

if __name__ == "__main__":
    flow.run(checkpoint="ck/requests")

"""Nexmark in SQL: people open auctions and bid, and queries over all that are kept up to date.

    python examples/nexmark.py                       # all queries
    QUERIES=q4,q19 python examples/nexmark.py        # some of them
    EVENTS=100000 millstream run examples/nexmark.py

Answers are in `out/nexmark/<query>`, as JSON lines. Where rows can be taken back they have `op`.
Queries that go by the clock of the machine (q12, q13) are left out.
"""

import os
import random
from datetime import UTC, datetime, timedelta

import millstream as ms

EVENTS = int(os.environ.get("EVENTS", "5000"))
BEGIN = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
STATES = ("OR", "ID", "CA", "WA", "AZ")


def events():
    """One person, three auctions, forty-six bids, and so on, a hundred a second."""
    dice = random.Random(5)
    people, auctions = 0, 0
    for number in range(EVENTS):
        ts = BEGIN + timedelta(milliseconds=10 * number)
        if number % 50 == 0:
            people += 1
            yield (
                "person",
                {
                    "id": people,
                    "name": f"{dice.choice('PWJKL')}{dice.choice(('aul', 'endy', 'uli', 'ai'))}",
                    "city": dice.choice(("Boise", "Portland", "Bend", "Kent")),
                    "state": dice.choice(STATES),
                    "ts": ts,
                },
            )
        elif number % 50 < 4:
            auctions += 1
            yield (
                "auction",
                {
                    "id": auctions,
                    "seller": dice.randint(1, people),
                    "category": dice.randint(10, 14),
                    "reserve": dice.randint(100, 10_000),
                    "ts": ts,
                    "expires": ts + timedelta(seconds=dice.randint(1, 20)),
                },
            )
        else:
            yield (
                "bid",
                {
                    "auction": max(1, auctions - int(dice.expovariate(0.2))),
                    "bidder": dice.randint(1, people),
                    "price": dice.randint(100, 100_000),
                    "channel": dice.choice(("Google", "Apple", "Baidu", "channel-7")),
                    "ts": ts,
                },
            )


def only(kind):
    """The events of one kind, as a generator function."""

    def some():
        return (event for one, event in events() if one == kind)

    return some


SCHEMAS = {
    "person": "id bigint, name string, city string, state string, ts timestamp",
    "auction": "id bigint, seller bigint, category int, reserve bigint, ts timestamp, "
    "expires timestamp",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, ts timestamp",
}
QUERIES = {
    "q1": "SELECT auction, bidder, price * 0.908 AS price, ts FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 7 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        SELECT category, AVG(final) AS final FROM (
            SELECT a.id, a.category, MAX(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.category
        ) AS closed GROUP BY category""",
    "q5": """
        WITH counts AS (
            SELECT auction, COUNT(*) AS num, window_start, window_end
            FROM HOP(bid, ts, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
            GROUP BY auction, window_start, window_end)
        SELECT c.auction, c.num, c.window_end FROM counts c JOIN (
            SELECT MAX(num) AS num, window_end FROM counts GROUP BY window_end
        ) AS m ON c.window_end = m.window_end AND c.num = m.num""",
    "q6": """
        SELECT seller, AVG(final) OVER (
            PARTITION BY seller ORDER BY ts, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS final
        FROM (
            SELECT a.id, a.seller, b.price AS final, b.ts, ROW_NUMBER() OVER (
                PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
            FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires
        ) AS won WHERE place = 1""",
    "q7": """
        SELECT b.auction, b.price, b.bidder, m.window_end FROM bid b JOIN (
            SELECT MAX(price) AS price, window_start, window_end
            FROM TUMBLE(bid, ts, INTERVAL '10' SECOND) GROUP BY window_start, window_end
        ) AS m ON b.price = m.price WHERE b.ts >= m.window_start AND b.ts < m.window_end""",
    "q8": """
        SELECT p.id, p.name, p.window_start FROM (
            SELECT id, name, window_start, window_end, COUNT(*) AS n
            FROM TUMBLE(person, ts, INTERVAL '10' SECOND)
            GROUP BY id, name, window_start, window_end
        ) AS p JOIN (
            SELECT seller, window_start, window_end, COUNT(*) AS n
            FROM TUMBLE(auction, ts, INTERVAL '10' SECOND) GROUP BY seller, window_start, window_end
        ) AS a ON p.id = a.seller AND p.window_start = a.window_start""",
    "q9": """
        SELECT id, bidder, price FROM (
            SELECT a.id, b.bidder, b.price, ROW_NUMBER() OVER (
                PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
            FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires
        ) AS ranked WHERE place = 1""",
    "q11": """
        SELECT bidder, COUNT(*) AS bids, window_start, window_end
        FROM SESSION(bid, ts, INTERVAL '3' SECOND) GROUP BY bidder, window_start, window_end""",
    "q14": """
        SELECT auction, bidder, price * 0.908 AS price, ts,
               CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'day' ELSE 'night' END AS time
        FROM bid WHERE price * 0.908 BETWEEN 1000 AND 50000""",
    "q15": """
        SELECT date_trunc('day', ts) AS day, COUNT(*) AS bids,
               COUNT(*) FILTER (WHERE price < 10000) AS low, COUNT(DISTINCT bidder) AS bidders,
               COUNT(DISTINCT auction) FILTER (WHERE price >= 10000) AS dear
        FROM bid GROUP BY day""",
    "q16": """
        SELECT channel, date_trunc('minute', ts) AS minute, COUNT(*) AS bids, MAX(price) AS top
        FROM bid GROUP BY channel, minute""",
    "q17": """
        SELECT auction, COUNT(*) AS bids, MIN(price) AS low, MAX(price) AS high,
               AVG(price) AS mean, SUM(price) AS total FROM bid GROUP BY auction""",
    "q18": """
        SELECT auction, bidder, price FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS n
            FROM bid) AS recent WHERE n <= 1""",
    "q19": """
        SELECT auction, bidder, price, place FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, ts) AS place
            FROM bid) AS ranked WHERE place <= 10""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, a.seller, a.category FROM bid b
        JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """
        SELECT auction, CASE WHEN lower(channel) = 'apple' THEN '0'
               WHEN channel LIKE 'channel-%' THEN regexp_extract(channel, 'channel-([0-9]+)', 1)
               ELSE 'none' END AS number FROM bid""",
    "q22": "SELECT auction, split_part(channel, '-', 1) AS kind FROM bid",
}

flow = ms.Flow("nexmark")
for kind, schema in SCHEMAS.items():
    source = ms.Generator(only(kind), schema=schema, time="ts", lateness="0s")
    flow.source(source, name=kind)
for query in os.environ.get("QUERIES", ",".join(QUERIES)).split(","):
    flow.sql(QUERIES[query]).sink(ms.Jsonl(f"out/nexmark/{query}"), name=query)

if __name__ == "__main__":
    flow.run()

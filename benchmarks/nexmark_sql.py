"""Nexmark's queries: as Millstream and Flink SQL read them, and as DuckDB says the same.

The text is that of https://github.com/nexmark/nexmark with the columns made here. Left out are q12
and q13, which go by the clock of the machine. `KEYS` are the columns by which a reader finds the
row that a change replaces; a query without an entry gives records, or rows that go and come.
"""

from __future__ import annotations

import re

COLUMNS = {  # in the order of the files; `ms` and `expires_ms` are the times as numbers, for Flink
    "person": "id BIGINT, name STRING, email STRING, city STRING, state STRING, ms BIGINT, ts {}",
    "auction": "id BIGINT, item STRING, initial_bid BIGINT, reserve BIGINT, seller BIGINT, "
    "category BIGINT, ms BIGINT, ts {0}, expires_ms BIGINT, expires {0}",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ms BIGINT, "
    "ts {}",
}
_STATISTICS = """COUNT(*) AS bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    COUNT(DISTINCT bidder) AS bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    COUNT(DISTINCT auction) AS auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions"""
_WON = """SELECT a.id, a.item, a.seller, a.category, b.bidder, b.price, b.ts AS bid_ts,
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts ASC) AS place
    FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires"""

QUERIES = {
    "q0": "SELECT auction, bidder, price, ts, url FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, ts, url FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, AVG(final) AS final FROM (
        SELECT MAX(b.price) AS final, a.category FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.category) AS q GROUP BY category""",
    "q5": """SELECT c.auction, c.num, c.window_end FROM (
        SELECT auction, COUNT(*) AS num, window_start, window_end
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end) AS c
        JOIN (SELECT MAX(num) AS top, window_start, window_end FROM (
            SELECT auction, COUNT(*) AS num, window_start, window_end
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) AS d
            GROUP BY window_start, window_end) AS m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.top""",
    "q6": f"""SELECT seller, id, AVG(price) OVER (PARTITION BY seller ORDER BY bid_ts, id
        ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS mean FROM ({_WON}) AS q WHERE place <= 1""",
    "q7": """SELECT b.auction, b.price, b.bidder, b.ts FROM bid b JOIN (
        SELECT MAX(price) AS top, window_start, window_end
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end) AS m
        ON b.price = m.top WHERE b.ts >= m.window_start AND b.ts < m.window_end""",
    "q8": """SELECT p.id, p.name, p.window_start FROM (
        SELECT id, name, window_start, window_end, COUNT(*) AS n
        FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
        GROUP BY id, name, window_start, window_end) AS p
        JOIN (SELECT seller, window_start, window_end, COUNT(*) AS n
        FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
        GROUP BY seller, window_start, window_end) AS a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"SELECT id, item, seller, bidder, price, bid_ts FROM ({_WON}) AS q WHERE place <= 1",
    "q10": """SELECT auction, bidder, price, ts, date_format(ts, 'yyyy-MM-dd') AS day,
        date_format(ts, 'HH:mm') AS minute FROM bid""",
    "q11": """SELECT bidder, COUNT(*) AS bids, window_start, window_end
        FROM SESSION(bid, ts, INTERVAL '10' SECOND) GROUP BY bidder, window_start, window_end""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price,
        CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'day'
             WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night' ELSE 'other' END AS kind, ts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"""SELECT date_format(ts, 'yyyy-MM-dd') AS day, {_STATISTICS} FROM bid
        GROUP BY date_format(ts, 'yyyy-MM-dd')""",
    "q16": f"""SELECT channel, date_format(ts, 'yyyy-MM-dd') AS day,
        MAX(date_format(ts, 'HH:mm')) AS latest, {_STATISTICS} FROM bid
        GROUP BY channel, date_format(ts, 'yyyy-MM-dd')""",
    "q17": """SELECT auction, date_format(ts, 'yyyy-MM-dd') AS day, COUNT(*) AS bids,
        COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
        COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
        MIN(price) AS low, MAX(price) AS high, AVG(price) AS mean, SUM(price) AS total
        FROM bid GROUP BY auction, date_format(ts, 'yyyy-MM-dd')""",
    "q18": """SELECT auction, bidder, price, channel, url, ts FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS place
        FROM bid) AS q WHERE place <= 1""",
    "q19": """SELECT auction, bidder, price, ts, place FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, ts) AS place
        FROM bid) AS q WHERE place <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.ts, a.item, a.initial_bid,
        a.reserve, a.seller, a.category FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel,
        CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
             WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
             ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE url LIKE '%channel_id=%' OR
            lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
}
KEYS = {
    "q4": ("category",),
    "q6": ("seller", "id"),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q19": ("auction", "place"),
}


def tables_of(query: str) -> list[str]:
    """The streams a query reads."""
    return [name for name in COLUMNS if re.search(rf"\b{name}\b", QUERIES[query])]


def for_flink(query: str) -> str:
    """A query in Flink's words."""
    sql = QUERIES[query].replace(
        "FROM SESSION(bid, ts, INTERVAL '10' SECOND)",
        "FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '10' SECOND))",
    )
    sql = re.sub(r"\bAS (day|minute)\b", r"AS `\1`", sql)
    return re.sub(
        r"split_part\(url, '/', (\d)\)", lambda m: f"split_index(url, '/', {int(m[1]) - 1})", sql
    )


_TUMBLED = "time_bucket(INTERVAL '10 seconds', {}ts)"
_IN_DUCKDB = {
    "q5": """WITH counts AS (
        SELECT auction, sum(n) num, back + INTERVAL '10 seconds' window_end FROM (
            SELECT auction, n, unnest(generate_series(slot - INTERVAL '8 seconds', slot,
                INTERVAL '2 seconds')) back FROM (
                SELECT auction, time_bucket(INTERVAL '2 seconds', ts) slot, count(*) n
                FROM bid GROUP BY ALL)) GROUP BY auction, back)
        SELECT auction, num, window_end FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY window_end)""",
    "q7": f"""SELECT auction, price, bidder, ts FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY {_TUMBLED.format("")})""",
    "q8": f"""SELECT DISTINCT p.id, p.name, {_TUMBLED.format("p.")} FROM person p JOIN auction a
        ON p.id = a.seller AND {_TUMBLED.format("p.")} = {_TUMBLED.format("a.")}""",
    "q11": """SELECT bidder, count(*), min(ts), max(ts) + INTERVAL '10 seconds' FROM (
        SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY ts, place) session FROM (
            SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts, place)
                < INTERVAL '10 seconds' THEN 0 ELSE 1 END new
            FROM (SELECT *, row_number() OVER () place FROM bid))) GROUP BY bidder, session""",
}


def for_duckdb(query: str) -> str:
    """A query over all events at once, in DuckDB's words."""
    sql = _IN_DUCKDB.get(query, QUERIES[query])
    for theirs, ours in (("yyyy-MM-dd", "%Y-%m-%d"), ("HH:mm", "%H:%M")):
        sql = sql.replace(f"date_format(ts, '{theirs}')", f"strftime(ts, '{ours}')")
    return sql

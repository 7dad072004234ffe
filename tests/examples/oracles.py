"""The applications of the MapUpdate paper computed again, by DuckDB or in a few lines of Python."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

RETAILERS = """
    SELECT CASE
        WHEN lower(venue) LIKE 'walmart%' OR lower(venue) LIKE 'wal-mart%' THEN 'Walmart'
        WHEN replace(lower(venue), ' ', '') LIKE 'bestbuy%' THEN 'Best Buy'
        WHEN replace(lower(venue), '.', '') LIKE 'jcpenney%' THEN 'JCPenney'
        WHEN replace(lower(venue), '.', '') LIKE 'jc penney%' THEN 'JCPenney'
        WHEN lower(venue) LIKE 'sam''s club%' THEN 'Sam''s Club'
    END AS retailer, count(*)
    FROM venues GROUP BY 1 HAVING retailer IS NOT NULL
"""


def per_retailer(venues: list[str]) -> dict[str, int]:
    """How many check-ins each retailer has."""
    with duckdb.connect() as db:
        db.register("venues", pa.table({"venue": venues}))
        return dict(db.sql(RETAILERS).fetchall())


HOT = """
    WITH mentions AS (
        SELECT DISTINCT rowid, lower(unnest(regexp_extract_all(text, '#([A-Za-z]+)', 1))) AS topic,
               "at" AT TIME ZONE 'UTC' AS moment
        FROM tweets
    ),
    minutes AS (
        SELECT topic, strftime(moment, '%H:%M') AS minute, strftime(moment, '%Y-%m-%d') AS day,
               count(*) AS mentions
        FROM mentions GROUP BY ALL
    ),
    compared AS (
        SELECT *, avg(mentions) OVER (
            PARTITION BY topic, minute ORDER BY day
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS usual
        FROM minutes
    )
    SELECT topic, day, minute, mentions, usual FROM compared WHERE mentions > 2.5 * usual
"""


def hot_topics(tweets: Path) -> list[tuple[str, str, str, int, float]]:
    """Every minute in which a topic was hot."""
    with duckdb.connect() as db:
        columns = '"at"::TIMESTAMPTZ AS "at", text'
        db.execute(f"CREATE TABLE tweets AS SELECT {columns} FROM '{tweets}'")
        return sorted(db.sql(HOT).fetchall())


def reputation(endorsements: Path) -> dict[str, dict[str, Any]]:
    """Scores, and who endorses whom: one endorsement after the other, until each has settled."""
    score: Counter[str] = Counter()
    endorses: dict[str, list[str]] = defaultdict(list)
    with open(endorsements) as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["ts"])
    for row in rows:
        user, other = row["user"], row["endorses"]
        if user == other or other in endorses[user]:
            continue
        endorses[user].append(other)
        unsettled = [(other, 100 + score[user] // 10)]
        while unsettled:
            who, rise = unsettled.pop()
            score[who] += rise
            share = rise // (2 * len(endorses[who])) if endorses[who] else 0
            unsettled += [(next_one, share) for next_one in endorses[who] if share]
    users = {row["user"] for row in rows if row["user"] != row["endorses"]} | set(score)
    return {user: {"endorses": endorses[user], "score": score[user]} for user in users}


TOP = r"""
    SELECT regexp_extract(text, 'https?://\S+') AS url, count(*) AS n
    FROM read_json('{}') WHERE url <> '' GROUP BY url ORDER BY n DESC, url LIMIT 10
"""


def top_urls(tweets: Path) -> list[list[Any]]:
    """The ten URLs that are in most tweets."""
    with duckdb.connect() as db:
        return [list(row) for row in db.sql(TOP.format(tweets)).fetchall()]


def changes_of_the_top(tweets: Path) -> list[list[str]]:
    """The ten URLs whenever they or their order have changed, from a full count at every tweet."""
    counts: Counter[str] = Counter()
    told: list[list[str]] = [[]]
    for line in tweets.read_text().splitlines():
        found = re.findall(r"https?://\S+", json.loads(line)["text"])
        counts.update(found)
        best = sorted(counts, key=lambda url: (-counts[url], url))[:10]
        if best != told[-1]:
            told.append(best)
    return told[1:]

"""The applications of the papers computed again, by DuckDB or in a few lines of Python."""

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


# Example 5 of the paper: a slate for topic v and minute m of the day keeps total_count, how often v
# was mentioned in m "so far, since the first day", and days, "the number of days since when the
# application is deployed", which has "the same value across all slates": a day without a mention
# counts as well. v is hot in m if its count divided by total_count / days exceeds the threshold.
HOT = """
    WITH mentions AS (
        SELECT DISTINCT rowid, lower(unnest(regexp_extract_all(text, '#([A-Za-z]+)', 1))) AS topic,
               "at" AT TIME ZONE 'UTC' AS moment
        FROM tweets
    ),
    minutes AS (
        SELECT topic, strftime(moment, '%H:%M') AS minute, moment::DATE AS day,
               count(*) AS mentions
        FROM mentions GROUP BY ALL
    ),
    slates AS (
        SELECT now.topic, now.minute, now.day, any_value(now.mentions) AS mentions,
               coalesce(sum(past.mentions), 0) AS total_count,
               now.day - DATE '{deployed}' AS days
        FROM minutes AS now LEFT JOIN minutes AS past
            ON past.topic = now.topic AND past.minute = now.minute AND past.day < now.day
        GROUP BY ALL
    )
    SELECT topic, strftime(day, '%Y-%m-%d'), minute, mentions, (total_count / days)::DOUBLE
    FROM slates WHERE days > 0 AND mentions > 2.5 * total_count / days
"""


def hot_topics(
    tweets: Path, deployed: str = "2026-01-05"
) -> list[tuple[str, str, str, int, float]]:
    """Every minute in which a topic was hot, with the average of that minute before."""
    with duckdb.connect() as db:
        columns = '"at"::TIMESTAMPTZ AS "at", text'
        db.execute(f"CREATE TABLE tweets AS SELECT {columns} FROM '{tweets}'")
        return sorted(db.sql(HOT.format(deployed=deployed)).fetchall())


def topic_minutes(tweets: Path) -> int:
    """In how many minutes of all days a topic was mentioned, of all topics together."""
    found = set()
    for line in tweets.read_text().splitlines():
        tweet = json.loads(line)
        found |= {(t.lower(), tweet["at"][:16]) for t in re.findall(r"#(\w+)", tweet["text"])}
    return len(found)


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


def requests_per_part(log: Path) -> dict[str, dict[str, int]]:
    """Requests, errors of the server and bytes per part of a site, by splitting lines at blanks."""
    found: dict[str, dict[str, int]] = {}
    for line in log.read_text().splitlines():
        target, status, size = line.split('"')[1].split()[1], *line.split('"')[2].split()[:2]
        part = "/" + target.split("?")[0].split("/")[1]
        counts = found.setdefault(part, {"requests": 0, "errors": 0, "bytes": 0})
        counts["requests"] += 1
        counts["errors"] += status.startswith("5")
        counts["bytes"] += 0 if size == "-" else int(size)
    return found


def occurrences(texts: list[Path], words: list[str]) -> Counter[str]:
    """How often each of some words occurs in text files; none of them may overlap another."""
    text = "\n".join(path.read_text() for path in texts)
    return Counter({word: text.count(word) for word in words if word in text})

"""The ledger: where every record went, exact at every commit.

Per step: offered = aggregated + dead + late + diverted + dropped. Steps that give results of their
own, as windows and updaters do, also count these: `results` are the rows they gave to the steps
after them, `answered` the results they were asked for and had (of which a reduce function may make
any number of rows, also none), `failed` those that were lost because a function raised. Sources
count `future`: records so far ahead of the clock that they move no watermark; they go on like all.
What overload took is among `dropped` and `diverted`, and by itself `shed` and `overflow`.
Steps of SQL behind a function count `lacking`: records of chunks in which nobody has a column that
they name, and which is null there; if that are all records, the name may be a mistake.
Change logs count `stale`, records older than what is known of their object, and `unmatched`,
removals of what is not there: both change nothing.
"""

from __future__ import annotations

from collections import Counter

from millstream.errors import RunError

WAYS = ("aggregated", "dead", "late", "diverted", "dropped")


def add(ledger: dict[str, dict[str, int]], step: str, counts: Counter[str]) -> None:
    """Add the counts of one task to a step's account."""
    account = ledger.setdefault(step, {"offered": 0, **dict.fromkeys(WAYS, 0)})
    if "answered" in counts and "answered" not in account:  # what `results` were in older books
        account["answered"] = account.get("results", 0)
    for name, number in counts.items():
        account[name] = account.get(name, 0) + number


def check(ledger: dict[str, dict[str, int]]) -> None:
    """Refuse to commit books that do not balance."""
    for step, account in ledger.items():
        found = sum(account.get(way, 0) for way in WAYS)
        if account["offered"] != found:
            raise RunError(
                f"the ledger of {step!r} does not balance: {account['offered']} offered, {found} "
                "accounted for; nothing was committed. This is a defect: please report it"
            )


def summary(ledger: dict[str, dict[str, int]], sources: list[str]) -> str:
    """The books in one line."""
    offered = sum(ledger.get(s, {}).get("offered", 0) for s in sources)
    parts = [f"{offered:,} read"]
    for way in ("dead", "failed", "late", "diverted", "dropped", "future", "stale", "unmatched"):
        number = sum(account.get(way, 0) for account in ledger.values())
        if number:
            parts.append(f"{number:,} {way}")
    return ", ".join(parts)

"""Reputation: being endorsed raises a score, and part of every rise goes on to those one endorses.

    millstream run examples/reputation.py
    ENDORSEMENTS=who.csv millstream run examples/reputation.py --checkpoint ck/reputation
    millstream slates get scores alba --checkpoint .millstream/reputation

A cycle: the updater publishes changes to a stream it takes from itself. Half of a change is shared
out among those a user endorses, in whole points, so that it gets smaller at every step and comes to
rest. Without ENDORSEMENTS it invents some first, in `endorsements.csv`.
"""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

ENDORSEMENTS = Path(os.environ.get("ENDORSEMENTS", "endorsements.csv"))
NAMES = ("alba", "bruno", "carla", "dario", "elena", "fabio", "gina", "hugo", "iris", "jonas")


def invent_endorsements(path: Path, number: int = 200) -> None:
    """One every few seconds; some users are endorsed more than others."""
    dice = random.Random(17)
    at = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    lines = ["ts,user,endorses"]
    for _ in range(number):
        at += timedelta(milliseconds=dice.randint(1_000, 9_000))
        endorsed = NAMES[min(int(dice.expovariate(0.3)), len(NAMES) - 1)]
        lines.append(f"{at:%Y-%m-%dT%H:%M:%S.%fZ},{dice.choice(NAMES)},{endorsed}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def score(event, slate, ctx):
    """Endorsements come with the key of who endorses, changes with the key of whose score rises."""
    others = slate.setdefault("endorses", [])
    slate.setdefault("score", 0)
    if event.stream == "endorsements":
        endorsed = event.value["endorses"]
        if endorsed not in others:
            others.append(endorsed)
            ctx.publish("changes", endorsed, 100 + slate["score"] // 10)
    else:
        slate["score"] += event.value
        share = event.value // 2 // len(others) if others else 0
        if share > 0:  # else it is too small to go on
            for other in others:
                ctx.publish("changes", other, share)


if not ENDORSEMENTS.exists():
    invent_endorsements(ENDORSEMENTS)

flow = ms.Flow("reputation")
endorsements = flow.source(
    ms.Files(ENDORSEMENTS, format="csv", time="ts", lateness="0s"), name="endorsements"
)
changes = flow.stream("changes")
(
    endorsements.where("user <> endorses")
    .named("of others")
    .key_by("user")
    .union(changes.key_by("key"))
    .update(score, name="scores")
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/reputation")
    scores = {user: slate["score"] for user, slate in ms.slates("ck/reputation", "scores")}
    for user in sorted(scores, key=scores.get, reverse=True):
        print(f"{scores[user]:8,} {user}")

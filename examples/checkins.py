"""Check-ins per retailer, counted live: the retailer is recognised from the name of the venue.

    python examples/checkins.py                        # then look at http://127.0.0.1:8321
    millstream run examples/checkins.py --serve        # the same
    CHECKINS=2000 millstream run examples/checkins.py  # ends after so many check-ins
    millstream slates list counts --checkpoint .millstream/checkins

The counts are slates: one per retailer, there to be read after every batch. Adding up does not
depend on the order, so `merge` lets a retailer everybody runs to cost no more than the others.
"""

import os
import random
import re
import time
from datetime import UTC, datetime

import millstream as ms

CHECKINS = int(os.environ.get("CHECKINS", "0"))  # 0: no end
RATE = float(os.environ.get("RATE", "200"))  # check-ins a second
VENUES = {
    "Walmart Supercenter {}": 40,
    "WAL-MART #{}": 10,
    "Best Buy": 20,
    "BestBuy Mobile, Gate {}": 5,
    "JCPenney": 8,
    "J.C. Penney at Mall {}": 4,
    "Sam's Club #{}": 6,
    "Joe's Diner": 15,
    "Wall Street {}": 5,
    "Samantha's Book Club": 2,
    "The best place to buy bread": 2,
}
RETAILERS = {
    "Walmart": re.compile(r"wal-?mart\b", re.IGNORECASE),
    "Best Buy": re.compile(r"best ?buy\b", re.IGNORECASE),
    "JCPenney": re.compile(r"j\.?c\.? ?penney\b", re.IGNORECASE),
    "Sam's Club": re.compile(r"sam'?s club\b", re.IGNORECASE),
}


def checkins():
    """Somebody checks in somewhere, mostly at a shop."""
    dice = random.Random(11)
    number = 0
    while not CHECKINS or number < CHECKINS:
        venue = dice.choices(list(VENUES), weights=list(VENUES.values()))[0]
        yield {
            "ts": datetime.now(UTC),
            "user": f"user {dice.randrange(10_000)}",
            "venue": venue.format(dice.randint(1, 99)),
        }
        number += 1
        time.sleep(1 / RATE)


def recognise(checkin):
    """The check-in with its retailer, or nothing if it is at none."""
    for retailer, pattern in RETAILERS.items():
        if pattern.match(checkin["venue"]):
            return {"retailer": retailer, **checkin}


def count(event, slate, ctx):
    """One more for this retailer."""
    slate["checkins"] = slate.get("checkins", 0) + 1


def add(left, right):
    """Two counts of the same retailer as one."""
    return {"checkins": left["checkins"] + right["checkins"]}


flow = ms.Flow("checkins")
source = ms.Generator(
    checkins,
    schema="ts timestamp, user string, venue string",
    time="ts",
    replayable=False,  # time goes on: nobody checks in twice because we were away
)
(
    flow.source(source, name="checkins")
    .map(recognise, schema="retailer string, ts timestamp, user string, venue string")
    .named("at a retailer")
    .key_by("retailer")
    .update(count, name="counts", merge=add)
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/checkins", serve=8321)

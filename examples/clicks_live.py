"""Clicks per page and second, from a source that never stops by itself.

    millstream run examples/clicks_live.py             # Ctrl-C stops it cleanly
    CLICKS=2000 millstream run examples/clicks_live.py # ends after so many clicks

The same run can be stopped and started again: it goes on where it was.
"""

import os
import random
import time
from datetime import UTC, datetime

import millstream as ms

CLICKS = int(os.environ.get("CLICKS", "0"))  # 0: no end
RATE = float(os.environ.get("RATE", "200"))  # clicks a second
OUT = os.environ.get("OUT", "out/clicks")
PAGES = ("/", "/about", "/buy", "/help")


def clicks():
    """A visitor clicks somewhere, mostly on the first page."""
    dice = random.Random(7)
    number = 0
    while not CLICKS or number < CLICKS:
        yield {
            "ts": datetime.now(UTC),
            "page": dice.choices(PAGES, weights=(6, 2, 1, 1))[0],
            "visitor": dice.randrange(1000),
        }
        number += 1
        time.sleep(1 / RATE)


flow = ms.Flow("clicks")
pages = (
    flow.source(
        ms.Generator(
            clicks,
            schema="ts timestamp, page string, visitor bigint",
            time="ts",
            lateness="1s",
            replayable=False,  # time goes on: yesterday's clicks are not clicked again
        )
    )
    .key_by("page")
    .window(ms.tumbling("1s"))
    .agg(clicks=ms.count())
)
pages.sink(ms.Jsonl(OUT))

if __name__ == "__main__":
    flow.run(checkpoint="ck/clicks")

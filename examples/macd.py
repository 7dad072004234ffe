"""Two moving averages per symbol, over 5 and 10 minutes, and how far they are apart (MACD).

    millstream run examples/macd.py
    TICKS=ticks/ OUT=macd millstream run examples/macd.py --checkpoint ck/macd
    millstream plan examples/macd.py --picture macd.svg

Both windows slide over the same panes of one minute: each tick is added up once. Without TICKS it
makes a morning of invented ticks first, in `ticks/`.
"""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

TICKS = Path(os.environ.get("TICKS", "ticks"))
OUT = os.environ.get("OUT", "out/macd")


def invent_ticks(directory: Path, number: int = 20_000) -> None:
    """Prices that follow slow waves, as CSV; neighbours may be a few seconds out of order."""
    dice = random.Random(5)
    prices = {"ACME": 50.0, "BOLT": 20.0, "CORK": 110.0, "DUSK": 75.0}
    trends = dict.fromkeys(prices, 0.0)
    at = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    lines = ["ts,symbol,price"]
    for _ in range(number):
        at += timedelta(seconds=dice.expovariate(2.0))
        symbol = dice.choice(list(prices))
        trends[symbol] = 0.999 * trends[symbol] + dice.gauss(0, 0.000003)
        prices[symbol] *= 1 + trends[symbol] + dice.gauss(0, 0.0003)
        seen = at - timedelta(seconds=dice.uniform(0, 3))
        lines.append(f"{seen:%Y-%m-%dT%H:%M:%S.%fZ},{symbol},{prices[symbol]:.4f}")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "morning.csv").write_text("\n".join(lines) + "\n")


if not TICKS.exists():
    invent_ticks(TICKS)

flow = ms.Flow("macd")
ticks = flow.source(ms.Files(TICKS, format="csv", time="ts", lateness="5s"), name="ticks")
by_symbol = ticks.key_by("symbol")
fast = by_symbol.window(ms.sliding("5m", "1m")).agg(fast=ms.mean("price")).named("fast")
slow = by_symbol.window(ms.sliding("10m", "1m")).agg(slow=ms.mean("price")).named("slow")

# A result has the time at which its window ends, so those that end together meet in one minute.
(
    fast.union(slow)
    .key_by("symbol")
    .window(ms.tumbling("1m"))
    .agg(fast=ms.max("fast"), slow=ms.max("slow"))
    .named("side by side")
    .where("fast IS NOT NULL")
    .select("symbol", "window_end", "fast", "slow", "fast - slow AS macd")
    .sink(ms.Parquet(OUT))
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/macd")

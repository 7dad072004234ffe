"""The moving average of prices per symbol, over the last ten minutes, every minute.

    millstream run examples/moving_average.py
    TRADES=trades/ OUT=averages millstream run examples/moving_average.py --checkpoint ck/ma

Without TRADES it makes a day of invented trades first, in `trades/`.
"""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

TRADES = Path(os.environ.get("TRADES", "trades"))
OUT = os.environ.get("OUT", "out/moving_average")


def invent_trades(directory: Path, number: int = 20_000) -> None:
    """Trades of one morning as CSV; neighbours may be a few seconds out of order."""
    dice = random.Random(1)
    prices = {"ACME": 50.0, "BOLT": 20.0, "CORK": 110.0}
    at = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    lines = ["ts,symbol,price,qty"]
    for _ in range(number):
        at += timedelta(seconds=dice.expovariate(2.0))
        symbol = dice.choice(list(prices))
        prices[symbol] *= 1 + dice.gauss(0, 0.0005)
        seen = at - timedelta(seconds=dice.uniform(0, 3))
        price, qty = prices[symbol], dice.randint(1, 100)
        lines.append(f"{seen:%Y-%m-%dT%H:%M:%S.%fZ},{symbol},{price:.4f},{qty}")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "morning.csv").write_text("\n".join(lines) + "\n")


if not TRADES.exists():
    invent_trades(TRADES)

flow = ms.Flow("moving average")
trades = flow.source(ms.Files(TRADES, format="csv", time="ts", lateness="5s"))
(
    trades.where("price > 0")
    .key_by("symbol")
    .window(ms.sliding("10m", "1m"))
    .agg(avg=ms.mean("price"), low=ms.min("price"), high=ms.max("price"), n=ms.count())
    .sink(ms.Parquet(OUT))
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/moving_average")

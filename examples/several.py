"""Three flows on one Spark: what shops sell, who buys, and what is returned.

    python examples/several.py
    millstream run examples/several.py --flow buyers

Without ORDERS it makes some orders first, in `orders.jsonl`. Each flow has its own checkpoint and
results, and could be run alone; together they share one Spark, and their small batches its jobs.
"""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

ORDERS = Path(os.environ.get("ORDERS", "orders.jsonl"))
OUT = Path(os.environ.get("OUT", "out/several"))


def invent_orders(path: Path, number: int = 3_000) -> None:
    """An hour of orders; some are returns, with a negative price."""
    dice = random.Random(14)
    start = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for i in range(number):
            cents = dice.randint(100, 50_000)
            order = {
                "at": (start + timedelta(seconds=i * 3600 / number)).isoformat(),
                "shop": f"shop {dice.randint(1, 9)}",
                "buyer": f"buyer {int(dice.paretovariate(0.7)) % 200}",
                "cents": -cents if dice.random() < 0.05 else cents,
            }
            out.write(json.dumps(order) + "\n")


def orders_of(flow: ms.Flow) -> ms.Stream:
    """The orders, as the source of a flow."""
    return flow.source(ms.Files(ORDERS, format="json", time="at"))


if not ORDERS.exists():
    invent_orders(ORDERS)

shops = ms.Flow("shops")
sales = orders_of(shops).key_by("shop").window(ms.tumbling("10m"))
sales.agg(sales=ms.sum("cents"), orders=ms.count()).sink(ms.Jsonl(OUT / "shops"))

buyers = ms.Flow("buyers")
spent = orders_of(buyers).key_by("buyer").window(ms.sliding("30m", "10m"))
spent.agg(spent=ms.sum("cents")).sink(ms.Jsonl(OUT / "buyers"))

returns = ms.Flow("returns")
returned = orders_of(returns).where("cents < 0").select("at", "shop", "buyer", "-cents AS cents")
returned.sink(ms.Jsonl(OUT / "returns"))

if __name__ == "__main__":
    for name, progress in ms.run_all(shops, buyers, returns, checkpoint="ck/several").items():
        print(f"{name}: {progress.windows} results of {progress.rows} orders")

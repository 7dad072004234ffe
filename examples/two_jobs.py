"""Two jobs in a chain, a fork, a sink for each: orders per shop and minute, then the best shops.

    millstream run examples/two_jobs.py
    ORDERS=orders.jsonl OUT=results millstream run examples/two_jobs.py --checkpoint ck/orders

Without ORDERS it makes some orders first, in `orders.jsonl`. Large orders have their own sink.
"""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

ORDERS = Path(os.environ.get("ORDERS", "orders.jsonl"))
OUT = Path(os.environ.get("OUT", "out/two_jobs"))


def invent_orders(path: Path, number: int = 5_000) -> None:
    """Two hours of orders in twelve shops."""
    dice = random.Random(3)
    start = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for i in range(number):
            at = start + timedelta(seconds=i * 7200 / number)
            shop = f"shop {int(dice.paretovariate(1.0)) % 12:02d}"
            order = {"at": at.isoformat(), "shop": shop, "cents": dice.randint(100, 50_000)}
            out.write(json.dumps(order) + "\n")


class BestShops(ms.MapReduce):
    """The three shops with the highest sales in a window, out of the results of the first job."""

    def map(self, key, value, ts):
        yield "best", {value["shop"]: value["sales"]}

    def combine(self, key, values):
        sales = {}
        for value in values:
            for shop, cents in value.items():
                sales[shop] = sales.get(shop, 0) + cents
        return sales

    def reduce(self, key, values, window):
        sales = self.combine(key, values)
        best = sorted(sales, key=lambda shop: (-sales[shop], shop))[:3]
        for place, shop in enumerate(best, 1):
            yield place, {"shop": shop, "sales": sales[shop]}


if not ORDERS.exists():
    invent_orders(ORDERS)

flow = ms.Flow("orders")
orders = flow.source(ms.Files(ORDERS, format="json", time="at"))

# A fork: the same stream is used twice.
orders.where("cents >= 45000").select("at", "shop", "cents").sink(ms.Jsonl(OUT / "large"))
shops = (
    orders.key_by("shop")
    .window(ms.tumbling("1m"))
    .agg(sales=ms.sum("cents"), orders=ms.count())
    .named("per shop and minute")
)
shops.sink(ms.Parquet(OUT / "shops"))

# A chain: the results of the first job are the input of the second.
shops.map_reduce(BestShops(), ms.tumbling("10m")).sink(ms.Jsonl(OUT / "best"))

if __name__ == "__main__":
    flow.run(checkpoint="ck/two_jobs")

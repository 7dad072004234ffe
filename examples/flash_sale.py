"""Orders of a flash sale, more than can be looked at closely: three ways to deal with the rest.

millstream run examples/flash_sale.py --batch-rows 1000
POLICY=drop millstream run examples/flash_sale.py --batch-rows 1000
POLICY=throttle millstream run examples/flash_sale.py --batch-rows 1000

Scoring an order takes a while, and for some seconds orders come five times as fast as that. With
POLICY=divert, the default, those that are too many are only counted per product and written to a
file, so that somebody can score them at night; with drop they are counted and gone; with throttle
whoever sends them waits. Batches are small, so that none grows old in one. In the end the ledger
says where every order went. Orders are invented.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import millstream as ms

ORDERS = int(os.environ.get("ORDERS", "100000"))
SECONDS = float(os.environ.get("SCORE", "0.0005"))  # that scoring an order takes
RATE = float(os.environ.get("RATE", str(5 / max(SECONDS, 1e-6))))  # orders per second
OUT = os.environ.get("OUT", "out/flash_sale")
POLICIES = {
    "throttle": ms.throttle(when="1MB"),
    "drop": ms.drop(keep="newest", when="1MB", lag="2s"),
    "divert": ms.divert("overflow", keep="newest", when="1MB", lag="2s"),
}
POLICY = POLICIES[os.environ.get("POLICY", "divert")]


def orders() -> Iterator[dict[str, Any]]:
    """Orders as they come in."""
    began = time.time()
    for number in range(ORDERS):
        time.sleep(max(0.0, began + number / RATE - time.time()))
        yield {
            "placed": int(time.time() * 1000),
            "order": number,
            "product": f"product-{number % 7}",
            "price": 5 + number % 90,
        }


def score(row: dict[str, Any]) -> dict[str, Any]:
    """How likely an order is to be paid; a model that takes its time."""
    time.sleep(SECONDS)
    return {**row, "score": (row["order"] * 7919 % 100) / 100}


flow = ms.Flow("flash_sale")
source = ms.Generator(
    orders,
    schema="placed bigint, order bigint, product string, price bigint",
    time="placed",
    time_unit="ms",
    overload=POLICY,
)
taken = flow.source(source, name="orders")
scored = taken.map(score, schema="placed bigint, product string, price bigint, score double")
scored.key_by("product").window(ms.tumbling("1s")).agg(n=ms.count(), doubtful=ms.min("score")).sink(
    ms.Jsonl(f"{OUT}/scored"), name="scored"
)
if POLICY.stream is not None:
    later = flow.stream(POLICY.stream)
    later.sink(ms.Jsonl(f"{OUT}/later"), name="later")
    later.key_by("product").window(ms.tumbling("1s")).agg(n=ms.count()).sink(
        ms.Jsonl(f"{OUT}/roughly"), name="roughly"
    )

if __name__ == "__main__":
    print(flow.run(checkpoint=None, batch_rows=1000))

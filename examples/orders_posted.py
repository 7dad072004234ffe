"""Orders that shops post over HTTP, and their sum per shop and minute. None is lost, none twice.

    millstream run examples/orders_posted.py           # Ctrl-C stops it cleanly
    python examples/orders_posted.py send 1000         # in another terminal

`send` is what a client that cannot lose anything looks like: it gives every request a key and sends
it again until it is answered. So the flow may be killed and started again at any time.
"""

import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

import millstream as ms

PORT = int(os.environ.get("PORT", "8400"))
OUT = os.environ.get("OUT", "out/orders")

flow = ms.Flow("orders")
(
    flow.source(
        ms.Http(
            PORT,
            path="/orders",
            schema="ts bigint, shop string, cents bigint",
            time="ts",
            time_unit="ms",
            lateness="10s",
        ),
        name="orders",
    )
    .key_by("shop")
    .window(ms.tumbling("1m"))
    .agg(orders=ms.count(), cents=ms.sum("cents"))
    .sink(ms.Jsonl(OUT))
)


def post(lines: list[str]) -> int:
    """Post some orders; comes back when they are durable. Gives how many were taken."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/orders",
        "\n".join(lines).encode(),
        {"Idempotency-Key": str(uuid.uuid4())},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(json.load(answer)["records"])
        except urllib.error.HTTPError as refused:
            if refused.code != 503:  # anything else is not better the next time
                raise
        except OSError:
            pass  # not there, or gone before it answered: nobody knows whether it was taken
        time.sleep(1)


def send(number: int) -> None:
    """Invent some orders and post them, fifty at a time."""
    dice = random.Random(7)
    for start in range(0, number, 50):
        lines = [
            json.dumps(
                {
                    "ts": int(time.time() * 1000),
                    "shop": dice.choice(["north", "south", "harbour"]),
                    "cents": dice.randrange(100, 50_000),
                }
            )
            for _ in range(start, min(number, start + 50))
        ]
        print(post(lines), "orders taken")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(int(sys.argv[2]))
    else:
        flow.run(checkpoint="ck/orders")

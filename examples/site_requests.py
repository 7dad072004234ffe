"""Live counters of HTTP requests: how many each part of a web site gets, from its access log.

    millstream run examples/site_requests.py
    LOG=/var/log/nginx/access.log FOLLOW=1 millstream run examples/site_requests.py --serve
    millstream slates list parts --checkpoint .millstream/site_requests

The counters are slates: one per part of the site, which is the first name in the path. Requests
without a path, as of clients that gave up (`"-" 408`) or ask about the server (`OPTIONS *`), have a
counter of their own. Adding up does not depend on the order, so `merge` lets a part everybody asks
for cost no more than others.
Without LOG it invents a morning of requests first, in `access.log`.
"""

import os
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

LOG = Path(os.environ.get("LOG", "access.log"))
FOLLOW = bool(os.environ.get("FOLLOW"))  # go on with what is added to the log
PATHS = {"/": 10, "/shop/cart": 8, "/shop/item?id={}": 30, "/blog/{}": 12, "/api/v1/stock/{}": 25}
# 127.0.0.1 - - [05/Jan/2026:09:00:00 +0000] "GET /shop/cart HTTP/1.1" 200 5120
LINE = re.compile(r'\S+ \S+ .+? \[[^]]+\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)')
NO_PATH = "(no path)"


def invent_log(path: Path, number: int = 5_000) -> None:
    """Requests in the common log format; one in fifty fails."""
    dice = random.Random(23)
    at = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for _ in range(number):
            at += timedelta(milliseconds=dice.randint(1, 700))
            target = dice.choices(list(PATHS), weights=list(PATHS.values()))[0]
            status = dice.choices((200, 304, 404, 503), weights=(90, 5, 3, 2))[0]
            size = "-" if status == 304 else dice.randint(200, 9_000)
            request = f"GET {target.format(dice.randint(1, 99))} HTTP/1.1"
            who = f"192.0.2.{dice.randint(1, 254)}"
            out.write(f'{who} - - [{at:%d/%b/%Y:%H:%M:%S %z}] "{request}" {status} {size}\n')


def read_request(record):
    """A line as a request; one that cannot be read is a dead letter."""
    found = LINE.match(record["value"])
    if found is None:
        raise ValueError('expected a line of an access log: host - - [time] "request" status size')
    request, status, size = found.groups()
    size = 0 if size == "-" else int(size)
    return {"part": part_of(request), "failed": status >= "500", "bytes": size}


def part_of(request):
    """The first name in the path that was asked for: /shop of `GET /shop/cart?n=1 HTTP/1.1`."""
    _, _, target = request.partition(" ")
    target = target.partition(" ")[0]
    if re.match("https?://", target):  # whole, as to a proxy: GET http://example.com/shop
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    return re.match("/[^/?#]*", target)[0] if target.startswith("/") else NO_PATH


def count(event, slate, ctx):
    """One more request to this part."""
    request = event.value
    slate["requests"] = slate.get("requests", 0) + 1
    slate["errors"] = slate.get("errors", 0) + request["failed"]
    slate["bytes"] = slate.get("bytes", 0) + request["bytes"]


def add(left, right):
    """Two counters of the same part as one."""
    return {name: left[name] + right[name] for name in left}


if not LOG.exists():
    invent_log(LOG)

flow = ms.Flow("site_requests")
(
    flow.source(ms.Files(LOG, format="text", follow=FOLLOW), name="log")
    .map(read_request, schema="part string, failed boolean, bytes bigint")
    .named("requests")
    .key_by("part")
    .update(count, name="parts", merge=add)
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/site_requests", serve=8321)

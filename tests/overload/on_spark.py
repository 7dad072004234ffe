"""A flow on Spark that gets five times what it can process, and the account of every record."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream as ms
from tests.overload.producing import CAPACITY, PATIENCE, produced, slowly
from tests.overload.support import balanced, rows_in, shed_of
from tests.stored import content_of, manifests_in


def check_on_spark(spec: Any, produce: Callable[[], None], place: Path) -> None:
    """Follow until all is accounted for; what was kept, dropped and diverted is the input."""
    flow, more, out = ms.Flow("campaign"), place / "more", place / "out"
    slow = flow.source(spec, name="in").map_batches(slowly)
    slow.sink(ms.Jsonl(out), name="kept")
    slow.key_by("k").window(ms.tumbling("1s"), fidelity=True).agg(n=ms.count()).sink(
        ms.Jsonl(place / "windows"), name="windows"
    )
    if spec.overload.stream is not None:
        flow.stream(spec.overload.stream).sink(ms.Jsonl(more), name="overflow")
    producer = threading.Thread(target=produce, daemon=True)
    options: dict[str, Any] = {"batch_rows": CAPACITY // 4, "batch_seconds": 0.5, "retain": 10_000}
    handle = flow.start(checkpoint=place / "ck", quiet=True, **options)
    try:
        producer.start()
        deadline = time.monotonic() + PATIENCE
        while handle.running and _offered(place / "ck") < produced():
            assert time.monotonic() < deadline, "it does not keep up with what it may shed"
            time.sleep(0.1)
    finally:
        handle.stop()
        producer.join(10)
    balanced(place / "ck")
    newest = content_of(manifests_in(place / "ck" / "manifests")[-1])
    account, policy = newest.ledger["in"], spec.overload
    kept, diverted = ([row["n"] for row in rows_in(one)] for one in (out, more))
    assert account["offered"] == produced()
    assert Counter([*kept, *diverted]).most_common(1)[0][1] == 1
    assert len(kept) == account["aggregated"] and len(diverted) == account["diverted"]
    assert account["dropped"] == produced() - len(kept) - len(diverted)
    logged = Counter(
        way
        for one in shed_of(place / "ck")
        for way in ("dropped", "diverted")
        if way in one
        for _ in range(one[way])
    )
    assert logged == +Counter(dropped=account["dropped"], diverted=account["diverted"])
    assert (account["dropped"] > 0) == (policy.kind == "drop")
    assert (account["diverted"] > 0) == (policy.kind == "divert")
    windows = rows_in(place / "windows")
    if policy.kind == "throttle":
        assert {row["fidelity"] for row in windows} <= {1.0}
    elif len(windows) > 10:
        assert min(row["fidelity"] for row in windows) < 0.9
    print(
        f"\n{type(spec).__name__}, {policy}: {produced():,} produced, {len(kept):,} kept, "
        f"{account['dropped']:,} dropped, {len(diverted):,} diverted; {newest.batch + 1} batches"
    )


def _offered(checkpoint: Path) -> int:
    found = manifests_in(checkpoint / "manifests")
    return content_of(found[-1]).ledger.get("in", {}).get("offered", 0) if found else 0

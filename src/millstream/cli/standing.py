"""`millstream status`: how far a flow is, and what waits where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from millstream.serve.following import Follower
from millstream.serve.status import Served

_HEADS = ("queue", "of a", "rows", "bytes", "at its head", "")


def told_status(checkpoint: Path, *, as_json: bool = False) -> str:
    """The status of a checkpoint, as text for people or as JSON."""
    status = Served(Follower(checkpoint, eager=True)).status()
    if as_json:
        return msgspec.json.encode(status).decode()
    state = "complete" if status["complete"] else "running" if status["running"] else "stopped"
    if status["batch"] < 0:
        return f"{status['flow']}: {state}, no batch committed yet"
    lines = [f"{status['flow']}: {state} after batch {status['batch']}"]
    if status["watermark"] is not None:
        lines.append(f"watermark {status['watermark']}")
    rows = [_HEADS, *(_told(one) for one in status["queues"])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    for row in rows:
        cells = (
            one.rjust(width) if _HEADS[at] in ("rows", "bytes") else one.ljust(width)
            for at, (one, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _told(queue: dict[str, Any]) -> tuple[str, ...]:
    return (
        queue["name"],
        queue["kind"],
        f"{queue['rows']:,}",
        f"{queue['bytes']:,}",
        queue["head"] or "-",
        "held back" if queue["held"] else "",
    )

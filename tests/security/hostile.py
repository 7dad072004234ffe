"""What the tests of checkpoints and outputs share: a small flow, its rows, forged manifests."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import millstream as ms
from tests.stored import manifests_in

ROWS = 60
OPTIONS: dict[str, Any] = {"batch_rows": 10, "batch_bytes": 200}


def flow_to(tmp: Path, out: Path | None = None) -> ms.Flow:
    flow = ms.Flow("hostile")
    path = tmp / "in.jsonl"
    if not path.exists():
        path.write_text("".join(f'{{"ts": {i}, "n": {i}}}\n' for i in range(ROWS)))
    source = flow.source(ms.Files(path, schema="ts bigint, n bigint", time="ts"), name="in")
    source.select("n").sink(ms.Jsonl(out or tmp / "out"), name="sink")
    return flow


def rows_in(out: Path) -> list[int]:
    lines = [line for part in out.glob("part-*") for line in part.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest rewritten with a checksum that fits."""
    content = json.loads(path.read_bytes().splitlines()[0])
    change(content)
    body = msgspec.json.encode(content)
    path.write_bytes(body + f"\n{zlib.crc32(body):08x}\n".encode())


def newest(tmp: Path) -> Path:
    return manifests_in(tmp / "ck" / "manifests")[-1]

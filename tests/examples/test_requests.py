"""The example of maps that see events, computed again in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.loading import load_module
from millstream.testing import run_in_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "requests.py"


def test_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REQUESTS", "500")
    module: Any = load_module(EXAMPLE)
    ledger = run_in_process(module.flow, "ck", parallelism=2)
    began: Counter[tuple[str, str]] = Counter()
    parts: dict[str, dict[str, int]] = {}
    for line in module.log():
        at = line["ended"] - timedelta(milliseconds=line["millis"])
        began[line["part"], at.replace(microsecond=0).isoformat()[:19]] += 1
        about = parts.setdefault(line["part"], {})
        if line["status"] == 500:
            about["failures"] = about.get("failures", 0) + 1
        if line["millis"] > 2000:
            about["slow"] = about.get("slow", 0) + 1
            about["longest"] = max(line["millis"], about.get("longest", 0))
    files = sorted(Path("out/requests").glob("part-*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {(row["part"], row["window_start"][:19]): row["requests"] for row in rows} == began
    assert dict(ms.slates("ck", "parts")) == {name: one for name, one in parts.items() if one}
    assert all(account["offered"] == account["aggregated"] for account in ledger.values())

"""Orders that are too many: each is scored, kept for later, or counted as dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.loading import load_application
from millstream.testing import run_in_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "flash_sale.py"


def rows(folder: str) -> list[dict[str, Any]]:
    files = sorted(Path(folder).glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("policy", ["throttle", "drop", "divert"])
def test_flash_sale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"ORDERS": "2000", "SCORE": "0", "RATE": "1e9", "POLICY": policy}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OUT", raising=False)
    flow = load_application(EXAMPLE).flow
    ledger = run_in_process(flow, "ck", batch_rows=200)
    account = ledger["orders"]
    assert (
        account["offered"]
        == 2000
        == account["aggregated"] + account["dropped"] + account["diverted"]
    )
    assert sum(row["n"] for row in rows("out/flash_sale/scored")) == account["aggregated"]
    later = rows("out/flash_sale/later")
    assert len({row["order"] for row in later}) == len(later) == account["diverted"]
    assert sum(row["n"] for row in rows("out/flash_sale/roughly")) == account["diverted"]
    if policy == "throttle":
        assert account["aggregated"] == 2000

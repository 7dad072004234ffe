"""The example of several flows, computed again in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.loading import load_module
from millstream.testing import run_in_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "several.py"


def rows_of(name: str) -> list[dict[str, Any]]:
    parts = Path("out/several", name).glob("part-*")
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def test_each_flow_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = load_module(EXAMPLE)
    for flow in (module.shops, module.buyers, module.returns):
        run_in_process(flow, f"ck/{flow.name}")
    orders = [json.loads(line) for line in Path("orders.jsonl").read_text().splitlines()]
    sales: Counter[tuple[str, str]] = Counter()
    for order in orders:
        sales[order["shop"], f"{order['at'][:15]}0"] += order["cents"]
    shops = rows_of("shops")
    assert {(row["shop"], row["window_start"][:16]): row["sales"] for row in shops} == sales
    returned = Counter((one["at"][:19], -one["cents"]) for one in orders if one["cents"] < 0)
    assert Counter((row["at"][:19], row["cents"]) for row in rows_of("returns")) == returned
    spent: Counter[str] = Counter()
    for row in rows_of("buyers"):
        spent[row["buyer"]] += row["spent"]
    assert sum(spent.values()) == 3 * sum(one["cents"] for one in orders)  # in three windows each

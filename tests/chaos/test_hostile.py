"""Whatever senders send: the run ends, nothing is lost silently, and batches decide nothing.

`hostile.py` says what a case is and what must hold. The campaign:
`make test-long ARGS="tests/chaos/test_hostile.py"`; a failure names its seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import run_in_process
from tests.chaos import hostile


def test_some_hostile_flows(tmp_path: Path) -> None:
    found = Counter(hostile.check(seed, tmp_path / str(seed)) for seed in range(5))
    assert found["dead letters"]


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 3000, 50))
def test_many_hostile_flows(start: int, tmp_path: Path) -> None:
    for seed in range(start, start + 50):
        hostile.check(seed, tmp_path / str(seed))


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 30))]
)
def test_filters_and_groups_are_those_of_duckdb(seed: int, tmp_path: Path) -> None:
    """Of values that both can hold, through lines of JSON with others between them."""
    rng = random.Random(seed)
    records = [
        {"k": rng.choice(["", "a", "ä", "\U0001f600", "NULL", None]), "n": number,
         "v": rng.choice([0, -1, 7, 2**53 + 1, -(2**40), None]),
         "x": rng.choice([0.5, -0.0, 1e300, 5e-324, None])}
        for number in range(rng.choice([3, 300]))
    ]  # fmt: skip
    lines = [json.dumps(record).encode() for record in records]
    bad = rng.sample([b"{", b"\xff", b'{"v": 1e999}', b'{"v": "x"}', b"[1]", b"nul"], 4)
    for line in bad:
        lines.insert(rng.randrange(len(lines) + 1), line)
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    flow, kept, groups = ms.Flow("oracle"), ms.Memory(), ms.Memory()
    source = ms.Files(tmp_path / "in.jsonl", schema="k string, n bigint, v bigint, x double")
    wanted = flow.source(source, name="in").where("v >= 0 OR k = 'ä'")
    wanted.sink(kept)
    wanted.key_by("k", nulls="keep").agg(
        rows=ms.count(), total=ms.sum("v"), low=ms.min("x"), high=ms.max("x")
    ).sink(groups)
    options: dict[str, Any] = rng.choice(hostile.MANY)
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1.0, **options)
    assert (ledger["in"]["offered"], ledger["in"]["dead"]) == (len(lines), len(bad))
    (tmp_path / "good.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    read = "read_json($at, columns={k: 'VARCHAR', n: 'BIGINT', v: 'BIGINT', x: 'DOUBLE'})"
    where = f"FROM {read} WHERE v >= 0 OR k = 'ä'"
    asked = {"at": str(tmp_path / "good.jsonl")}
    rows = duckdb.execute(f"SELECT k, n, v, x {where}", asked).fetchall()
    found = [tuple(row[name] for name in ("k", "n", "v", "x")) for row in kept.rows]
    assert Counter(map(repr, found)) == Counter(map(repr, rows))
    query = f"SELECT k, count(*), CAST(sum(v) AS BIGINT), min(x), max(x) {where} GROUP BY k"
    answers = [tuple(row[n] for n in ("k", "rows", "total", "low", "high")) for row in groups.rows]
    assert Counter(answers) == Counter(duckdb.execute(query, asked).fetchall())

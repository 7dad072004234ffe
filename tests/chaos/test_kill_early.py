"""kill -9 while a flow is looked at: snapshots go on, the answer is exact and there once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import millstream as ms
from tests.chaos.support import finish, spawn
from tests.variants import variants

EARLY = Path(__file__).parent / "apps" / "early.py"


def write(folder: Path) -> dict[str, tuple[int, int]]:
    rng = np.random.default_rng(5)
    folder.mkdir()
    counts, totals = Counter[str](), Counter[str]()
    for number in range(4):
        lines = ["lang,views"]
        for lang in np.sort(rng.choice(["de", "en", "fr"], 6_000)).tolist():
            views = int(rng.integers(1, 99))
            counts[lang] += 1
            totals[lang] += views
            lines.append(f"{lang},{views}")
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")
    return {lang: (counts[lang], totals[lang]) for lang in counts}


def run(data: Path, work: Path, crash_at: str | None = None) -> tuple[int, list[list]]:
    process = spawn(data, work, crash_at=crash_at, app=EARLY)
    assert process.stdout is not None
    lines = [line for line in process.stdout if line.startswith("snapshot ")]
    code = finish(process)
    return code, [json.loads(line.removeprefix("snapshot ")) for line in lines]


def published(work: Path) -> list[dict[str, Any]]:
    """What the sink has, file by file."""
    files = sorted((work / "out").glob("part-*"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "point",
    variants(["before-manifest:3", "half-published:5", "tasks-done:2", "after-manifest:4"], 2),
)
def test_snapshots_go_on_after_a_kill(tmp_path: Path, point: str) -> None:
    exact = write(tmp_path / "in")
    code, whole = run(tmp_path / "in", tmp_path / "whole")
    assert code == 0, (tmp_path / "whole" / "stderr.txt").read_text()
    code, begun = run(tmp_path / "in", tmp_path / "work", crash_at=point)
    assert code == -9
    code, rest = run(tmp_path / "in", tmp_path / "work")
    assert code == 0, (tmp_path / "work" / "stderr.txt").read_text()
    found = {one[0]: one for one in [*begun, *rest]}
    assert list(found.values()) == whole
    progress, is_exact, rows = rest[-1]
    assert (progress, is_exact) == (1.0, True)
    assert {row["lang"]: (row["n"], row["total"]) for row in rows} == exact
    rows = published(tmp_path / "work")
    assert rows == published(tmp_path / "whole")  # every snapshot once, whenever the kill came
    assert [row["progress"] for row in rows[::3]] == [one[0] for one in whole]
    last = [row for row in rows if row["exact"]]
    assert {row["lang"]: (row["n"], row["total"]) for row in last} == exact
    assert rows[-len(last) :] == last
    tables = pq.read_table(tmp_path / "work" / "tables").to_pylist()
    assert sorted(tables, key=repr) == sorted(rows, key=repr)
    newest = ms.newest_snapshot(tmp_path / "work" / "answers")
    assert newest is not None
    assert newest.exact

"""Several rows that a function makes of one, parted by a step behind it: none replaces another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

STEPS: dict[str, Callable[[ms.Stream], ms.Stream]] = {
    "top": lambda rows: rows.key_by("part").top(1, by="v"),
    "top with numbers": lambda rows: rows.key_by("part").top(1, by="v", rank="place"),
    "join": lambda rows: rows.join(rows.select("id AS of", "part"), on="part"),
    "last": lambda rows: rows.last("1h"),
}


def parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"id": row["id"], "part": 0, "v": row["v"]}
    yield {"id": row["id"], "part": 1, "v": 5}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_part_that_stays_is_not_replaced(step: str, parallelism: int) -> None:
    """By key 1 a reader would find both parts, of which only one changes."""
    flow = ms.Flow("parts")
    source = flow.source(ms.Generator(tuple, schema="id bigint, v bigint"), name="in")
    made = source.changes(key="id").flat_map(parts, schema="id bigint, part bigint, v bigint")
    STEPS[step](made).sink(ms.Memory(), name="out")
    with Driver(flow, parallelism=parallelism) as driver:
        driver.push("in", [{"id": 1, "v": 1}]).step()
        driver.push("in", [{"id": 1, "v": 2}]).step()
        table: Counter[tuple[int, int]] = Counter()
        for row in driver.output("out"):
            table[row["part"], row["v"]] += {"+": 1, "-": -1}[row["op"]]
    assert +table == Counter({(0, 2): 1, (1, 5): 1}) and min(table.values()) >= 0

"""What the live page is told of early answers."""

from __future__ import annotations

import pyarrow as pa

import millstream as ms
from millstream.serve.drawing import GROUPS, KEPT, LOOKS, drawn, shortened


def look(progress: float, groups: int = 3, **said: object) -> ms.Snapshot:
    names = [f"g{n}" for n in range(groups)]
    values = [float(n) for n in range(groups)]
    table = pa.table(
        {
            "k": names,
            "n": values,
            "n_lower": [v - 1 for v in values],
            "n_upper": [None] * groups,
            "place": list(range(groups)),
        }
    )
    return ms.Snapshot(progress, table, False, **said)  # type: ignore[arg-type]


def test_the_largest_groups_have_a_point_for_every_look() -> None:
    told = drawn("agg", [look(0.1, 2), look(0.5, 3, ended_by="it", left=4.0, heavy=("n",))], 3)
    assert told["looks"] == [0.1, 0.5]
    assert (told["ended_by"], told["left"], told["groups"]) == ("it", 4.0, 3)
    assert told["heavy"] == ["n"]
    assert told["values"] == {
        "n": [
            {"key": ["g2"], "points": [None, [2.0, 1.0, None]]},
            {"key": ["g1"], "points": [[1.0, 0.0, None], [1.0, 0.0, None]]},
            {"key": ["g0"], "points": [[0.0, -1.0, None], [0.0, -1.0, None]]},
        ]
    }


def test_what_is_told_stays_small() -> None:
    told = drawn("agg", [look(at / 1000, 40) for at in range(1, 500)], 40)
    assert len(told["values"]["n"]) == GROUPS
    assert len(told["looks"]) <= LOOKS + 1
    assert told["looks"][-1] == 0.499
    kept = shortened(look(0.5, 2 * KEPT)).table
    assert len(kept) == KEPT
    assert f"g{2 * KEPT - 1}" in kept.column("k").to_pylist()

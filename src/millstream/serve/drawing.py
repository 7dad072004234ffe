"""Early answers for the live page: the largest groups, with their bounds at every look so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc

from millstream.api.early import ESTIMATE, Snapshot, values_of

GROUPS = 12
KEPT = 500  # groups of a look that is not the newest
LOOKS = 60  # points of a group that are drawn
_PLACES = ("place", "settled")  # columns of rankings that are neither key nor value


def drawn(step: str, looks: Sequence[Snapshot], groups: int) -> dict[str, Any]:
    """All looks so far as `GET /status` tells them; groups: how many the newest has in all."""
    newest = looks[-1]
    values = values_of(newest.table.column_names)
    some = [*looks[: -1 : -(-len(looks) // LOOKS)], newest]
    return {
        "step": step,
        "progress": newest.progress,
        "elapsed": newest.elapsed,
        "left": newest.left,
        "exact": newest.exact,
        "ended_by": newest.ended_by,
        "confidence": newest.confidence,
        "promise": newest.promise,
        "unseen": None if newest.unseen is None else newest.unseen.share,
        "notes": list(newest.notes),
        "heavy": list(newest.heavy),
        "groups": groups,
        "looks": [one.progress for one in some],
        "values": {name: _series(name, some) for name in values},
    }


def _series(name: str, looks: list[Snapshot]) -> list[dict[str, Any]]:
    """The largest groups by one value; for each, an estimate and its bounds per look, if known."""
    names = [name + end for end in ESTIMATE]
    found: list[dict[tuple[str, ...], list[Any]]] = []
    for look in looks:
        table = look.table
        others = {value + end for value in values_of(table.column_names) for end in ESTIMATE}
        keys = [one for one in table.column_names if one not in others and one not in _PLACES]
        rows = table.select([*keys, *names]).to_pylist()
        found.append(
            {tuple(str(r[k]) for k in keys): [_point(r[one]) for one in names] for r in rows}
        )
    largest = sorted(found[-1], key=lambda key: -_number(found[-1][key][0]))[:GROUPS]
    return [{"key": list(key), "points": [look.get(key) for look in found]} for key in largest]


def shortened(look: Snapshot) -> Snapshot:
    """The same with its largest groups only: of all looks but the newest no more are kept."""
    table = look.table
    if len(table) <= KEPT or not (values := values_of(table.column_names)):
        return replace(look, table=table.slice(0, KEPT))
    some = pc.select_k_unstable(table, KEPT, [(values[0], "descending")])
    return replace(look, table=table.take(some))


def _point(value: Any) -> Any:
    """A value as it is drawn: decimals are numbers as others are."""
    return float(value) if isinstance(value, Decimal) else value


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")

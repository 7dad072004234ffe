"""The node of a join: what it means, and what the planner must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from millstream.graph.changing import gives_changes
from millstream.operators.joins.arriving import Side
from millstream.operators.joins.layout import lay_out
from millstream.operators.joins.matching import ALONE, Matching
from millstream.operators.protocol import Input, KeyedStep, Operator, Row

HOW = ("inner", "left", "right", "full", "semi", "anti")
_ONE_SIDE = ("semi", "anti")


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(KeyedStep):
    """Rows of two streams that have the same key."""

    at_once: ClassVar[bool] = True
    keys: tuple[str, ...]  # of the left stream
    right_keys: tuple[str, ...]
    how: str = "inner"
    suffix: str = "_right"

    def keys_of(self, number: int) -> tuple[str, ...]:
        """Each side has its own."""
        return (self.keys, self.right_keys)[number]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The columns that are compared."""
        return tuple(zip(self.keys, self.right_keys, strict=True))

    @property
    def gives_changes(self) -> bool:
        """Whether a match that comes later takes back a row."""
        return self.how in ("left", "right", "full", "anti")

    def operator_over(self, number: int, inputs: tuple[Input, ...]) -> Operator:
        """Lets rows of both sides meet."""
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        alone = () if self.how == "semi" else ALONE.get(self.how, ())
        sides = tuple(
            Side(one.changes, at == 0 or self.how not in _ONE_SIDE, at in alone)
            for at, one in enumerate(inputs)
        )
        changes = self.gives_changes or any(one.changes for one in inputs)
        return Matching(self.name, self.how, number, layout, (sides[0], sides[1]), changes)

    def resolve(
        self, inputs: tuple[Input, ...]
    ) -> tuple[tuple[str, ...] | None, dict[str, pa.DataType]]:
        """Those of the left side, then those of the right one that are not keys of the same name.

        A right column of a name that the left side has gets the suffix.
        """
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        left, right = layout.known
        if left is None or (right is None and not layout.one_side):
            return None, {}
        types = dict(left)
        if not layout.one_side:
            merged = layout.merged
            others = {n: kind for n, kind in (right or {}).items() if n not in merged}
            types |= {layout.renamed.get(name, name): kind for name, kind in others.items()}
        return tuple(types), {n: kind for n, kind in types.items() if not pa.types.is_null(kind)}

    def uses_of(
        self, number: int, wanted: set[str] | None, inputs: tuple[Input, ...]
    ) -> set[str] | None:
        """Its keys, and what is wanted of it."""
        mine, keys = inputs[number].columns, set(self.keys_of(number))
        if number == 1 and self.how in _ONE_SIDE:
            return keys
        if wanted is None or mine is None or any(one.columns is None for one in inputs):
            return None
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        renamed = layout.renamed if number == 1 else {}
        return keys | {name for name in mine if renamed.get(name, name) in wanted}

    def words(self) -> str:
        """For the plan."""
        ways = [one if one == other else f"{one} = {other}" for one, other in self.pairs]
        kind = "join" if self.how == "inner" else f"{self.how} join"
        return f"{kind} on {', '.join(ways) or 'nothing: every pair'}"

    def answers_over(self, inputs: list[list[tuple[int, Row]]]) -> list[tuple[int, Row]]:
        """Every pair is looked at."""
        left, right = inputs
        out: list[tuple[int, Row]] = []
        met: set[int] = set()
        for ts, row in left:
            matches = [at for at, (_, other) in enumerate(right) if self._match(row, other)]
            met.update(matches)
            if self.how in _ONE_SIDE:
                if bool(matches) == (self.how == "semi"):
                    first = min((right[at][0] for at in matches), default=ts)
                    out.append((max(ts, first), row))
                continue
            out += [(max(ts, right[at][0]), self._both(row, right[at][1])) for at in matches]
            if not matches and self.how in ("left", "full"):
                out.append((ts, self._both(row, None, _names(right))))
        if self.how in ("right", "full"):
            alone = [one for at, one in enumerate(right) if at not in met]
            out += [(ts, self._both(None, row, _names(left))) for ts, row in alone]
        return out

    def _match(self, left: Row, right: Row) -> bool:
        return all(
            left.get(one) is not None and left.get(one) == right.get(other)
            for one, other in self.pairs
        )

    def _both(self, left: Row | None, right: Row | None, missing: tuple[str, ...] = ()) -> Row:
        """One joined row; `missing` are the columns of the side that is not there."""
        merged = {one for one, other in self.pairs if one == other}
        mine = dict.fromkeys(missing) if left is None else dict(left)
        theirs = dict.fromkeys(missing) if right is None else dict(right)
        row = {n: theirs[n] if n in merged and left is None else v for n, v in mine.items()}
        for name, value in theirs.items():
            if name not in merged:
                row[name + self.suffix if name in mine else name] = value
        return row

    def remembered(self) -> dict[str, Any]:
        """The columns that are compared, and what is kept of both sides."""
        inputs = ["changes" if gives_changes(one) else "records" for one in self.inputs]
        return {
            "keys": list(self.keys),
            "right_keys": list(self.right_keys),
            "how": self.how,
            "inputs": inputs,
        }


def _names(rows: list[tuple[int, Row]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, row in rows for name in row))

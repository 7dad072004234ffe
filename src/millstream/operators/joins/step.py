"""The node of a join: what it means, and what the planner must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from millstream.durations import text
from millstream.errors import ConfigError
from millstream.graph.changing import gives_changes
from millstream.operators.joins.arriving import Side
from millstream.operators.joins.asof import AsOf
from millstream.operators.joins.layout import lay_out
from millstream.operators.joins.matching import ALONE, Matching
from millstream.operators.joins.near import Near
from millstream.operators.protocol import Columns, Inputs, KeyedStep, Names, Operator, Row, Types
from millstream.ops.times.progress import BEGIN, END

HOW = ("inner", "left", "right", "full", "semi", "anti", "asof")
_ONE_SIDE = ("semi", "anti")


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(KeyedStep):
    """Rows of two streams that have the same key."""

    at_once: ClassVar[bool] = True
    keys: tuple[str, ...]  # of the left stream
    right_keys: tuple[str, ...]
    how: str = "inner"
    suffix: str = "_right"
    between: tuple[int, int] | None = None  # how far right rows lie after left ones, microseconds

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
        return self.between is None and self.how in ("left", "right", "full", "anti")

    def output_watermark(self, at: int) -> int | None:
        """Rows that match nothing in an interval leave when it is over, with their own time."""
        alone = ALONE.get(self.how, ())
        if self.between is None or not alone or not BEGIN < at < END:
            return None
        ends = (self.between[1], -self.between[0])
        return at - max(0, *(ends[number] for number in alone))

    def operator_over(self, number: int, inputs: Inputs) -> Operator:
        """Lets rows of both sides meet."""
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        alone = {"semi": (), "asof": (0,)}.get(self.how, ALONE.get(self.how, ()))
        timed, placed = self.between is not None, self.how == "asof"
        left, right = (
            Side(one.changes, at == 0 or self.how not in _ONE_SIDE, at in alone, timed, placed)
            for at, one in enumerate(inputs)
        )
        joining = self.name, number, layout, (left, right)
        if self.how == "asof":
            within = None if self.between is None else -self.between[0]
            return AsOf(*joining, within)
        if self.between is not None:
            return Near(*joining, self.how, *self.between)
        changes = self.gives_changes or any(one.changes for one in inputs)
        return Matching(*joining, self.how, changes)

    def resolve(self, inputs: Inputs) -> tuple[Columns, Types]:
        """Those of the left side, then those of the right one that are not keys of the same name.

        A right column of a name that the left side has gets the suffix.
        """
        for one in inputs:
            if one.changes and (self.between is not None or self.how == "asof"):
                what = 'how="asof"' if self.how == "asof" else "within= or between="
                raise ConfigError(
                    f"{self.name}: {what} is for records, and {one.name!r} is changes, which have "
                    "no time of their own; leave it out"
                )
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

    def uses_of(self, number: int, wanted: set[str] | None, inputs: Inputs) -> set[str] | None:
        """Its keys, and what is wanted of it."""
        mine, keys = inputs[number].columns, set(self.keys_of(number))
        if number == 1 and self.how in _ONE_SIDE:
            return keys
        if wanted is None or mine is None or any(one.columns is None for one in inputs):
            return None
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        renamed = layout.renamed if number == 1 else {}
        return keys | {name for name in mine if renamed.get(name, name) in wanted}

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """Those of both sides, or of the left one if rows of it are given by themselves.

        A key of one side stands for the equal one of the other, unless it may be null.
        """
        left, right = before
        if self.how in _ONE_SIDE:
            return left
        if left is None or right is None:
            return None
        layout = lay_out(self.name, self.how, self.pairs, self.suffix, inputs)
        mine, theirs = dict(self.pairs), {other: one for one, other in self.pairs}
        called = {name: layout.renamed.get(name, name) for one in right for name in one}
        called |= {other: layout.renamed.get(other, other) for _, other in self.pairs}
        if self.how not in ("inner", "right"):
            mine = {}
        if self.how not in ("inner", "left"):
            theirs = {}
        return (
            *(one | {called[mine[n]] for n in one & mine.keys()} for one in left),
            *(
                frozenset(called[n] for n in one) | {theirs[n] for n in one & theirs.keys()}
                for one in right
            ),
        )

    def words(self) -> str:
        """For the plan."""
        ways = [one if one == other else f"{one} = {other}" for one, other in self.pairs]
        kind = {"inner": "join", "asof": "as-of join"}.get(self.how, f"{self.how} join")
        told = f"{kind} on {', '.join(ways) or 'nothing: every pair'}"
        if self.how == "asof":
            old = "" if self.between is None else f", at most {text(-self.between[0])} before it"
            return f"{told}, the latest not after each{old}"
        if self.between is None:
            return told
        low, high = ("-" * (at < 0) + text(abs(at)) for at in self.between)
        return f"{told}, from {low} to {high} after it"

    def details(self, inputs: Inputs) -> list[str]:
        """For the plan: what is kept, and for how long."""
        sides = ["rows as they are now" if one.changes else "records" for one in inputs]
        if self.how == "asof":
            return [f"keeps: {sides[0]} until the watermark passes them; the latest right by key"]
        if self.between is not None:
            return ["keeps: records of both sides by key, until the watermark passes all they meet"]
        counts = "; per key how many of each side" if self.how in ALONE else ""
        if self.how in _ONE_SIDE:
            return [f"keeps: left {sides[0]}, by key{counts}"]
        return [f"keeps: left {sides[0]} and right {sides[1]}, by key{counts}"]

    def answers_over(self, inputs: list[list[tuple[int, Row]]]) -> list[tuple[int, Row]]:
        """Every pair is looked at."""
        left, right = inputs
        out: list[tuple[int, Row]] = []
        met: set[int] = set()
        for ts, row in left:
            matches = [
                at
                for at, (when, other) in enumerate(right)
                if self._match(row, other) and self._near(when - ts)
            ]
            if self.how == "asof":
                other = right[matches[-1]][1] if matches else None
                out.append((ts, self._both(row, other, _names(right))))
                continue
            met.update(matches)
            if self.how in _ONE_SIDE:
                if bool(matches) == (self.how == "semi"):
                    first = min((right[at][0] for at in matches), default=ts)
                    first = first if self.between is None else ts
                    out.append((max(ts, first), row))
                continue
            out += [(max(ts, right[at][0]), self._both(row, right[at][1])) for at in matches]
            if not matches and self.how in ("left", "full"):
                out.append((ts, self._both(row, None, _names(right))))
        if self.how in ("right", "full"):
            alone = [one for at, one in enumerate(right) if at not in met]
            out += [(ts, self._both(None, row, _names(left))) for ts, row in alone]
        return out

    def _near(self, after: int) -> bool:
        """Whether a right row may lie so long after a left one."""
        if self.between is None:
            return self.how != "asof" or after <= 0
        return self.between[0] <= after <= self.between[1]

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
            **({} if self.between is None else {"between": list(self.between)}),
        }


def _names(rows: list[tuple[int, Row]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, row in rows for name in row))

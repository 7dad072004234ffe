"""The operator: a table with a row per group, which holds partials and the row that was given.

Rows of one batch count together. What they come to is compared with what was given of their group:
a group that is new is added, one without rows is taken back, one that says something else is both.
Without a key there is one group, and it is there also without rows, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.operators.filing import Filed, Tables
from millstream.operators.grouped.arriving import Arriving, ByGroup
from millstream.operators.grouped.choosing import keeper_of
from millstream.operators.grouped.keeping import Keeper, States
from millstream.operators.grouped.moves import Moves
from millstream.operators.protocol import Host, Share
from millstream.operators.stores import Bag, StoredRows, Table, keyed_rows
from millstream.operators.waiting import give, rows_for
from millstream.ops.aggregates.holding import naming
from millstream.ops.chunks import Chunk, Int64, Mask, concat, flat
from millstream.ops.codec import as_key
from millstream.ops.keys.hashing import factorize, key_names
from millstream.ops.mixed import exact_columns, exactly
from millstream.ops.records import DeadLetter, as_json
from millstream.ops.times.progress import BEGIN
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.jobs import Measure
from millstream.state.bags import Keys

_GIVEN = "given."  # before the names of what was given of a group


@dataclass(frozen=True)
class Grouping(ByGroup):
    """Aggregates of groups."""

    measures: tuple[Measure, ...]
    changes: bool  # its input takes back what it gave

    def inlet(self, host: Host) -> Arriving:
        """Rows by the hash of their group."""
        whole = any(not m.columns and m.kernel is None for m in self.measures)
        names = dict.fromkeys(name for m in self.measures for name in m.columns)
        columns = None if whole else tuple(names)
        return Arriving(self, host, self.measures, columns)

    def run(self, share: Share) -> None:
        """Bring groups up to date; give what has changed of them."""
        host, batch, control = share.host, share.host.batch, share.host.control
        groups = Table(self.name, "groups", batch, control)
        keepers = [keeper_of(measure, self.changes) for measure in self.measures]
        wanted = {one.bag.name: one.bag for one in keepers if one.bag is not None}
        bags = {
            name: Bag(self.name, name, batch, control, bag.order) for name, bag in wanted.items()
        }
        rows = rows_for(share)
        moves = self._nothing(groups, control.part) if rows is None else Moves.of(rows)
        if moves is not None:
            for name, bag in wanted.items():
                if len(moves.group):
                    bags[name].add(bag.rows(moves))
            latest = share.clocks.ends[self.name]
            work = _Work(self, moves, groups.find(moves.keys), keepers, bags, batch.number)
            chunk = work.changes(groups, 0 if latest <= BEGIN else latest)
            control.dead.extend(work.dead)
            host.ledger(self.name)["failed"] += len(work.dead)
            host.ledger(self.name)["answered"] += work.answered
            give(host, self.name, chunk)
        for store in (groups, *bags.values()):
            store.store()

    def _nothing(self, groups: Table, part: int) -> Moves | None:
        """The one group of everything, where it belongs and before anything came."""
        if self.keys or part or groups.stored:
            return None
        names = ("shard", "hash", "check", "weight", "ts", "src", "pos")
        empty = pa.table({name: pa.array([], pa.int64()) for name in names})
        none, zero = np.zeros(0, np.int64), np.zeros(1, np.uint64)
        return Moves(empty, none, none, Keys(np.zeros(1, np.int64), zero, zero), none)

    def stored(self) -> Tables:
        """Groups and the bags of their values, by the hash of the group."""
        tables = {"groups": Filed("newest", "expires", "hash")}
        for measure in self.measures:
            bag = keeper_of(measure, self.changes).bag
            if bag is not None:
                tables[bag.name] = Filed("bag", "expires", bag.dealt, bag.order)
        return {self.name: tables}


class _Work:
    """Groups that rows of this batch belong to."""

    def __init__(
        self,
        operator: Grouping,
        moves: Moves,
        kept: StoredRows,
        keepers: list[Keeper],
        bags: dict[str, Bag],
        batch: int,
    ) -> None:
        self.operator, self.moves, self.kept, self.batch = operator, moves, kept, batch
        self.keepers, self.bags = keepers, bags
        self.dead: list[DeadLetter] = []
        self.answered = 0  # groups that are there and have not failed
        self.heads = {name: self._key(name) for name in key_names(operator.keys)}

    def _key(self, name: str) -> pa.Array:
        return flat(self.moves.table.column(name)).take(pa.array(self.moves.first))

    def changes(self, groups: Table, latest: int) -> Chunk:
        """What changes, and the table of groups brought up to date."""
        moves, kept = self.moves, self.kept
        size = kept.numbers("rows") + moves.sizes()
        there: Mask = size > 0 if self.operator.keys else np.ones(len(size), np.bool_)
        states, answers = self._answers()
        there_now = there.copy()
        there_now[list(answers.failed)] = False
        before = kept.flags("shown")
        told = kept.there & ~before & ~kept.flags("gone")  # it has failed since an earlier batch
        for at, why in answers.failed.items():
            if there[at] and not told[at]:
                self.dead.append(self._failed(at, why))
        exact = list(answers.exact)
        new = exactly(answers.columns, exact)
        same = before & there_now
        if same.any():
            both = np.flatnonzero(same)
            same[both] = equal(kept.rows(_GIVEN, same), new.take(pa.array(both)))
        removed, added = before & ~same, there_now & ~same
        self.answered = int(there_now.sum())
        came = np.full(moves.count, latest, np.int64)
        if len(moves.group):
            came = np.full(moves.count, BEGIN, np.int64)
            np.maximum.at(came, moves.group, moves.marks("ts"))
        ts, since = kept.numbers("ts"), kept.numbers("since")
        now = np.where(kept.there, np.maximum(ts, came), came)
        chunk = self._chunk(removed, added, new, (ts, now), since)
        ts = np.where(added, now, ts)
        since = np.where(added, self.batch, since)
        marks = {"rows": size, "ts": ts, "since": since}
        self._put(groups, states, new, marks, there, there_now)
        return chunk

    def _answers(self) -> tuple[States, Answers]:
        """States and answers of all aggregates."""
        answers, states = Answers(), {}
        known: dict[Keeper, States] = {}
        with naming(self.operator.name, self._named):
            for measure, keeper in zip(self.operator.measures, self.keepers, strict=True):
                if keeper not in known:
                    bag = None if keeper.bag is None else self.bags[keeper.bag.name]
                    known[keeper] = keeper.move(self.moves, self.kept, bag)
                keeper.answer(measure, known[keeper], answers)
        for found in known.values():
            states.update({n: one for n, one in found.items() if n.startswith("state.")})
        return states, answers

    def _named(self, row: int) -> Any:
        key = [self.moves.table.column(name)[row].as_py() for name in self.heads]
        return as_key(key[0] if len(key) == 1 else tuple(key))

    def _failed(self, group: int, why: str) -> DeadLetter:
        key = self._named(int(self.moves.first[group])) if len(self.moves.first) else ()
        identity = int(self.moves.keys.names[group])
        return DeadLetter(self.operator.name, -1, identity, as_json({"key": key}), why)

    def _chunk(
        self, removed: Mask, added: Mask, new: pa.Table, times: tuple[Int64, Int64], since: Int64
    ) -> Chunk:
        """What was given and is so no more, and what takes its place."""
        parts, ts, at, weight, revision = [], [], [], [], []
        sides = [(removed, -1, times[0], since)]
        sides.append((added, 1, times[1], np.full(len(since), self.batch, np.int64)))
        for mask, sign, when, emission in sides:
            if sign < 0 and not mask.any():
                continue
            rows = self.kept.rows(_GIVEN, mask) if sign < 0 else new.filter(pa.array(mask))
            parts.append(self._with_keys(mask, rows))
            ts.append(when[mask])
            at.append(np.flatnonzero(mask))
            weight.append(np.full(int(mask.sum()), sign, np.int64))
            revision.append(emission[mask])
        identity = self.moves.keys.names[np.concatenate(at)]
        when, signs, since = (np.concatenate(one) for one in (ts, weight, revision))
        return Chunk(concat(parts), when, identity, self.operator.number, signs, since)

    def _with_keys(self, mask: Mask, rows: pa.Table) -> pa.Table:
        columns = {
            name: head.filter(pa.array(mask))
            for name, head in zip(self.operator.keys, self.heads.values(), strict=True)
        }
        answers = {measure.name: rows.column(measure.name) for measure in self.operator.measures}
        return exactly(columns | answers, exact_columns(rows))

    def _put(
        self,
        groups: Table,
        states: States,
        new: pa.Table,
        marks: dict[str, Int64],
        there: Mask,
        shown: Mask,
    ) -> None:
        columns = {
            **keyed_rows(self.moves.keys, ~there, {"shown": shown, **marks}),
            **self.heads,
            **states,
            **{f"{_GIVEN}{name}": flat(new.column(name)) for name in new.column_names},
        }
        exact = [f"{_GIVEN}{name}" for name in exact_columns(new)]
        groups.put_hashed(exactly(columns, exact))


def equal(left: pa.Table, right: pa.Table) -> Mask:
    """Which rows of two tables are the same."""
    both, count = concat([left.select(right.column_names), right]), len(right)
    same = np.ones(count, np.bool_)
    for column in both.columns:
        codes, _ = factorize([flat(column)])
        same &= codes[:count] == codes[count:]
    return same

"""Steps on rows as those of a table: what repeats, what changes, what two streams share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.api.arguments import check_columns, named_columns
from millstream.api.columns import Columns, join_bounds, join_keys
from millstream.api.frames import plainly
from millstream.api.verbs.point import Point
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.operators.comparing import Compare
from millstream.operators.dedup import Dedup
from millstream.operators.distinct import Distinct
from millstream.operators.joins.step import HOW, Join
from millstream.operators.last import Last
from millstream.operators.operations import Operations
from millstream.operators.tagger import Changes

if TYPE_CHECKING:
    from millstream.api.stream import Stream


@plainly
class Relational(Point):
    """Steps that compare rows with others."""

    def distinct(self, *columns: str) -> Stream:
        """Every row once: of these columns, or of all.

        A row leaves when the watermark has passed the first record that has it. Over changes it is
        there as long as at least one record has it, and is taken back after the last.
        """
        check_columns("distinct", columns)
        return self._add(Distinct, "distinct", keys=columns)

    def dedup(self, *columns: str, within: Duration | None = None) -> Stream:
        """Records without those that repeat one given shortly before, in these columns or in all.

        within: a record is left out if an equal one was given at most so long before it, in event
            time; then nothing older is remembered. Left out: if one was ever given.
        A record leaves when the watermark has passed it; late ones are set aside (`late()`).
        """
        check_columns("dedup", columns)
        span = None if within is None else micros(within, "dedup(within=)")
        return self._add(Dedup, "dedup", keys=columns, within=span)

    def last(self, size: Duration) -> Stream:
        """The rows of the last so long, as changes: a row leaves with `-` when it is that old.

        The time is the one that all sources have passed by their lateness, and after the end of the
        input that of the latest record. A row that comes too late for it is set aside (`late()`).
        """
        return self._add(Last, "last", keys=(), size=micros(size, "last(size)"))

    def changes(
        self,
        key: str | Iterable[str],
        *,
        op: str | None = None,
        ops: Mapping[str, str] | None = None,
    ) -> Stream:
        """Records of objects as changes: each is the row of its object until a later one comes.

        Steps behind may keep either side of a change: what begins to qualify is `+`, what changes
        `u`, what no longer qualifies `-`.
        key: the column, or columns, that name an object. A record without one is a dead letter.
        op: of a change log, the column that says what happened: +, u and -, insert, update and
            delete, or the letters of Debezium. Rows do not have it any more.
        ops: what other values of it mean: {"gone": "-", "new": "+"}.
        """
        columns = named_columns("changes", key)
        if not columns:
            raise ConfigError("changes(key=()): expected the columns that name an object")
        return self._add(Changes, "changes", keys=columns, op=_operations(columns, op, ops))

    def join(
        self,
        other: Stream,
        *,
        on: Columns,
        how: str = "inner",
        suffix: str = "_right",
        within: Duration | None = None,
        between: Iterable[str] | None = None,
    ) -> Stream:
        """Rows of this stream and of another one that have the same key; null equals nothing.

        on: a column of both, several, or pairs of a column here and one there; none: every pair.
        how: "inner"; "left", "right" or "full" also give rows that match nothing, with null in the
            columns of the other side, until a match comes; "semi" gives the rows of this stream
            that match something, "anti" those that match nothing; "asof" gives every record of this
            stream with the latest of the other one that is not after it.
        suffix: is put behind the name of a column of the other stream that this one has, too. Keys
            of one name are one column.
        within: only records whose times differ by no more; what is past that is forgotten, and a
            record that matches nothing leaves when it can match nothing any more. With "asof": how
            old the other record may be.
        between: the same with two bounds: how far the other record lies after this one, like
            ("-5m", "10m").
        The time of a joined row is the later one of its two rows.
        """
        self._check_stream("join", other)
        keys = join_keys(on)
        if how not in HOW:
            known = '"full"' if how in ("outer", "full_outer", "fullouter") else ", ".join(HOW)
            raise ConfigError(f"join(how={how!r}): use {known}")
        if not isinstance(suffix, str):
            raise ConfigError(f"join(suffix={suffix!r}): expected a text")
        return self._add(
            Join,
            "join",
            other,
            keys=tuple(left for left, _ in keys),
            right_keys=tuple(right for _, right in keys),
            how=how,
            suffix=suffix,
            between=join_bounds(how, within, between),
        )

    def intersect(self, other: Stream, *, all: bool = False) -> Stream:
        """The rows that both streams have, compared whole, null with null.

        all: each as often as both have it, not once.
        """
        return self._compare("intersect", other, all)

    def difference(self, other: Stream, *, all: bool = False) -> Stream:
        """The rows of this stream that another does not have, compared whole, null with null.

        A row is taken back when the other stream gets it.
        all: each as often as this stream has it more, not once.
        """
        return self._compare("difference", other, all)

    def _compare(self, how: str, other: Stream, all: bool) -> Stream:
        self._check_stream(how, other)
        if not isinstance(all, bool):
            raise ConfigError(f"{how}(all={all!r}): use True or False")
        return self._add(Compare, how, other, how=how, all=all)


def _operations(
    keys: tuple[str, ...], op: str | None, ops: Mapping[str, str] | None
) -> Operations | None:
    if op is None:
        if ops is not None:
            raise ConfigError("changes(ops=...): say which column has these, with op=")
        return None
    if not isinstance(op, str) or not op or op in keys:
        raise ConfigError(f"changes(op={op!r}): expected a column that is not part of the key")
    for word, meaning in (ops or {}).items():
        if not isinstance(word, str) or meaning not in ("+", "-", "u"):
            raise ConfigError(
                f"changes(ops=...): {word!r}: {meaning!r}; expected words and what they mean, "
                "+ (or u) for a row that is there and - for one that is no more"
            )
    meant = {word: "-" if mark == "-" else "+" for word, mark in (ops or {}).items()}
    return Operations(op, tuple(meant.items()))

"""Random queries of the grammar, in words that DuckDB understands too.

Tables are `t(id, k, v, x, s)` and `u(id, k, w, s)`; all columns but `id` may be null.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

TABLES = {
    "t": {"id": "int", "k": "int", "v": "int", "x": "double", "s": "text"},
    "u": {"id": "int", "k": "int", "w": "int", "s": "text"},
}
_AGGREGATES = {
    "int": ("COUNT({})", "SUM({})", "MIN({})", "MAX({})", "COUNT(DISTINCT {})", "AVG({})"),
    "double": ("COUNT({})", "SUM({})", "MIN({})", "MAX({})"),
    "text": ("COUNT({})", "MIN({})", "MAX({})", "COUNT(DISTINCT {})"),
}
_GIVES = {"COUNT": "int", "SUM": None, "MIN": None, "MAX": None, "AVG": "double"}


@dataclass(frozen=True)
class Source:
    """Something in FROM: its text, and its columns as they are written and typed."""

    text: str
    columns: dict[str, str]
    filtered: bool = False  # it ends with a WHERE


class Grammar:
    """Makes queries; `kinds` are the clauses it may use."""

    def __init__(self, rng: random.Random, kinds: frozenset[str]) -> None:
        self.rng, self.kinds = rng, kinds
        self.number = 0

    def _name(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"

    def _may(self, kind: str, chance: float) -> bool:
        return kind in self.kinds and self.rng.random() < chance

    def query(self, depth: int = 2) -> tuple[str, dict[str, str]]:
        """A query and its columns."""
        if depth and self._may("top", 0.15):
            return self._top() if self.rng.random() < 0.5 else self._limited(depth - 1)
        if depth and self._may("sets", 0.25):
            return self._set(depth - 1)
        if depth and self.rng.random() < 0.15:
            inner, columns = self.query(depth - 1)
            name = self._name("c")
            items, made = self._items(Source(name, columns))
            return (
                f"WITH {name} AS ({inner}) SELECT {items} FROM {name}{self._where(columns)}",
                made,
            )
        source = self._source(depth)
        where = self._where(source.columns, depth, source)
        if self._may("group", 0.4):
            return self._grouped(source, where)
        items, made = self._items(source)
        distinct = "DISTINCT " if self.rng.random() < 0.25 else ""
        return f"SELECT {distinct}{items} FROM {source.text}{where}", made

    # -- the first rows; orders leave no choice -----------------------------------------------

    def _order(self, columns: list[str]) -> str:
        ways = ("ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST")
        return ", ".join(f"{one} {self.rng.choice(ways)}" for one in columns)

    def _limited(self, depth: int) -> tuple[str, dict[str, str]]:
        inner, columns = self.query(depth)
        name = self._name("l")
        order = self.rng.sample(list(columns), len(columns))
        return (
            f"SELECT {', '.join(columns)} FROM ({inner}) AS {name} ORDER BY {self._order(order)} "
            f"LIMIT {self.rng.randint(1, 4)}"
        ), columns

    def _top(self) -> tuple[str, dict[str, str]]:
        table = self._table()
        items, made = self._items(table)
        number, name = self._name("n"), self._name("q")
        unique = next(one for one in table.columns if one.endswith(".id"))
        group = self.rng.choice(list(table.columns))
        by = self._order([self.rng.choice(list(table.columns)), unique])
        over = (
            f"PARTITION BY {group} ORDER BY {by}" if self.rng.random() < 0.8 else f"ORDER BY {by}"
        )
        inner = (
            f"SELECT {items}, ROW_NUMBER() OVER ({over}) AS {number} "
            f"FROM {table.text}{self._where(table.columns)}"
        )
        shown = self.rng.random() < 0.5
        listed = ", ".join([*made, *([number] if shown else [])])
        bound = f"{number} {self.rng.choice(['<=', '<', '='])} {self.rng.randint(2, 4)}"
        sql = f"SELECT {listed} FROM ({inner}) AS {name} WHERE {bound}"
        return sql, made | ({number: "int"} if shown else {})

    # -- FROM -----------------------------------------------------------------------------------

    def _source(self, depth: int) -> Source:
        if depth and self.rng.random() < 0.3:
            inner, columns = self.query(depth - 1)
            name = self._name("q")
            one = Source(f"({inner}) AS {name}", {f"{name}.{c}": k for c, k in columns.items()})
        else:
            one = self._table()
        if depth and self._may("join", 0.5):
            return self._join(one, self._table())
        return one

    def _table(self) -> Source:
        table = self.rng.choice(list(TABLES))
        name = self._name(table)
        return Source(f"{table} AS {name}", {f"{name}.{c}": k for c, k in TABLES[table].items()})

    def _join(self, left: Source, right: Source) -> Source:
        pairs = [
            (a, b)
            for a, kind in left.columns.items()
            for b, other in right.columns.items()
            if kind == other != "double"
        ]
        if not pairs:
            return left
        how = self.rng.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]
        )
        chosen = self.rng.sample(pairs, min(len(pairs), self.rng.choice([1, 1, 2])))
        on = " AND ".join(f"{a} = {b}" for a, b in chosen)
        if how in ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN") and self.rng.random() < 0.3:
            on += f" AND {self._condition(right.columns)}"
        columns = (
            left.columns if how in ("SEMI JOIN", "ANTI JOIN") else left.columns | right.columns
        )
        if how == "JOIN" and self.rng.random() < 0.3:
            return Source(f"{left.text}, {right.text} WHERE {on}", columns, filtered=True)
        return Source(f"{left.text} {how} {right.text} ON {on}", columns)

    # -- WHERE ----------------------------------------------------------------------------------

    def _where(self, columns: dict[str, str], depth: int = 0, source: Source | None = None) -> str:
        word = " AND " if source is not None and source.filtered else " WHERE "
        parts = [self._condition(columns)] if self.rng.random() < 0.5 else []
        if depth and self._may("in", 0.3):
            parts.append(self._membership(columns))
        return word + " AND ".join(parts) if parts else ""

    def _membership(self, columns: dict[str, str]) -> str:
        usable = [one for one in columns.items() if one[1] != "double"]
        if not usable:
            return "1 = 1"
        (column, kind), other = self.rng.choice(usable), self._table()
        mine = [name for name, one in other.columns.items() if one == kind]
        if not mine:
            return "1 = 1"
        value, negated = self.rng.choice(mine), self.rng.choice(["", "NOT "])
        where = f" WHERE {self._condition(other.columns)}" if self.rng.random() < 0.6 else ""
        if self.rng.random() < 0.5:
            return f"{column} {negated}IN (SELECT {value} FROM {other.text}{where})"
        word = " AND " if where else " WHERE "
        return f"{negated}EXISTS (SELECT 1 FROM {other.text}{where}{word}{value} = {column})"

    def _condition(self, columns: dict[str, str]) -> str:
        column, kind = self.rng.choice(list(columns.items()))
        if self.rng.random() < 0.2:
            return f"{column} IS {self.rng.choice(['', 'NOT '])}NULL"
        if kind == "text":
            return self.rng.choice(
                [
                    f"{column} = 'a'",
                    f"{column} IN ('a', 'b')",
                    f"{column} > 'a'",
                    f"{column} LIKE '%b%'",
                ]
            )
        value = self.rng.randint(-3, 6)
        simple = f"{column} {self.rng.choice(['<', '<=', '=', '<>', '>', '>='])} {value}"
        return self.rng.choice(
            [simple, f"({simple} OR {column} IS NULL)", f"{column} BETWEEN {value} AND {value + 4}",
             f"NOT ({simple})", f"CASE WHEN {simple} THEN {column} > 0 ELSE {column} < 3 END"]
        )  # fmt: skip

    # -- SELECT ---------------------------------------------------------------------------------

    def _items(self, source: Source) -> tuple[str, dict[str, str]]:
        count = self.rng.randint(1, min(4, len(source.columns)))
        chosen = self.rng.sample(list(source.columns.items()), count)
        made: dict[str, str] = {}
        items = []
        for column, kind in chosen:
            name = self._name("e")
            value, kind = self._value(column, kind)
            items.append(f"{value} AS {name}")
            made[name] = kind
        return ", ".join(items), made

    def _value(self, column: str, kind: str) -> tuple[str, str]:
        if kind == "text":
            return self.rng.choice(
                [column, f"UPPER({column})", f"COALESCE({column}, 'none')"]
            ), kind
        if kind == "double":
            return self.rng.choice([column, f"{column} * 2", f"COALESCE({column}, 0.5)"]), kind
        options = [column, f"{column} + 1", f"{column} * {column}", f"COALESCE({column}, -1)",
                   f"CASE WHEN {column} > 1 THEN {column} ELSE 0 END"]  # fmt: skip
        return self.rng.choice(options), kind

    def _grouped(self, source: Source, where: str) -> tuple[str, dict[str, str]]:
        usable = {name: kind for name, kind in source.columns.items() if kind != "double"}
        keys = self.rng.sample(
            list(usable.items()), min(len(usable), self.rng.choice([0, 1, 1, 2]))
        )
        made, items = {}, []
        for column, kind in keys:
            name = self._name("g")
            items.append(f"{column} AS {name}")
            made[name] = kind
        for _ in range(self.rng.randint(1, 3)):
            call, kind = self._aggregate(source)
            name = self._name("a")
            items.append(f"{call} AS {name}")
            made[name] = kind
        group = f" GROUP BY {', '.join(c for c, _ in keys)}" if keys else ""
        if len(keys) == 2 and self._may("sets", 0.4):
            first, second = (c for c, _ in keys)
            group = f" GROUP BY GROUPING SETS (({first}), ({second}), ({first}, {second}))"
        having = f" HAVING COUNT(*) > {self.rng.randint(0, 2)}" if self.rng.random() < 0.3 else ""
        return f"SELECT {', '.join(items)} FROM {source.text}{where}{group}{having}", made

    def _aggregate(self, source: Source) -> tuple[str, str]:
        column, kind = self.rng.choice(list(source.columns.items()))
        call = self.rng.choice(["COUNT(*)", *_AGGREGATES[kind]])
        made = call.format(column)
        if self.rng.random() < 0.25:
            made += f" FILTER (WHERE {self._condition(source.columns)})"
        return made, _GIVES[call.partition("(")[0]] or kind

    # -- sets -----------------------------------------------------------------------------------

    def _set(self, depth: int) -> tuple[str, dict[str, str]]:
        left, right = self._table(), self._table()
        kinds = self.rng.choice([["int"], ["int", "text"], ["text"]])
        sides = []
        names = [self._name("m") for _ in kinds]
        for side in (left, right):
            chosen = [
                self.rng.choice([c for c, k in side.columns.items() if k == kind]) for kind in kinds
            ]
            items = ", ".join(f"{c} AS {n}" for c, n in zip(chosen, names, strict=True))
            sides.append(f"SELECT {items} FROM {side.text}{self._where(side.columns)}")
        words = ["UNION ALL", "UNION"]
        if "group" in self.kinds:
            words += ["INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
        return f" {self.rng.choice(words)} ".join(sides), dict(zip(names, kinds, strict=True))

"""Random queries of the grammar, in words that DuckDB understands too.

Tables are `t(id, k, v, x, d, s)` and `u(id, k, w, s)`; all columns but `id` may be null. The few
words that DuckDB has others for are put into its own by `for_duckdb`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = frozenset({"sets", "group", "join", "in", "top", "value", "over"})
TABLES = {
    "t": {"id": "int", "k": "int", "v": "int", "x": "double", "d": "decimal", "s": "text"},
    "u": {"id": "int", "k": "int", "w": "int", "s": "text"},
}
_AGGREGATES = {
    "int": ("COUNT({})", "SUM({})", "MIN({})", "MAX({})", "COUNT(DISTINCT {})", "AVG({})",
            "MEDIAN({})", "STDDEV({})", "VARIANCE({})", "PERCENTILE({}, 0.25)"),
    "double": ("COUNT({})", "SUM({})", "MIN({})", "MAX({})"),
    "decimal": ("COUNT({})", "SUM({})", "MIN({})", "MAX({})"),
    "text": ("COUNT({})", "MIN({})", "MAX({})", "COUNT(DISTINCT {})"),
}  # fmt: skip
# What each gives, if not what it is of. Sums of sums grow: they are not multiplied any more.
_GIVES = dict.fromkeys(("AVG", "MEDIAN", "STDDEV", "VARIANCE", "PERCENTILE"), "inexact")
_GIVES |= {"COUNT": "int"}
_FRAMES = (
    "", "", " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    " ROWS BETWEEN {} PRECEDING AND CURRENT ROW", " ROWS BETWEEN {} PRECEDING AND {} FOLLOWING",
    " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", " ROWS {} PRECEDING",
    " ROWS BETWEEN 4 PRECEDING AND {} PRECEDING", " ROWS BETWEEN {} FOLLOWING AND 4 FOLLOWING",
    " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
)  # fmt: skip
_SEVERAL = (
    "GROUPING SETS (({0}), ({1}), ({0}, {1}))", "GROUPING SETS (({0}, {1}), ())",
    "CUBE ({0}, {1})", "ROLLUP ({0}, {1})",
)  # fmt: skip


def for_duckdb(sql: str) -> str:
    """The same query in DuckDB's words."""
    return sql.replace("* EXCEPT (", "* EXCLUDE (").replace("PERCENTILE(", "QUANTILE_CONT(")


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
            return self._named(depth - 1)
        source = self._source(depth)
        where = self._where(source.columns, depth, source)
        if self._may("group", 0.4):
            return self._grouped(source, where)
        if self._may("over", 0.2):
            return self._over(source, where)
        if len({name.partition(".")[0] for name in source.columns}) == 1 and self._may(
            "group", 0.1
        ):
            return self._star(source, where)
        items, made = self._items(source)
        if self._may("value", 0.15):
            name = self._name("e")
            items, made = f"{items}, {self._single(source.columns)} AS {name}", made | {name: "int"}
        distinct = "DISTINCT " if self.rng.random() < 0.25 else ""
        return f"SELECT {distinct}{items} FROM {source.text}{where}", made

    def _named(self, depth: int) -> tuple[str, dict[str, str]]:
        """A query with a name, once or beside itself."""
        inner, columns = self.query(depth)
        name = self._name("c")
        source = Source(name, {f"{name}.{one}": kind for one, kind in columns.items()})
        keys = [one for one, kind in columns.items() if kind in ("int", "text")]
        if keys and self._may("join", 0.3):
            one, other, key = self._name("x"), self._name("x"), self.rng.choice(keys)
            twice = {f"{x}.{c}": kind for x in (one, other) for c, kind in columns.items()}
            source = Source(f"{name} AS {one} JOIN {name} AS {other} USING ({key})", twice)
        items, made = self._items(source)
        where = self._where(source.columns)
        return f"WITH {name} AS ({inner}) SELECT {items} FROM {source.text}{where}", made

    def _star(self, source: Source, where: str) -> tuple[str, dict[str, str]]:
        """All columns, or all but one."""
        table = next(iter(source.columns)).partition(".")[0]
        made = {name.partition(".")[2]: kind for name, kind in source.columns.items()}
        star = self.rng.choice(["*", f"{table}.*"])
        if len(made) > 1 and self.rng.random() < 0.5:
            star += f" EXCEPT ({self.rng.choice(list(made))})"
            made = {n: kind for n, kind in made.items() if not star.endswith(f" ({n})")}
        return f"SELECT {star} FROM {source.text}{where}", made

    # -- queries that give one value --------------------------------------------------------------

    def _single(self, columns: dict[str, str]) -> str:
        """A whole number: of a table by itself, or of its rows that are like the one around."""
        table = self._table()
        whole = [name for name, kind in table.columns.items() if kind == "int"]
        value, where = self.rng.choice(whole), self._where(table.columns)
        if self.rng.random() < 0.2:
            order = f"{value} {self.rng.choice(['ASC NULLS FIRST', 'DESC NULLS LAST'])}"
            return f"(SELECT {value} FROM {table.text}{where} ORDER BY {order} LIMIT 1)"
        call = self.rng.choice(["COUNT(*)", "MAX({0})", "MIN({0})", "SUM({0})", "COUNT({0}) + 1",
                                "MAX({0}) - MIN({0})", "COALESCE(SUM({0}), 0)"])  # fmt: skip
        pairs = [
            f"{mine} = {its}"
            for mine, kind in table.columns.items()
            for its, other in columns.items()
            if kind == other and kind in ("int", "text")
        ]
        if pairs and self.rng.random() < 0.5:
            where += f"{' AND ' if where else ' WHERE '}{self.rng.choice(pairs)}"
        return f"(SELECT {call.format(value)} FROM {table.text}{where})"

    # -- functions over rows ----------------------------------------------------------------------

    def _over(self, source: Source, where: str) -> tuple[str, dict[str, str]]:
        """Rows with what functions over their neighbours say; equal rows are in any order."""
        items, made = self._items(source)
        several = []
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            call, kind = self._over_call(source)
            name = self._name("o")
            several.append(f"{call} AS {name}")
            made[name] = kind
        return f"SELECT {items}, {', '.join(several)} FROM {source.text}{where}", made

    def _over_call(self, source: Source) -> tuple[str, str]:
        columns = source.columns
        column, kind = self.rng.choice(list(columns.items()))
        parts = self.rng.sample(list(columns), self.rng.choice([0, 1, 1]))
        # Every column: rows that are equal in all of them are the same, whichever comes first.
        by = self.rng.sample(list(columns), len(columns))
        ranks = self.rng.random() < 0.3
        if ranks:
            call, gives = self.rng.choice(["ROW_NUMBER()", "RANK()", "DENSE_RANK()"]), "int"
            if call != "ROW_NUMBER()":
                by = by[: self.rng.randint(1, 2)]
            return f"{call} OVER ({self._parted(parts, by)})", gives
        if self.rng.random() < 0.3:
            call = self.rng.choice(["LAG({})", "LEAD({})", "LAG({}, 2)", "LEAD({}, 3)"])
            return f"{call.format(column)} OVER ({self._parted(parts, by)})", kind
        frame = self.rng.choice(_FRAMES).format(self.rng.randint(0, 3), self.rng.randint(0, 3))
        if "ROWS" not in frame:
            by = self.rng.choice([by, by[:1], []] if not frame else [by, by[:1]])
        calls = [one for one in _AGGREGATES.get(kind, ()) if "DISTINCT" not in one]
        calls = [one for one in calls if _word(one) in ("COUNT", "SUM", "MIN", "MAX", "AVG")]
        if by:
            calls += ["FIRST_VALUE({})", "LAST_VALUE({})"] if len(by) == len(columns) else []
        call = self.rng.choice(["COUNT(*)", *calls])
        gives = _GIVES.get(_word(call), kind)
        return f"{call.format(column)} OVER ({self._parted(parts, by)}{frame})", gives

    def _parted(self, parts: list[str], by: list[str]) -> str:
        parted = f"PARTITION BY {', '.join(parts)}" if parts else ""
        ordered = f"ORDER BY {self._order(by)}" if by else ""
        return f"{parted} {ordered}".strip()

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
            if kind == other and kind in ("int", "text")
        ]
        if self.rng.random() < 0.05:
            return Source(f"{left.text} CROSS JOIN {right.text}", left.columns | right.columns)
        if not pairs:
            return left
        how = self.rng.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]
        )
        chosen = self.rng.sample(pairs, min(len(pairs), self.rng.choice([1, 1, 2])))
        on = " AND ".join(f"{a} = {b}" for a, b in chosen)
        if how in ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN") and self.rng.random() < 0.3:
            on += f" AND {self._condition(right.columns)}"
        if how == "JOIN" and self.rng.random() < 0.3:
            a, b = self.rng.choice(pairs)
            on += f" AND {a} {self.rng.choice(['<', '<=', '<>'])} {b}"
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
        whole = [name for name, kind in columns.items() if kind == "int"]
        if depth and whole and self._may("value", 0.15):
            way = self.rng.choice(["<", "<=", "=", "<>", ">", ">="])
            parts.append(f"{self.rng.choice(whole)} {way} {self._single(columns)}")
        return word + " AND ".join(parts) if parts else ""

    def _membership(self, columns: dict[str, str]) -> str:
        usable = [one for one in columns.items() if one[1] in ("int", "text")]
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
        if kind == "inexact":  # of which the last digits may differ
            return f"{column} IS NOT NULL"
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
        if kind == "inexact":
            return column, kind
        if kind == "decimal":
            return self.rng.choice([column, f"{column} + 1.25", f"COALESCE({column}, 0.5)"]), kind
        if kind == "double":
            return self.rng.choice([column, f"{column} * 2", f"COALESCE({column}, 0.5)"]), kind
        options = [column, f"{column} + 1", f"{column} % 3", f"COALESCE({column}, -1)",
                   f"NULLIF({column}, 2)",
                   f"CASE WHEN {column} > 1 THEN {column} ELSE 0 END"]  # fmt: skip
        return self.rng.choice(options), kind

    def _grouped(self, source: Source, where: str) -> tuple[str, dict[str, str]]:
        usable = {name: kind for name, kind in source.columns.items() if kind in ("int", "text")}
        keys = self.rng.sample(
            list(usable.items()), min(len(usable), self.rng.choice([0, 1, 1, 2]))
        )
        made, items, groups = {}, [], []
        for place, (column, kind) in enumerate(keys):
            name = self._name("g")
            value, kind = self._value(column, kind) if self.rng.random() < 0.3 else (column, kind)
            items.append(f"{value} AS {name}")
            groups.append(self.rng.choice([value, value, name, str(place + 1)]))
            made[name] = kind
        for _ in range(self.rng.randint(1, 3)):
            call, kind = self._aggregate(source)
            name = self._name("a")
            items.append(f"{call} AS {name}")
            made[name] = kind
        if self._may("value", 0.1):
            name = self._name("a")
            items.append(f"COUNT(*) - {self._single({})} AS {name}")
            made[name] = "int"
        group = f" GROUP BY {', '.join(groups)}" if keys else ""
        if len(keys) == 2 and self._may("sets", 0.4):
            first, second = (item.rpartition(" AS ")[0] for item in items[:2])
            group = f" GROUP BY {self.rng.choice(_SEVERAL).format(first, second)}"
        return (
            f"SELECT {', '.join(items)} FROM {source.text}{where}{group}{self._having(source)}",
            made,
        )

    def _having(self, source: Source) -> str:
        if self.rng.random() > 0.3:
            return ""
        if self._may("value", 0.2):
            return f" HAVING COUNT(*) > {self._single({})}"
        whole = [name for name, kind in source.columns.items() if kind == "int"]
        if whole and self.rng.random() < 0.4:
            call = self.rng.choice(["SUM({})", "MIN({})", "MAX({})", "COUNT(DISTINCT {})"])
            return f" HAVING {call.format(self.rng.choice(whole))} > {self.rng.randint(-2, 3)}"
        return f" HAVING COUNT(*) > {self.rng.randint(0, 2)}"

    def _aggregate(self, source: Source) -> tuple[str, str]:
        column, kind = self.rng.choice(list(source.columns.items()))
        call = self.rng.choice(["COUNT(*)", *_AGGREGATES.get(kind, ())])
        made = call.format(column)
        if self.rng.random() < 0.25:
            made += f" FILTER (WHERE {self._condition(source.columns)})"
        return made, _GIVES.get(_word(call), kind)

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


def _word(call: str) -> str:
    return call.partition("(")[0]

"""Functions over rows beside DuckDB: all of them, over all kinds of frames, types and values."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from millstream.operators.over import AGGREGATES, NEIGHBOURS, RANKS, Call, evaluate
from millstream.ops.aggregates.overlooking import Frame, Rows

FRAMES = {
    Frame(): "",
    Frame(None, 0, False): "ROWS UNBOUNDED PRECEDING",
    Frame(3, 0, False): "ROWS BETWEEN 3 PRECEDING AND CURRENT ROW",
    Frame(2, 5, False): "ROWS BETWEEN 2 PRECEDING AND 5 FOLLOWING",
    Frame(4, -2, False): "ROWS BETWEEN 4 PRECEDING AND 2 PRECEDING",
    Frame(-1, 3, False): "ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    Frame(0, None, False): "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    Frame(None, None, False): "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
}
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [-3, 0, 7, 7, 2**31 - 1]),
    "bigint": (pa.int64(), [2**61, -(2**61), 5, -1]),
    "double": (pa.float64(), [0.5, -0.25, 3.0, 1024.0]),
    "odd": (pa.float64(), [1.5, math.inf, math.nan, -2.0]),
    "decimal": (pa.decimal128(12, 2), [Decimal("0.10"), Decimal("-99.99"), Decimal("3.33")]),
    "text": (pa.string(), ["", "a", "ab", "é"]),
    "boolean": (pa.bool_(), [True, False]),
}


def calls(kind: str, of: pa.DataType) -> list[tuple[Call, str]]:
    """Calls, each with DuckDB's words for it."""
    made = [(Call("o", one, None, pa.int64()), f"{one}() over ({{}})") for one in RANKS]
    for one in NEIGHBOURS:
        made.append((Call("o", one, "v", of, offset=2), f"{one}(v, 2) over ({{}})"))
    for function in AGGREGATES:
        if function in ("sum", "avg") and kind in ("text", "boolean"):
            continue
        gives = {"count": pa.int64(), "avg": pa.float64()}.get(function, of)
        if function == "sum":
            gives = pa.int64() if pa.types.is_integer(of) else of
            gives = pa.decimal128(22, 2) if pa.types.is_decimal(of) else gives
        if function == "avg" and pa.types.is_decimal(of):
            gives = pa.decimal128(16, 6)
        for frame, words in FRAMES.items():
            told = f"{function}(v) over ({{}} {words})"
            made.append((Call("o", function, "v", gives, frame), told))
    return made


def plain(value: Any) -> Any:
    """NaN as equal to itself, and numbers as far as a double can tell."""
    if isinstance(value, float | Decimal):
        return "NaN" if math.isnan(value) else float(f"{float(value):.7g}")
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_over_every_frame(kind: str) -> None:
    rng, (of, values) = random.Random(kind), KINDS[kind]
    rows = [
        {"g": g, "p": p, "n": n, "v": rng.choice([None, *values])}
        for n, (g, p) in enumerate(sorted((rng.randrange(3), rng.randrange(9)) for _ in range(40)))
    ]
    table = pa.table(
        {name: pa.array([row[name] for row in rows], of if name == "v" else pa.int64())
         for name in ("g", "p", "n", "v")}
    )  # fmt: skip
    g, p = (np.asarray(table.column(name)) for name in ("g", "p"))
    begins = np.r_[True, g[1:] != g[:-1]]
    places = Rows(begins, begins | np.r_[True, p[1:] != p[:-1]])
    with duckdb.connect() as db:
        db.register("t", table)
        for call, told in calls(kind, of):
            ranks = call.function in ("rank", "dense_rank") or call.frame.by_value
            by_value = ranks and call.function not in ("row_number", *NEIGHBOURS)
            if call.function in ("first_value", "last_value") and by_value:
                continue  # which of equal rows is the last is anybody's choice
            over = f"partition by g order by p{'' if by_value else ', n'}"
            sql = f"select {told.format(over)} from t order by n"
            expected = [plain(row[0]) for row in db.execute(sql).fetchall()]
            column = None if call.column is None else table.column("v").combine_chunks()
            whole = call.function == "sum" and call.type == pa.int64()
            large = {at for at, one in enumerate(expected) if whole and abs(one or 0) >= 2**63}
            made, failed = evaluate(call, column, places)
            assert set(failed) == large
            assert all("needs over 64 bits" in why for why in failed.values())
            expected = [None if at in large else one for at, one in enumerate(expected)]
            assert [plain(one) for one in made.to_pylist()] == expected, (call, sql)


def test_sums_of_doubles_are_exact() -> None:
    """Rounded once: what came and went in between leaves no trace."""
    values = [0.1, 1e16, -1e16, 0.2, 1e-300, 1e300, -1e300]
    rows = Rows(np.arange(7) == 0, np.ones(7, np.bool_))
    call = Call("o", "sum", "v", pa.float64(), Frame(None, 0, False))
    found = evaluate(call, pa.array(values), rows)[0].to_pylist()
    assert found == [math.fsum(values[: at + 1]) for at in range(7)]
    mean = Call("o", "avg", "v", pa.float64(), Frame(2, 0, False))
    means, _ = evaluate(mean, pa.array([0.1, 0.2, 0.3] + [0.0] * 4), rows)
    assert means.to_pylist()[2] == 0.2


def test_a_large_group_costs_what_its_rows_do() -> None:
    """A quarter of a million rows with frames of ten thousand: once in minutes, now at once."""
    count = 250_000
    rows = Rows(np.arange(count) == 0, np.ones(count, np.bool_))
    values = pa.array(np.arange(count) % 1000)
    for function in ("sum", "min", "max", "avg", "count"):
        of = pa.float64() if function == "avg" else pa.int64()
        call = Call("o", function, "v", of, Frame(9999, 0, False))
        assert len(evaluate(call, values, rows)[0]) == count

"""The same windows computed by DuckDB from the same files, and both results compared.

Nothing is shared with the engine: every trade is written out once per window it is in, and grouped.
A result that is there twice is numbered as a copy, and finds no equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_CLOSE_ENOUGH = 1e-9

_EXPECTED = """
CREATE TEMP TABLE expected AS
SELECT symbol, start, avg(price) AS average, min(price) AS low, max(price) AS high,
       sum(qty) AS volume, count(*) AS trades
FROM (
    SELECT symbol, price, qty,
           unnest(range(us - us % {slide} - {size} + {slide}, us + 1, {slide})) AS start
    FROM (SELECT symbol, price, qty, epoch_us(ts) AS us
          FROM read_parquet('{trades}/*.parquet')))
GROUP BY ALL
"""

_COMPARED = """
SELECT count(*),
       count(*) FILTER (e.trades IS NOT DISTINCT FROM m.trades
                    AND e.volume IS NOT DISTINCT FROM m.volume
                    AND e.low IS NOT DISTINCT FROM m.low AND e.high IS NOT DISTINCT FROM m.high
                    AND abs(e.average - m.average) <= {tolerance} * abs(e.average)),
       max(abs(e.average - m.average) / abs(e.average))
FROM (SELECT *, 1 AS copy FROM expected) e FULL JOIN (
    SELECT *, row_number() OVER (PARTITION BY symbol, start) AS copy
    FROM (SELECT *, epoch_us(window_start) AS start
          FROM read_parquet('{results}/part-*.parquet'))
) m USING (symbol, start, copy)
"""

_MARKET = """
WITH expected AS (
    SELECT us - us % 60000000 AS start, sum(qty) AS volume, count(*) AS trades,
           count(DISTINCT symbol) AS symbols
    FROM (SELECT symbol, qty, epoch_us(ts) AS us FROM read_parquet('{trades}/*.parquet'))
    GROUP BY ALL
)
SELECT count(*), count(*) FILTER (e.volume IS NOT DISTINCT FROM m.volume
                              AND e.trades IS NOT DISTINCT FROM m.trades
                              AND e.symbols IS NOT DISTINCT FROM m.symbols)
FROM (SELECT *, 1 AS copy FROM expected) e FULL JOIN (
    SELECT *, row_number() OVER (PARTITION BY start) AS copy
    FROM (SELECT *, epoch_us(window_start) AS start
          FROM read_parquet('{market}/part-*.parquet'))
) m USING (start, copy)
"""


@dataclass(frozen=True)
class Agreement:
    """How many rows there are on either side, and how many are the same."""

    rows: int
    same: int
    largest: float

    @property
    def good(self) -> bool:
        """Whether every row of either side has its equal on the other."""
        return self.rows == self.same > 0

    def __str__(self) -> str:
        verdict = "agrees" if self.good else "DISAGREES"
        return (
            f"DuckDB {verdict}: {self.same:,} of {self.rows:,} rows, largest relative difference "
            f"{self.largest:.1e}"
        )


def compare(out: Path, size: timedelta, slide: timedelta) -> Agreement:
    """Compute both jobs again and compare all rows of either side."""
    import duckdb

    micro = timedelta(microseconds=1)
    trades = _quoted(out / "trades")
    with duckdb.connect() as database:
        database.execute(_EXPECTED.format(size=size // micro, slide=slide // micro, trades=trades))
        compared = _COMPARED.format(tolerance=_CLOSE_ENOUGH, results=_quoted(out / "averages"))
        rows, same, largest = _only_row(database.execute(compared).fetchone())
        market = _MARKET.format(trades=trades, market=_quoted(out / "market"))
        minutes, same_minutes = _only_row(database.execute(market).fetchone())
    return Agreement(int(rows + minutes), int(same + same_minutes), float(largest or 0.0))


def _only_row(row: tuple[float, ...] | None) -> tuple[float, ...]:
    assert row is not None  # an aggregate without groups always has one
    return row


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")

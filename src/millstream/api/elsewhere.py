"""What people know from pandas, Spark, Polars and SQL, and what it is called here.

Asked when something is not there, so that the error says where it is.
"""

from __future__ import annotations

import re
from types import UnionType
from typing import get_args

from millstream.errors import ConfigError

STREAMS = {
    **dict.fromkeys(("filter", "query"), "where(condition)"),
    **dict.fromkeys(("group_by", "groupby", "groupBy", "keyBy", "key_on"), "key_by(columns)"),
    **dict.fromkeys(
        ("withColumn", "with_columns", "assign", "mutate"),
        'with_column("notional", "price * qty")',
    ),
    **dict.fromkeys(
        ("drop_duplicates", "dropDuplicates", "deduplicate", "dropDuplicatesWithinWatermark"),
        'dedup("id", within="1h")',
    ),
    "unique": "distinct()",
    **dict.fromkeys(
        ("withWatermark", "assign_timestamps", "with_timestamp", "timestamp"), 'at("ts")'
    ),
    **dict.fromkeys(("flatMap", "explode"), "flat_map(fn)"),
    **dict.fromkeys(("apply", "transform"), "map(fn), or map_batches(fn) for tables"),
    **dict.fromkeys(("concat", "unionAll", "merge_streams"), "union(other)"),
    **dict.fromkeys(("write", "writeStream", "to", "output"), "sink(ms.Parquet(path))"),
    **dict.fromkeys(("print", "display"), "show(), or sink(ms.Console()) for a running flow"),
    **dict.fromkeys(("take", "limit", "peek", "first", "tail"), "head(n)"),
    **dict.fromkeys(
        ("to_pandas", "toPandas", "toArrow", "to_arrow", "execute", "compute"),
        "collect(), and collect().to_pandas()",
    ),
    **dict.fromkeys(("columns", "dtypes", "printSchema", "describe"), "schema"),
    **dict.fromkeys(("aggregate", "sum", "count", "mean"), "key_by(...).agg(n=ms.count())"),
}
NAMES = {
    **dict.fromkeys(("count_distinct", "countDistinct", "nunique", "n_unique"), "distinct(column)"),
    **dict.fromkeys(("avg", "average"), "mean(column)"),
    **dict.fromkeys(("stddev", "stddev_samp"), "std(column)"),
    **dict.fromkeys(("variance", "var_samp"), "var(column)"),
    **dict.fromkeys(("median", "percentile"), "quantile(column, 0.5)"),
    **dict.fromkeys(("collect_list", "array_agg"), "collect(column)"),
    "approx_count_distinct": "distinct(column, approx=True)",
    **dict.fromkeys(
        ("CSV", "Json", "JSON", "read_csv", "read_json", "read_parquet"), "Files(path)"
    ),
}


class Elsewhere(ConfigError, AttributeError):
    """A name from another library."""


def called_here(of: str, name: str, known: dict[str, str], has: object) -> Elsewhere | None:
    """The error for a name of another library; None if it is none, or its like is not here."""
    here = known.get(name)
    if here is None or not hasattr(has, here.partition("(")[0]):
        return None
    prefix = "ms." if of == "ms" else "."
    return Elsewhere(f"{of}.{name}: this is called {prefix}{here} here")


def one_of(specs: UnionType) -> str:
    """All sources, or all sinks, for a message about something that is none."""
    *others, last = (f"ms.{one.__name__}" for one in get_args(specs))
    return f"{', '.join(others)} or {last}"


def unnamed(step: str, given: tuple[object, ...]) -> ConfigError:
    """The error for aggregates without a name."""
    kind = str(getattr(given[0], "kind", "count"))
    return ConfigError(
        f"{step}(): every aggregate needs a name, which becomes its column: "
        f"{step}(n=ms.{kind}(...))"
    )


def as_aggregate(step: str, error: ConfigError) -> ConfigError:
    """The error for an aggregate where there are only single records."""
    found = re.search(r"unsupported function '(\w+)'", str(error))
    name = found[1].lower() if found else ""
    if name not in ("count", "sum", "avg", "mean", "min", "max", "stddev", "median"):
        return error
    return ConfigError(
        f"{step}(): {name} is an aggregate of many records, and {step} sees one at a time; write "
        f'key_by("column").agg(n=ms.count()), and key_by() for one group of everything'
    )

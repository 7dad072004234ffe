"""What people know from pandas, Spark, Polars and SQL, and what it is called here.

Asked when something is not there, so that the error says where it is.
"""

from __future__ import annotations

import difflib
import re
from types import UnionType
from typing import get_args

from millstream.errors import ConfigError

STREAMS = {
    **dict.fromkeys(("filter", "query"), "where(condition)"),
    **dict.fromkeys(("group_by", "groupby", "groupBy", "keyBy", "key_on"), "key_by(columns)"),
    **dict.fromkeys(
        ("withColumn", "with_columns", "assign", "mutate"), 'with_column("notional", "price * qty")'
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
    **dict.fromkeys(
        ("write", "writeStream", "to", "output", "to_parquet"), "sink(ms.Parquet(path))"
    ),
    **dict.fromkeys(("to_csv", "write_csv"), "sink(ms.Csv(path))"),
    **dict.fromkeys(("to_json", "write_json"), "sink(ms.Jsonl(path))"),
    **dict.fromkeys(("print", "display"), "show(), or sink(ms.Console()) for a running flow"),
    **dict.fromkeys(("take", "limit", "peek", "first", "tail"), "head(n)"),
    **dict.fromkeys(
        ("to_pandas", "toPandas", "toArrow", "to_arrow", "execute", "compute"),
        "collect(), and collect().to_pandas()",
    ),
    **dict.fromkeys(("columns", "dtypes", "printSchema", "describe"), "schema"),
    **dict.fromkeys(("aggregate", "sum", "count", "mean"), "key_by(...).agg(n=ms.count())"),
    **dict.fromkeys(("merge", "joinWith", "cogroup", "connect"), 'join(other, on="id")'),
    **dict.fromkeys(
        ("add_sink", "addSink", "sinkTo", "sink_to", "foreachBatch"), "sink(ms.Call(fn))"
    ),
    **dict.fromkeys(("selectExpr", "project"), 'select("a", "b + 1 AS c")'),
    **dict.fromkeys(("alias", "as_", "name_", "uid"), 'named("name")'),
}
# What has no name here because it is meant another way.
OTHERWISE = {
    **dict.fromkeys(
        ("orderBy", "order_by", "sort", "sort_values", "sortBy"),
        "records of a stream have the order of their times; for the first ones of a group use "
        '.key_by("shop").top(3, by="price DESC"), and sort what .collect() gives',
    ),
    **dict.fromkeys(
        ("drop", "rename", "withColumnRenamed"),
        'name the columns that stay: .select("symbol", "price AS paid")',
    ),
    **dict.fromkeys(
        ("iterrows", "itertuples", "foreach", "rdd"),
        "use .map(fn) for a function per record, or .collect().to_pylist() for rows",
    ),
    **dict.fromkeys(
        ("run", "start", "awaitTermination"),
        "flows run, not streams: give it a .sink(...), then flow.run() or flow.start()",
    ),
    **dict.fromkeys(
        ("fillna", "na", "dropna"),
        'write .with_column("x", "coalesce(x, 0)"), or .where("x IS NOT NULL")',
    ),
}
FLOWS = {
    **dict.fromkeys(("execute", "submit", "awaitTermination", "execute_async"), "run()"),
    **dict.fromkeys(
        ("read", "readStream", "read_csv", "from_source", "add_source"), "source(ms.Files(path))"
    ),
    **dict.fromkeys(("stop", "cancel", "await_termination"), "start(), whose handle has stop()"),
    **dict.fromkeys(("plan", "print", "show", "describe"), "explain()"),
    **dict.fromkeys(("execute_sql", "sql_query", "table"), "sql(text)"),
}
FLOWS_OTHERWISE = dict.fromkeys(
    ("collect", "to_pandas", "toPandas", "head", "sink", "where", "map", "key_by"),
    "a flow has sources, and what those give are streams: flow.source(...).collect()",
)
NAMES = {
    **dict.fromkeys(("count_distinct", "countDistinct", "nunique", "n_unique"), "distinct(column)"),
    **dict.fromkeys(("avg", "average"), "mean(column)"),
    **dict.fromkeys(("stddev", "stddev_samp"), "std(column)"),
    **dict.fromkeys(("variance", "var_samp"), "var(column)"),
    **dict.fromkeys(("median", "percentile"), "quantile(column, 0.5)"),
    **dict.fromkeys(("collect_list", "array_agg"), "collect(column)"),
    "approx_count_distinct": "distinct(column, approx=True)",
    **dict.fromkeys(("read_csv", "read_json", "read_parquet"), "Files(path)"),
    "CSV": "Files(path) to read, and ms.Csv(path) to write,",
    **dict.fromkeys(("Json", "JSON"), "Files(path) to read, and ms.Jsonl(path) to write,"),
    **dict.fromkeys(("TumblingEventTimeWindows", "Tumble", "window"), 'tumbling("1m")'),
    **dict.fromkeys(("SlidingEventTimeWindows", "Slide", "hop"), 'sliding("10m", "1m")'),
}
_TEXT = "columns and expressions are SQL texts here: "
EXPRESSIONS = {
    **dict.fromkeys(
        ("col", "column", "expr", "lit", "when", "F", "functions"),
        (_TEXT + 'where("price > 0"), select("price * 2 AS twice")'),
    ),
    **dict.fromkeys(("concat", "union"), "streams are put together by one of them: a.union(b)"),
}
_HINTS = {"stream": OTHERWISE, "flow": FLOWS_OTHERWISE, "ms": EXPRESSIONS}


class Elsewhere(ConfigError, AttributeError):
    """A name from another library."""


def called_here(of: str, name: str, known: dict[str, str], has: object) -> Elsewhere | None:
    """The error for a name of another library; None if it is none, or its like is not here."""
    here = known.get(name)
    if here is None or not hasattr(has, here.partition("(")[0]):
        return None
    prefix = "ms." if of == "ms" else "."
    return Elsewhere(f"{of}.{name}: this is called {prefix}{here} here")


class NoKey(ConfigError, AttributeError):
    """What only another kind of stream has: one with a key, or one without."""


def too_late(what: str, name: str, then: str) -> AttributeError:
    """The error for a method that plain streams have, and those by key or in windows have not."""
    from millstream.api.stream import Stream

    if hasattr(Stream, name) and name[0] != "_":
        return NoKey(
            f"{name}(): this is {what}, which needs {then} first; or write {name}() before key_by()"
        )
    return absent("stream", name, STREAMS, Stream)


def absent(of: str, name: str, known: dict[str, str], has: object) -> AttributeError:
    """The error for what is not there: what it is called here, what is near, or how it is done."""
    if name.startswith("_"):  # asked by Python, notebooks and others that look what there is
        return AttributeError(f"{of} has no attribute {name!r}")
    found = called_here(of, name, known, has)
    if found is not None:
        return found
    hint = _HINTS.get(of, {}).get(name)
    if hint is not None:
        return Elsewhere(f"{of}.{name}: there is nothing of that name here; {hint}")
    near = difflib.get_close_matches(name, [one for one in dir(has) if one[0] != "_"], 1, 0.75)
    if near:
        return Elsewhere(f"{of}.{name}: there is nothing of that name; did you mean {near[0]}?")
    if of == "stream":
        return Elsewhere(
            f'stream.{name}: there is no such method, and {_TEXT}where("{name} > 0"), '
            f'select("{name}")'
        )
    return Elsewhere(f"{of}.{name}: there is nothing of that name; see docs/reference/api.md")


def one_of(specs: UnionType) -> str:
    """All sources, or all sinks, for a message about something that is none."""
    *others, last = (f"ms.{one.__name__}" for one in get_args(specs))
    return f"{', '.join(others)} or {last}"


def unnamed(given: tuple[object, ...]) -> ConfigError:
    """The error for aggregates without a name."""
    kind = str(getattr(given[0], "kind", "count"))
    return ConfigError(
        f"agg(): every aggregate needs a name, which becomes its column: agg(n=ms.{kind}(...))"
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

"""Random flows and inputs, as data that prints well: a recipe is built into a flow when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import millstream as ms

COLUMNS = ("ts", "k", "k2", "v", "x", "s")

# -- functions users might write -------------------------------------------------------------------


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "v": None if row["v"] is None else row["v"] * 2}


def picky(row: dict[str, Any]) -> dict[str, Any] | None:
    """Fails on some records and drops others."""
    if row["v"] == 3:
        raise ValueError("three is refused")
    return None if row["v"] == 4 else row


def repeated(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range((row["v"] or 0) % 3):
        yield {**row, "v": number}


def without_negative(table: pa.Table) -> pa.Table:
    values = pc.cast(table.column("v"), pa.int64())
    return table.filter(pc.fill_null(pc.greater_equal(values, 0), True))


def with_large_texts(table: pa.Table) -> pa.Table:
    """The same texts in another layout, as other libraries hand them out."""
    at = table.schema.get_field_index("s")
    return table.set_column(at, "s", table.column("s").cast(pa.large_string()))


STEPS: dict[str, Callable[[ms.Stream], ms.Stream]] = {
    "where v > 0": lambda s: s.where("v > 0"),
    "where 10 / v > 1": lambda s: s.where("10 / v > 1"),  # an error for 0
    "where x": lambda s: s.where("x IS NULL OR x < 50"),
    "where s": lambda s: s.where("s IS NOT NULL AND s LIKE '%a%' OR v < 3"),
    "select": lambda s: s.select("ts", "k", "k2", "v + 1 AS v", "x", "s"),
    "select *": lambda s: s.select("*", "COALESCE(v, 0) AS v"),
    "map doubled": lambda s: s.map(doubled),
    "map picky": lambda s: s.map(picky),
    "flat_map repeated": lambda s: s.flat_map(repeated),
    "map_batches": lambda s: s.map_batches(without_negative),
    "large texts": lambda s: s.map_batches(with_large_texts),
    "fork": lambda s: s.where("v >= 1").union(s.map(doubled)),
    "fork backwards": lambda s: _backwards(s),
}


def _backwards(stream: ms.Stream) -> ms.Stream:
    first, second = stream.map(doubled), stream.where("v < 3")
    return second.union(first)


# -- aggregates users might write ------------------------------------------------------------------


class Spread(ms.Aggregate):
    """Largest less smallest, with combine."""

    def zero(self) -> Any:
        return None

    def add(self, state: Any, value: Any) -> Any:
        return self.combine(state, (value, value))

    def combine(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return left if right is None else right
        return (min(left[0], right[0]), max(left[1], right[1]))

    def result(self, state: Any) -> Any:
        return None if state is None else state[1] - state[0]


class Texts(ms.Aggregate):
    """Different texts, in place and with whole records."""

    def zero(self) -> dict[str, int]:
        return {}

    def add(self, state: dict[str, int], record: dict[str, Any]) -> dict[str, int]:
        text = str(record["s"])
        state[text] = state.get(text, 0) + 1
        return state

    def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        for text, number in right.items():
            left[text] = left.get(text, 0) + number
        return left

    def result(self, state: dict[str, int]) -> str:
        return ",".join(f"{text}:{number}" for text, number in sorted(state.items()))


class Path(ms.Aggregate):
    """The order of values, without combine."""

    def zero(self) -> str:
        return ""

    def add(self, state: str, value: Any) -> str:
        return f"{state}>{value}"


class Records(ms.Aggregate):
    """The order of whole records, without combine."""

    def zero(self) -> str:
        return ""

    def add(self, state: str, record: dict[str, Any]) -> str:
        return f"{state}>{record['v']}"


AGGREGATES: dict[str, ms.Aggregate | Any] = {
    "sum v": ms.sum("v"),
    "sum x": ms.sum("x"),
    "mean v": ms.mean("v"),
    "mean x": ms.mean("x"),
    "var x": ms.var("x"),
    "std x": ms.std("x"),
    "var v": ms.var("v"),
    "count": ms.count(),
    "count x": ms.count("x"),
    "min v": ms.min("v"),
    "max x": ms.max("x"),
    "min x": ms.min("x"),
    "max s": ms.max("s"),
    "min s": ms.min("s"),
    "first v": ms.first("v"),
    "last v": ms.last("v"),
    "first s": ms.first("s"),
    "last x": ms.last("x"),
    "collect v": ms.collect("v"),
    "collect s": ms.collect("s"),
    "Spread v": Spread("v"),
    "Texts": Texts(),
    "Path v": Path("v"),
    "Records": Records(),
}


def summary(key: Any, records: list[dict[str, Any]], window: ms.Window) -> dict[str, Any] | None:
    """Depends on the order of records; fails for some windows and drops others."""
    if len(records) == 5:
        raise ValueError("five is refused")
    if len(records) == 4:
        return None
    path = ">".join(str(record["v"]) for record in records)
    return {"n": len(records), "path": path, "about": f"{window.start}"}


def each_twice(key: Any, records: list[dict[str, Any]], window: ms.Window) -> Iterator[Any]:
    for record in records[:2]:
        yield {"n": record["v"]}


def just_count(key: Any, records: list[dict[str, Any]], window: ms.Window) -> int:
    return len(records)


REDUCERS = {"summary": summary, "each_twice": each_twice, "just_count": just_count}


class Words(ms.MapReduce):
    """Counts, with combine."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield value["k2"] or "none", 1
        yield "all", value["v"] or 0

    def combine(self, key: Any, values: list[Any]) -> Any:
        return sum(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, sum(values)


class Paths(ms.MapReduce):
    """Order of values by a composite key, without combine."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        if value["v"] == 2:
            raise ValueError("two is refused")
        yield (value["k2"], (value["v"] or 0) % 2 == 0), (value["v"], value["s"])

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield f"{key!r}", ">".join(f"{v}{s}" for v, s in values)


class Again(ms.MapReduce):
    """A second job over the pairs of a first."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield len(key), len(str(value))

    def combine(self, key: Any, values: list[Any]) -> Any:
        return max(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, max(values)


class Sizes(ms.MapReduce):
    """A second job over records, with combine."""

    def __init__(self, column: str) -> None:
        self.column = column

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield (value[self.column] or 0) % 3, value[self.column] or 0

    def combine(self, key: Any, values: list[Any]) -> Any:
        return max(values)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, max(values)


def largest(column: str) -> Callable[..., Any]:
    def reduce(key: Any, records: list[dict[str, Any]], window: ms.Window) -> Any:
        values = [record[column] for record in records if record[column] is not None]
        return {"most": max(values, default=None), "columns": ",".join(sorted(records[0]))}

    return reduce


AFTER_CHANGES: dict[str, Callable[[str], Any]] = {
    "mean": ms.mean,
    "var": ms.var,
    "std": ms.std,
    "low": ms.min,
    "high": ms.max,
    "kinds": ms.distinct,
    "often": lambda column: ms.top_k(column, 2),
    "most": lambda column: ms.top_k(column, 2, by=column),
    "middle": lambda column: ms.quantile(column, 0.5),
    "spread": Spread,
    "sketch": lambda column: ms.distinct(column, approx=True),
}
JOBS = {"Words": Words, "Paths": Paths}

# -- recipes ---------------------------------------------------------------------------------------

WINDOWS = [
    (10, 10),
    (10, 5),
    (7, 3),
    (6, 4),
    (60, 1),
    (30, 7),
    (3, 7),
    (1, 10),
    (4, 9),
    (0.5, 0.5),
]


KINDS: list[tuple[Any, ...]] = [
    ("session", 1),
    ("session", 4),
    ("session", 0.5),
    ("session", 30),
    ("landmark", 5),
    ("landmark", 0.5),
    ("landmark", 60),
    ("count", 3, 3),
    ("count", 4, 1),
    ("count", 2, 5),
    ("count", 7, 3),
    ("count", 1, 1),
    ("bytes", 64, 64),
    ("bytes", 100, 24),
    ("bytes", 30, 77),
]
NUMBERED = ("count", "bytes")
EMISSIONS: list[dict[str, Any]] = [
    {"emit": "early", "every": "20s"},
    {"emit": "early", "every_rows": 5},
    {"emit": "early", "every_event": "4s"},
    {"emit": "delta"},
]
Cut = tuple[Any, ...]  # (size, slide) of plain windows, or a kind and its numbers


def window(*cut: Any) -> Any:
    match cut:
        case "session", gap:
            return ms.session(timedelta(seconds=gap))
        case "landmark", slide:
            return ms.landmark(timedelta(seconds=slide))
        case "count", size, slide:
            return ms.count_window(size, slide)
        case "bytes", size, slide:
            return ms.bytes_window(size, slide)
    size, slide = cut
    return ms.hopping(timedelta(seconds=size), timedelta(seconds=slide))


def kind_of(cut: Cut | None) -> str:
    """What kind of window it is; "plain" stands for all that are aligned to the epoch."""
    return str(cut[0]) if cut is not None and isinstance(cut[0], str) else "plain"


@dataclass(frozen=True)
class Job:
    """One windowed job."""

    kind: str  # agg, reduce or map_reduce
    what: tuple[str, ...]
    keys: tuple[str, ...]
    nulls: str
    window: Cut | None  # None: over the whole input
    emit: dict[str, Any] = field(default_factory=dict)

    def apply(self, stream: ms.Stream) -> ms.Stream:
        cut = None if self.window is None else window(*self.window)
        if self.kind == "map_reduce":
            if self.emit:
                return stream.key_by().window(cut, **self.emit).map_reduce(JOBS[self.what[0]]())
            return stream.map_reduce(JOBS[self.what[0]](), cut)
        keyed: Any = stream.key_by(*self.keys, nulls=self.nulls)
        if cut is not None:
            keyed = keyed.window(cut, **self.emit)
        if self.kind == "reduce":
            return keyed.reduce(REDUCERS[self.what[0]])
        names = {f"c{i}": AGGREGATES[name] for i, name in enumerate(self.what)}
        return keyed.agg(n=ms.count(), **names)


@dataclass(frozen=True)
class Recipe:
    """A flow."""

    lateness: tuple[float, ...]  # one source each
    steps: tuple[tuple[str, ...], ...]  # per source
    job: Job
    then: Cut | None  # the window of a second job over the results of the first
    late: bool
    beside: bool  # the stream before the job goes to a sink too
    second: str = "agg"  # what the second job is, if the first gives changes
    then_emit: dict[str, Any] = field(default_factory=dict)

    def build(self) -> ms.Flow:
        flow = ms.Flow("random")
        streams = []
        for number, (lateness, steps) in enumerate(zip(self.lateness, self.steps, strict=True)):
            source = ms.Generator(tuple, time="ts", lateness=timedelta(seconds=lateness))
            stream = flow.source(source, name=f"in{number}")
            for step in steps:
                stream = STEPS[step](stream)
            streams.append(stream)
        stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        if self.beside:
            stream.sink(ms.Memory(), name="beside")
        result = self.job.apply(stream).sink(ms.Memory(), name="out")
        if self.late:
            result.late().sink(ms.Memory(), name="late")
        if self.then is not None:
            self._second(result).sink(ms.Memory(), name="then")
        return flow

    def _second(self, result: ms.Stream) -> ms.Stream:
        assert self.then is not None
        cut = window(*self.then)
        if self.job.kind == "map_reduce":
            return result.key_by().window(cut, **self.then_emit).map_reduce(Again())
        column = "value" if self.job.what == ("just_count",) else "n"
        keyed = result.key_by(*self.job.keys, nulls="keep").window(cut, **self.then_emit)
        totals = {"n": ms.count(), "t": ms.sum(column)}
        if self.second == "reduce":
            return keyed.reduce(largest(column))
        if self.second == "map_reduce":
            return keyed.map_reduce(Sizes(column))
        several = self.job.what == ("each_twice",)
        if self.job.emit:
            totals |= {name: agg(column) for name, agg in AFTER_CHANGES.items()}
        if kind_of(self.job.window) in NUMBERED or several:
            return keyed.agg(**totals)
        # One result per key and time, so that even the order of results is defined.
        return keyed.agg(**totals, z=ms.last(column), p=ms.collect(column))


@dataclass(frozen=True)
class Input:
    """What comes in, and how it is cut: batches of pieces of (source, records)."""

    batches: list[list[tuple[str, list[dict[str, Any]]]]] = field(default_factory=list)

    def flat(self) -> list[dict[str, list[dict[str, Any]]]]:
        """Batches as `reference` takes them."""
        out = []
        for pieces in self.batches:
            merged: dict[str, list[dict[str, Any]]] = {}
            for source, records in pieces:
                merged.setdefault(source, []).extend(records)
            out.append(merged)
        return out


# -- strategies ------------------------------------------------------------------------------------

BASES = [
    datetime(2024, 2, 29, 23, 59, 30, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC),
    datetime(1901, 1, 1, tzinfo=UTC),
]
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-2, 3),
    "float": st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -7.25]),
    "number": st.sampled_from([1, 2, 2.0, 2.5, -1]),  # an int in one chunk, a float in another
    "str": st.sampled_from(["a", "b", "", "ä", "日本", "a b"]),
    "bool": st.booleans(),
    "datetime": st.sampled_from(BASES),
}
MOMENTS = st.one_of(
    st.integers(0, 60).map(lambda s: s * 1_000_000),
    st.integers(0, 60_000_000),
    st.sampled_from([0, 999_999, 1_000_000, 9_999_999, 10_000_000]),
)
FLOATS = st.one_of(
    st.none(),
    st.sampled_from([float("nan"), 0.1, 1e6, -1e6, 49.999]),
    st.floats(-1e3, 1e3, allow_nan=False, width=32),
)


@st.composite
def records(draw: Any, base: datetime, key: str, least: int, most: int) -> list[dict[str, Any]]:
    one = st.fixed_dictionaries(
        {
            "ts": MOMENTS.map(lambda us: base + timedelta(microseconds=us)),
            "k": st.one_of(KEYS[key], KEYS[key], KEYS[key], st.none()),
            "k2": st.sampled_from(["a", "b", "ç", None]),
            "v": st.one_of(st.none(), st.integers(-5, 9), st.integers(-5, 9)),
            "x": FLOATS,
            "s": st.sampled_from(["a", "zebra", "ä", "", None]),
        }
    )
    return draw(st.lists(one, min_size=least, max_size=most))


@st.composite
def inputs(draw: Any, sources: int, *, least: int = 0, most: int = 12) -> Input:
    """Some batches; with `least`, several of them and so many records in every piece."""
    base, key = draw(st.sampled_from(BASES)), draw(st.sampled_from(sorted(KEYS)))
    out: Input = Input()
    for _ in range(draw(st.integers(3 if least else 1, 4))):
        pieces = []
        for number in range(sources):
            for _ in range(1 if least else draw(st.integers(0, 2))):
                pieces.append((f"in{number}", draw(records(base, key, least, most))))
        out.batches.append(pieces)
    return out


@st.composite
def jobs(draw: Any) -> Job:
    kind = draw(st.sampled_from(["agg", "agg", "agg", "reduce", "map_reduce"]))
    if kind == "agg":
        names = st.sampled_from(sorted(AGGREGATES))
        what = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    else:
        what = (draw(st.sampled_from(sorted(REDUCERS if kind == "reduce" else JOBS))),)
    keys = draw(st.sampled_from([("k",), ("k2",), ("k", "k2"), ("k2", "k"), ()]))
    nulls = draw(st.sampled_from(["dead", "keep"]))
    cut = draw(st.sampled_from([*WINDOWS, None]))
    return Job(kind, what, keys, nulls, cut)


@st.composite
def recipes(draw: Any, *, sources: int) -> Recipe:
    lateness = tuple(draw(st.sampled_from([0.0, 3.0, 1000.0])) for _ in range(sources))
    some = st.lists(st.sampled_from(sorted(STEPS)), max_size=3)
    steps = tuple(tuple(draw(some)) for _ in range(sources))
    job = draw(jobs())
    chained = job.window is not None and job.what != ("each_twice",) and draw(st.booleans())
    then = draw(st.sampled_from(WINDOWS)) if chained else None
    return Recipe(lateness, steps, job, then, draw(st.booleans()), draw(st.booleans()))


@st.composite
def recipes_of_kinds(draw: Any, *, sources: int) -> Recipe:
    """Flows with sessions, landmarks, windows over rows or bytes: as first job, second, or both."""
    lateness = tuple(draw(st.sampled_from([0.0, 3.0, 1000.0])) for _ in range(sources))
    some = st.lists(st.sampled_from(sorted(STEPS)), max_size=2)
    steps = tuple(tuple(draw(some)) for _ in range(sources))
    job: Job = draw(jobs())
    chained = job.what != ("each_twice",) and draw(st.booleans())
    plain_first = chained and draw(st.booleans())
    first = draw(st.sampled_from(WINDOWS if plain_first else KINDS))
    if job.kind == "map_reduce" and first[0] == "bytes":  # there the packed pair is the record
        first = ("count", *first[1:])
    then = None
    if chained:
        then = draw(st.sampled_from(KINDS if plain_first else [*KINDS, *WINDOWS]))
        # What is numbered must have an order; and bytes of lists are not documented.
        ordered = job.kind != "map_reduce" and kind_of(first) not in NUMBERED
        if kind_of(then) in NUMBERED and not ordered:
            then = ("session", 4)
        if kind_of(then) == "bytes" and job.what != ("just_count",):
            then = ("count", *then[1:])
    job = replace(job, window=first)
    return Recipe(lateness, steps, job, then, draw(st.booleans()), draw(st.booleans()))


@st.composite
def recipes_of_changes(draw: Any, *, sources: int) -> Recipe:
    """Flows whose results leave before they are final."""
    lateness = tuple(draw(st.sampled_from([0.0, 3.0, 1000.0])) for _ in range(sources))
    some = st.lists(st.sampled_from(sorted(STEPS)), max_size=2)
    steps = tuple(tuple(draw(some)) for _ in range(sources))
    job = _changing(draw, draw(st.sampled_from(EMISSIONS)))
    return Recipe(lateness, steps, job, None, draw(st.booleans()), draw(st.booleans()))


@st.composite
def recipes_over_changes(draw: Any, *, sources: int) -> Recipe:
    """Flows with a second job over the changes of a first, which late records bring about."""
    lateness = tuple(draw(st.sampled_from([20.0, 1000.0])) for _ in range(sources))
    steps = tuple(tuple(draw(st.lists(st.sampled_from(TAME), max_size=1))) for _ in lateness)
    job = _changing(draw, {"emit": "delta"})
    if job.kind != "map_reduce" and draw(st.booleans()):
        job = replace(job, keys=draw(st.sampled_from([("k2",), ()])))
    cut = job.window
    then = draw(st.sampled_from(draw(st.sampled_from([WINDOWS, KINDS]))))
    second = draw(st.sampled_from(["agg", "agg", "reduce", "map_reduce"]))
    ordered = job.kind != "map_reduce" and kind_of(cut) not in NUMBERED
    if kind_of(then) in NUMBERED and (not ordered or job.what == ("each_twice",)):
        then = ("session", 4)
    if kind_of(then) == "bytes" and job.what != ("just_count",):
        then = ("count", *then[1:])
    if second == "map_reduce" and kind_of(then) in NUMBERED:  # pairs of one record have no order
        second = "agg"
    then_emit = draw(st.sampled_from([{}, {"emit": "delta"}]))
    return Recipe(lateness, steps, job, then, False, False, second, then_emit)


TAME = ["select", "map doubled", "fork", "where x"]


def _changing(draw: Any, emit: dict[str, Any]) -> Job:
    job: Job = draw(jobs())
    cut = draw(st.sampled_from(draw(st.sampled_from([WINDOWS, KINDS]))))
    if job.kind == "map_reduce" and cut[0] == "bytes":  # there the packed pair is the record
        cut = ("count", *cut[1:])
    return replace(job, window=cut, emit=emit)

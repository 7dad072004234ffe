"""Flows of operators that emit changes with steps between them, and what their sinks come to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver, reference_after

Row = dict[str, Any]
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
BOUNDS = ("window_start", "window_end")

# -- steps between operators; the columns that name a result go through -------------------------


def doubled(row: Row) -> Row:
    return {**row, "total": row["total"] * 2}


def picky(row: Row) -> Row | None:
    """Fails on some results and drops others, and says nothing of revisions."""
    if row["n"] == 3:
        raise ValueError("three is refused")
    kept = {name: value for name, value in row.items() if name not in ("revision", "final")}
    return None if row["n"] == 4 else kept


def repeated(row: Row) -> Iterator[Row]:
    for number in range(row["n"] % 3):
        yield {**row, "total": number}


def odd(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(pc.bit_wise_and(table.column("n"), 1), 1))


def small(event: Any, ctx: Any) -> Row | None:
    return event.value if event.value["total"] < 40 else None


STEPS: dict[str, Callable[[ms.Stream], ms.Stream]] = {
    "where n": lambda s: s.where("n > 2"),
    "where total": lambda s: s.where("total % 2 = 0"),
    "select": lambda s: s.select("*", "total + 1 AS total"),
    "map": lambda s: s.map(doubled),
    "map picky": lambda s: s.map(picky),
    "flat_map": lambda s: s.flat_map(repeated),
    "map_batches": lambda s: s.map_batches(odd),
    "process": lambda s: s.process(small),
    "fork": lambda s: s.where("n > 2").union(s.map(doubled)),
}
WINDOWS = {
    "tumbling": ms.tumbling("8s"),
    "sliding": ms.sliding("8s", "4s"),
    "session": ms.session("2s"),
    "landmark": ms.landmark("6s"),
}
EMISSIONS: dict[str, dict[str, Any]] = {
    "delta": {"emit": "delta"},
    "early": {"emit": "early", "every_rows": 1},
    "final": {},
}


@dataclass(frozen=True)
class Operator:
    """A window, and the steps after it."""

    window: str
    emit: str
    steps: tuple[str, ...]

    def after(self, stream: ms.Stream, column: str) -> ms.Stream:
        keyed = stream.key_by("k").window(WINDOWS[self.window], **EMISSIONS[self.emit])
        stream = keyed.agg(n=ms.count(), total=ms.sum(column))
        for step in self.steps:
            stream = STEPS[step](stream)
        return stream


@dataclass(frozen=True)
class Changing:
    """A flow: one operator, perhaps another beside it, and one over the results of the first."""

    first: Operator
    beside: Operator | None
    then: Operator | None

    def build(self) -> ms.Flow:
        flow = ms.Flow("changing")
        files = ms.Files(
            "x", schema="ts timestamp, k string, v bigint", time="ts", lateness="6s", follow=True
        )
        source = flow.source(files, name="in")
        first = self.first.after(source, "v")
        first.sink(ms.Memory(), name="first")
        if self.beside is not None:  # who gave a row must be seen in it, where two meet
            both = (
                one.select("*", f"'{name}' AS by")
                for name, one in (("a", first), ("b", self.beside.after(source, "v")))
            )
            a, b = both
            a.union(b).sink(ms.Memory(), name="both")
        if self.then is not None:
            self.then.after(first, "total").sink(ms.Memory(), name="then")
        return flow


def inputs(seed: int, batches: int = 5, size: int = 7) -> list[dict[str, list[Row]]]:
    """Some batches, in which up to five seconds are out of order."""
    rng = random.Random(seed)
    out = []
    for number in range(batches):
        rows = [
            {
                "ts": BEGIN + timedelta(seconds=number * 3 + rng.randint(0, 60) / 12),
                "k": rng.choice("ab"),
                "v": rng.randint(0, 6),
            }
            for _ in range(size)
        ]
        out.append({"in": rows})
    return out


# -- what a reader of a sink comes to -----------------------------------------------------------


@dataclass
class Reader:
    """Integrates what a sink gets, by nothing but what the documentation says of it."""

    results: dict[Any, list[Row]] = field(default_factory=dict)

    def take(self, rows: list[Row]) -> None:
        """All rows of one batch, in order."""
        begun: dict[Any, Any] = {}  # what the rows at hand of a result are one change with
        gone = set()
        for row in rows:
            name = tuple(row.get(one) for one in ("by", "k", *BOUNDS))
            change = (row.get("op", "early"), row.get("revision"))
            plain = {n: v for n, v in row.items() if n not in ("op", "revision", "final")}
            held = self.results.setdefault(name, [])
            match row.get("op"):
                case "-":
                    assert plain in held, f"{row} was never given"
                    held.remove(plain)
                    gone.add((name, row.get("revision")))
                case "+":
                    assert not held or begun.get(name) == change, f"{row} takes a place"
                    replaces = (name, row.get("revision")) in gone
                    # Where two operators meet, nothing but `by` tells whose row is replaced.
                    assert "by" in row or not replaces, f"{row} is the other side of a change: 'u'"
                    held.append(plain)
                case "u":
                    if begun.get(name) != change:
                        assert held, f"{row} takes the place of nothing"
                        held.clear()
                    held.append(plain)
                case None:
                    if begun.get(name) != change:
                        held.clear()
                    held.append(plain)
            begun[name] = change

    def table(self) -> Counter[str]:
        return shown(row for held in self.results.values() for row in held)


def shown(rows: Any) -> Counter[str]:
    marks = ("revision", "final")
    return Counter(
        " ".join(f"{name}={row[name]}" for name in sorted(row) if name not in marks) for row in rows
    )


def check(
    recipe: Changing, given: list[dict[str, list[Row]]], parallelism: int, stop: int | None
) -> None:
    """After every batch each sink has come to the table of the reference."""
    expected = reference_after(recipe.build(), given)
    flow = recipe.build()
    with Driver(flow, parallelism=parallelism, dead_letter_limit=1.0) as driver:
        readers = {sink: Reader() for sink in driver._sinks}
        for number, batch in enumerate(given):
            if number == stop:
                driver.restart()
            before = {sink: len(driver.output(sink)) for sink in readers}
            driver.push("in", batch["in"]).step()
            for sink, reader in readers.items():
                reader.take(driver.output(sink)[before[sink] :])
                assert reader.table() == shown(expected[number][sink]), f"{sink}, batch {number}"


# -- strategies -----------------------------------------------------------------------------------


@st.composite
def operators(draw: Any, emits: list[str]) -> Operator:
    steps = tuple(draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=2)))
    window, emit = draw(st.sampled_from(sorted(WINDOWS))), draw(st.sampled_from(emits))
    if window == "session" and emit == "early":  # as they are, they say what they took the place of
        steps = ("where n", *steps[:1])  # by lying in it; marked, they say so themselves
    return Operator(window, emit, steps)


@st.composite
def flows(draw: Any) -> Changing:
    changing = ["delta", "early"]
    first, beside, then = draw(operators(changing)), None, None
    if draw(st.booleans()):
        beside = draw(operators(changing))
    if draw(st.booleans()):
        then = draw(operators([*changing, "final"]))
        if then.emit == "early":  # over changes a result may come to nothing: only a mark says so
            then = Operator(then.window, then.emit, ("map", *then.steps[:1]))
    return Changing(first, beside, then)

"""Programs written for plain MapReduce run as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference, run_in_process

WORD = re.compile(r"[\w']+")
LINES = ["the quick fox", "the lazy dog", "a fox and the dog", "", "the end"]
COUNTS = Counter(word for line in LINES for word in WORD.findall(line))


class Yields:
    def map(self, key: Any, value: Any) -> Iterator[Any]:
        for word in WORD.findall(value):
            yield word, 1

    def reduce(self, key: Any, values: Any) -> Iterator[Any]:
        yield key, sum(values)


class Combines(Yields):
    combine = Yields.reduce


class CombinesOne(Yields):
    def combine(self, key: Any, values: Any) -> int:
        return sum(values)


class Returns:
    def map(self, key: Any, value: Any) -> list[Any]:
        return [(word, 1) for word in WORD.findall(value)]

    def reduce(self, key: Any, values: Any) -> list[Any]:
        return [(key, sum(values))]


class Emits:
    def map(self, key: Any, value: Any, emit: Any) -> None:
        for word in WORD.findall(value):
            emit(word, 1)

    def reduce(self, key: Any, values: Any, context: Any) -> None:
        context.emit(key, sum(values))


class ByContext:
    def map(self, context: Any) -> None:
        for word in WORD.findall(context.value):
            context.write(word, 1)

    def reduce(self, context: Any) -> None:
        context.emit(context.key, sum(context.values))


class TakesOnce(Yields):
    """It needs an iterator, and a second look finds nothing."""

    def reduce(self, key: Any, values: Any) -> Iterator[Any]:
        first = next(values)
        yield key, first + sum(values) + sum(values)


class GathersInInit:
    """As in many programs, nothing is cleared: every piece has an instance of its own."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def map(self, key: Any, value: Any) -> None:
        self.counts.update(WORD.findall(value))

    def close(self) -> Iterator[Any]:
        yield from self.counts.items()

    def reduce(self, key: Any, values: Any) -> Iterator[Any]:
        yield key, sum(values)


class Gathers(GathersInInit):
    def __init__(self) -> None:
        pass

    def setup(self) -> None:
        self.counts = Counter()

    def close(self, emit: Any) -> None:  # type: ignore[override]
        for pair in self.counts.items():
            emit(*pair)


class WithTheBase(ms.MapReduce):
    def map(self, key: Any, value: Any) -> Any:  # type: ignore[override]
        return ((word, 1) for word in WORD.findall(value))

    def reduce(self, key: Any, values: Any) -> Any:  # type: ignore[override]
        yield key, len(values)


def mapper(key: Any, value: Any) -> Any:
    return [(word, 1) for word in WORD.findall(value)]


def reducer(key: Any, values: Any) -> Any:
    yield key, sum(values)


PROGRAMS = [
    Yields,
    Yields(),
    Combines,
    CombinesOne,
    Returns,
    Emits,
    ByContext,
    TakesOnce,
    GathersInInit,
    Gathers,
    Gathers(),
    WithTheBase,
    WithTheBase(),
    ms.job(map=mapper, reduce=reducer, combine=reducer),
    ms.job(map=Yields, reduce=ByContext()),
    ms.job(Yields, reduce=lambda key, values: [(key, sum(values))]),
]


def shown(program: Any) -> str:
    return f"{getattr(program, '__name__', type(program).__name__)}"


@pytest.mark.parametrize("asks", [len, lambda values: values[0]])
def test_values_that_are_taken_for_a_list_say_what_to_do(asks: Any) -> None:
    class TakesAList(Yields):
        def reduce(self, key: Any, values: Any) -> Iterator[Any]:
            yield key, asks(values) if key == "fox" else sum(values)

    flow = ms.Flow("list")
    flow.source(ms.Generator(tuple), name="in").map_reduce(TakesAList).sink(ms.Memory())
    with Driver(flow, dead_letter_limit=1) as driver:
        driver.push("in", [{"value": line} for line in LINES]).end()
        (letter,) = driver.dead
        assert "gone through once; take `values = list(values)` first" in letter["error"]
        assert {row["key"]: row["value"] for row in driver.output()} == {
            word: count for word, count in COUNTS.items() if word != "fox"
        }


@pytest.mark.parametrize("program", PROGRAMS, ids=shown)
def test_word_count_in_every_style(program: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n".join(LINES[:2]) + "\n")
    (tmp_path / "in" / "b.txt").write_text("\n".join(LINES[2:]) + "\n")
    flow = ms.Flow("words")
    counts = flow.source(ms.Files(tmp_path / "in", "text")).map_reduce(program)
    rows = ms.Memory()
    counts.sink(rows)
    run_in_process(flow, tmp_path / "ck", parallelism=2)
    assert {row["key"]: row["value"] for row in rows.rows} == COUNTS


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["window_end"], row["key"]))


RECORDS = [{"ts": 7 * at, "value": line} for at, line in enumerate(LINES * 3)]


@pytest.mark.parametrize("program", [Emits, Combines, GathersInInit, Gathers()], ids=shown)
@pytest.mark.parametrize("window", [ms.tumbling("20s"), ms.sliding("30s", "20s")], ids=str)
def test_windows_are_the_same_whatever_the_pieces(program: Any, window: Any) -> None:
    """What is gathered never crosses a window, so that pieces do not matter."""

    def flow() -> ms.Flow:
        flow = ms.Flow("words")
        source = flow.source(
            ms.Generator(list, schema="ts bigint, value string", time="ts", lateness="1h"),
            name="in",
        )
        source.select("value").map_reduce(program, window).sink(ms.Memory())
        return flow

    want = reference(flow(), {"in": RECORDS})["memory"]
    assert sum(row["value"] for row in want) >= sum(COUNTS.values()) * 3
    for size in (2, 5, 15):
        with Driver(flow()) as driver:
            for start in range(0, len(RECORDS), size):
                driver.push("in", RECORDS[start : start + size])
                if start % 4:
                    driver.step()
            driver.end()
            assert ordered(driver.output()) == ordered(want)


def test_steps_of_other_peoples_programs_under_their_own_names(tmp_path: Path) -> None:
    """Methods as in mrjob: other names, a first step and a second that has only a reducer."""

    class MostUsed:
        def mapper_init(self) -> None:
            self.stop_words = {"the", "a", "and"}

        def mapper_get_words(self, _: Any, line: str) -> Iterator[Any]:
            for word in WORD.findall(line):
                if word not in self.stop_words:
                    yield (word, 1)

        def combiner_count_words(self, word: str, counts: Any) -> Iterator[Any]:
            yield (word, sum(counts))

        def reducer_count_words(self, word: str, counts: Any) -> Iterator[Any]:
            yield None, (sum(counts), word)

        def reducer_find_max_word(self, _: Any, word_count_pairs: Any) -> Iterator[Any]:
            yield max(word_count_pairs)

    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    flow = ms.Flow("most-used")
    rows = ms.Memory()
    counts = flow.source(ms.Files(tmp_path / "in.txt", "text")).map_reduce(
        ms.job(
            MostUsed,
            setup="mapper_init",
            map="mapper_get_words",
            combine="combiner_count_words",
            reduce="reducer_count_words",
        )
    )
    counts.map_reduce(ms.job(MostUsed, reduce="reducer_find_max_word")).sink(rows)
    run_in_process(flow, tmp_path / "ck")
    assert [(row["key"], row["value"]) for row in rows.rows] == [(2, "fox")]


class NoReduce:
    def map(self, key: Any, value: Any) -> None: ...


class TooMany(Yields):
    def map(self, key: Any, value: Any, one: Any, two: Any) -> None: ...  # type: ignore[override]


class WantsTime(Yields):
    def map(self, key: Any, value: Any, ts: Any) -> None: ...  # type: ignore[override]


class Waits(Yields):
    async def reduce(self, key: Any, values: Any) -> None: ...  # type: ignore[override]


class NeedsArguments(Yields):
    def __init__(self, size: int) -> None: ...


class BaseWithTooMany(ms.MapReduce):
    def reduce(self, key: Any, values: Any, window: Any, more: Any) -> Any: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (NoReduce, r"job\(NoReduce\): there is no method reduce; expected reduce\(key, values\)"),
        (TooMany, r"TooMany.map\(.*one.*two.*\) .* cannot be called; expected map\(key, value\)"),
        (WantsTime, "third argument of map is a context, with context.ts"),
        (Waits, "Waits.reduce is async"),
        (NeedsArguments, r"NeedsArguments\(\) raised TypeError.*give an instance"),
        (BaseWithTooMany, r"expected reduce\(key, values, window\)"),
        (GathersInInit(), r"close\(\) without setup\(\)"),
        (mapper, r"functions are given by name, as ms.job\(map=..., reduce=...\)"),
        (7, "expected a class or an object with methods map and reduce, got 7"),
    ],
    ids=lambda one: shown(one) if not isinstance(one, str) else "",
)
def test_what_cannot_work_is_refused_when_the_flow_is_built(program: Any, said: str) -> None:
    stream = ms.Flow("refused").source(ms.Files("in/", "text"))
    with pytest.raises(ms.ConfigError, match=said):
        stream.map_reduce(program)


def test_other_names_must_be_there() -> None:
    with pytest.raises(ms.ConfigError, match="map='mapper': the program has no method 'mapper'"):
        ms.job(Yields, map="mapper")
    with pytest.raises(ms.ConfigError, match="expected the name of a method, a function"):
        ms.job(Yields, combine=3)


def test_what_is_gathered_has_no_place_in_sessions() -> None:
    stream = ms.Flow("refused").source(ms.Files("in/", "text"))
    with pytest.raises(ms.ConfigError, match="follow from every single record"):
        stream.map_reduce(GathersInInit, ms.session("1m"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ab", "expected pairs"),
        (("word", 1), "yield them, or return a list"),
        (3, "expected pairs"),
    ],
)
def test_what_is_no_pair_is_a_dead_letter(given: Any, said: str) -> None:
    """A text of two letters is not a pair of letters."""
    flow = ms.Flow("dead")
    source = flow.source(ms.Generator(list, time="ts", schema="ts bigint, value string"), name="in")
    program = ms.job(map=lambda key, value: given, reduce=reducer)
    source.map_reduce(program).sink(ms.Memory())
    with Driver(flow, dead_letter_limit=1) as driver:
        driver.push("in", RECORDS[:1]).end()
        assert said in driver.dead[0]["error"]
        assert driver.output() == []


def test_a_map_that_raises_gives_nothing_and_others_go_on() -> None:
    def half(key: Any, value: Any, emit: Any) -> None:
        emit("seen", 1)
        if value["ts"] == 7:
            raise ValueError("seven")

    flow = ms.Flow("dead")
    source = flow.source(ms.Generator(list, time="ts", schema="ts bigint, value string"), name="in")
    source.map_reduce(ms.job(map=half, reduce=reducer)).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", RECORDS[:3]).end()
        assert [(row["key"], row["value"]) for row in driver.output()] == [("seen", 2)]
        assert [one["error"] for one in driver.dead] == ["ValueError: seven"]


def test_a_close_that_raises_stops_the_run() -> None:
    class Breaks(Gathers):
        def close(self) -> None:  # type: ignore[override]
            raise OSError("disk")

    flow = ms.Flow("breaks")
    source = flow.source(ms.Generator(list, time="ts", schema="ts bigint, value string"), name="in")
    source.select("value").map_reduce(Breaks).sink(ms.Memory())
    with Driver(flow) as driver, pytest.raises(ms.RunError, match=r"Breaks.close\(\) raised OSErr"):
        driver.push("in", RECORDS[:3]).end()


def test_setup_cannot_give_pairs() -> None:
    class Eager(Gathers):
        def setup(self) -> Any:  # type: ignore[override]
            yield "a", 1

    flow = ms.Flow("eager")
    source = flow.source(ms.Generator(list, time="ts", schema="ts bigint, value string"), name="in")
    source.select("value").map_reduce(Eager).sink(ms.Memory())
    with Driver(flow) as driver, pytest.raises(ms.RunError, match="give them in close"):
        driver.push("in", RECORDS[:3]).end()


def test_a_program_counts_the_lines_that_wc_counts(tmp_path: Path) -> None:
    class Wc:
        def map(self, key: Any, line: str) -> Iterator[Any]:
            yield "lines", 1
            yield "chars", len(line) + 1

        def reduce(self, key: Any, values: Any) -> Iterator[Any]:
            yield key, sum(values)

    text = "one\n\ntwo three\n   \n\t\n\n"  # wc -l: 6, wc -m: 22
    (tmp_path / "in.txt").write_text(text)
    flow = ms.Flow("wc")
    rows = ms.Memory()
    flow.source(ms.Files(tmp_path / "in.txt")).map_reduce(Wc).sink(rows)
    run_in_process(flow, tmp_path / "ck")
    assert {row["key"]: row["value"] for row in rows.rows} == {"lines": 6, "chars": 22}

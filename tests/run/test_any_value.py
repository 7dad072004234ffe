"""Keys, values and results of any type, mixed freely, on their way to every kind of sink and step.

What comes out is compared with what plain Python makes of the same pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import RunError
from millstream.ops.codec import decode, encode
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)
VALUES: list[Any] = [
    1,
    2.5,
    "text",
    True,
    None,
    b"\x00\xff",
    2**70,
    -(2**70),
    ["x", 1],
    ["x", [2**64, None]],
    {"a": 1},
    {"b": "two", "at": date(2024, 2, 29)},
    {},
    [],
    date(2024, 1, 2),
    time(3, 4, 5),
    timedelta(days=1, microseconds=1),
    Decimal("1.10"),
    datetime(2024, 1, 1, 12),
    datetime(2024, 1, 1, 12, tzinfo=UTC),
]


class Any_(ms.MapReduce):
    """Gives the value that stands at the place of each record, under a key that is one too."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        at = value["at"]
        yield ("key", VALUES[at]), VALUES[at]

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        for value in values:
            yield key, value


def rows(count: int = len(VALUES)) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=i), "at": i} for i in range(count)]


def source(flow: ms.Flow) -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts"), name="in")


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def found(outputs: list[dict[str, Any]], column: str = "value") -> list[Any]:
    return sorted((row[column] for row in outputs), key=repr)


def test_values_come_back_as_they_were() -> None:
    for value in VALUES:
        back = decode(encode(value))
        assert same(back, value), value
    assert decode(encode(VALUES)) == VALUES
    assert decode(encode({"deep": {"list": [2**70]}})) == {"deep": {"list": [2**70]}}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("window", [None, ms.tumbling("1h"), ms.session("1h")])
def test_a_job_may_give_any_value_under_any_key(parallelism: int, window: Any) -> None:
    flow = ms.Flow("any")
    source(flow).map_reduce(Any_(), window).sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp(), parallelism=parallelism) as driver:
        driver.push("in", rows(10)).step()
        driver.push("in", rows()[10:]).end()
        assert driver.dead == []
        out = driver.output("out")
    assert found(out) == sorted(VALUES, key=repr)
    assert sorted((row["key"][1] for row in out), key=repr) == sorted(VALUES, key=repr)


@pytest.mark.parametrize(
    "name",
    [
        2**70,
        date(2024, 1, 2),
        datetime(2024, 1, 1, 12),
        b"\xff",
        b"a",
        (1, "x"),
        (2**70, 1),
        (date(2024, 1, 2), (Decimal("1.10"), 2)),
        frozenset([1]),
    ],
    ids=repr,
)
def test_names_in_dicts_may_be_of_any_type(name: Any) -> None:
    class Named(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield 1, {name: [value["at"]], "at": {name: 2**70}}

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield from ((at, value) for at, value in enumerate(values))

    flow = ms.Flow("names")
    jobs = source(flow).map_reduce(Named())
    jobs.map(lambda row: {"value": {name: row["value"]}}).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", rows(2)).end()
        given = [{name: {name: [at], "at": {name: 2**70}}} for at in range(2)]
        assert sorted(map(repr, found(driver.output()))) == sorted(map(repr, given))
        assert driver.dead == []


def test_what_cannot_be_stored_beside_large_numbers_is_said() -> None:
    with pytest.raises(RunError, match="a value of type list cannot be stored"):
        encode([2**70, object()])


def test_what_cannot_be_stored_costs_one_result() -> None:
    def reducer(key: Any, values: list[Any], window: ms.Window) -> Any:
        return {"given": object() if key == 3 else key}

    flow = ms.Flow("objects")
    source(flow).key_by("at").reduce(reducer).sink(ms.Memory(), name="out")
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("in", rows(6)).end()
        assert found(driver.output("out"), "given") == [0, 1, 2, 4, 5]
        (letter,) = driver.dead
    assert letter["operator"] == "reduce"
    assert json.loads(letter["raw"])["key"] == 3
    assert "column 'given': a value of type object cannot be stored" in letter["error"]


def mixing(row: dict[str, Any]) -> Any:
    return [1, "one", 2.5, "two", 3, None][row["at"] % 6]


class Mixing(ms.MapReduce):
    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        yield value["at"], mixing(value)

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, values[0]


def downstream(flow: ms.Flow) -> ms.Stream:
    return source(flow).map_reduce(Mixing(), ms.tumbling("1s"))


def run(flow: ms.Flow, parallelism: int = 2, **options: Any) -> Driver:
    driver = Driver(flow, now=START.timestamp(), parallelism=parallelism, **options)
    driver.push("in", rows(6)).step()
    driver.push("in", [{"ts": START + timedelta(seconds=6 + i), "at": 6 + i} for i in range(6)])
    return driver.end()


def test_windows_after_mixed_values() -> None:
    flow = ms.Flow("after")
    mixed = downstream(flow)
    keyed = mixed.key_by("value", nulls="keep").window(ms.tumbling("1h"))
    keyed.agg(n=ms.count(), keys=ms.collect("key")).sink(ms.Memory(), name="by value")
    whole = mixed.key_by().window(ms.tumbling("1h"))
    whole.agg(
        first=ms.first("value"),
        least=ms.min("value"),
        most=ms.max("value"),
        all=ms.collect("value"),
        distinct=ms.distinct("value"),
        about=ms.distinct("value", approx=True),
        top=ms.top_k("value", 2),
    ).sink(ms.Memory(), name="whole")
    with run(flow) as driver:
        assert driver.dead == []
        counts = {row["value"]: row["n"] for row in driver.output("by value")}
        assert counts == {1: 2, "one": 2, 2.5: 2, "two": 2, 3: 2, None: 2}
        (row,) = driver.output("whole")
    values = [mixing({"at": at}) for at in range(12)]
    assert row["all"] == values
    assert (row["first"], row["least"], row["most"]) == (1, 1, "two")
    assert row["distinct"] == row["about"] == 5
    assert [one["count"] for one in row["top"]] == [2, 2]


def test_numbers_are_summed_and_other_values_are_dead_letters() -> None:
    flow = ms.Flow("sums")
    keyed = downstream(flow).key_by().window(ms.tumbling("1h"))
    keyed.agg(total=ms.sum("value"), middle=ms.quantile("value", 0.5)).sink(ms.Memory())
    with run(flow) as driver:
        (row,) = driver.output()
        assert (row["total"], row["middle"]) == (13.0, 2.5)
        errors = sorted(letter["error"] for letter in driver.dead)
    assert len(errors) == 4
    assert errors[0] == "sum(value) needs numbers, 'value' is str 'one'"


def test_sql_over_mixed_values_costs_the_records_it_makes_no_sense_for() -> None:
    flow = ms.Flow("sql")
    mixed = downstream(flow)
    mixed.where("value > 1").select("key", "value * 2 AS twice").sink(ms.Memory(), name="sql")
    mixed.map(lambda row: {"same": row["value"]}).sink(ms.Memory(), name="map")
    with run(flow, dead_letter_limit=1) as driver:
        twice = [row["twice"] for row in driver.output("sql")]
        assert sorted(twice) == [5.0, 5.0, 6, 6]
        operators = {letter["operator"] for letter in driver.dead}
        assert "where" in operators


def test_updaters_get_mixed_values() -> None:
    seen: list[Any] = []

    def update(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        seen.append((event.key, event.value["value"]))

    flow = ms.Flow("updates")
    downstream(flow).key_by("value").update(update, name="u").sink(ms.Memory())
    with run(flow):
        pass
    values = [mixing({"at": at}) for at in range(12)]
    expected = [(value, value) for value in values if value is not None]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)


LARGE = [1, 2**63, 2**64 - 1, 2**64, -(2**70), (1, 2**70), 10**5000, "a", 1.5]


@pytest.mark.parametrize("partition", [None, lambda key: 0])
@pytest.mark.parametrize("merge", [None, lambda one, other: {"n": one["n"] + other["n"]}])
def test_keys_of_more_than_64_bits_are_dead_letters_of_updaters(merge: Any, partition: Any) -> None:
    """Beside the others of their batch, which have slates."""

    class Keys(ms.MapReduce):
        def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
            yield value["at"], None

        def reduce(self, key: Any, values: list[Any], window: Any) -> Iterator[tuple[Any, Any]]:
            yield LARGE[key], 1

    def update(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1

    flow = ms.Flow("large")
    keyed = source(flow).map_reduce(Keys(), ms.tumbling("1h"))
    keyed.key_by("key", partition=partition).update(update, name="u", merge=merge)
    with Driver(flow, now=START.timestamp(), parallelism=2, dead_letter_limit=1) as driver:
        driver.push("in", rows(len(LARGE))).end()
        assert driver.slates("u") == {key: {"n": 1} for key in (1, 2**63, 2**64 - 1, "a", 1.5)}
        assert [letter["operator"] for letter in driver.dead] == ["u"] * 4
        assert all("have at most 64 bits" in letter["error"] for letter in driver.dead)
        assert driver.ledger["u"]["dead"] == 4


# -- files -----------------------------------------------------------------------------------------


class Lines(ms.MapReduce):
    """Pairs given as JSON, one a line."""

    def map(self, key: Any, value: Any, ts: Any) -> Iterator[tuple[Any, Any]]:
        found = json.loads(value)
        yield found["key"], found["value"]

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Iterator[tuple[Any, Any]]:
        yield key, values[0]


def write(path: Path, values: list[Any], start: int = 0) -> None:
    path.mkdir(exist_ok=True)
    pairs = [{"key": start + at, "value": value} for at, value in enumerate(values)]
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (path / f"{start:03d}.txt").write_text(lines)


def job(path: Path, sink: Any) -> ms.Flow:
    flow = ms.Flow("files")
    lines = flow.source(ms.Files(path / "in", format="text"))
    lines.map_reduce(Lines(), ms.tumbling("1h")).sink(sink, name="out")
    return flow


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("part-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_parquet_has_mixed_values_as_json_text(tmp_path: Path, parallelism: int) -> None:
    values = [1, "one", [1, "x"], {"a": 2}, None, 2**70]
    write(tmp_path / "in", values)
    sink = ms.Parquet(tmp_path / "out")
    run_in_process(job(tmp_path, sink), tmp_path / "ck", parallelism=parallelism)
    out = parquet_rows(tmp_path / "out")
    kinds = {str(pq.read_schema(f).field("value").type) for f in (tmp_path / "out").glob("part-*")}
    assert kinds == {"string"}
    found = {row["key"]: row["value"] for row in out}
    assert found == {
        at: None if value is None else json.dumps(value, separators=(",", ":"))
        for at, value in enumerate(values)
    }


def test_json_lines_have_mixed_values_as_they_are(tmp_path: Path) -> None:
    values = [1, "one", [1, "x"], {"a": 2}, None, 2**70]
    write(tmp_path / "in", values)
    run_in_process(job(tmp_path, ms.Jsonl(tmp_path / "out")), tmp_path / "ck", parallelism=2)
    lines = [line for f in (tmp_path / "out").glob("part-*") for line in f.read_text().splitlines()]
    assert {row["key"]: row["value"] for row in map(json.loads, lines)} == dict(enumerate(values))


def test_a_parquet_column_keeps_the_type_it_was_written_with(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.mkdir()

    def record(at: int) -> str:
        stamp = (START + timedelta(seconds=at)).isoformat()
        return json.dumps({"ts": stamp, "at": at}) + "\n"

    (path / "a.jsonl").write_text("".join(record(at) for at in (0, 2, 4)))
    flow = ms.Flow("later")
    records = flow.source(ms.Files(path, time="ts"))
    records.map_reduce(Mixing(), ms.tumbling("1s")).sink(ms.Parquet(tmp_path / "out"), name="out")
    options: dict[str, Any] = {"dead_letter_limit": 1}
    run_in_process(flow, tmp_path / "ck", **options)
    (path / "b.jsonl").write_text("".join(record(at) for at in (6, 7, 8)))
    ledger = run_in_process(flow, tmp_path / "ck", **options)
    assert sorted(row["value"] for row in parquet_rows(tmp_path / "out")) == [1, 1, 2.5, 2.5, 3]
    assert ledger["out"]["dead"] == 1
    (file,) = (tmp_path / "ck" / "dead").glob("[0-9]*.jsonl")
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert letter["operator"] == "out"
    told = letter["error"]
    assert "column 'value' of 'Mixing' is double in what was written so far" in told
    assert '(first 1 of key 0) and str here ("one" of key 7)' in told.replace("1.0 of", "1 of")


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize(
    "values",
    [
        [{}, {"a": 1}],
        [{}, 5],
        [{"a": 1}, {}],
        [{"a": 1}, {"b": {}}],
        [{"a": {}}, [{}]],
        [[], [{}]],
        [{b"\xff": 1}, {}],
        [{b"\xff": 1}] * 2,
    ],
    ids=repr,
)
def test_dicts_that_parquet_does_not_have_end_no_run(
    tmp_path: Path, values: list[Any], batch: int
) -> None:
    (tmp_path / "in.jsonl").write_text('{"at": 0}\n{"at": 1}\n')
    flow = ms.Flow("empty")
    files = flow.source(ms.Files(tmp_path / "in.jsonl"), name="in")
    made = files.map(lambda row: {"at": row["at"], "value": values[row["at"]]})
    made.sink(ms.Parquet(str(tmp_path / "out")), name="out")
    ledger = run_in_process(flow, tmp_path / "ck", batch_rows=batch, dead_letter_limit=1.0)
    got = ledger["out"]
    assert (got["offered"], got["aggregated"] + got["dead"]) == (2, 2)
    assert len(parquet_rows(tmp_path / "out")) == got["aggregated"]


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_what_functions_change_after_they_gave_it_is_as_it_was(batch: int) -> None:
    """The same whatever the batches: a batch that is over is not changed either."""
    so_far: list[int] = []
    row: dict[str, Any] = {"value": {"so far": (so_far,)}}

    def growing(record: Any) -> Any:
        so_far.append(record["at"])
        return row

    def kept(event: Any, slate: Any, ctx: Any) -> Any:
        return growing(event.value)

    for step in (
        lambda rows: rows.map(growing),
        lambda rows: rows.process(lambda event, ctx: [growing(event.value)]),
        lambda rows: rows.key_by().update(kept),
    ):
        so_far.clear()
        flow = ms.Flow("growing")
        step(source(flow)).sink(ms.Memory())
        with Driver(flow) as driver:
            for start in range(0, 6, batch):
                driver.push("in", rows(6)[start : start + batch]).step()
            given = [row["value"] for row in driver.end().output()]
        assert given == [{"so far": [list(range(n + 1))]} for n in range(6)]

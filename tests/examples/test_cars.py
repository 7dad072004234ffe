"""The queries of the M3 paper: the changes of its figures, and DuckDB's answer in the end."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.cli.loading import load_application, load_module
from millstream.testing import Driver, run_in_process
from tests.variants import variants

EXAMPLES = Path(__file__).parents[2] / "examples"
START = datetime(2026, 1, 5, tzinfo=UTC)
SPEEDING = """SELECT car, arg_max(speed, "at") AS speed FROM read_json('speeds.jsonl')
    GROUP BY car HAVING arg_max(speed, "at") > 50"""
ON_I65 = f"""SELECT car, make FROM ({SPEEDING}) JOIN (
        SELECT car, any_value(make) AS make, arg_max(road, "at") AS road
        FROM read_json('places.jsonl') GROUP BY car
    ) USING (car) WHERE road = 'I-65'"""
MAKES = f"SELECT make, count(*) FROM ({ON_I65}) GROUP BY make HAVING count(*) > 2"


@pytest.fixture
def cars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, in an empty directory with invented reports."""
    monkeypatch.chdir(tmp_path)
    for name in ("SPEEDS", "PLACES", "OUT"):
        monkeypatch.delenv(name, raising=False)
    return load_module(EXAMPLES / "cars.py")


def source(flow: ms.Flow, name: str, columns: str) -> ms.Stream:
    schema = f"ts timestamp, {columns}"
    return flow.source(ms.Generator(tuple, time="ts", lateness="1s", schema=schema), name=name)


def at(time: int, **values: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=time), **values}


def told(driver: Driver, *columns: str) -> list[tuple[Any, ...]]:
    """The changes so far; two tasks may tell theirs in any order."""
    rows = [(row["op"], *(row[name] for name in columns)) for row in driver.output("out")]
    return sorted(rows)


@pytest.mark.parametrize("parallelism", variants([2, 1]))
def test_figure_2_stream_tagging(cars: Any, parallelism: int) -> None:
    flow = ms.Flow("figure 2")
    speeds = source(flow, "speeds", "car long, speed long")
    cars.speeding_cars(speeds).sink(ms.Memory(), name="out")
    with Driver(flow, parallelism=parallelism) as driver:
        given = [(1, 45), (2, 67), (3, 55), (4, 74)]
        driver.push("speeds", [at(0, car=car, speed=speed) for car, speed in given]).step()
        first = told(driver, "car", "speed")
        assert first == [("+", 2, 67), ("+", 3, 55), ("+", 4, 74)]
        given = [(1, 72), (4, 40), (2, 80)]
        driver.push("speeds", [at(1, car=car, speed=speed) for car, speed in given]).step()
        more = Counter(told(driver, "car", "speed")) - Counter(first)
        # The paper's -<4> has no speed; a row that is taken back is the one that was given.
        assert sorted(more) == [("+", 1, 72), ("-", 4, 74), ("u", 2, 80)]


@pytest.mark.parametrize("parallelism", variants([2, 1]))
def test_figure_3_stream_joins(cars: Any, parallelism: int) -> None:
    flow = ms.Flow("figure 3")
    speeds = source(flow, "speeds", "car long, speed long")
    places = source(flow, "places", "car long, make string, road string")
    cars.on_i65(cars.speeding_cars(speeds), places).select("car").sink(ms.Memory(), name="out")
    with Driver(flow, parallelism=parallelism) as driver:
        driver.push("speeds", [at(0, car=car, speed=60) for car in (1, 3, 7, 2, 4)])
        road = [at(0, car=car, make="A", road="I-65") for car in (1, 3, 9, 2)]
        driver.push("places", road).step()
        first = told(driver, "car")
        assert first == [("+", 1), ("+", 2), ("+", 3)]
        driver.push("speeds", [at(1, car=1, speed=40)])
        driver.push("places", [at(1, car=car, make="A", road="I-65") for car in (7, 4)]).step()
        more = Counter(told(driver, "car")) - Counter(first)
        assert sorted(more) == [("+", 4), ("+", 7), ("-", 1)]


@pytest.mark.parametrize("parallelism", variants([2, 1]))
def test_figure_4_group_by(cars: Any, parallelism: int) -> None:
    flow = ms.Flow("figure 4")
    listed = source(flow, "cars", "car long, make string, listed boolean")
    now = listed.changes(key="car").where("listed").select("car", "make")
    cars.many_of_a_make(now).sink(ms.Memory(), name="out")
    with Driver(flow, parallelism=parallelism) as driver:
        makes = "AAACBBBBD"
        given = [at(0, car=n, make=make, listed=True) for n, make in enumerate(makes)]
        driver.push("cars", given).step()
        first = told(driver, "make", "cars")
        assert first == [("+", "A", 3), ("+", "B", 4)]
        gone = [at(1, car=n, make=makes[n], listed=False) for n in (0, 4)]
        come = [at(1, car=n, make="C", listed=True) for n in (20, 21)]
        driver.push("cars", [*gone, *come]).step()
        more = Counter(told(driver, "make", "cars")) - Counter(first)
        assert sorted(more) == [("+", "C", 3), ("-", "A", 3), ("u", "B", 3)]


def integrated(folder: str, key: str) -> list[tuple[Any, ...]]:
    """What all changes of a sink come to, of each batch those first that take back."""
    batches: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).glob("part-*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        batches.setdefault(path.name.split("-")[1], []).extend(rows)
    table: dict[Any, tuple[Any, ...]] = {}
    for rows in batches.values():
        for row in sorted(rows, key=lambda row: row["op"] != "-"):
            op = row.pop("op")
            assert (row[key] in table) == (op != "+"), (op, row)
            if op == "-":
                assert table.pop(row[key]) == tuple(row.values())
            else:
                table[row[key]] = tuple(row.values())
    return sorted(table.values())


def check() -> None:
    """What was written is what DuckDB says of the reports."""
    for folder, key, sql in (
        ("speeding", "car", SPEEDING),
        ("on_i65", "car", ON_I65),
        ("makes", "make", MAKES),
    ):
        found = integrated(f"out/cars/{folder}", key)
        assert found == sorted(duckdb.sql(sql).fetchall()) != []


@pytest.mark.parametrize(("form", "batch_rows"), [(".py", 1_000_000), (".toml", 500)])
def test_the_answer_is_what_duckdb_says(cars: Any, form: str, batch_rows: int) -> None:
    flow = load_application(EXAMPLES / f"cars{form}").flow
    ledger = run_in_process(flow, "ck", parallelism=2, batch_rows=batch_rows)
    assert all(account["offered"] == account["aggregated"] for account in ledger.values())
    check()


def test_on_spark(cars: Any, spark: Any) -> None:
    progress = load_application(EXAMPLES / "cars.py").flow.run(
        "ck", parallelism=2, batch_rows=2_000
    )
    assert progress.done and progress.dead == progress.late == 0
    check()

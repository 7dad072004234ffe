"""What a reader sees of changes is made where they leave, behind all filters and functions."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.ops.emitting.emitted import Memory
from millstream.ops.windows.changes import settle
from millstream.testing import Driver, run_in_process

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
# The window [0, 10) has 1, 2, 3 records in turn: it begins to qualify for n > 1 with its second.
ORDER = (1, 12, 2, 3)
BOTH = [("+", 1), ("-", 1), ("+", 2), ("-", 2), ("+", 3)]


def at(second: float, k: str = "a", v: int = 1) -> dict[str, Any]:
    return {"ts": BEGIN + timedelta(seconds=second), "k": k, "v": v}


def counts(flow: ms.Flow, **emit: Any) -> ms.Stream:
    files = ms.Files(
        "x", schema="ts timestamp, k string, v bigint", time="ts", lateness="30s", follow=True
    )
    keyed = flow.source(files, name="in").key_by("k")
    return keyed.window(ms.tumbling("10s"), **(emit or {"emit": "delta"})).agg(n=ms.count())


def seen(flow: ms.Flow, seconds: Any = ORDER, name: str | None = None) -> list[tuple[Any, ...]]:
    with Driver(flow, dead_letter_limit=1.0) as driver:
        for second in seconds:
            driver.push("in", [at(second)]).step()
        return [(row["op"], row["n"]) for row in driver.output(name)]


def odd_only(table: Any) -> Any:
    import pyarrow.compute as pc

    return table.filter(pc.equal(pc.bit_wise_and(table.column("n"), 1), 1))


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (lambda s: s.where("n > 1"), [("+", 2), ("u", 3)]),
        (lambda s: s.where("n < 3"), [("+", 1), ("u", 2), ("-", 2)]),
        (lambda s: s.where("n <> 2"), [("+", 1), ("-", 1), ("+", 3)]),
        (lambda s: s.select("k", "window_end", "n"), [("+", 1), ("u", 2), ("u", 3)]),
        (lambda s: s.select("k", "n"), BOTH),  # which window's row would a u replace?
        (lambda s: s.select("k", "n / 2 + 5 > 0 AS n"), [("+", True)]),
        (lambda s: s.map(lambda row: row if row["n"] > 1 else None), [("+", 2), ("u", 3)]),
        (lambda s: s.map(lambda row: {"n": row["n"] // 2}), [("+", 0), ("-", 0), ("+", 1)]),
        (lambda s: s.map(lambda row: {**row, "n": row["n"] // 2}), [("+", 0), ("u", 1)]),
        (lambda s: s.map(lambda row: {**row, "k": f"{row['n']}"}), BOTH),  # another name
        (lambda s: s.flat_map(lambda row: [row] * (row["n"] - 1)), [("+", 2), ("u", 3), ("u", 3)]),
        (lambda s: s.map_batches(odd_only), [("+", 1), ("-", 1), ("+", 3)]),
        (lambda s: s.process(lambda event, ctx: event.value), [("+", 1), ("u", 2), ("u", 3)]),
        (lambda s: s.where("n < 2").union(s.where("n > 2")), [("+", 1), ("-", 1), ("+", 3)]),
        (lambda s: s.where("n < 3").union(s.where("n > 2")), BOTH),  # and which branch's?
    ],
    ids=lambda value: "" if callable(value) else " ".join(f"{op}{n}" for op, n in value),
)
def test_marks_follow_from_what_the_steps_let_through(step: Any, wanted: Any) -> None:
    flow = ms.Flow("changes")
    step(counts(flow)).sink(ms.Memory())
    assert seen(flow) == wanted


class Totals:
    """Whatever the key, its answer has the same one."""

    def map(self, key: Any, record: Any) -> Any:
        yield record["k"], 1

    def reduce(self, key: Any, ones: Any) -> Any:
        yield "total", sum(ones)


@pytest.mark.parametrize(
    ("step", "column"),
    [
        (lambda s: s.agg(n=ms.count()).map(lambda row: {"n": row["n"]}), "n"),
        (lambda s: s.agg(n=ms.count()).map_batches(lambda t: t.select(["k", "n"])), "n"),
        (lambda s: s.reduce(lambda k, records, window: {"n": len(records)}).select("n"), "n"),
        (lambda s: s.reduce(lambda k, records, window: {"n": len(records)}), "n"),
        (lambda s: s.map_reduce(Totals), "value"),
    ],
)
def test_what_functions_make_can_be_put_together_by_a_reader(step: Any, column: str) -> None:
    """Three windows have a row; one of them changes, and the other two stay."""
    flow = ms.Flow("changes")
    files = ms.Files(
        "x", schema="ts timestamp, k string, v bigint", time="ts", lateness="30s", follow=True
    )
    keyed = flow.source(files, name="in").key_by("k")
    step(keyed.window(ms.tumbling("10s"), emit="delta")).sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [at(1), at(2, "b"), at(11), at(25)]).step()
        driver.push("in", [at(3)]).step()
        rows = driver.output()
    there: list[Any] = []
    for row in rows:
        mark = row.pop("op")
        if mark == "u":  # one row, and no more, has the name of this one
            (before,) = [old for old in there if {**old, column: row[column]} == row]
            there.remove(before)
        elif mark == "-":
            there.remove(row)
        if mark != "-":
            there.append(row)
    assert sorted(row[column] for row in there) == [1, 1, 2]


def test_early_results_behind_a_filter_say_what_no_longer_qualifies() -> None:
    flow = ms.Flow("early")
    early = counts(flow, emit="early", every_rows=1)
    early.where("n <> 2").sink(ms.Memory(), name="filtered")
    early.select("k", "n", "revision").sink(ms.Memory(), name="plain")
    with Driver(flow) as driver:
        for second in (1, 2, 3, 50):
            driver.push("in", [at(second)]).step()
        driver.end()
        marked = [(r["op"], r["n"], r["revision"], r["final"]) for r in driver.output("filtered")]
        plain = [(r["n"], r["revision"]) for r in driver.output("plain")]
        assert list(driver.output("plain")[0]) == ["k", "n", "revision"]
    assert marked == [
        ("+", 1, 0, False),
        ("-", 1, 1, False),  # with the revision that took its place, and was left out
        ("+", 3, 2, False),
        ("u", 3, 3, True),
        ("+", 1, 0, False),
        ("u", 1, 1, True),
    ]
    assert plain == [(1, 0), (2, 1), (3, 2), (3, 3), (1, 0), (1, 1)]


def test_early_results_by_event_time_behind_a_filter_do_not_depend_on_batches() -> None:
    found = []
    for cut in (1, 2, 6):
        flow = ms.Flow("minutes")
        early = counts(flow, emit="early", every_event="2s").where("n <> 2")
        early.sink(ms.Memory())
        rows = [at(second) for second in (0.5, 2.5, 4.5, 6.5, 8.5, 60)]
        with Driver(flow) as driver:
            for start in range(0, len(rows), cut):
                driver.push("in", rows[start : start + cut]).step()
            driver.end()
            found.append([(r["op"], r["n"], r["revision"]) for r in driver.output()])
    assert found[0] == found[1] == found[2]
    assert [op for op, n, _ in found[0] if n < 9][:3] == ["+", "-", "+"]


def test_a_window_over_early_results_works_on_them_as_they_are() -> None:
    flow = ms.Flow("over")
    early = counts(flow, emit="early", every_rows=1)
    total = early.where("n <> 2").key_by().window(ms.tumbling("1m"))
    total.agg(n=ms.sum("n"), windows=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        for second in (1, 2, 3, 15, 16, 25):
            driver.push("in", [at(second)]).step()
        driver.end()
        assert [(row["n"], row["windows"]) for row in driver.output()] == [(4, 2)]


def test_an_updater_gets_changes_as_events() -> None:
    got: list[tuple[str, int]] = []

    def note(event: Any, slate: Any, ctx: Any) -> Any:
        got.append((event.value["op"], event.value["n"]))
        return slate

    flow = ms.Flow("events")
    counts(flow).where("n <> 2").key_by("k").update(note, name="noted")
    with Driver(flow) as driver:
        for second in ORDER:
            driver.push("in", [at(second)]).step()
        driver.end()
    assert got == [("+", 1), ("-", 1), ("+", 3), ("+", 1)]


def test_a_step_that_fails_on_a_result_does_so_once() -> None:
    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 2:
            raise ValueError("two is refused")
        return row

    flow = ms.Flow("picky")
    counts(flow).map(picky).sink(ms.Memory())
    with Driver(flow, dead_letter_limit=1.0) as driver:
        for second in ORDER:
            driver.push("in", [at(second)]).step()
        assert [(row["op"], row["n"]) for row in driver.output()] == [("+", 1), ("-", 1), ("+", 3)]
        assert len(driver.dead) == 1


def test_what_a_step_names_op_is_not_there() -> None:
    flow = ms.Flow("named")
    counts(flow).where("op <> '-'").sink(ms.Memory())
    with pytest.raises(ConfigError, match="op"):
        Driver(flow)


SINKS = {"parquet": ms.Parquet, "jsonl": ms.Jsonl}


@pytest.mark.parametrize("kind", SINKS)
def test_files_and_functions_come_to_the_table_of_duckdb(tmp_path: Path, kind: str) -> None:
    """Late records make results qualify and stop doing so; the sum of changes is the answer."""
    rows = [at((i * 7) % 50 + i / 100, "abc"[i % 3], i % 5) for i in range(120)]
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({**row, "ts": row["ts"].isoformat()}) for row in rows]
    source.write_text("\n".join(lines) + "\n")
    flow = ms.Flow("files")
    files = ms.Files(
        str(source), schema="ts timestamp, k string, v bigint", time="ts", lateness="100s"
    )
    keyed = flow.source(files, name="in").key_by("k")
    sums = keyed.window(ms.sliding("10s", "5s"), emit="delta").agg(total=ms.sum("v"))
    called: list[dict[str, Any]] = []
    chosen = sums.where("total % 3 = 0")
    chosen.sink(SINKS[kind](str(tmp_path / "out")))
    chosen.sink(ms.Call(called.append))
    run_in_process(flow, tmp_path / "ck", parallelism=2, batch_rows=20, batch_bytes=900)
    wanted = duckdb.sql(
        """
        WITH records AS (SELECT unnest($rows) AS r),
        windows AS (
            SELECT r.k AS k, to_timestamp(5 * (floor(epoch(r.ts) / 5) - nth)) AS begins, r.v AS v
            FROM records, (SELECT unnest([0, 1]) AS nth)
        )
        SELECT k, epoch(begins)::BIGINT, sum(v)::BIGINT FROM windows
        GROUP BY ALL HAVING sum(v) % 3 = 0
        """,
        params={"rows": rows},
    ).fetchall()
    written: list[dict[str, Any]] = []
    for path in sorted((tmp_path / "out").glob("part-*")):
        if kind == "parquet":
            written += pq.read_table(path).to_pylist()
        else:
            written += [json.loads(line) for line in path.read_text().splitlines()]
    for got in (written, called):
        assert {row["op"] for row in got} == {"+", "u", "-"}
        current: dict[Any, int] = {}
        for row in got:
            begins = row["window_start"]
            begins = datetime.fromisoformat(begins) if isinstance(begins, str) else begins
            name = (row["k"], int(begins.timestamp()))
            assert (name in current) == (row["op"] != "+")
            if row["op"] == "-":
                assert current.pop(name) == row["total"]
            else:
                current[name] = row["total"]
        assert Counter((*name, total) for name, total in current.items()) == Counter(wanted)


def test_rows_that_are_distinct_among_changes_are_taken_back_with_the_last() -> None:
    flow = ms.Flow("distinct")
    counts(flow).distinct("n").sink(ms.Memory())
    given: Counter[int] = Counter()
    with Driver(flow) as driver:
        for second, k in ((1, "a"), (12, "b"), (2, "a"), (3, "a"), (13, "b"), (25, "c"), (80, "a")):
            driver.push("in", [at(second, k)]).step()
        driver.end()
        for row in driver.output():
            given[row["n"]] += -1 if row["op"] == "-" else 1
    assert given == Counter({3: 1, 2: 1, 1: 1})  # what a, b and c come to


def test_what_was_emitted_is_written_as_it_changes() -> None:
    flow = ms.Flow("few")
    counts(flow).named("counted").sink(ms.Memory())
    with Driver(flow) as driver:
        driver.push("in", [at(1, f"k{i}") for i in range(300)] + [at(15)]).step()
        driver.push("in", [at(2, f"k{i}") for i in range(3)]).step()
        assert [row["n"] for row in driver.output()] == [1] * 300 + [2] * 3
        manifest = driver.engine.manifest
        (tables,) = manifest.segments.values()
        (given,) = (shards for table, shards in tables.items() if table.startswith("given"))
        new = [
            one
            for segments in given.values()
            for one in segments
            if Path(one.file).name.startswith(f"{manifest.batch:08d}")
        ]
        assert sum(one.rows for one in new) == 3


def test_what_a_version_before_remembered_is_refused() -> None:
    known = pa.table({name: pa.array([1]) for name in ("name", "window", "revision", "ts")})
    with pytest.raises(RunError, match="start with a new checkpoint"):
        Memory(known)
    with pytest.raises(RunError, match="start with a new checkpoint"):
        settle(pa.table({"sign": pa.array([1])}))

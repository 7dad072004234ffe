"""What a sender may put into records: it costs those records or their results, never the run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.run.batches.letters import letters_in
from millstream.state.storage import open_storage
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)
WAYS = ("aggregated", "dead", "late", "diverted", "dropped")


def rows(*values: Any, column: str = "v") -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=i), column: v} for i, v in enumerate(values)]


def begun(flow: ms.Flow, schema: str | None = None) -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts", schema=schema), name="in")


def run(flow: ms.Flow, *batches: list[dict[str, Any]], **options: Any) -> Driver:
    driver = Driver(flow, now=START.timestamp(), dead_letter_limit=1, **options)
    for batch in batches:
        driver.push("in", batch).step()
    driver.end()
    for account in driver.ledger.values():
        assert account["offered"] == sum(account[way] for way in WAYS)
    return driver


# -- sums ------------------------------------------------------------------------------------------

WINDOWS = {
    "tumbling": ms.tumbling("1h"),
    "sliding": ms.sliding("1h", "2m"),
    "sparse": ms.sliding("1h", "20m"),
    "session": ms.session("1h"),
    "landmark": ms.landmark("1h"),
    "rows": ms.count_window(100, 100),
    "all of the input": None,
}


@pytest.mark.parametrize(("kind", "batch"), [*((kind, 2) for kind in WINDOWS), ("tumbling", 9)])
def test_a_sum_beyond_64_bits_costs_its_results_and_no_other(kind: str, batch: int) -> None:
    """Also one that leaves them in between and comes back, whatever is added first."""
    most, window = 2**63 - 1, WINDOWS[kind]
    given = {"over": [most, 1, most], "back": [most, most, -most], "low": [-most, -most, 0]}
    flow = ms.Flow("sums")
    keyed = begun(flow).key_by("k")
    windows = keyed if window is None else keyed.window(window)
    windows.agg(total=ms.sum("v"), n=ms.count()).sink(ms.Memory(), name="out")
    records = [
        {"ts": START + timedelta(seconds=at), "k": key, "v": values[at]}
        for at in range(3)
        for key, values in given.items()
    ]
    cuts = [records[at : at + batch] for at in range(0, len(records), batch)]
    with run(flow, *cuts, parallelism=2) as driver:
        out = [row for row in driver.output("out") if row["n"] == 3]
        assert {row["k"] for row in out} == {"back"}
        assert {row["total"] for row in out} == {most}
        assert {letter["operator"] for letter in driver.dead} == {"agg"}
        assert all("total=sum(v) does not fit in 64 bits" in one["error"] for one in driver.dead)
        assert driver.ledger["agg"]["failed"] == len(driver.dead) > 0


def test_sums_are_exact_up_to_the_last_bit() -> None:
    values = [2**62, 2**62 - 1, 2**31, -(2**31), 2**32 + 1, -(2**32) - 1, 5]
    flow = ms.Flow("exact")
    window = begun(flow).key_by().window(ms.tumbling("1h"))
    window.agg(total=ms.sum("v")).sink(ms.Memory(), name="out")
    given = rows(*values)
    with run(flow, given[:3], given[3:-1]) as driver:
        assert [row["total"] for row in driver.output("out")] == [2**63 - 1]
        assert driver.dead == []


def test_a_total_of_top_k_beyond_64_bits_is_null() -> None:
    flow = ms.Flow("top")
    window = begun(flow).key_by().window(ms.tumbling("1h"))
    window.agg(top=ms.top_k("k", 2, by="v")).sink(ms.Memory(), name="out")
    records = [
        {"ts": START, "k": key, "v": value} for key, value in (("a", 2**62), ("a", 2**62), ("b", 1))
    ]
    with run(flow, records) as driver:
        (row,) = driver.output("out")
    assert row["top"] == [{"value": "a", "total": None}, {"value": "b", "total": 1}]


# -- names of folders ------------------------------------------------------------------------------


def read(
    flow: ms.Flow, at: Path, records: list[dict[str, Any]], schema: str = "v string, w string"
) -> ms.Stream:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (at / "in").mkdir(exist_ok=True)
    (at / "in" / f"{len(list((at / 'in').iterdir()))}.jsonl").write_text(lines)
    return flow.source(ms.Files(at / "in", format="json", schema=schema))


def dead(at: Path) -> list[str]:
    return [one["error"] for one in letters_in(open_storage(at / "ck" / "dead"))]


def test_values_too_long_for_a_folder_are_dead_letters(tmp_path: Path) -> None:
    values = [
        ("a", "b"),
        ("ü" * 100, "b"),
        ("a", "x" * 199),
        ("\0/..", ""),
        ("\U0010ffff" * 16, None),
    ]
    flow = ms.Flow("folders")
    stream = read(flow, tmp_path, [{"v": v, "w": w} for v, w in values])
    sink = ms.Parquet(tmp_path / "out", partition_by=("v", "w"))
    stream.select("v", "w", "1 AS one").sink(sink, name="files")
    account = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)["files"]
    assert (account["offered"], account["aggregated"], account["dead"]) == (5, 3, 2)
    assert all("too long for the name of a folder" in why for why in dead(tmp_path))
    assert pq.read_table(tmp_path / "out").num_rows == 3


def test_a_folder_that_no_record_names_is_that_of_null(tmp_path: Path) -> None:
    flow = ms.Flow("missing")
    stream = read(flow, tmp_path, [{"v": "a"}]).map(lambda row: {"v": row["v"]})
    stream.sink(ms.Parquet(tmp_path / "out", partition_by="w"))
    run_in_process(flow, tmp_path / "ck")
    (file,) = (tmp_path / "out").glob("w=__HIVE_DEFAULT_PARTITION__/*")
    assert pq.ParquetFile(file).read().to_pylist() == [{"v": "a"}]


def test_more_folders_than_a_program_would_mean_come_from_a_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.io.folders._MANY", 3)

    def flow(*values: str, out: str = "out") -> ms.Flow:
        made = ms.Flow("many")
        stream = read(made, tmp_path, [{"v": value} for value in values])
        stream.select("v", "1 AS one").sink(ms.Parquet(tmp_path / out, partition_by="v"))
        return made

    run_in_process(flow("a"), tmp_path / "ck")
    run_in_process(flow("b", "c", "d", "e"), tmp_path / "ck")
    assert len(list((tmp_path / "out").glob("v=*"))) == 5
    with pytest.raises(ms.RunError, match="5 folders"):
        run_in_process(flow(out="new"), tmp_path / "other")


# -- columns of files ------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("batch", [1, 1_000_000])
def test_the_first_record_decides_the_type_of_a_column(
    tmp_path: Path, batch: int, parallelism: int
) -> None:
    """And not what happens to be in the first batch: one bad value costs itself."""
    flow = ms.Flow("first")
    values = [None, 1, "n/a", 2.5, "3", 4]
    records = [{"v": json.dumps(value)} for value in values]
    stream = read(flow, tmp_path, records).map(lambda row: {"v": json.loads(row["v"])})
    stream.sink(ms.Parquet(tmp_path / "out"), name="files")
    options: dict[str, Any] = {"batch_bytes": batch, "dead_letter_limit": 1}
    account = run_in_process(flow, tmp_path / "ck", parallelism=parallelism, **options)["files"]
    assert (account["offered"], account["aggregated"], account["dead"]) == (6, 4, 2)
    tables = [pq.ParquetFile(one).read() for one in sorted((tmp_path / "out").glob("*.parquet"))]
    found = [value for table in tables for value in table["v"].to_pylist()]
    assert sorted(found, key=lambda one: (one is None, one)) == [1, 2.5, 4, None]
    assert all("'v' of 'map' is int64 in what was written" in why for why in dead(tmp_path))


# -- columns that only functions know of -----------------------------------------------------------


def as_it_is(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "ts"}


def test_a_column_called_like_the_mark_of_changes_costs_its_records() -> None:
    """It is null in the others, in whose batch it is; and what took its place is no change."""
    flow = ms.Flow("marks")
    begun(flow).map(as_it_is).changes(key="k").sink(ms.Memory(), name="out")
    first = [{"ts": START, "k": key, "v": 1} for key in (1, 2, 3)]
    second = [
        {"ts": START, "k": 1, "v": 2, "op": None},
        {"ts": START, "k": 2, "v": 2, "op": "d"},
    ]
    third = [{"ts": START, "k": 2, "v": 3}]
    with run(flow, first, second, third) as driver:
        out = [(row["k"], row["v"], row["op"]) for row in driver.output("out")]
        assert sorted(out[:3]) == [(1, 1, "+"), (2, 1, "+"), (3, 1, "+")]
        assert sorted(out[3:]) == [(1, 2, "u"), (2, 1, "-"), (2, 3, "+")]
        (letter,) = driver.dead
        assert (letter["operator"], json.loads(letter["raw"])["k"]) == ("out", 2)
        assert "'op' of its own" in letter["error"]


def test_such_a_column_that_is_known_is_refused_before_the_run(tmp_path: Path) -> None:
    flow = ms.Flow("known")
    read(flow, tmp_path, [{"v": "a"}], "v string, op string").changes(key="v").sink(ms.Memory())
    with pytest.raises(ms.ConfigError, match="have a column 'op' of their own"):
        run_in_process(flow, tmp_path / "ck")
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize("how", ["inner", "full", "asof"])
@pytest.mark.parametrize("together", [True, False])
def test_columns_that_both_sides_of_a_join_have(how: str, together: bool) -> None:
    """What one of them has is given, whatever the batches; what both have is a dead letter."""
    flow = ms.Flow("sides")
    left, right = (
        flow.source(ms.Generator(tuple, time="ts"), name=name).map(as_it_is)
        for name in ("left", "right")
    )
    left.join(right, on="k", how=how).sink(ms.Memory(), name="out")
    lefts = [{"k": 1, "v": 1}, {"k": 2, "u": "x"}, {"k": 3, "v": 7}]
    rights = [{"k": 1, "v": "y"}, {"k": 2, "v": "z", "w": 3}, {"k": 3, "w": 1}]
    with Driver(flow, now=START.timestamp(), dead_letter_limit=1) as driver:
        for one, other in zip(lefts, rights, strict=True):
            driver.push("right", [other | {"ts": START}])
            driver.push("left", [one | {"ts": START}])
            if not together:
                driver.step()
        driver.end()
        out = [{n: v for n, v in r.items() if v is not None} for r in driver.output("out")]
        rows = [{n: v for n, v in r.items() if n != "op"} for r in out if r.get("op") != "-"]
        assert sorted(rows, key=lambda row: int(row["k"])) == [
            {"k": 2, "u": "x", "v": "z", "w": 3}, {"k": 3, "v": 7, "w": 1}
        ]  # fmt: skip
        (letter,) = driver.dead
        assert "both sides have a value in 'v'" in letter["error"]
        found = json.loads(letter["raw"])
        assert (found["left"]["v"], found["right"]["v"]) == (1, "y")
        account = driver.ledger["join"]
        assert account["offered"] == account["aggregated"] == 6
        assert (account["answered"], account["failed"]) == (2, 1)


@pytest.mark.parametrize("rows", [1, 100])
def test_lines_of_json_do_not_show_what_other_rows_of_a_batch_have(
    tmp_path: Path, rows: int
) -> None:
    """Where columns are known before the run, all of them are in every line."""
    flow = ms.Flow("lines")
    stream = read(flow, tmp_path, [{"v": "a"}, {"v": "b", "w": "c"}, {"w": "d"}])
    stream.sink(ms.Jsonl(tmp_path / "known"))
    stream.map(lambda row: {n: v for n, v in row.items() if v}).sink(ms.Jsonl(tmp_path / "any"))
    run_in_process(flow, tmp_path / "ck", batch_rows=rows, batch_bytes=rows)
    lines = {
        name: sorted(
            line for file in (tmp_path / name).glob("*.jsonl") for line in file.read_text().split()
        )
        for name in ("known", "any")
    }
    assert lines["any"] == ['{"v":"a"}', '{"v":"b","w":"c"}', '{"w":"d"}']
    assert lines["known"] == [
        '{"v":"a","w":null}', '{"v":"b","w":"c"}', '{"v":null,"w":"d"}'
    ]  # fmt: skip

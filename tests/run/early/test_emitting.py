"""emit="snapshot": the answer as far as it is known as rows of a stream, and the exact one last."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import Driver, reference, run_in_process, snapshots_in_process
from tests.variants import variants

MARKS = [0.2, 0.5]
PAD = "x" * 110  # more blocks


def write(folder: Path, rows: int = 12_000) -> None:
    rng = np.random.default_rng(11)
    folder.mkdir()
    for number in range(5):
        shop = np.sort(rng.choice(["a", "b", "c"], rows // 5, p=[0.6, 0.3, 0.1]))
        lines = [f"{s},{rng.integers(1, 50)},{rng.exponential(3.0):.3f},{PAD}" for s in shop]
        (folder / f"{number}.csv").write_text("\n".join(["shop,items,paid,pad", *lines]) + "\n")


def sales(data: Path, *sinks: Any, emit: Any = None) -> ms.Flow:
    flow = ms.Flow("sales")
    read = flow.source(ms.Files(data, format="csv"), name="sales")
    per_shop = read.key_by("shop").agg(
        emit=emit or ms.snapshot(MARKS),
        n=ms.count(),
        items=ms.sum("items"),
        paid=ms.mean("paid"),
        most=ms.max("items"),
    )
    for sink in sinks:
        per_shop.sink(sink)
    return flow


def exact(data: Path) -> dict[str, tuple]:
    found = duckdb.sql(
        f"SELECT shop, count(*), sum(items)::BIGINT, avg(paid), max(items) FROM '{data}/*.csv' "
        "GROUP BY shop"
    ).fetchall()
    return {row[0]: row[1:] for row in found}


def check(rows: list[dict[str, Any]], true: dict[str, tuple]) -> None:
    """Estimates at the shares that were asked for, then the answer, which is DuckDB's."""
    shares = list(dict.fromkeys(row["progress"] for row in rows))
    assert shares == sorted(shares)
    assert len(shares) == 3
    assert shares[0] == pytest.approx(0.2, abs=0.02)
    assert shares[1] == pytest.approx(0.5, abs=0.02)
    for row in rows:
        n, items, paid, most = true[row["shop"]]
        assert row["exact"] == (row["progress"] == 1.0)
        if row["exact"]:
            assert (row["n"], row["items"], row["most"]) == (n, items, most)
            assert row["paid"] == pytest.approx(paid)
            assert row["n_lower"] == row["n_upper"] == n
        else:
            assert row["n_lower"] <= n <= row["n_upper"]
            assert row["items_lower"] <= items <= row["items_upper"]
            assert row["n_lower"] <= row["n"] <= row["n_upper"]
            assert isinstance(row["n"], int)
            assert row["most"] is None
    last = [row for row in rows if row["exact"]]
    assert sorted(row["shop"] for row in last) == sorted(true)
    assert rows[-len(last) :] == last


@pytest.mark.parametrize("parallelism", variants([2, 1]))
def test_every_sink_gets_estimates_and_the_answer_last(tmp_path: Path, parallelism: int) -> None:
    write(tmp_path / "in")
    called: list[dict[str, Any]] = []
    memory, calls = ms.Memory(), ms.Call(called.append)
    files = ms.Parquet(tmp_path / "parquet"), ms.Jsonl(tmp_path / "jsonl")
    flow = sales(tmp_path / "in", memory, calls, *files, ms.Console())
    run_in_process(flow, tmp_path / "ck", parallelism=parallelism)
    true = exact(tmp_path / "in")
    check(memory.rows, true)
    check(called, true)
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "jsonl").glob("part-*"))
        for line in path.read_text().splitlines()
    ]
    check(lines, true)
    parquet = duckdb.sql(
        f"SELECT * FROM read_parquet('{tmp_path}/parquet/*.parquet', union_by_name=true) "
        "ORDER BY progress"
    )
    check([dict(zip(parquet.columns, row, strict=True)) for row in parquet.fetchall()], true)
    assert called == memory.rows


def test_steps_after_it_get_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow, sink = ms.Flow("some"), ms.Memory()
    read = flow.source(ms.Files(tmp_path / "in", format="csv"), name="sales")
    counted = read.key_by("shop").agg(emit=ms.snapshot([0.5]), n=ms.count())
    wide = counted.where("shop <> 'b'").select("shop", "n_upper - n_lower AS wide", "exact")
    wide.map(lambda row: {**row, "seen": True}).sink(sink)
    ledger = run_in_process(flow, tmp_path / "ck")
    assert [(row["shop"], row["exact"], row["seen"]) for row in sink.rows] == [
        ("a", False, True),
        ("c", False, True),
        ("a", True, True),
        ("c", True, True),
    ]
    assert [row["wide"] == 0 for row in sink.rows] == [False, False, True, True]
    assert ledger["where"]["offered"] == 6


def test_the_usual_shares_are_looked_at_if_none_are_given(tmp_path: Path) -> None:
    write(tmp_path / "in")
    sink = ms.Memory()
    run_in_process(sales(tmp_path / "in", sink, emit="snapshot"), tmp_path / "ck")
    shares = list(dict.fromkeys(row["progress"] for row in sink.rows))
    assert len(shares) == 8
    assert shares[-1] == 1.0


def test_the_iterator_and_the_sinks_get_the_same(tmp_path: Path) -> None:
    write(tmp_path / "in")
    sink = ms.Memory()
    found = list(snapshots_in_process(sales(tmp_path / "in", sink), tmp_path / "ck", [0.3]))
    assert [one.exact for one in found] == [False, True]
    for one in found:
        rows = [row for row in sink.rows if row["progress"] == one.progress]
        for row, shown in zip(rows, one.table.to_pylist(), strict=True):
            assert {name: row[name] for name in shown} == pytest.approx(shown, abs=1)


def test_a_ranking_has_rows_for_places(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(2)
    words = [f"word-{n:07}" for n in rng.geometric(0.25, 60_000)]
    for number in range(4):
        part = words[number::4]
        lines = [" ".join(part[at : at + 8]) for at in range(0, len(part), 8)]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    flow, sink = ms.Flow("words"), ms.Memory()
    lines = flow.source(ms.Files(folder, format="text"), name="lines")
    each = lines.flat_map(lambda row: [{"word": one} for one in row["value"].split()])
    counts = each.key_by("word").agg(n=ms.count())
    counts.key_by().agg(emit=ms.snapshot([0.5]), top=ms.top_k("word", 3, by="n")).sink(sink)
    run_in_process(flow, tmp_path / "ck", parallelism=2)
    order = [word for word, _ in Counter(words).most_common(3)]
    assert [row["place"] for row in sink.rows] == [1, 2, 3] * 2
    assert [row["word"] for row in sink.rows] == order * 2
    assert [row["exact"] for row in sink.rows] == [False] * 3 + [True] * 3
    assert all(row["settled"] for row in sink.rows)
    assert [row["n"] for row in sink.rows[3:]] == [Counter(words)[word] for word in order]


def test_another_aggregate_of_the_same_groups_is_not_mixed_up(tmp_path: Path) -> None:
    """Aggregates over one stream and key share their state; one of them is looked at."""
    write(tmp_path / "in")
    flow, looked, plain = ms.Flow("two"), ms.Memory(), ms.Memory()
    read = flow.source(ms.Files(tmp_path / "in", format="csv"), name="sales")
    read.key_by("shop").agg(most=ms.max("items"), mid=ms.quantile("items", 0.5)).sink(plain)
    read.key_by("shop").agg(
        emit=ms.snapshot([0.5]), items=ms.sum("items"), mid=ms.quantile("paid", 0.5)
    ).sink(looked)
    run_in_process(flow, tmp_path / "ck", parallelism=2)
    true = exact(tmp_path / "in")
    assert {row["shop"]: row["most"] for row in plain.rows} == {k: v[3] for k, v in true.items()}
    assert len(plain.rows) == 3
    for row in looked.rows:
        items = true[row["shop"]][1]
        assert row["items_lower"] <= items <= row["items_upper"]
        assert row["mid"] < 4  # of what was paid, not of items
    assert [row["exact"] for row in looked.rows] == [False] * 3 + [True] * 3


def test_an_empty_input_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("shop,items,paid\n")
    flow, sink = ms.Flow("none"), ms.Memory()
    read = flow.source(
        ms.Files(tmp_path / "in", format="csv", schema="shop string, items bigint"), name="sales"
    )
    read.key_by("shop").agg(emit="snapshot", items=ms.sum("items")).sink(sink)
    run_in_process(flow, tmp_path / "ck")
    assert sink.rows == []


def test_trying_it_shows_exact_rows_of_what_was_tried(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow = ms.Flow("tried")
    read = flow.source(ms.Files(tmp_path / "in", format="csv"), name="sales")
    rows = read.key_by().agg(emit="snapshot", n=ms.count()).head(5).rows
    assert [(row["n"] == row["n_upper"], row["exact"]) for row in rows] == [(True, True)]


def test_the_plan_says_it(tmp_path: Path) -> None:
    write(tmp_path / "in", 100)
    assert (
        "emits snapshots, at 20%, 50% and at the end"
        in sales(tmp_path / "in", ms.Memory()).explain()
    )


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 100)

    def flow_of(build: Any) -> ms.Flow:
        flow = ms.Flow("refused")
        build(flow.source(ms.Files(tmp_path / "in", format="csv"), name="sales"))
        return flow

    def snap_by(stream: Any, key: str, **aggs: Any) -> Any:
        return stream.key_by(key).agg(emit="snapshot", **(aggs or {"n": ms.count()}))

    def snap(stream: Any, **aggs: Any) -> Any:
        return snap_by(stream, "shop", **aggs)

    twice = flow_of(lambda s: [snap(s).sink(ms.Memory()), snap(s).sink(ms.Memory())])
    with pytest.raises(ConfigError, match="one step of a flow can"):
        run_in_process(twice, tmp_path / "ck")
    added = flow_of(lambda s: snap(s).key_by().agg(all=ms.sum("n")).sink(ms.Memory()))
    with pytest.raises(ConfigError, match="would add them up"):
        run_in_process(added, tmp_path / "ck")
    with pytest.raises(ConfigError, match="'n_lower' is already a column"):
        flow_of(lambda s: snap(s, n=ms.count(), n_lower=ms.min("items")))
    with pytest.raises(ConfigError, match="'exact' is already a column"):
        flow_of(lambda s: snap(s, exact=ms.count()))
    with pytest.raises(ConfigError, match="key_by: the name 'progress' is already a column"):
        flow_of(lambda s: snap_by(s.select("shop AS progress"), "progress"))
    with pytest.raises(ConfigError, match="key_by: the name 'n_upper' is already a column"):
        flow_of(lambda s: snap_by(s.select("shop AS n_upper"), "n_upper"))
    with pytest.raises(ConfigError, match=r"ms\.snapshot"):
        flow_of(lambda s: s.key_by("shop").agg(emit="snapshots", n=ms.count()))
    live = ms.Flow("live")
    rate = live.source(ms.Rate(1, limit=10), name="rate")
    rate.key_by().agg(emit="snapshot", n=ms.count()).sink(ms.Memory())
    with pytest.raises(ConfigError, match="stored files"):
        run_in_process(live, tmp_path / "ck")
    plain = sales(tmp_path / "in", ms.Memory())
    with pytest.raises(ConfigError, match="run_in_process"):
        Driver(plain)
    with pytest.raises(ConfigError, match="does not know estimates"):
        reference(plain, {"sales": []})

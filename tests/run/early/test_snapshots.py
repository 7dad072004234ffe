"""Snapshots of flows over stored files, in process: answers, bounds, order, kills, refusals."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.api.early import looks
from millstream.errors import ConfigError, RunError
from millstream.run.early.target import target_for
from millstream.run.engines import engine_of
from millstream.run.exploring import steps_here
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process, snapshots_in_process

LANGS = ("de", "en", "fr", "it", "sw")
MARKS = [0.1, 0.25, 0.5]


def write(folder: Path, rows: int = 24_000, files: int = 3, seed: int = 1) -> list[dict[str, Any]]:
    """Views per language as CSV, sorted by language within each file."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for number in range(files):
        lang = np.sort(rng.choice(5, rows // files, p=[0.2, 0.5, 0.2, 0.09, 0.01]))
        views = rng.integers(1, 400, len(lang))
        lines = ["lang,views,pad"]
        for one, many in zip(lang.tolist(), views.tolist(), strict=True):
            records.append({"lang": LANGS[one], "views": many})
            lines.append(f"{LANGS[one]},{many},{'x' * int(rng.integers(10, 40))}")
        (folder / f"views-{number}.csv").write_text("\n".join(lines) + "\n")
    return records


def views(folder: Path, sink: Any = None) -> ms.Flow:
    flow = ms.Flow("views")
    counted = flow.source(ms.Files(folder, format="csv"), name="views")
    answer = counted.key_by("lang").agg(n=ms.count(), total=ms.sum("views"), mean=ms.mean("views"))
    answer.sink(sink or ms.Memory())
    return flow


def exact(records: list[dict[str, Any]]) -> dict[str, tuple[int, int, float]]:
    found: dict[str, list[int]] = {}
    for record in records:
        found.setdefault(record["lang"], []).append(record["views"])
    return {k: (len(v), sum(v), sum(v) / len(v)) for k, v in found.items()}


def by_lang(snapshot: ms.Snapshot) -> dict[str, dict[str, Any]]:
    return {row["lang"]: row for row in snapshot.table.to_pylist()}


def test_the_last_snapshot_is_exact_and_equals_a_run(tmp_path: Path) -> None:
    records = write(tmp_path / "in")
    plain, looked = ms.Memory(), ms.Memory()
    run_in_process(views(tmp_path / "in", plain), tmp_path / "plain")
    found = list(snapshots_in_process(views(tmp_path / "in", looked), tmp_path / "ck", MARKS))
    last = found[-1]
    assert [one.exact for one in found] == [False] * len(MARKS) + [True]
    order = lambda rows: sorted(rows, key=lambda row: row["lang"])  # noqa: E731
    assert order(last.answer.to_pylist()) == order(plain.rows) == order(looked.rows)
    for lang, (n, total, mean) in exact(records).items():
        row = by_lang(last)[lang]
        assert (row["n"], row["n_lower"], row["n_upper"]) == (n, n, n)
        assert row["total"] == total
        assert row["mean"] == pytest.approx(mean)
    assert (last.progress, last.ended_by) == (1.0, "all was read")


def test_snapshots_come_at_the_shares_asked_for_with_bounds_that_hold(tmp_path: Path) -> None:
    records = write(tmp_path / "in", rows=60_000)
    found = list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck", MARKS))
    for mark, one in zip(MARKS, found, strict=False):
        assert mark <= one.progress < mark + 0.05
        assert "all snapshots together" in one.promise
        for lang, row in by_lang(one).items():
            for name, true in zip(("n", "total", "mean"), exact(records)[lang], strict=True):
                low, high = row[f"{name}_lower"], row[f"{name}_upper"]
                assert low is None or low <= true <= high, (mark, lang, name)
    english = [by_lang(one)["en"] for one in found]
    assert english[0]["n_upper"] is None  # fewer than 30 blocks
    widths = [row["n_upper"] - row["n_lower"] for row in english[1:]]
    assert widths == sorted(widths, reverse=True)
    assert widths[1] < 30_000
    assert widths[-1] == 0


def test_a_stop_shows_what_was_read_up_to_there(tmp_path: Path) -> None:
    write(tmp_path / "in")
    plan, place = plan_flow(views(tmp_path / "in")), Checkpoint(tmp_path / "ck")
    place.lock()
    looking = target_for(plan, looks([0.05], None, None))
    engine, looker = engine_of(plan, place, Settings(parallelism=1, batch_rows=2_000), looking)
    assert looker is not None
    seen = steps_here(engine, looker)
    first = next(seen)  # at 5 %
    executor = InProcess(engine.plan, 1)
    for _ in range(2):
        engine.step(executor)
        assert not looker.after_step()
    read = engine.manifest.ledger["views"]["offered"] / 24_000
    looker.at_stop()
    told = looker.newest
    assert told is not None and (told.ended_by, told.exact, told.left) == ("a stop", False, None)
    assert told.progress == pytest.approx(read, abs=0.02) and told.progress > first.progress + 0.05
    looker.at_stop()
    assert looker.newest is told
    seen.close()  # type: ignore[attr-defined]


def test_estimates_do_not_depend_on_parallelism(tmp_path: Path) -> None:
    write(tmp_path / "in")
    runs = [
        [
            sorted(one.table.to_pylist(), key=lambda row: row["lang"])
            for one in snapshots_in_process(
                views(tmp_path / "in"), tmp_path / f"ck{parts}", [0.3, 0.6], parallelism=parts
            )
        ]
        for parts in (1, 3)
    ]
    for left, right in zip(*runs, strict=True):
        for a, b in zip(left, right, strict=True):
            assert a == pytest.approx(b)


def test_another_seed_reads_in_another_order(tmp_path: Path) -> None:
    write(tmp_path / "in")
    first = [
        next(
            iter(snapshots_in_process(views(tmp_path / "in"), tmp_path / str(n), [0.2], seed=seed))
        ).table.to_pylist()
        for n, seed in enumerate((1, 1, 2))
    ]
    assert first[0] == first[1] != first[2]


def test_after_a_kill_the_same_order_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "in")
    marks = [0.2, 0.4, 0.6]
    whole = list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "whole", marks))
    sink = ms.Memory()
    begun = snapshots_in_process(views(tmp_path / "in", sink), tmp_path / "ck", marks)
    first = next(begun)
    begun.close()  # type: ignore[attr-defined]
    rest = list(snapshots_in_process(views(tmp_path / "in", sink), tmp_path / "ck", marks))
    assert rest[0].progress == first.progress  # what was committed is looked at again
    found = rest
    assert [one.progress for one in found] == [one.progress for one in whole]
    for left, right in zip(found, whole, strict=True):
        assert left.table.to_pylist() == right.table.to_pylist()
    assert len(sink.rows) == len(LANGS)


def test_a_plain_run_ends_what_snapshots_began(tmp_path: Path) -> None:
    records = write(tmp_path / "in")
    begun = snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck", [0.2])
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    sink = ms.Memory()
    run_in_process(views(tmp_path / "in", sink), tmp_path / "ck")
    assert {row["lang"]: (row["n"], row["total"]) for row in sink.rows} == {
        lang: one[:2] for lang, one in exact(records).items()
    }


def test_snapshots_cannot_go_on_from_a_plain_run(tmp_path: Path) -> None:
    write(tmp_path / "in")
    run_in_process(views(tmp_path / "in"), tmp_path / "ck")
    with pytest.raises(ConfigError, match="begun by a plain run"):
        list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck"))


def test_a_changed_file_is_refused_when_going_on(tmp_path: Path) -> None:
    write(tmp_path / "in")
    begun = snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck", [0.2])
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    with (tmp_path / "in" / "views-0.csv").open("a") as file:
        file.write("de,1,x\n")
    with pytest.raises(RunError, match=r"views-0\.csv was changed"):
        list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck"))


def test_files_that_came_later_are_not_left_out_silently(tmp_path: Path) -> None:
    write(tmp_path / "in")
    begun = snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck", [0.2])
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    (tmp_path / "in" / "views-9.csv").write_text("lang,views,pad\n")
    (tmp_path / "in" / "empty.csv").write_text("")
    with pytest.raises(RunError, match=r"1 file came after .*views-9\.csv"):
        list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck"))
    with pytest.raises(RunError, match="begin again with a new checkpoint"):
        run_in_process(views(tmp_path / "in"), tmp_path / "ck")
    (tmp_path / "in" / "views-9.csv").unlink()
    assert [one.exact for one in snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck")][-1]


def test_a_run_ends_once_the_error_is_small_enough_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "in", rows=60_000)
    flow = ms.Flow("all")
    flow.source(ms.Files(tmp_path / "in", format="csv"), name="views").key_by().agg(
        n=ms.count()
    ).sink(ms.Memory())
    found = list(
        snapshots_in_process(
            flow, tmp_path / "ck", [0.9], until=ms.rel_error(0.05), batch_rows=2_000
        )
    )
    (last,) = found
    assert last.ended_by == "rel_error(0.05)"
    assert not last.exact
    (row,) = last.table.to_pylist()
    assert row["n_lower"] <= 60_000 <= row["n_upper"]
    assert row["n_upper"] - row["n"] <= 0.05 * row["n"]
    rest = list(snapshots_in_process(flow, tmp_path / "ck", [0.9]))
    assert len(rest) == 2
    assert rest[-1].table.to_pylist()[0]["n"] == 60_000


def test_an_error_that_is_no_share_of_zero_is_told(tmp_path: Path) -> None:
    """Bounds about a median of 0 are within no share of it, unless they are 0 themselves."""
    values = np.random.default_rng(1).choice([-1, 0, 1], 20_000, p=[0.49, 0.02, 0.49])
    lines = [f"{one},{'x' * 40}" for one in values.tolist()]
    (tmp_path / "in.csv").write_text("\n".join(["v,pad", *lines, ""]))
    flow = ms.Flow("zero")
    stream = flow.source(ms.Files(tmp_path / "in.csv"), name="in")
    stream.key_by().agg(middle=ms.quantile("v", 0.5), n=ms.count()).sink(ms.Memory())

    def seen(place: str, until: Any) -> list[ms.Snapshot]:
        return list(
            snapshots_in_process(flow, tmp_path / place, [0.5], until=until, batch_rows=1_000)
        )

    half, _ = seen("all", ms.rel_error(0.5))
    (note,) = half.notes
    assert note.startswith("middle: no error is a share of an estimate of 0, so while there is one")
    (first,) = seen("one of two", ms.rel_error(0.5, share=0.5))
    assert (first.ended_by, first.notes) == ("rel_error(0.5, share=0.5)", ())


def test_a_run_ends_in_time(tmp_path: Path) -> None:
    write(tmp_path / "in")
    until = ms.rel_error(0.0001) | ms.time_limit("1ms")
    (only,) = snapshots_in_process(
        views(tmp_path / "in"), tmp_path / "ck", [0.9], until=until, batch_rows=2_000
    )
    assert only.ended_by == 'time_limit("1ms")'


def test_groups_not_seen_are_bounded(tmp_path: Path) -> None:
    write(tmp_path / "in")
    found = list(snapshots_in_process(views(tmp_path / "in"), tmp_path / "ck", MARKS))
    shares = [one.unseen.share for one in found if one.unseen is not None]
    assert len(shares) == len(MARKS)
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] < 0.2


def test_what_has_no_estimator_says_so_and_is_exact_at_the_end(tmp_path: Path) -> None:
    records = write(tmp_path / "in")
    flow = ms.Flow("largest")
    flow.source(ms.Files(tmp_path / "in", format="csv"), name="views").key_by("lang").agg(
        most=ms.max("views"), n=ms.count()
    ).sink(ms.Memory())
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    assert first.notes == ("most: max(views) has no estimate before all was read",)
    assert {row["most"] for row in first.table.to_pylist()} == {None}
    assert {row["lang"]: row["most"] for row in last.table.to_pylist()} == {
        lang: max(r["views"] for r in records if r["lang"] == lang) for lang in LANGS
    }


def test_what_goes_by_the_order_of_records_is_what_a_run_gives(tmp_path: Path) -> None:
    """Without a time of their own records lie in the order of files, in whichever they are read."""
    write(tmp_path / "in", files=12)
    found = []
    for run in (run_in_process, snapshots_in_process):
        flow, ends, all_of = ms.Flow("ends"), ms.Memory(), ms.Memory()
        rows = flow.source(ms.Files(tmp_path / "in", format="csv"), name="views").key_by("lang")
        rows.agg(first=ms.first("views"), last=ms.last("views")).named("ends").sink(ends)
        rows.reduce(lambda key, records, window: {"all": [r["views"] for r in records]}).sink(
            all_of
        )
        options: Any = {"at": [0.2, 0.6], "step": "ends"} if run is snapshots_in_process else {}
        list(run(flow, tmp_path / run.__name__, **options) or ())
        found.append([sorted(map(repr, sink.rows)) for sink in (ends, all_of)])
    assert found[0] == found[1]


def test_steps_behind_the_one_that_is_looked_at_are_named(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow, most = ms.Flow("most"), ms.Memory()
    counts = flow.source(ms.Files(tmp_path / "in", format="csv")).key_by("lang", "views")
    counts.agg(n=ms.count()).key_by("lang").agg(most=ms.max("n")).named("busiest").sink(most)
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    assert first.notes[-1].startswith("busiest: comes after agg, which is looked at")
    assert "n_upper" in last.table.column_names
    assert {row["lang"] for row in most.rows} == set(LANGS)


def test_records_that_are_in_no_answer_are_told(tmp_path: Path) -> None:
    write(tmp_path / "in")
    with (tmp_path / "in" / "views-1.csv").open("a") as file:
        file.write("de,#DIV/0!,x\nen,many,x\n")
    flow, place = views(tmp_path / "in"), tmp_path / "ck"
    *_, last = snapshots_in_process(flow, place, [0.5])
    assert last.notes == ("2 records are dead letters (in the checkpoint), and not in the answer",)
    (again,) = snapshots_in_process(flow, place, [0.5])
    assert again.notes == last.notes


@pytest.mark.parametrize(("exponent", "heavy"), [(1.3, True), (4.0, False)])
def test_values_without_a_variance_are_marked(tmp_path: Path, exponent: float, heavy: bool) -> None:
    rng = np.random.default_rng(2)
    lines = [f"{one:.4f}" for one in rng.pareto(exponent, 100_000).tolist()]
    (tmp_path / "claims.csv").write_text("\n".join(["claim", *lines]) + "\n")
    flow = ms.Flow("claims")
    claims = flow.source(ms.Files(tmp_path / "claims.csv", format="csv"), name="claims")
    answer = claims.key_by().agg(n=ms.count(), total=ms.sum("claim"), mean=ms.mean("claim"))
    answer.sink(ms.Memory())
    ratios = {"each": ("total", "n")}
    steps = snapshots_in_process(flow, tmp_path / "ck", [0.2, 0.4], ratios=ratios)
    first = next(steps)
    steps.close()  # who goes on knows what was read before
    second, last = snapshots_in_process(flow, tmp_path / "ck", [0.4], ratios=ratios)
    for one in (first, second):
        assert one.heavy == (("total", "mean", "each") if heavy else ())
        assert any("heavy tail, no promise" in note for note in one.notes) == heavy
    assert (last.exact, last.heavy) == (True, ())


def test_steps_before_the_aggregate_count(tmp_path: Path) -> None:
    records = write(tmp_path / "in")
    flow = ms.Flow("some")
    source = flow.source(ms.Files(tmp_path / "in", format="csv"), name="views")
    source.where("views > 390").key_by().agg(n=ms.count()).sink(ms.Memory())
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    true = sum(record["views"] > 390 for record in records)
    (row,) = first.table.to_pylist()
    assert row["n_lower"] <= true <= row["n_upper"]
    assert last.table.to_pylist()[0]["n"] == true


def test_quantiles_and_different_values_have_estimates_too(tmp_path: Path) -> None:
    records = write(tmp_path / "in", rows=60_000)
    flow = ms.Flow("values")
    flow.source(ms.Files(tmp_path / "in", format="csv"), name="views").key_by("lang").agg(
        half=ms.quantile("views", 0.5),
        several=ms.quantile("views", [0.1, 0.9]),
        different=ms.distinct("views"),
        n=ms.count(),
    ).sink(ms.Memory())
    *found, last = snapshots_in_process(flow, tmp_path / "ck", MARKS, parallelism=2)
    for lang in LANGS:
        views = [r["views"] for r in records if r["lang"] == lang]
        exact = {"half": float(np.median(views)), "different": len(set(views))}
        for one in found:
            row = by_lang(one).get(lang, {})
            for name, true in exact.items():
                low, high = row.get(f"{name}_lower"), row.get(f"{name}_upper")
                assert low is None or low <= true, (one.progress, lang, name)
                assert high is None or high >= true, (one.progress, lang, name)
            assert row.get("several") is None
        assert {name: by_lang(last)[lang][name] for name in exact} == exact
    english = by_lang(found[-1])["en"]
    assert english["half"] == pytest.approx(200, abs=15)
    assert english["half_upper"] - english["half_lower"] < 60
    assert english["different_lower"] == 399
    assert found[0].notes == (
        "several: quantile(views, q=[0.1, 0.9]) has no estimate before all was read",
    )


@pytest.mark.parametrize("kind", ["parquet", "gz", "json"])
def test_other_files_have_blocks_too(tmp_path: Path, kind: str) -> None:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    total = 0
    for number in range(45):
        rows = [{"lang": "en", "views": int(v)} for v in rng.integers(0, 9, 1000)]
        total += sum(row["views"] for row in rows)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
        elif kind == "gz":
            (folder / f"{number}.json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{number}.json").write_text(text)
    flow = ms.Flow("kinds")
    form = "parquet" if kind == "parquet" else "json"
    flow.source(ms.Files(folder, format=form), name="views").key_by("lang").agg(
        total=ms.sum("views")
    ).sink(ms.Memory())
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.8])
    (row,) = first.table.to_pylist()
    assert row["total_lower"] <= total <= row["total_upper"]
    assert last.table.to_pylist()[0]["total"] == total


def test_records_over_line_ends_are_read_by_files(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        rows = "".join(f'en,{view},"two\nlines"\n' for view in range(50))
        (folder / f"{number}.csv").write_text("lang,views,text\n" + rows)
    flow = ms.Flow("lines")
    flow.source(ms.Files(folder, format="csv", multiline=True), name="views").key_by("lang").agg(
        n=ms.count()
    ).sink(ms.Memory())
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5])
    assert first.table.to_pylist()[0]["n"] == pytest.approx(600)
    assert last.table.to_pylist()[0]["n"] == 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": [25]}, "not a share of the input"),
        ({"confidence": 95}, "expected a share"),
        ({"interval": "exact"}, "anytime"),
        ({"interval": "pointwise", "until": ms.rel_error(0.1)}, "chosen by them"),
        ({"until": 0.01}, "ms.rel_error"),
        ({"step": "other"}, "there are agg"),
        ({"seed": -1}, "a whole number from 0 on"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path / "in", rows=300)
    with pytest.raises(ConfigError, match=message):
        views(tmp_path / "in").snapshots(checkpoint=tmp_path / "ck", **options)


@pytest.mark.parametrize(
    ("key", "aggs", "twice"),
    [
        ("n_upper", {"n": ms.count()}, "n_upper"),
        ("lang", {"n": ms.count(), "n_lower": ms.sum("views")}, "n_lower"),
    ],
)
def test_bounds_do_not_take_the_place_of_other_columns(
    tmp_path: Path, key: str, aggs: dict[str, Any], twice: str
) -> None:
    write(tmp_path / "in", rows=300)
    flow = ms.Flow("names")
    source = flow.source(ms.Files(tmp_path / "in", format="csv"), name="views")
    source.select(f"lang AS {key}", "views").key_by(key).agg(**aggs).sink(ms.Memory())
    with pytest.raises(ConfigError, match=f"'agg' would have two columns '{twice}'"):
        flow.snapshots(checkpoint=tmp_path / "ck")


def test_a_large_file_that_cannot_be_cut_has_to_be_read_before_there_are_bounds(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(5)
    for number in range(80):
        low, rows = (100, 4_000) if number == 79 else (0, 50)
        lines = "\n".join(f"en,{view}" for view in rng.integers(low, low + 10, rows))
        (folder / f"{number}.csv.gz").write_bytes(gzip.compress(f"lang,views\n{lines}\n".encode()))
    said = set()
    for seed in range(3):
        *found, last = snapshots_in_process(
            views(folder), tmp_path / f"ck{seed}", [0.2, 0.3, 0.9], seed=seed
        )
        true = by_lang(last)["en"]
        for one in found:
            row = by_lang(one)["en"]
            for name in ("n", "total", "mean"):
                if row[f"{name}_lower"] is not None:
                    said.add(name)
                    assert row[f"{name}_lower"] <= true[name] <= row[f"{name}_upper"]
            large = any("that cannot be cut" in note for note in one.notes)
            assert large == (one.progress < 0.5)
    assert said == {"n", "total", "mean"}


def test_a_directory_of_another_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "in", rows=300)
    flow, answers = views(tmp_path / "in"), tmp_path / "answers"
    assert list(snapshots_in_process(flow, tmp_path / "ck", publish=answers))[-1].exact
    with pytest.raises(ConfigError, match="has snapshots of another run"):
        list(snapshots_in_process(flow, tmp_path / "other", publish=answers))
    assert Checkpoint(tmp_path / "other", create=False).latest() is None


def test_flows_with_an_order_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", rows=300)
    flow = ms.Flow("updates")
    source = flow.source(ms.Files(tmp_path / "in", format="csv"), name="views")
    source.key_by("lang").update(lambda event, slate, ctx: None, name="u").sink(ms.Memory())
    with pytest.raises(ConfigError, match="order of time"):
        flow.snapshots()
    live = ms.Flow("live")
    live.source(ms.Rate(1), name="rate").key_by().window(ms.tumbling("1s")).agg(n=ms.count()).sink(
        ms.Memory()
    )
    with pytest.raises(ConfigError, match="stored files"):
        live.snapshots()

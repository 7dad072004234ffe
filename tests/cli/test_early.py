"""Early answers on the command line: options, tables, and a run without Spark's help."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import millstream as ms
from millstream.api.early import Unseen
from millstream.cli.answers import answer_table
from millstream.cli.early import looks_of
from millstream.errors import ConfigError


def shown(snapshot: ms.Snapshot, rows: int = 20, width: int = 100) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(answer_table(snapshot, rows))
    return console.export_text()


def test_options_are_shares_and_durations() -> None:
    looks = looks_of("10%, 25%,0.5", "1%", "30s", Path("out"))
    assert looks is not None
    assert looks.at == (0.1, 0.25, 0.5)
    assert str(looks.until) == 'rel_error(0.01) | time_limit("30s")'
    assert looks.publish == Path("out")
    assert looks_of(None, None, None, None) is None


@pytest.mark.parametrize("text", ["ten", "0%", "150%", "-5%", "25,", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"like 25% or 0\.25"):
        looks_of(text, None, None, None)


def test_a_table_shows_bounds_progress_and_what_is_left() -> None:
    table = pa.table(
        {
            "lang": ["sw", "en", "fr\x1b[31m"],
            "n": [1.0, 50_000.0, 300.0],
            "n_lower": [None, 40_000.0, 200.0],
            "n_upper": [None, 55_000.0, 450.0],
        }
    )
    text = shown(
        ms.Snapshot(
            0.25,
            table,
            False,
            promise="holds",
            unseen=Unseen(4, 0.01, {"n": 12.0}),
            elapsed=5.0,
            left=15.0,
            notes=("max: none",),
            heavy=("n",),
        )
    )
    lines = text.splitlines()
    assert "25.0% read in 5.0 s; about 15 s left" in lines[0]
    assert lines[1].split()[:4] == ["lang", "n,", "heavy", "tail"]
    assert [line.split()[0] for line in lines[2:5]] == ["en", "fr\\x1b[31m", "sw"]
    assert "50,000 ±20.0%" in lines[2]
    assert "├" in lines[2]
    assert "?" in lines[4]
    assert "95% confidence: holds" in text
    assert "1.00% of the input; if it is strewn as others are, n 12" in text
    assert "±   ?: too little was read" in text
    assert "max: none" in text
    assert "and 2 more" in shown(ms.Snapshot(0.25, table, False), rows=1)


def test_what_ended_a_run_is_said() -> None:
    table = pa.table({"n": [1.0], "n_lower": [1.0], "n_upper": [1.0]})
    assert "ended by rel_error(0.01)" in shown(
        ms.Snapshot(0.2, table, False, ended_by="rel_error(0.01)")
    )
    whole = shown(ms.Snapshot(1.0, table, True, ended_by="all was read"))
    assert "exact" in whole
    assert "?" not in whole


def test_numbers_have_as_many_digits_as_are_known() -> None:
    found = [(588.93, 550.0, 630.0), (12.089, 9.7, 14.5), (0.0001234, 0.0001, 0.0002)]
    values, lower, upper = zip(*found, strict=True)
    table = pa.table({"n": values, "n_lower": lower, "n_upper": upper})
    text = shown(ms.Snapshot(0.5, table, False))
    assert [line.split("±")[0].strip() for line in text.splitlines()[2:5]] == [
        "589",
        "12.1",
        "0.0001234",
    ]


def test_a_small_error_is_not_none() -> None:
    table = pa.table({"n": [10_000.0], "n_lower": [9_999.0], "n_upper": [10_001.0]})
    assert "10,000 ±<0.1%" in shown(ms.Snapshot(0.9, table, False))


def test_an_error_of_many_times_the_estimate_is_not_told_to_a_digit() -> None:
    table = pa.table({"n": [10.0], "n_lower": [4.0], "n_upper": [770.0]})
    assert "10 ±>999%" in shown(ms.Snapshot(0.1, table, False))


def test_a_bound_far_out_does_not_squeeze_all_other_bars() -> None:
    table = pa.table(
        {
            "lang": ["en", "sw"],
            "n": [100.0, 10.0],
            "n_lower": [80.0, 1.0],
            "n_upper": [130.0, 4_000.0],
        }
    )
    bars = shown(ms.Snapshot(0.1, table, False)).splitlines()[2:4]
    assert bars[0].rstrip().endswith("┤")
    assert bars[1].rstrip().endswith("─→")


def test_bounds_are_shown_in_full_where_a_line_has_no_room_for_all() -> None:
    columns: dict[str, list[object]] = {"carrier": ["UA", "OO"]}
    for name in ("n", "delay", "miles", "planes", "gates"):
        columns |= {name: [717_644_192.0, 128_208.0]}
        columns |= {f"{name}_lower": [700_000_000.0, None], f"{name}_upper": [750_000_000.0, None]}
    snapshot = ms.Snapshot(0.1, pa.table(columns), False)
    assert shown(snapshot, width=140).count("717,644,192 ± 4.5%") == 5
    narrow = shown(snapshot, width=84)
    assert narrow.count("718M ± 4.5%") == 5
    assert narrow.count("128k ±   ?") == 5
    assert "…" not in narrow
    assert "●" not in narrow
    exact = ms.Snapshot(1.0, pa.table(columns), True)
    assert shown(exact, width=100).count("7.17644e+08") == 5
    assert shown(exact, width=50).count("718M") == 5


def test_values_for_which_there_is_no_room_are_left_out_and_named() -> None:
    columns: dict[str, list[object]] = {"carrier": ["UA", "OO"]}
    for name in ("n", "delay", "planes"):
        columns |= {name: [54_321.0, 128.0]}
        columns |= {f"{name}_lower": [50_000.0, None], f"{name}_upper": [60_000.0, None]}
    text = shown(ms.Snapshot(0.1, pa.table(columns), False), width=40)
    lines = text.splitlines()
    assert lines[1].split() == ["carrier", "n", "delay"]
    assert lines[2].split() == ["UA", "54.3k", "±10.5%", "54.3k", "±10.5%"]
    assert "no room for planes" in text


def test_bounds_about_nothing_are_told_as_they_are() -> None:
    table = pa.table({"n": [0.0], "n_lower": [-1500.0], "n_upper": [1000.0]})
    assert "0 ±1.5k" in shown(ms.Snapshot(0.1, table, False)).replace("± ", "±")


def test_sums_that_are_no_numbers_are_shown() -> None:
    values = [float("nan"), 3.0, float("inf")]
    table = pa.table({"lang": ["a", "b", "c"], "n": values, "n_lower": values, "n_upper": values})
    lines = shown(ms.Snapshot(1.0, table, True)).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["b", "3"], ["a", "nan"], ["c", "inf"]]

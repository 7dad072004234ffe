"""The last words of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from millstream.cli.display import Lines, show_summary
from millstream.run.batches.ledger import summary
from millstream.run.reporting import Progress


def said(late: int, diverted: int = 0) -> str:
    account = {"offered": 1000, "aggregated": 1000 - late - diverted, "late": late}
    books = {"users": {**account, "diverted": diverted}}
    progress = Progress(batch=3, new_batches=4, rows=1000, ledger=books)
    out = io.StringIO()
    show_summary(Console(file=out, width=200), progress, ["users"], "dead", "complete")
    return out.getvalue()


def test_many_late_records_are_worth_a_word() -> None:
    assert "250 of 1,000 records (25%) came too late for 'users'" in said(200, 50)
    assert "lateness" in said(11)


def test_what_was_diverted_is_in_the_books() -> None:
    lines = said(200, 50).splitlines()
    assert lines[1].split() == [
        "ledger",
        "offered",
        "aggregated",
        "dead",
        "late",
        "diverted",
        "dropped",
    ]
    assert lines[2].split() == ["users", "1,000", "750", "-", "200", "50", "-"]
    assert "diverted" not in said(200)
    assert "5 diverted" in summary({"users": {"diverted": 5}}, [])


def test_a_single_record_of_the_future_is_worth_a_word() -> None:
    account = {"offered": 1000, "aggregated": 1000, "future": 1}
    progress = Progress(batch=3, rows=1000, ledger={"users": account})
    out = io.StringIO()
    show_summary(Console(file=out, width=200), progress, ["users"], "dead", "complete")
    assert "1 record of 'users' is further ahead of the clock than max_future_skew" in (
        out.getvalue()
    )
    assert "1 future" in summary(progress.ledger, ["users"])
    assert "future" not in said(0)


def test_late_records_of_a_later_run_may_belong_to_windows_that_left_with_an_earlier_one() -> None:
    account = {"offered": 1000, "aggregated": 800, "late": 200}
    progress = Progress(batch=3, new_batches=1, rows=1000, ledger={"days": account})
    out = io.StringIO()
    show_summary(Console(file=out, width=400), progress, ["days"], "dead", "complete")
    assert "windows that left with an earlier run do not come back" in out.getvalue()
    assert "earlier run" not in said(200)


def test_a_run_into_a_file_says_that_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("millstream.cli.display.time.monotonic", lambda: now[0])
    out = io.StringIO()
    lines = Lines(Console(file=out, width=200), "shop", ["sales"])
    for seconds in (1, 29, 1, 10, 20):
        now[0] += seconds
        lines.update(Progress(batch=-1))
    assert out.getvalue().splitlines() == [
        "shop: starting Spark",
        "no batch is committed yet after 30 s",
        "no batch is committed yet after 61 s",
    ]
    lines.update(Progress(batch=0, rows=5))
    assert out.getvalue().splitlines()[-1].startswith("batch 0  5 records")


def test_a_few_are_not() -> None:
    assert "lateness" not in said(10)
    assert "lateness" not in said(0)


def test_failed_results_are_told_with_the_first_error(tmp_path: Path) -> None:
    letters = [
        {"operator": "counts", "error": "a record", "source": "in", "offset": 1},
        {"operator": "other", "error": "another", "source": None, "offset": 1},
        {"operator": "counts", "error": "ValueError: no\x1b[31m", "source": None, "offset": 1},
    ]
    lines = "".join(json.dumps(letter) + "\n" for letter in letters)
    (tmp_path / "00000003.jsonl").write_text(lines)
    account = {"offered": 9, "aggregated": 9, "results": 40, "answered": 8, "failed": 1}
    progress = Progress(batch=3, rows=9, dead=3, ledger={"counts": account})
    out = io.StringIO()
    show_summary(Console(file=out, width=200), progress, ["counts"], str(tmp_path), "complete")
    assert (
        "1 of 9 results of 'counts' failed, and are missing in its output; the first error: "
        r"ValueError: no\x1b[31m"
    ) in out.getvalue()
    assert "results" in out.getvalue().splitlines()[1]

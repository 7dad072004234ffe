"""However one input is deployed, cut into batches and interrupted: the answer is the definition's.

The oracle has been written from the definition of late, not from the engine. A case says all there
is to say about it when it fails; `make_case(seed, deployment)` makes it again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import millstream as ms
from millstream.testing import reference
from tests.deployments import oracle
from tests.deployments.cases import BOUNDED, TEXT, Case, make_case
from tests.deployments.inputs import SCHEMA
from tests.deployments.live import AFTER_ALL, LIVE
from tests.deployments.oracle import Input, Row, Window
from tests.deployments.running import Ledger, Running, build, read, results

QUICK, LONG = range(3), (*range(3, 14), *range(1_000, 1_370))


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: files that come and go may have the same inode."""
    return disk_path


def expected(case: Case, given: Input, before: int | None) -> list[Row]:
    """What must have come out, of input without an end before this time."""
    in_time = given.in_time()
    if case.window is None:
        return oracle.updates(r for r in in_time if before is None or r.ts < before)
    found = oracle.windows(case.window, in_time)
    return [row for row in found if before is None or row[2] <= before]


def check(case: Case, given: Input, place: Path, ledger: Ledger, before: int | None) -> None:
    """Results, late records and books are those of the oracle."""
    late = sorted(record.id for record in given.late())
    assert sorted(row["id"] for row in read(place / "late")) == late, case
    assert results(read(place / "out"), case.window) == expected(case, given, before), case
    parts = ("aggregated", "dead", "late", "diverted", "dropped")
    for step, account in ledger.items():
        assert account["offered"] == sum(account[part] for part in parts), (step, case)
    books = ledger["operator"]
    assert books["offered"] == len(given.records()), case
    assert books["diverted" if case.window is None else "late"] == len(late), case
    assert books["aggregated"] == len(given.records()) - len(late), case


def run_bounded(case: Case, place: Path) -> None:
    source, given = BOUNDED[case.deployment](case, place / "in")
    running = Running(place, lambda: build(place, source, case.window), case.kills, **case.options)
    running.to_the_end()
    running.close()
    check(case, given, place, running.ledger, None)


def run_live(case: Case, place: Path) -> None:
    given, ledger = LIVE[case.deployment](case, place)
    check(case, given, place, ledger, None if case.deployment == "through_a_socket" else AFTER_ALL)


@pytest.mark.parametrize("deployment", BOUNDED)
def test_bounded_input(deployment: str, tmp_path: Path) -> None:
    for seed in QUICK:
        run_bounded(make_case(seed, deployment), tmp_path / str(seed))


@pytest.mark.parametrize("deployment", sorted(BOUNDED.keys() - {"broken_clocks"}))
def test_the_reference_goes_by_the_definition(deployment: str, tmp_path: Path) -> None:
    for seed in QUICK:
        case = make_case(seed, deployment, TEXT)
        source, given = BOUNDED[deployment](case, tmp_path / str(seed))
        files = given.files or given.participants
        rows = {name: [vars(r) for r in records] for name, records in files.items()}
        answer = reference(build(tmp_path, source, case.window), {"in": rows})
        late = sorted(record.id for record in given.late())
        assert sorted(row["id"] for row in answer["late"]) == late, case
        assert results(answer["out"], case.window) == expected(case, given, None), case


@pytest.mark.parametrize("deployment", LIVE)
def test_live_input(deployment: str, tmp_path: Path) -> None:
    for seed in QUICK:
        run_live(make_case(seed, deployment, TEXT), tmp_path / str(seed))


@pytest.mark.parametrize("seed", [1053, 1252])  # files of one moment; compressed, then killed
def test_logs_whose_rotation_once_lost_records_or_their_order(seed: int, tmp_path: Path) -> None:
    run_live(make_case(seed, "rotate", TEXT), tmp_path)


def test_nothing_is_late_by_arrival(tmp_path: Path) -> None:
    for seed in QUICK:
        case, place = make_case(seed, "generated"), tmp_path / str(seed)
        rows = [vars(record) for record in case.records]
        source = ms.Generator(lambda: iter(rows), schema=SCHEMA)  # noqa: B023
        window = case.window and Window(20, 20)
        running = Running(place, partial(build, place, source, window), case.kills, **case.options)
        running.to_the_end()
        running.close()
        found = read(place / "out")
        assert (sum(row["n"] for row in found) if window else len(found)) == len(rows), case
        assert read(place / "late") == [], case


@pytest.mark.long
@pytest.mark.parametrize("deployment", BOUNDED)
def test_bounded_input_at_length(deployment: str, tmp_path: Path) -> None:
    for seed in LONG:
        run_bounded(make_case(seed, deployment), tmp_path / str(seed))


@pytest.mark.long
@pytest.mark.parametrize("deployment", LIVE)
def test_live_input_at_length(deployment: str, tmp_path: Path) -> None:
    for seed in LONG:
        run_live(make_case(seed, deployment, TEXT), tmp_path / str(seed))

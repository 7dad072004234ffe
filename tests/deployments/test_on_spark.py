"""Three logs of one hour and one jumbled file on Spark, with default settings."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import millstream as ms
from tests.deployments import inputs, oracle
from tests.deployments.oracle import Input, Record, Window
from tests.deployments.running import build, read, results

WINDOW = Window(60_000, 60_000)
LATENESS = 10_000


def host_logs(random: Random) -> dict[str, list[Record]]:
    """An hour of three hosts, each at most 20 s out of order."""
    logs = {}
    for host in range(3):
        times = [inputs.T0 + n * 1_200 + host for n in range(3_000)]
        jumbled = [at - 20_000 if random.random() < 0.05 else at for at in times]
        logs[f"h{host}"] = [
            Record(host * 3_000 + n, at, f"h{host}", f"k{n % 7}", n % 100)
            for n, at in enumerate(jumbled)
        ]
    return logs


def run(place: Path, given: Input, **options: Any) -> None:
    """Run on files of these participants; results, late and ledger are the oracle's."""
    (place / "in").mkdir(parents=True)
    for name, records in given.participants.items():
        inputs.write(place / "in" / f"{name}.csv", records, "csv")
    source = ms.Files(
        place / "in", schema=inputs.SCHEMA, time="ts", time_unit="ms", lateness=f"{LATENESS}ms"
    )
    done = build(place, source, WINDOW).run(place / "ck", master="local[2]", **options)
    late = sorted(record.id for record in given.late())
    assert sorted(row["id"] for row in read(place / "late")) == late
    assert results(read(place / "out"), WINDOW) == oracle.windows(WINDOW, given.in_time())
    books = done.ledger["operator"]
    assert (books["offered"], books["late"]) == (len(given.records()), len(late))
    assert books["aggregated"] == len(given.records()) - len(late)


@pytest.mark.spark
@pytest.mark.long
def test_logs_of_three_hosts_lose_nothing_to_each_other(tmp_path: Path, spark: object) -> None:
    logs = host_logs(Random(8))
    given = Input(logs, LATENESS)
    assert 300 < len(given.late()) < 500  # what each has by itself
    run(tmp_path, given)


@pytest.mark.spark
def test_one_file_has_the_same_late_records_in_any_batches(tmp_path: Path, spark: object) -> None:
    records = host_logs(Random(9))["h0"]
    given = Input({"all": records}, LATENESS)
    assert given.late()
    for batch_rows in (300, 1_000, 100_000):
        run(tmp_path / str(batch_rows), given, batch_rows=batch_rows)

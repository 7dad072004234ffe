"""A case: one input, one deployment of it, one way of running it; made from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import millstream as ms
from millstream.run.faults import POINTS
from tests.deployments import inputs
from tests.deployments.oracle import Input, Participants, Record, Window

WINDOWS = (
    Window(5_000, 5_000),
    Window(10_000, 10_000),
    Window(10_000, 5_000),
    Window(9_000, 6_000),
    Window(8_000, 1_000),
    Window(gap=4_000),
    Window(gap=1_000),
    None,
)
TEXT = ("csv", "json")
TRUSTED = inputs.T0 + 1_000_000_000  # what is later is too far ahead of the clock


@dataclass(frozen=True)
class Case:
    """What is run, and how. Without a window it is an updater."""

    seed: int
    deployment: str
    records: list[Record]
    lateness: int | None
    window: Window | None
    kind: str
    batch_rows: int
    parallelism: int
    kills: frozenset[tuple[str, int]]

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the run."""
        return {"batch_rows": self.batch_rows, "parallelism": self.parallelism, "shards": 3}

    @property
    def timing(self) -> dict[str, Any]:
        """Options of its source."""
        lateness = None if self.lateness is None else f"{self.lateness}ms"
        return {
            "schema": inputs.SCHEMA,
            "time": "ts",
            "time_unit": "ms",
            "lateness": lateness,
            "idle_timeout": None,
        }

    def random(self) -> Random:
        """What else is left to chance."""
        return Random(f"how {self.seed}")


def make_case(seed: int, deployment: str, kinds: tuple[str, ...] = inputs.FORMATS) -> Case:
    """Everything about a case follows from its seed."""
    random = Random(f"{deployment} {seed}")
    lateness = random.choice((0, 2_000, 5_000, 5_000, 20_000))
    kills = [
        (random.choice(POINTS), random.randint(0, 8)) for _ in range(random.choice((0, 0, 1, 3)))
    ]
    batch_rows = random.choice((1, 2, 3, 7, 20, 500_000))
    most = min(45, 12 * batch_rows)  # many batches take long
    return Case(
        seed,
        deployment,
        inputs.make_records(random, lateness, random.randint(5, most)),
        lateness,
        random.choice(WINDOWS),
        random.choice(kinds),
        batch_rows,
        random.randint(1, 4),
        frozenset(kills),
    )


def in_files(case: Case, place: Path, files: Participants, **options: Any) -> ms.Files:
    """A directory with these files."""
    place.mkdir(parents=True)
    for name, records in files.items():
        inputs.write(place / f"{name}.{case.kind}", records, case.kind)
    return ms.Files(place, **case.timing, **options)


def as_read(case: Case, files: Participants) -> Participants:
    """Files in the order of their first times, then of their names."""
    if case.lateness is None:
        return {name: files[name] for name in sorted(files)}
    first = {}
    for name, records in files.items():
        first[name] = next((r.ts for r in records if r.ts <= TRUSTED), TRUSTED)
    return {name: files[name] for name in sorted(files, key=lambda name: (first[name], name))}


def one_file(case: Case, place: Path) -> tuple[Any, Input]:
    """Everything in one file."""
    files = {"all": case.records}
    return in_files(case, place, files), Input(as_read(case, files), case.lateness)


def no_lateness(case: Case, place: Path) -> tuple[Any, Input]:
    """A directory of files, and nothing said about order."""
    case = replace(case, lateness=None)
    files = inputs.scattered(case.records, 3, case.random())
    return in_files(case, place, files), Input(as_read(case, files), None)


def per_host(case: Case, place: Path) -> tuple[Any, Input]:
    """A file for every host."""
    files = inputs.by_host(case.records)
    return in_files(case, place, files), Input(as_read(case, files), case.lateness)


def time_slices(case: Case, place: Path) -> tuple[Any, Input]:
    """A file for every so many seconds."""
    files = inputs.by_time(case.records, case.random().choice((3_000, 10_000, 60_000)))
    return in_files(case, place, files), Input(as_read(case, files), case.lateness)


def scattered(case: Case, place: Path) -> tuple[Any, Input]:
    """Every record in any of several files."""
    random = case.random()
    files = inputs.scattered(case.records, random.randint(2, 6), random)
    return in_files(case, place, files), Input(as_read(case, files), case.lateness)


def shuffled(case: Case, place: Path) -> tuple[Any, Input]:
    """One file in which nothing is late."""
    assert case.lateness is not None
    files = {"all": inputs.shuffled_within(case.records, case.lateness, case.random())}
    given = Input(files, case.lateness)
    assert not given.late()
    return in_files(case, place, files), given


def broken_clocks(case: Case, place: Path) -> tuple[Any, Input]:
    """Now and then somebody is in another century; this makes nobody late."""
    random, records = case.random(), []
    for record in case.records:
        ahead = replace(record, id=record.id + 1000, ts=record.ts + 3_000_000_000_000)
        records += [record, ahead] if random.random() < 0.1 else [record]
    files = as_read(case, inputs.scattered(records, random.randint(1, 3), random))
    given = Input(files, case.lateness, trusted=TRUSTED)
    return in_files(case, place, files), given


def hosts_in_one_file(case: Case, place: Path) -> tuple[Any, Input]:
    """One file in which every host reports its own progress."""
    hosts = inputs.by_host(case.records)
    declared = {"participants": sorted(hosts)} if case.seed % 2 else {}
    options = {"participant": "host", **declared}
    files = {"all": case.records}
    return in_files(case, place, files, **options), Input(hosts, case.lateness, files)


def hosts_in_files(case: Case, place: Path) -> tuple[Any, Input]:
    """A file for every host, and the host says who it is; nobody is declared."""
    hosts = inputs.by_host(case.records)
    hosts = as_read(case, hosts)
    return in_files(case, place, hosts, participant="host"), Input(hosts, case.lateness)


def hosts_across_files(case: Case, place: Path) -> tuple[Any, Input]:
    """Hosts that write into several files, which are read in the order of their first records."""
    random = case.random()
    files = inputs.scattered(case.records, random.randint(2, 4), random)
    files = as_read(case, files)
    hosts = inputs.by_host([record for records in files.values() for record in records])
    declared = {"participants": sorted(hosts)} if random.random() < 0.5 else {}
    source = in_files(case, place, files, participant="host", **declared)
    return source, Input(hosts, case.lateness, files)


def generated(case: Case, place: Path) -> tuple[Any, Input]:
    """A generator of dicts or of Arrow tables."""
    rows = [{name: getattr(r, name) for name in inputs.COLUMNS} for r in case.records]
    size = case.random().choice((0, 1, 5, 100))

    def tables() -> Iterator[Any]:
        for start in range(0, len(rows), size):
            yield pa.Table.from_pylist(rows[start : start + size])

    source = ms.Generator(tables if size else lambda: iter(rows), **case.timing)
    return source, Input({"all": case.records}, case.lateness)


BOUNDED = {
    made.__name__: made
    for made in (
        one_file,
        no_lateness,
        per_host,
        time_slices,
        scattered,
        shuffled,
        broken_clocks,
        hosts_in_one_file,
        hosts_in_files,
        hosts_across_files,
        generated,
    )
}

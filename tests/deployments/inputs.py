"""Random inputs, and the ways in which the same records can be deployed.

Times are T0 plus whole seconds plus the number of the host in milliseconds: they often lie exactly
on bounds, and records of two hosts are never at the same time.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from tests.deployments.oracle import Participants, Record

T0 = 1_700_000_000_000
SCHEMA = "id bigint, ts bigint, host string, key string, v bigint"
COLUMNS = ("id", "ts", "host", "key", "v")
GROUP = 7  # rows of a row group
FORMATS = ("csv", "json", "parquet", "csv.gz", "json.gz")


def make_records(random: Random, lateness: int, count: int) -> list[Record]:
    """Records of one to three hosts in the order in which they were written."""
    hosts, keys = random.randint(1, 3), random.randint(1, 3)
    disorder = random.choice((0, lateness, 2 * lateness + 1000, 5 * lateness + 2000)) // 1000
    behind = [random.choice((0, 0, 8, 40)) for _ in range(hosts)]  # some hosts' clocks lag
    pace = random.choice((0, 1, 1, 3, 10))
    records, second = [], 50
    for id in range(count):
        second += random.randint(0, pace)
        host = random.randrange(hosts)
        at = second - behind[host] - random.randint(0, disorder)
        key = f"k{random.randrange(keys)}"
        records.append(Record(id, T0 + at * 1000 + host, f"h{host}", key, random.randint(-9, 99)))
    return records


def shuffled_within(records: list[Record], lateness: int, random: Random) -> list[Record]:
    """The records so that each comes at most the lateness after one with a later time."""
    return sorted(records, key=lambda r: (r.ts + random.randint(0, lateness), random.random()))


def by_host(records: list[Record]) -> Participants:
    """One participant per host, in the order of the records."""
    found: Participants = {}
    for record in records:
        found.setdefault(record.host, []).append(record)
    return found


def by_time(records: list[Record], width: int) -> Participants:
    """One participant per slice of time, in the order of the records."""
    found: Participants = {}
    for record in records:
        found.setdefault(f"s{(record.ts - T0) // width + 1000:04d}", []).append(record)
    return found


def scattered(records: list[Record], parts: int, random: Random) -> Participants:
    """Every record in any of several files."""
    found: Participants = {}
    for record in records:
        found.setdefault(f"p{random.randrange(parts)}", []).append(record)
    return found


def encode(records: list[Record], kind: str) -> bytes:
    """Lines of text."""
    if kind.startswith("csv"):
        lines = [",".join(str(getattr(r, name)) for name in COLUMNS) for r in records]
    else:
        lines = [json.dumps({name: getattr(r, name) for name in COLUMNS}) for r in records]
    return "".join(line + "\n" for line in lines).encode()


def head(kind: str) -> bytes:
    """What a file of lines begins with."""
    return (",".join(COLUMNS) + "\n").encode() if kind.startswith("csv") else b""


def write(path: Path, records: list[Record], kind: str) -> None:
    """A whole file."""
    if kind == "parquet":
        rows = [{name: getattr(r, name) for name in COLUMNS} for r in records]
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=GROUP)
    elif kind.endswith(".gz"):
        path.write_bytes(gzip.compress(head(kind) + encode(records, kind), mtime=0))
    else:
        path.write_bytes(head(kind) + encode(records, kind))

"""Compressed files that stand for far more than they hold."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.io.formats import Format
from millstream.io.readers import Split, read_split
from millstream.io.schemas import parse_schema

_MEASURE = """
import os, resource, sys
from millstream.io.formats import Format
from millstream.io.readers import Split, read_split
from millstream.io.schemas import parse_schema
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fmt = Format("text", parse_schema("line string"))
for parsed in read_split(fmt, Split(0, 0, sys.argv[1], 0, -1)):
    print(parsed.table.to_pylist(), [(d.position, d.error, len(d.raw)) for d in parsed.dead])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_gzip_bomb_in_one_line_is_one_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", 1) as stream:
        stream.write(b"before\n")
        for _ in range(100):
            stream.write(b"0" * 1_000_000)
        stream.write(b"\nafter\n")
    command = [sys.executable, "-c", _MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *said, taken = done.stdout.splitlines()
    limit = 16 * 1024 * 1024
    why = f"line of {limit + 1} bytes; the limit is {limit}"
    assert said == [
        "[{'line': 'before'}] []",
        f"[] [(7, '{why}', 65536)]",
        "[{'line': 'after'}] []",
    ]
    assert int(taken) < 250


def test_a_header_without_end_is_refused_in_few_words(tmp_path: Path) -> None:
    path = str(tmp_path / "a.csv.gz")
    with gzip.open(path, "wb", 1) as stream:
        stream.write(b"0" * 1_000_000)
    fmt = Format("csv", parse_schema("a int"))
    with pytest.raises(ConfigError, match="has no column 'a'") as caught:
        list(read_split(fmt, Split(0, 0, path, 0, -1)))
    assert len(str(caught.value)) < 2_000 and "(1,000,000 bytes)" in str(caught.value)

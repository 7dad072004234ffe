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
    why = f"line of {limit + 2} bytes; the limit is {limit}"
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


_RUN = """
import resource, sys
import millstream as ms
from millstream.testing import run_in_process
place = sys.argv[1]
flow = ms.Flow("bomb")
flow.source(ms.Files(f"{place}/in", format="text"), name="in").sink(ms.Jsonl(f"{place}/out"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ledger = run_in_process(flow, f"{place}/ck", batch_rows=int(sys.argv[2]))
print(ledger["in"]["offered"])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("line", "count"), [(b"\n", 800_000), (b"x" * 499 + b"\n", 200_000)], ids=["empty", "x"]
)
def test_a_gzip_bomb_of_many_lines_takes_several_batches(
    tmp_path: Path, line: bytes, count: int
) -> None:
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in" / "a.txt.gz", "wb", 1) as stream:
        for _ in range(100):
            stream.write(line * (count // 100))
    command = [sys.executable, "-c", _RUN, str(tmp_path), str(count // 10)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    offered, taken = map(int, done.stdout.split())
    assert offered == count
    assert len(list((tmp_path / "out").glob("part-*"))) > 1
    assert taken < 350


def test_records_behind_endless_blank_lines_have_no_header_and_are_dead_letters(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "a.csv.gz")
    with gzip.open(path, "wb", 1) as stream:
        stream.write(b"\n" * 3_000_000 + b" \r\n a,b\n1,2\n")
    fmt = Format("csv", parse_schema("a int, b int"))
    (parsed,) = read_split(fmt, Split(0, 0, path, 0, -1))
    assert parsed.table.to_pylist() == [{"a": 1, "b": 2}]
    with gzip.open(path, "wb", 1) as stream:
        for _ in range(17):
            stream.write(b"\n" * 1_000_000)
        stream.write(b"a,b\n1,2\n")
    (parsed,) = read_split(fmt, Split(0, 0, path, 0, -1))
    assert (parsed.offered, [letter.raw for letter in parsed.dead]) == (2, ["a,b", "1,2"])
    assert "the first 16777216 bytes of its file are blank" in parsed.dead[0].error


_DEEP = """
import resource, sys
from millstream.io.formats import Format
from millstream.io.readers import parse_lines
from millstream.io.schemas import parse_schema
line = b"[" * int(sys.argv[1]) + b"\\n"
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fmt = Format("json", parse_schema("a string"))
parsed = parse_lines(fmt, line, 0, first_line_is_header=False)
print(*[dead.error for dead in parsed.dead], sep="\\n")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("size", "why"),
    [(15_000_000, "nested more than 256"), (30_000_000, "line of 30000000 bytes; the limit is")],
)
def test_a_json_line_of_brackets_is_a_dead_letter(size: int, why: str) -> None:
    command = [sys.executable, "-c", _DEEP, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    error, taken = done.stdout.splitlines()
    assert error.startswith(why)
    assert int(taken) < 350

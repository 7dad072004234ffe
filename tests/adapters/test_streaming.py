"""Programs for Hadoop Streaming: any executable, lines sorted by key."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.adapters.lines import Keys, part_of, parted
from millstream.adapters.streaming import properties, streaming_stage
from millstream.errors import ConfigError, RunError
from tests.adapters.programs import counted, lines_in, run_stages

LINES = [b"the quick fox", b"the lazy dog", b"", b"a fox and the dog", b"caf\xe9 \xff"] * 40
WORDS = Counter(word for line in LINES for word in line.split())
TOTALS = Counter(b"%b\t%d" % (word, number) for word, number in WORDS.items())

AWK_MAP = """awk '{ for (i = 1; i <= NF; i++) print $i "\\t1" }'"""
AWK_SUM = """awk -F '\\t' '
    $1 != key { if (NR > 1) print key "\\t" n; key = $1; n = 0 }
    { n += $2 }
    END { if (NR > 0) print key "\\t" n }'"""
PERL_SUM = r"""perl -F'\t' -lane '
    if (defined $k and $F[0] ne $k) { print "$k\t$n"; $n = 0 } $k = $F[0]; $n += $F[1];
    END { print "$k\t$n" if defined $k }'"""
C_MAP = r"""
#include <stdio.h>
int main(void) {
    int c, inside = 0;
    while ((c = getchar()) != EOF) {
        if (c == ' ' || c == '\n') { if (inside) printf("\t1\n"); inside = 0; }
        else { putchar(c); inside = 1; }
    }
    return 0;
}
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def run(place: Path, inputs: Path, *commands: str | None, **options: Any) -> Counter[bytes]:
    window = {k: options.pop(k) for k in ("window", "time") if k in options}
    return run_stages([streaming_stage(*commands, **options)], [inputs], place, **window)


@pytest.fixture
def compiled(tmp_path: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "map.c").write_text(C_MAP)
    subprocess.run([compiler, "-o", tmp_path / "cmap", tmp_path / "map.c"], check=True)
    return str(tmp_path / "cmap")


def _needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")


@pytest.mark.parametrize("reducers", [1, 7])
@pytest.mark.parametrize("combiner", [None, AWK_SUM])
def test_words_counted_by_awk(
    reducers: int, combiner: str | None, book: Path, tmp_path: Path
) -> None:
    _needs("awk")
    assert run(tmp_path, book, AWK_MAP, AWK_SUM, combiner, reducers=reducers) == TOTALS


def test_words_mapped_by_c_and_reduced_by_perl(compiled: str, book: Path, tmp_path: Path) -> None:
    _needs("perl")
    assert run(tmp_path, book, compiled, PERL_SUM, reducers=3) == TOTALS


COUNTING = "sh -c 'echo reporter:counter:commands,begun,1 >&2; exec {}'"


@pytest.mark.parametrize("reducer", [AWK_SUM, None])
@pytest.mark.parametrize("together", [False, True])
def test_small_files_go_through_a_command_together_if_asked(
    together: bool, reducer: str | None, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number}.txt").write_bytes(b"\n".join(LINES[number:]))  # no last end
    lines = [line for number in range(12) for line in LINES[number:]]
    words = Counter(word for line in lines for word in line.split())
    if reducer is None:
        expected = Counter(word + b"\t1" for line in lines for word in line.split())
    else:
        expected = Counter(b"%b\t%d" % (word, number) for word, number in words.items())
    mapper = COUNTING.format(AWK_MAP.replace("'", "'\\''"))
    found = run(tmp_path, tmp_path / "in", mapper, reducer, combine_files=together)
    assert found == expected
    begun = counted(tmp_path)["job", "commands", "begun"]
    assert begun <= 4 if together else begun == 12  # four tasks read


def test_windows_of_small_files_that_go_together(tmp_path: Path) -> None:
    events = [(START + timedelta(seconds=47 * n), b"abca"[n % 4 : n % 4 + 1]) for n in range(48)]
    (tmp_path / "in").mkdir()
    for number in range(6):
        of = events[number::6]
        text = b"".join(b"[%b] %b\n" % (_stamp(ts), word) for ts, word in of)
        (tmp_path / "in" / f"{number}.txt").write_bytes(text)
    found = run(
        tmp_path,
        tmp_path / "in",
        """awk '{ print $2 "\\t1" }'""",
        AWK_SUM,
        combine_files=True,
        window="10m,5m",
        time=r"\[([^]]+)\]",
    )
    assert found == _windows(events, timedelta(minutes=10), timedelta(minutes=5))


def test_a_reducer_gets_lines_as_sort_orders_them(book: Path, tmp_path: Path) -> None:
    # What people do to try a program: map, sort by bytes, reduce.
    shell = f"{AWK_MAP} < {book} | LC_ALL=C sort -s -k1,1 -t '\t' | cat -n"
    expected = subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout
    assert run(tmp_path, book, AWK_MAP, "cat -n") == Counter(expected.split(b"\n")[:-1])


def test_without_reducer_lines_are_what_the_mapper_gave(book: Path, tmp_path: Path) -> None:
    expected = Counter(line.upper() for line in LINES if b"fox" in line)
    assert run(tmp_path, book, "sh -c 'grep fox | tr a-z A-Z'", "NONE") == expected


def test_more_output_than_pipes_hold_while_input_is_still_given(book: Path, tmp_path: Path) -> None:
    # Each line becomes 64 KiB; a program that is fed first and read later would stand still.
    book.write_bytes(b"x" * 8000 + b"\n" + b"\n" * 40)
    many = """awk '{ for (i = 0; i < 64; i++) printf "%01023d\\n", 7 }'"""
    found = run(tmp_path, book, many, "sh -c 'tr 7 8; seq 3'")
    assert found == Counter({b"0" * 1022 + b"8": 64 * 41, b"1": 1, b"2": 1, b"3": 1})


def test_a_program_may_stop_reading(book: Path, tmp_path: Path) -> None:
    assert sum(run(tmp_path, book, "head -n 2", None).values()) == 2


def test_a_command_that_fails_ends_the_run_with_its_last_words(book: Path, tmp_path: Path) -> None:
    failing = "sh -c 'cat > /dev/null; echo no such table >&2; exit 3'"
    with pytest.raises(RunError, match=r"job, mapper: .*exit code 3; .*\nno such table"):
        run(tmp_path, book, failing, "cat")
    assert not lines_in(tmp_path / "out")


def test_a_reducer_that_fails_ends_the_run(book: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"job, reducer: .*exit code 1; it said nothing"):
        run(tmp_path, book, "cat", "false")


def test_a_command_that_is_killed_is_told_so(book: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="was ended by SIGKILL"):
        run(tmp_path, book, "sh -c 'kill -9 $$'", None)


def test_a_command_that_hangs_is_ended(book: Path, tmp_path: Path) -> None:
    mark = f"millstream-hanging-{os.getpid()}"
    hanging = f"sh -c 'sleep 300; : {mark}'"
    with pytest.raises(RunError, match=r"neither read nor wrote anything for 0.3 s"):
        run(tmp_path, book, hanging, None, jobconf={"mapreduce.task.timeout": "300"})
    deadline = time.monotonic() + 100
    while _processes(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(mark)


def _processes(mark: str) -> list[str]:
    """Processes with a mark in their command line, those they started included by their group."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            told = one.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in told and "pytest" not in told:
            found.append(told)
    return found


def test_what_hadoop_tells_a_task(book: Path, tmp_path: Path) -> None:
    names = "mapreduce_map_input_file map_input_file mapreduce_task_ismap my_own_setting EXTRA"
    show = "sh -c 'cat > /dev/null; for n in " + names + '; do eval echo "$n=\\$$n"; done\''
    found = run(
        tmp_path, book, show, None, jobconf={"my.own.setting": "7"}, environment={"EXTRA": "e"}
    )
    file = f"file://{book}".encode()
    assert found == Counter(
        [
            b"mapreduce_map_input_file=" + file,
            b"map_input_file=" + file,
            b"mapreduce_task_ismap=true",
            b"my_own_setting=7",
            b"EXTRA=e",
        ]
    )


def test_counters_and_status(book: Path, tmp_path: Path) -> None:
    script = (
        "sh -c 'n=$(wc -l); echo reporter:status:fine >&2;"
        ' echo "reporter:counter:lines,read,$n" >&2; echo "$n"\''
    )
    run(tmp_path, book, "cat", script)
    assert counted(tmp_path) == {("job", "lines", "read"): len(LINES)}


def test_keys_of_several_fields_with_another_separator(tmp_path: Path) -> None:
    lines = [b"b.2.x", b"a.10.y", b"b.1.z", b"a.9.x", b"lonely"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))
    jobconf = {
        "stream.map.output.field.separator": ".",
        "stream.num.map.output.key.fields": "2",
        "mapreduce.job.reduces": "1",
    }
    found = run(tmp_path, tmp_path / "in.txt", "cat", "cat -n", jobconf=jobconf)
    ordered = [b"a.10.y", b"a.9.x", b"b.1.z", b"b.2.x", b"lonely"]  # bytes, not numbers
    assert found == Counter(b"%6d\t%b" % (n, line) for n, line in enumerate(ordered, 1))


def test_a_program_brought_along(book: Path, tmp_path: Path) -> None:
    script = tmp_path / "shout.sh"
    script.write_text("#!/bin/sh\nexec sed -f words.sed\n")
    script.chmod(0o755)
    (tmp_path / "rules").write_text("s/fox/FOX/\n")
    files = [str(script), f"{tmp_path}/rules#words.sed"]
    found = run(tmp_path, book, "shout.sh", None, files=files)
    assert found == Counter(line.replace(b"fox", b"FOX") for line in LINES)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mapper": "no-such-program-here"}, "there is no program"),
        ({"mapper": "cat | sort"}, "is for a shell"),
        ({"mapper": "awk '"}, "is not a command"),
        ({"reducer": "aggregate"}, "a class of Java"),
        ({"jobconf": {"mapreduce.partition.keypartitioner.options": "-k1,2"}}, "-D mapreduce.part"),
        ({"jobconf": {"mapreduce.job.reduces": "many"}}, "expected a whole number from 0"),
        ({"files": ["/no/such/file"]}, "there is no /no/such/file"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        streaming_stage(**{"mapper": "cat", "reducer": "cat", **options})


def test_a_script_that_is_not_executable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map.py").write_text("print(1)\n")
    with pytest.raises(ConfigError, match="is not executable; do `chmod"):
        streaming_stage(f"{tmp_path}/map.py", None)


def test_properties_need_a_value() -> None:
    assert properties("-D", ["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(ConfigError, match="expected name=value"):
        properties("-D", ["a"])


# -- windows --------------------------------------------------------------------------------------

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_sliding_windows_of_a_log(tmp_path: Path) -> None:
    events = [(START + timedelta(seconds=47 * n), b"abca"[n % 4 : n % 4 + 1]) for n in range(24)]
    log = tmp_path / "log.txt"
    log.write_bytes(b"".join(b"[%b] %b\n" % (_stamp(ts), word) for ts, word in events))
    found = run(
        tmp_path,
        log,
        """awk '{ print $2 "\\t1" }'""",
        AWK_SUM,
        window="10m,5m",
        time=r"\[([^]]+)\]",
    )
    assert found == _windows(events, timedelta(minutes=10), timedelta(minutes=5))


def _windows(
    events: list[tuple[datetime, bytes]], size: timedelta, slide: timedelta
) -> Counter[bytes]:
    """By definition: every window that holds something, aligned to the epoch."""
    expected: Counter[bytes] = Counter()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    end = epoch + ((START - epoch) // slide) * slide + slide
    while end - size <= events[-1][0]:
        inside = Counter(word for ts, word in events if end - size <= ts < end)
        for word, number in inside.items():
            expected[b"%b\t%b\t%b\t%d" % (_stamp(end - size), _stamp(end), word, number)] += 1
        end += slide
    return expected


def _stamp(ts: datetime) -> bytes:
    return ts.strftime("%Y-%m-%dT%H:%M:%SZ").encode()


# -- keys -----------------------------------------------------------------------------------------


def test_lines_of_a_key_stay_together() -> None:
    lines = [b"%d\t%d" % (n % 50, n) for n in range(500)]
    found = parted(lines, Keys(), 6)
    assert Counter(line for part in found.values() for line in part) == Counter(lines)
    assert all(part_of(Keys().of(line), 6) == n for n, part in found.items() for line in part)


@pytest.mark.spark
def test_parts_are_those_of_hadoop(spark: Any) -> None:
    text = spark._jvm.org.apache.hadoop.io.Text
    partitioner = spark._jvm.org.apache.hadoop.mapreduce.lib.partition.HashPartitioner()
    for key in ["", "a", "the", "caf\u00e9", "\u4e2d\u6587", "x" * 100]:
        for parts in (2, 5, 31):
            expected = partitioner.getPartition(text(key), None, parts)
            assert part_of(key.encode(), parts) == expected

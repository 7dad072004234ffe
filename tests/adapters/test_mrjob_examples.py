"""The example jobs of the package mrjob, unmodified: what its own runner gives is the answer."""

from __future__ import annotations

import json
import pydoc_data
import subprocess
import sys
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.adapters.early import _tables, write_answer
from millstream.adapters.flows import Reading, build_flow
from millstream.adapters.mrjobs import load_job
from millstream.adapters.scripts import Script
from millstream.errors import ConfigError, RunError
from millstream.ops.chunks import OFFSET_BITS
from millstream.state.checkpoint import Checkpoint
from millstream.testing import snapshots_in_process
from tests.adapters.programs import counted, lines_in, run_stages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mrjob needs distutils and pipes
    examples = pytest.importorskip("mrjob.examples", reason="needs the package mrjob")

EXAMPLES = Path(examples.__path__[0])
DOCUMENTS = sorted(map(str, (EXAMPLES / "docs-to-classify").iterdir()))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A part of the texts that Python's `help()` shows."""
    lines = (Path(pydoc_data.__path__[0]) / "topics.py").read_bytes().split(b"\n")
    path = tmp_path_factory.mktemp("input") / "topics.txt"
    path.write_bytes(b"\n".join(lines[2_000:3_200]) + b"\n")
    return str(path)


_ONE_CORE = {"inline": [], "local": ["--num-cores", "1"]}  # fewer processes


def by_mrjob(script: Path, arguments: list[str], runner: str = "inline") -> Counter[bytes]:
    """What mrjob's own runner gives."""
    job = Script.read(script).job_class()(
        [*arguments, "-r", runner, "--no-conf", *_ONE_CORE[runner]]
    )
    with job.make_runner() as running:
        running.run()
        return Counter(b"".join(running.cat_output()).split(b"\n")[:-1])


def here(script: Path, arguments: list[str], place: Path, **options: Any) -> Counter[bytes]:
    """The same by an engine without Spark."""
    program = load_job(script, arguments, options.pop("reducers", None))
    return run_stages(program.stages, program.inputs, place, **options)


SIMPLE = [
    ("mr_word_freq_count.py", []),
    ("mr_count_lines_right.py", []),
    ("mr_most_used_word.py", []),
    ("mr_most_used_word.py", ["--stop-words-file", str(EXAMPLES / "stop_words.txt")]),
    ("mr_next_word_stats.py", []),
    ("mr_nick_nack.py", []),
    ("mr_nick_nack_input_format.py", []),
    ("mr_wc.py", []),
    ("mr_log_sampler.py", ["--sample-size", "5000"]),  # more than there are: no chance in it
]


@pytest.mark.parametrize(("name", "options"), SIMPLE)
def test_a_job_gives_what_its_own_runner_gives(
    name: str, options: list[str], text: str, tmp_path: Path
) -> None:
    expected = by_mrjob(EXAMPLES / name, [*options, text])
    assert here(EXAMPLES / name, [*options, text], tmp_path) == expected
    assert expected


_BREAKS = """
from mrjob.job import MRJob
from mrjob.protocol import RawValueProtocol

class Breaks(MRJob):
    OUTPUT_PROTOCOL = RawValueProtocol

    def mapper(self, _, line):
        yield line, 1

    def reducer(self, line, ones):
        yield None, f"{line}\\n{sum(ones)}"

if __name__ == "__main__":
    Breaks.run()
"""


def test_a_value_with_a_line_break_is_several_lines_as_of_its_own_runner(tmp_path: Path) -> None:
    script, given = tmp_path / "breaks.py", tmp_path / "in.txt"
    script.write_text(_BREAKS)
    given.write_text("a\nb\na\n")
    expected = by_mrjob(script, [str(given)])
    assert expected == Counter([b"a", b"2", b"b", b"1"])
    assert here(script, [str(given)], tmp_path / "run") == expected


COMMANDS = [("mr_grep.py", ["-e", "the"]), ("mr_words_containing_u_freq_count.py", [])]
OF_FILES = ("mr_count_lines_by_file.py", "mr_text_classifier.py")


def test_a_dozen_examples_of_the_package_are_compared() -> None:
    names = {name for name, _ in [*SIMPLE, *COMMANDS]} | {*OF_FILES}
    assert len(names) >= 12
    assert all((EXAMPLES / name).is_file() for name in names)


@pytest.mark.parametrize(("name", "options"), COMMANDS)
def test_a_job_with_commands_gives_what_the_local_runner_gives(
    name: str, options: list[str], text: str, tmp_path: Path
) -> None:
    expected = by_mrjob(EXAMPLES / name, [*options, text], runner="local")
    assert here(EXAMPLES / name, [*options, text], tmp_path) == expected
    assert expected


def test_a_mapper_knows_the_file_it_reads(tmp_path: Path) -> None:
    script = EXAMPLES / OF_FILES[0]
    found = here(script, DOCUMENTS[:4], tmp_path)
    assert found == by_mrjob(script, DOCUMENTS[:4])
    assert len(found) == 4


def test_whole_files_through_four_steps(tmp_path: Path) -> None:
    script = EXAMPLES / OF_FILES[1]
    found, expected = here(script, DOCUMENTS, tmp_path), by_mrjob(script, DOCUMENTS)
    assert _rounded(found) == _rounded(expected)
    assert len(found) > 100


def _rounded(lines: Counter[bytes]) -> Counter[str]:
    """Lines of JSON whose numbers do not depend on the order in which they were added."""
    return Counter(
        json.dumps(_round([json.loads(part) for part in line.split(b"\t")]), sort_keys=True)
        for line in lines.elements()
    )


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, list):
        return [_round(one) for one in value]
    return {k: _round(v) for k, v in value.items()} if isinstance(value, dict) else value


def test_what_a_job_gives_per_task_adds_up(text: str, tmp_path: Path) -> None:
    # How many tasks there are is nobody's promise: this example shows what comes of that.
    found = here(EXAMPLES / "mr_count_lines_wrong.py", [text], tmp_path)
    assert sum(int(line.split(b"\t")[1]) for line in found.elements()) == 1_200


def test_a_job_that_fails_ends_the_run(text: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step1, mapper of .*mr_boom.py raised Exception: BOOM"):
        here(EXAMPLES / "mr_boom.py", [text], tmp_path)
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    ("name", "kind"), [("mr_spark_wordcount.py", "spark"), ("mr_jar_step_example.py", "jar")]
)
def test_steps_that_are_no_mapreduce_are_refused(name: str, kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"is of kind '{kind}'"):
        load_job(EXAMPLES / name, [text])


def test_what_means_nothing_here_is_told(text: str) -> None:
    program = load_job(EXAMPLES / "mr_nick_nack.py", [text, "--libjars", "x.jar", "-r", "emr"])
    assert program.ignored == ("--libjars", "HADOOP_OUTPUT_FORMAT", "LIBJARS")


# -- a job with everything ------------------------------------------------------------------------

JOB = """
from mrjob.job import MRJob
from mrjob.protocol import PickleProtocol, TextProtocol, RawValueProtocol
from mrjob.step import MRStep


class Seen:
    def __init__(self, word):
        self.word = word


class MREverything(MRJob):
    INTERNAL_PROTOCOL = PickleProtocol
    OUTPUT_PROTOCOL = TextProtocol

    def configure_args(self):
        super().configure_args()
        self.add_passthru_arg("--least", type=int, default=1)
        self.add_file_arg("--words")

    def words_init(self):
        yield "begun", Seen("task")
        with open(self.options.words) as words:
            self.known = set(words.read().split())

    def words(self, _, line):
        for word in line.split():
            self.increment_counter("words", "known" if word in self.known else "other")
            if word in self.known:
                yield word, Seen(word)
            self.set_status("at " + word)

    def words_final(self):
        yield "ended", Seen("task")

    def count_init(self):
        self.keys = 0

    def count(self, word, seen):
        self.keys += 1
        yield word, sum(1 for one in seen if one.word)

    def count_final(self):
        yield "keys", self.keys

    def turned(self, word, count):
        if count >= self.options.least:
            yield count, word

    def listed(self, count, words):
        yield str(count), ",".join(sorted(words))

    def steps(self):
        return [
            MRStep(mapper_init=self.words_init, mapper=self.words, mapper_final=self.words_final,
                   reducer_init=self.count_init, reducer=self.count,
                   reducer_final=self.count_final),
            MRStep(mapper=self.turned, reducer=self.listed),
        ]


if __name__ == "__main__":
    MREverything.run()
"""


@pytest.fixture
def everything(tmp_path: Path) -> tuple[Path, list[str]]:
    script = tmp_path / "everything.py"
    script.write_text(JOB)
    (tmp_path / "known.txt").write_text("to be or not")
    (tmp_path / "in.txt").write_bytes("to be or not to be \xe9\n".encode("latin-1") * 3)
    arguments = [str(tmp_path / "in.txt"), "--words", str(tmp_path / "known.txt"), "--least", "3"]
    return script, arguments


def test_hooks_protocols_options_files_and_counters(
    everything: tuple[Path, list[str]], tmp_path: Path
) -> None:
    # One mapper and one reducer, as here: what hooks give depends on their number.
    script, arguments = everything
    # Keys of the first step: to, be, or, not, begun and ended.
    assert here(script, arguments, tmp_path) == Counter([b"6\tbe,keys,to", b"3\tnot,or"])
    assert counted(tmp_path) == {
        ("step1", "words", "known"): 18,
        ("step1", "words", "other"): 3,
    }


def test_classes_of_a_script_that_is_loaded_twice_are_the_same(
    everything: tuple[Path, list[str]],
) -> None:
    script, _ = everything
    assert Script.read(script).job_class() is Script.read(script).job_class()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "runs no job"),
        ("import nothing_of_this_name\n", r"could not be loaded \(line 1\)"),
        (
            JOB.replace("MREverything.run()", "MREverything([]).make_runner()"),
            "runs its job itself",
        ),
    ],
)
def test_a_script_without_a_job_is_refused(text: str, told: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_job(script, [])


def test_a_wrong_option_is_said_as_the_job_says_it(everything: tuple[Path, list[str]]) -> None:
    script, arguments = everything
    with pytest.raises(ConfigError, match="argument --least: invalid int value"):
        load_job(script, [*arguments, "--least", "many"])


# -- windows --------------------------------------------------------------------------------------

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("name", ["mr_word_freq_count.py", "mr_next_word_stats.py"])
def test_every_window_is_what_the_job_gives_for_its_lines(name: str, tmp_path: Path) -> None:
    words = ["the fox", "a dog and the fox", "the dog", "fox and dog and fox"]
    events = [(START + timedelta(seconds=50 * n), words[n * n % 4]) for n in range(12)]
    (tmp_path / "in.log").write_text(
        "".join(f"{ts.timestamp():.0f} {line}\n" for ts, line in events)
    )
    found = here(
        EXAMPLES / name, [str(tmp_path / "in.log")], tmp_path, window="4m,2m", time=r"^\d+"
    )
    expected: Counter[bytes] = Counter()
    end = START + timedelta(minutes=2)
    while (start := end - timedelta(minutes=4)) <= events[-1][0]:
        inside = [f"{ts.timestamp():.0f} {line}\n" for ts, line in events if start <= ts < end]
        (tmp_path / "window.log").write_text("".join(inside))
        bounds = "".join(f"{one:%Y-%m-%dT%H:%M:%SZ}\t" for one in (start, end)).encode()
        lines = by_mrjob(EXAMPLES / name, [str(tmp_path / "window.log")])
        expected.update({bounds + line: number for line, number in lines.items()})
        end += timedelta(minutes=2)
    assert found == expected
    assert len(found) > 40


def test_a_python_without_the_modules_that_mrjob_needs() -> None:
    # Python 3.12 has no distutils, 3.13 no pipes.
    script = """
import sys
sys.modules["distutils"] = sys.modules["pipes"] = None
from millstream.adapters.scripts import mrjob_module
assert mrjob_module("util").cmd_line(["a b", "c"]) == "'a b' c"
assert mrjob_module("compat").version_gte("2.10.1", "2.9")
assert not mrjob_module("compat").version_gte("0.20", "2.7.3")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# -- early answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mr_word_freq_count.py", "mr_next_word_stats.py"])
def test_a_snapshot_is_what_the_job_gives_for_what_was_read(
    name: str, text: str, tmp_path: Path
) -> None:
    lines = Path(text).read_bytes().splitlines(keepends=True)
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_bytes(b"".join(lines[number * 60 :][:60]))
    program = load_job(EXAMPLES / name, [str(tmp_path / "in")])
    flow = build_flow("early", program.stages, Reading(program.inputs), tmp_path / "out")
    shares = []
    for snapshot in snapshots_in_process(flow, tmp_path / "ck", at=[0.2, 0.6]):
        if snapshot.exact:
            break
        place = Checkpoint(tmp_path / "ck", create=False)
        manifest = place.latest()
        assert manifest is not None
        write_answer(program.stages, tmp_path / "ck", manifest.batch, tmp_path / "answer.txt")
        stored = pa.concat_tables(_tables(place, manifest, "step1"))
        read = {pos >> OFFSET_BITS for pos in stored.column("pos").to_pylist()}  # files
        inputs = [str(tmp_path / "in" / f"{number}.txt") for number in sorted(read)]
        found = Counter((tmp_path / "answer.txt").read_bytes().split(b"\n")[:-1])
        assert found == by_mrjob(EXAMPLES / name, inputs)
        shares.append(len(read))
    assert 0 < shares[0] < shares[1] < 4
    assert lines_in(tmp_path / "out") == by_mrjob(EXAMPLES / name, [str(tmp_path / "in")])

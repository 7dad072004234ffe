"""Programs of lines on the command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.cli.commands import app
from millstream.errors import ConfigError

JOB = """
from mrjob.job import MRJob

class MRWords(MRJob):
    def configure_args(self):
        super().configure_args()
        self.add_passthru_arg("-e", "--least", type=int, default=1)

    def mapper(self, _, line):
        for word in line.split():
            self.increment_counter("seen", "words")
            yield word, 1

    def combiner(self, word, ones):
        yield word, sum(ones)

    def reducer(self, word, ones):
        total = sum(ones)
        if total >= self.options.least:
            yield word, total

if __name__ == "__main__":
    MRWords.run()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(JOB)
    (tmp_path / "in.txt").write_text("to be or not to be\nthat is the question\n" * 50)
    return tmp_path


def called(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.spark
def test_a_job_prints_its_lines_and_counters(spark: Any, here: Path) -> None:
    pytest.importorskip("mrjob", reason="needs the package mrjob")
    done = called("mrjob", "words.py", "in.txt", "-e", "100", "--master", "local[2]")
    assert done.exit_code == 0, done.output
    assert Counter(done.stdout.splitlines()) == Counter(['"be"\t100', '"to"\t100'])
    assert "step1  seen: words = 500" in done.stderr
    assert not list(here.glob(".millstream*"))


@pytest.mark.spark
def test_commands_write_files_and_go_on_where_they_ended(spark: Any, here: Path) -> None:
    command = ["streaming", "--mapper", "tr ' ' '\\n'", "--reducer", "uniq -c", "--input", "in.txt"]
    command += ["--output", "out", "--reducers", "3", "--master", "local[2]"]
    for _ in range(2):  # the second time there is nothing new
        done = called(*command)
        assert done.exit_code == 0, done.output
        lines = [
            line.split()
            for part in Path("out").glob("part-*")
            for line in part.read_text().splitlines()
        ]
        words = Counter(" ".join((here / "in.txt").read_text().split()).split())
        assert Counter({word: int(number) for number, word in lines}) == words
    (made,) = Path(".millstream").glob("streaming-*/flow.json")
    assert json.loads(made.read_text())["flow"] == "streaming"
    other = ["other" if word == "out" else word.replace("uniq -c", "uniq") for word in command]
    assert called(*other).exit_code == 0  # another command has nothing to do with the first one
    found = " ".join(part.read_text() for part in Path("other").glob("part-*")).split()
    assert sorted(found) == sorted(words)
    done = called(*command[:3], "--reducer", "uniq", *command[5:])
    assert "choose another directory" in str(done.exception)  # it holds other results


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mrjob", "missing.py"], "there is no script missing.py"),
        (["mrjob", "words.py", "missing.txt"], "there is no input missing.txt"),
        (["mrjob", "words.py", "in.txt", "-e", "x"], "argument -e/--least: invalid int value"),
        (["mrjob", "words.py", "in.txt", "--follow"], "need a place, with --output"),
        (["mrjob", "words.py", "in.txt", "--follow", "--output", "o"], "add --window"),
        (["mrjob", "words.py", "in.bz2"], "only .gz is read here"),
        (
            ["streaming", "--mapper", "nothing-here", "--input", "in.txt", "--output", "o"],
            "no prog",
        ),
        (
            ["streaming", "--mapper", "cat", "-D", "x", "--input", "in.txt", "--output", "o"],
            "name=",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_spark_starts(
    arguments: list[str], told: str, here: Path
) -> None:
    pytest.importorskip("mrjob", reason="needs the package mrjob")
    done = called(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert told in str(done.exception)
    assert not list(here.glob(".millstream*"))

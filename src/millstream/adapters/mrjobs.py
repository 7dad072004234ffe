"""Jobs of mrjob as stages of lines: their steps, protocols, options and files.

What a job does is asked of the job itself, by the methods mrjob's own runners use: `steps`,
`pick_protocols`, `map_pairs`, `combine_pairs`, `reduce_pairs`. So lines between steps are what they
would be there, byte for byte, and whatever a job overrides counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from millstream.adapters.commands import Command, command_of
from millstream.adapters.lines import Filter, Stage, Work
from millstream.adapters.places import NOTHING, Brought
from millstream.adapters.scripts import Script, mrjob_module
from millstream.adapters.streaming import PATIENCE, REDUCES, TIMEOUT, number_of
from millstream.errors import ConfigError, MillstreamError, ProgramError
from millstream.ops.records import describe

PARALLEL = 16  # reducers of a step whose result does not depend on their number
_OWN = ("args", "help", "quiet", "verbose", "runner", "no_output", "cat_output", "output_dir")
_HONOURED = ("upload_files", "upload_dirs", "jobconf", "cmdenv")
_FOR_HADOOP = ("HADOOP_INPUT_FORMAT", "HADOOP_OUTPUT_FORMAT", "PARTITIONER", "LIBJARS")


@dataclass(frozen=True)
class JobProgram:
    """A job with its options, as stages."""

    name: str
    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    output: str | None  # what its own --output-dir says
    ignored: tuple[str, ...] = ()  # what means nothing here


@dataclass(frozen=True)
class Phase:
    """One side of one step of a job, as a filter in the process that runs it."""

    script: Script
    arguments: tuple[str, ...]
    side: str  # "mapper", "combiner" or "reducer"
    step: int
    brought: Brought
    environment: tuple[tuple[str, str], ...] = ()
    raw: bool = False  # its mapper gets a path

    def __call__(self, lines: Iterable[bytes], work: Work) -> list[bytes]:
        """What the job makes of lines, or of the files whose paths they are."""
        if not self.raw:
            return self._run(lines, work, ())
        paths = [os.fsdecode(line) for line in lines]
        return [line for path in paths for line in self._run((), work, (path, path))]

    def _run(self, lines: Iterable[bytes], work: Work, paths: tuple[str, ...]) -> list[bytes]:
        environment = {**work.environment, **dict(self.environment)}
        with self.brought.laid_out() as directory, _standing(directory, environment):
            said = BytesIO()
            at = ""
            try:
                switches = (f"--{self.side}", f"--step-num={self.step}")
                job = self.script.job_class()([*self.arguments, *switches, *paths])
                job.sandbox(stderr=said)
                read, write = job.pick_protocols(self.step, self.side)
                pairs = _decoded(read, lines)
                at = _AT[self.side]
                given = getattr(job, at)(pairs, self.step)
                written = (write(key, value) for key, value in given)
                return [line for one in written for line in one.split(b"\n")]
            except MillstreamError:
                raise
            except (Exception, SystemExit) as error:  # a user's job may raise anything
                raise ProgramError(
                    f"{work.name} of {self.script.path} raised {describe(error)}; nothing of this "
                    "batch was committed"
                ) from error
            finally:
                _listen(said.getvalue(), work)


_AT = {"mapper": "map_pairs", "combiner": "combine_pairs", "reducer": "reduce_pairs"}


def _decoded(read: Any, lines: Iterable[bytes]) -> Iterator[Any]:
    for line in lines:
        yield read(line.rstrip(b"\r\n"))


def _listen(said: bytes, work: Work) -> None:
    """Counters a job reported; what else it said goes where a worker's words go."""
    told = mrjob_module("parse").parse_mr_job_stderr(said.splitlines(keepends=True))
    for group, counters in told["counters"].items():
        for name, amount in counters.items():
            work.counters[group, name] += amount
    for line in told["other"]:
        print(line, file=sys.stderr)


@contextmanager
def _standing(directory: str, environment: dict[str, str]) -> Iterator[None]:
    """Within a directory and an environment, as a task of its own would be."""
    before = {name: os.environ.get(name) for name in environment}
    place = os.getcwd()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        os.chdir(place)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def load_job(path: Path, arguments: list[str], reducers: int | None = None) -> JobProgram:
    """A script with its arguments: inputs, and what it says to its job."""
    script = Script.read(path)
    job = _made(script, arguments)
    found = _Options.of(script, job, arguments)
    stages = tuple(
        _stage(script, job, number, step, found, reducers)
        for number, step in enumerate(_described(script, job))
    )
    ignored = [*found.ignored, *(name for name in _FOR_HADOOP if getattr(job, name, None))]
    return JobProgram(path.stem, stages, found.inputs, job.options.output_dir, tuple(ignored))


def _made(script: Script, arguments: list[str]) -> Any:
    try:
        return script.job_class()(arguments)
    except ConfigError:
        raise
    except ValueError as error:  # what the job's own parser says
        raise ConfigError(f"{script.path}: {error}") from None
    except Exception as error:  # a user's job may raise anything
        raise ConfigError(f"{script.path}: its job cannot be made: {describe(error)}") from error


def _described(script: Script, job: Any) -> list[dict[str, Any]]:
    """The steps of a job; those that are no MapReduce are refused."""
    try:
        steps: list[dict[str, Any]] = job._steps_desc()
    except Exception as error:  # a user's job may raise anything
        raise ConfigError(f"{script.path}: steps() raised {describe(error)}") from error
    if not steps:
        raise ConfigError(f"{script.path}: its job has no steps")
    for number, step in enumerate(steps, 1):
        if step["type"] != "streaming":
            raise ConfigError(
                f"{script.path}: step {number} is of kind {step['type']!r}, which is a program for "
                "Spark or Hadoop itself; only steps of mappers, combiners and reducers run here"
            )
        if step.get("input_manifest") and number > 1:
            raise ConfigError(
                f"{script.path}: step {number} has a mapper_raw; only the first step reads files"
            )
    return steps


@dataclass
class _Options:
    """What was said on the command line of a job, for its tasks and for us."""

    inputs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()  # for tasks
    brought: Brought = NOTHING
    environment: tuple[tuple[str, str], ...] = ()
    jobconf: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    sort_values: bool = False
    patience: float | None = 600.0

    @classmethod
    def of(cls, script: Script, job: Any, arguments: list[str]) -> _Options:
        """The options of a job by what becomes of them, as mrjob's runners sort them."""
        passed = job._non_option_kwargs()
        given = job._job_kwargs()
        found = cls(inputs=tuple(passed["input_paths"]), sort_values=bool(given["sort_values"]))
        files: list[str] = []
        words: list[str] = []
        for one in passed["extra_args"]:
            if isinstance(one, dict):  # a file for the tasks, under its name there
                name = one["name"] or os.path.basename(one["path"])
                files.append(f"{one['path']}#{name}")
                words.append(name)
            else:
                words.append(one)
        files += [*(given["upload_files"] or ()), *(given["upload_dirs"] or ())]
        if given["upload_archives"]:
            raise ConfigError(
                f"{script.path}: archives ({', '.join(map(str, given['upload_archives']))}) are "
                "not unpacked here; unpack them and use DIRS or --dirs"
            )
        found.arguments = tuple(words)
        found.brought = Brought.of(f"{script.path}: files", list(map(str, files)))
        found.jobconf = {
            str(k): _text(v) for k, v in (given["jobconf"] or {}).items() if v is not None
        }
        found.environment = tuple((job.options.cmdenv or {}).items())
        found.patience = number_of(found.jobconf, TIMEOUT, PATIENCE) / 1000 or None
        known = {*_OWN, *_HONOURED, *job._passthru_arg_dests, *job._file_arg_dests}
        raw = mrjob_module("options")._parse_raw_args(job.arg_parser, arguments)
        found.ignored = sorted({option for dest, option, _ in raw if dest not in known and option})
        return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stage(
    script: Script,
    job: Any,
    number: int,
    step: dict[str, Any],
    options: _Options,
    reducers: int | None,
) -> Stage:
    """One step of a job."""
    jobconf = {**options.jobconf, **{k: _text(v) for k, v in step.get("jobconf", {}).items()}}
    sides: dict[str, tuple[Filter, ...]] = {}
    for side in ("mapper", "combiner", "reducer"):
        if side in step:
            phase = Phase(
                script,
                options.arguments,
                side,
                number,
                options.brought,
                options.environment,
                raw=side == "mapper" and bool(step.get("input_manifest")),
            )
            sides[side] = _filters(script, step[side], phase, options)
    alone = _depends_on_tasks(job, number, step) or _reduces(jobconf) is not None
    told = _reduces(jobconf) or 1
    return Stage(
        f"step{number + 1}",
        sides.get("mapper", ()),
        sides.get("combiner", ()),
        sides.get("reducer"),
        reducers=reducers or (told if alone else PARALLEL),
        sort_values=options.sort_values,
        jobconf=tuple(jobconf.items()),
        whole_files=bool(step.get("input_manifest")),
    )


def _reduces(jobconf: dict[str, str]) -> int | None:
    for name in REDUCES:
        if jobconf.get(name, "").isdigit() and int(jobconf[name]) > 0:
            return int(jobconf[name])
    return None


def _depends_on_tasks(job: Any, number: int, step: dict[str, Any]) -> bool:
    """Whether it matters to a reducer which keys it gets together."""
    reducer = step.get("reducer")
    if reducer is None:
        return False
    plain = reducer["type"] == "script" and "pre_filter" not in reducer
    made = job.steps()[number]
    return not plain or bool(made["reducer_init"] or made["reducer_final"])


def _filters(
    script: Script, described: dict[str, Any], phase: Phase, options: _Options
) -> tuple[Filter, ...]:
    """A command, or a phase of the script behind the command that filters for it."""
    where = f"{script.path}: the command of its {phase.side}"
    command = Command((), options.brought, options.environment, options.patience)
    if described["type"] == "command":
        words = command_of(where, described["command"], options.brought)
        return (replace(command, words=words),)
    if "pre_filter" in described:
        words = ("sh", "-c", str(described["pre_filter"]))
        return (replace(command, words=words, tolerant=True), phase)
    return (phase,)

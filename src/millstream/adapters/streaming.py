"""Programs for Hadoop Streaming as a stage of lines: commands, and the properties that matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.adapters.commands import Command, command_of
from millstream.adapters.lines import Filter, Keys, Stage
from millstream.adapters.places import Brought
from millstream.errors import ConfigError

REDUCES = ("mapreduce.job.reduces", "mapred.reduce.tasks")
_FIELDS = "stream.num.map.output.key.fields"
_SEPARATOR = "stream.map.output.field.separator"
TIMEOUT = ("mapreduce.task.timeout", "mapred.task.timeout")
PATIENCE = 600_000  # milliseconds, as Hadoop has it
# What else would change which lines a reducer gets, or in which order or form.
_REFUSED = (
    "stream.map.input",
    "stream.reduce.input",
    "stream.map.output",
    "stream.reduce.output",
    "stream.num.",
    "mapreduce.partition.",
    "mapreduce.job.partitioner",
    "mapreduce.job.output.key",
    "mapreduce.job.output.value.groupfn",
    "mapreduce.job.inputformat",
    "mapreduce.job.outputformat",
    "mapreduce.input.",
    "mapreduce.output.",
    "mapred.text.key.",
    "mapred.output.",
    "mapred.partitioner",
)
_NONE = "NONE"  # Hadoop's word for a job without reducer
_IDENTITY = (
    "cat",
    "org.apache.hadoop.mapred.lib.IdentityMapper",
    "org.apache.hadoop.mapred.lib.IdentityReducer",
)


def streaming_stage(
    mapper: str | None,
    reducer: str | None,
    combiner: str | None = None,
    *,
    files: Sequence[str] = (),
    jobconf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    reducers: int | None = None,
    combine_files: bool = False,
) -> Stage:
    """A program as Hadoop's command line describes it; refuses by name what would be different."""
    jobconf = dict(jobconf or {})
    for name in jobconf:
        known = name in (*REDUCES, _FIELDS, _SEPARATOR, *TIMEOUT)
        if not known and name.startswith(_REFUSED):
            raise ConfigError(
                f"-D {name}: is not known here, and without it the program would get other lines; "
                f"of Hadoop's properties {', '.join((*REDUCES, _FIELDS, _SEPARATOR, *TIMEOUT))} "
                "count, and those that Hadoop does not know are for the program"
            )
    brought = Brought.of("--file", [str(Path(one)) for one in files])
    timeout = number_of(jobconf, TIMEOUT, PATIENCE)
    base = Command((), brought, tuple((environment or {}).items()), timeout / 1000 or None)
    told = number_of(jobconf, REDUCES, 1)
    return Stage(
        "job",
        _filters("--mapper", mapper, base),
        _filters("--combiner", combiner, base),
        None if reducer in (None, _NONE) or told == 0 else _filters("--reducer", reducer, base),
        reducers=reducers or max(1, told),
        keys=Keys(_separator(jobconf), number_of(jobconf, (_FIELDS,), 1, least=1)),
        jobconf=tuple(jobconf.items()),
        gathers=combine_files,
    )


def properties(option: str, given: Sequence[str]) -> dict[str, str]:
    """`name=value` as users give them."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option} {one!r}: expected name=value")
        found[name.strip()] = value
    return found


def _filters(option: str, command: str | None, base: Command) -> tuple[Filter, ...]:
    """A command; none where lines stay as they are."""
    if command is None or command in _IDENTITY:
        return ()
    if command == "aggregate" or command.startswith(("org.", "java.", "com.")):
        raise ConfigError(
            f"{option} {command}: is a class of Java; expected a command that reads lines and "
            "writes lines"
        )
    words = command_of(option, command, base.brought)
    return (Command(words, base.brought, base.environment, base.patience),)


def _separator(jobconf: Mapping[str, str]) -> bytes:
    separator = jobconf.get(_SEPARATOR, "\t").encode()
    if not separator:
        raise ConfigError(f"-D {_SEPARATOR}=: expected what stands between the fields of a line")
    return separator


def number_of(
    jobconf: Mapping[str, str], names: Sequence[str], otherwise: int, least: int = 0
) -> int:
    """What a property says that has several names."""
    for name in names:
        if name in jobconf:
            text = jobconf[name]
            if not text.isdigit() or int(text) < least:
                raise ConfigError(f"-D {name}={text}: expected a whole number from {least}")
            return int(text)
    return otherwise

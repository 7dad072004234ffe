"""Every error a user can meet, under one root.

`ConfigError` is raised before anything ran (exit code 2), `RunError` while running (exit code 1).
Each message names the step, what was expected, what came, and what to do.
"""

from __future__ import annotations

ASK_DOCTOR = "; `millstream doctor` names the last good batch"


class MillstreamError(Exception):
    """The root of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(MillstreamError):
    """The flow, its settings or its surroundings cannot work; nothing was started."""

    exit_code = 2


class RunError(MillstreamError):
    """Something failed while the flow was running; what was committed stays valid."""


class ProgramError(RunError):
    """A program that cannot go on: no record's fault, so that the run ends with it at once."""


class CheckpointError(ConfigError):
    """A checkpoint cannot be used: locked, damaged, read-only, or written by another program."""


class SqlError(ConfigError):
    """A text of SQL that cannot be used; `line` and `column` say where, from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line, self.column = line, column

"""The command line: commands, exit codes, printing. Nothing here is for other modules to import."""

from __future__ import annotations

import sys

from millstream.errors import MillstreamError
from millstream.showing import visible_lines


def main() -> None:
    """Run one command; every error a user can meet is one message on stderr and an exit code."""
    from millstream.cli.commands import app

    try:
        app()
    except MillstreamError as error:
        if "--debug" in sys.argv:
            raise
        complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(130)
    except OSError as error:  # no permission, a disk that went away: the machine, not the program
        if "--debug" in sys.argv:
            raise
        where = f" {error.filename}" if error.filename else ""
        complain(
            f"{error.strerror or type(error).__name__}:{where}; what was committed stays valid: "
            "correct that and run the same command again"
        )
        sys.exit(1)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        complain(_limited(error) or _defect(error))
        sys.exit(1)
    finally:
        _end_java()


def complain(message: str) -> None:
    """One message on stderr, never wrapped or coloured where it is not read by a person."""
    label = "\x1b[1;31merror:\x1b[0m" if sys.stderr.isatty() else "error:"
    print(f"{label} {visible_lines(message)}", file=sys.stderr, flush=True)


def _defect(error: Exception) -> str:
    return (
        f"unexpected {type(error).__name__}: {error}. This is a defect: please report it with "
        "what --debug shows"
    )


def _limited(error: Exception) -> str | None:
    """What to say if the machine allows this process too little; Python has no kind for that."""
    from millstream.run.spark.allowed import too_little

    if not isinstance(error, RuntimeError) or "can't start new thread" not in str(error):
        return None
    return too_little() or (
        "no more threads can be started: end other processes, or allow this user more (ulimit -u, "
        "and the limit of its container or service)"
    )


def _end_java() -> None:
    """Leave no process behind; a command that never came to Spark has none."""
    session = sys.modules.get("millstream.run.spark.session")
    if session is not None:
        session.end_java()

"""Scripts of mrjob, loaded as they are: in the driver to see their steps, in workers to run them.

A script is run as its author runs it, as `__main__`; only what `MRJob.run` does then is left to us.
So it is the script that says which class is the job. Its classes get a module of their own, under
which protocols that pickle find them in every process.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path
from types import ModuleType
from typing import Any

from millstream.errors import ConfigError

_INSTALL = "pip install 'millstream[mrjob]'"


@dataclass(frozen=True)
class Script:
    """The text of a script, and where it lies."""

    path: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Script:
        """A script from its file."""
        try:
            return cls(str(path.absolute()), path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"there is no script {path}; give the file of an mrjob job") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as a script: {error}") from None

    @property
    def module(self) -> str:
        """The name its classes are known by in all processes."""
        digest = hashlib.sha256(f"{self.path}\0{self.text}".encode()).hexdigest()[:16]
        return f"millstream_script_{digest}"

    def job_class(self) -> Any:
        """The class whose `run` the script calls; loaded once in a process."""
        known = sys.modules.get(self.module)
        if known is None:
            known = self._load()
        return known.__job__

    def _load(self) -> ModuleType:
        module = ModuleType("__main__")
        module.__file__ = self.path
        directory = str(Path(self.path).parent)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        with _captured() as called:
            try:
                exec(compile(self.text, self.path, "exec"), module.__dict__)  # noqa: S102 - the user's program
            except (Exception, SystemExit) as error:  # a user's script may raise anything
                line = [
                    f.lineno
                    for f in traceback.extract_tb(error.__traceback__)
                    if f.filename == self.path
                ]
                where = f" (line {line[-1]})" if line else ""
                raise ConfigError(
                    f"{self.path} could not be loaded{where}: {type(error).__name__}: {error}"
                ) from error
        if not called:
            raise ConfigError(
                f"{self.path} runs no job; expected `if __name__ == '__main__': Job.run()`, where "
                "Job is a subclass of mrjob.job.MRJob"
            )
        module.__name__, module.__job__ = self.module, called[0]  # type: ignore[attr-defined]
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == "__main__":
                value.__module__ = self.module
        sys.modules[self.module] = module
        return module


@contextmanager
def _captured() -> Iterator[list[Any]]:
    """While a script is loaded, the jobs it runs are noted and not run."""
    job = mrjob_module("job").MRJob
    ran: list[Any] = []
    before = job.__dict__["run"], job.__dict__["make_runner"]

    def note(cls: Any) -> None:
        ran.append(cls)

    def refuse(self: Any) -> None:
        raise ConfigError(
            "it runs its job itself, with make_runner(); only scripts that end in Job.run() can "
            "be run here"
        )

    job.run, job.make_runner = classmethod(note), refuse
    try:
        yield ran
    finally:
        job.run, job.make_runner = before


def mrjob_module(name: str) -> Any:
    """A module of mrjob, which is optional, and older than some Pythons it is used with."""
    _stand_in()
    try:
        return importlib.import_module(f"mrjob.{name}")
    except ModuleNotFoundError as error:
        if error.name != "mrjob":
            raise
        raise ConfigError(f"the package mrjob is not installed; do `{_INSTALL}`") from None


def _stand_in() -> None:
    """The three functions mrjob takes from modules that Python 3.12 and 3.13 no longer have."""
    if _is_missing("pipes"):
        pipes = sys.modules["pipes"] = ModuleType("pipes")
        pipes.quote = shlex.quote  # type: ignore[attr-defined]
    if _is_missing("distutils"):
        parts = {name: ModuleType(name) for name in ("distutils", *_OF_DISTUTILS)}
        parts["distutils"].__path__ = []
        parts["distutils.spawn"].find_executable = shutil.which  # type: ignore[attr-defined]
        parts["distutils.version"].LooseVersion = _Version  # type: ignore[attr-defined]
        sys.modules.update(parts)


_OF_DISTUTILS = ("distutils.spawn", "distutils.version")


def _is_missing(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is None
    return importlib.util.find_spec(name) is None


@total_ordering
class _Version:
    """A version, compared number by number."""

    def __init__(self, text: str) -> None:
        self.numbers = [int(one) for one in re.findall(r"\d+", text)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Version) and self.numbers == other.numbers

    def __lt__(self, other: _Version) -> bool:
        return self.numbers < other.numbers

    __hash__ = None  # type: ignore[assignment]

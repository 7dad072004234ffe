"""Where a program of lines runs: a directory of its own, with the files it brings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import ConfigError


@dataclass(frozen=True)
class Brought:
    """Files and directories a program finds beside it, each under a name."""

    files: tuple[tuple[str, str], ...] = ()  # (name, absolute path)

    @classmethod
    def of(cls, option: str, paths: list[str]) -> Brought:
        """Paths as users give them: `path`, or `path#name`."""
        found: dict[str, str] = {}
        for given in paths:
            path, _, name = given.partition("#")
            place = Path(os.path.expandvars(path)).expanduser().absolute()
            if not place.exists():
                raise ConfigError(f"{option} {given}: there is no {place}")
            name = name or place.name
            if found.setdefault(name, str(place)) != str(place):
                raise ConfigError(
                    f"{option} {given}: {found[name]} has the name {name!r} already; give it "
                    f"another, as {path}#NAME"
                )
        return cls(tuple(found.items()))

    @contextmanager
    def laid_out(self) -> Iterator[str]:
        """A new directory with a link to each; it is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="millstream-task-") as directory:
            for name, path in self.files:
                os.symlink(path, os.path.join(directory, name))
            yield directory


NOTHING = Brought()

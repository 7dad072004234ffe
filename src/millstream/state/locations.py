"""Where things lie: a path of this machine, or the URL of an object store.

A URL travels as a `Path` like any other place a user gives, and is written with both slashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path, PosixPath
from typing import Self

SCHEMES = ("s3", "gs", "az", "hdfs")
_URL = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}([^/].*)", re.DOTALL)


class Url(PosixPath):
    """The URL of a folder or object, as `s3://bucket/folder`. Nothing on this machine is it."""

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def absolute(self) -> Self:
        """It is the same from everywhere."""
        return self

    def resolve(self, strict: bool = False) -> Self:
        """There are no links."""
        return self

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Nothing on this machine is it."""
        return False

    def is_file(self) -> bool:
        """Nothing on this machine is it."""
        return False


def located(where: str | Path) -> Path:
    """A place a user gave; also where a `Path` has made one slash of the two of a URL."""
    found = _URL.fullmatch(str(where))
    return Url(f"{found[1]}:", *found[2].split("/")) if found else Path(where)


def is_url(where: str | Path) -> bool:
    """Whether a place is the URL of an object store."""
    return _URL.fullmatch(str(where)) is not None


def beside(where: str | Path) -> Path:
    """Where a run keeps what only this machine needs: in its checkpoint, if that is here."""
    if not is_url(where):
        return Path(where)
    name = hashlib.sha256(str(where).encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"millstream-{os.getuid()}" / name

"""The archive of Spark's classes that lets its JVM start faster, if `millstream prepare` made one.

Java looks itself whether an archive fits its version and the jar files, and goes on without it if
not. Since it maps the file into memory, one that others could have written is not given to it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NAME = "spark.jsa"


def places() -> Iterator[Path]:
    """Directories for it, the best first: within the installation, else the user's own cache."""
    yield Path(sys.prefix) / "share" / "millstream"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(RuntimeError):  # no home directory
        yield Path(cache).expanduser() / "millstream"


def archive_options(given: str) -> str:
    """What to tell Java beside what the user tells it, which comes first."""
    if any(word in given for word in ("-Xshare", "-XX:Shared", "-XX:Archive")):
        return ""
    for place in places():
        archive = place / NAME
        if " " not in str(archive) and _trusted(archive):
            return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return ""


def _trusted(archive: Path) -> bool:
    """A plain file that only we, or the administrator, can have written."""
    try:
        found = archive.lstat()
    except OSError:
        return False
    ours = found.st_uid in (0, os.geteuid())
    return stat.S_ISREG(found.st_mode) and ours and not found.st_mode & 0o022

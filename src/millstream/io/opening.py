"""Opening what a source reads: a file of this machine, or an object of a store."""

from __future__ import annotations

import gzip
import os
from typing import BinaryIO, cast

from millstream.state.locations import is_url


def open_bytes(path: str) -> BinaryIO:
    """The bytes of a file or object, as they are stored."""
    if is_url(path):
        from millstream.state.objects import open_object

        return cast(BinaryIO, open_object(path))
    return open(path, "rb")


def open_unpacked(path: str) -> BinaryIO:
    """The same, decompressed if the name ends in .gz; with a `name`."""
    if not path.endswith(".gz"):
        return open_bytes(path)
    return cast(BinaryIO, gzip.open(open_bytes(path) if is_url(path) else path))


def size_of(path: str) -> int:
    """How many bytes there are."""
    if is_url(path):
        from millstream.state.objects import look_at

        found = look_at(path)
        if found is None:
            raise FileNotFoundError(path)
        return found.size
    return os.path.getsize(path)

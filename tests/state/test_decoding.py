"""Structs are decoded by decoders that are made when their module is loaded.

msgspec (0.22) works out what a struct is made of when it is first decoded, and several threads that
do so at once end the process: a collector was killed by eight agents that said hello together.
"""

from __future__ import annotations

import re
from pathlib import Path

import millstream

SOURCES = Path(millstream.__file__).parent


def test_no_struct_is_decoded_for_the_first_time_by_several_threads() -> None:
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"(decode|convert)\(.*type=.*\b_?[A-Z]\w+", line) and "Any" not in line
    ]
    assert found == []

"""Files with numbered records, a run that is killed again and again, and where each record went."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run import faults
from millstream.run.batches.ledger import WAYS
from millstream.run.faults import POINTS
from millstream.state import segments
from millstream.testing import run_in_process
from tests.stored import content_of, manifests_in

__all__ = ["POINTS", "Crash", "Numbered", "balanced", "run_killed", "shed_of"]


class Crash(BaseException):
    """The end of a process, as far as the engine can tell."""


@dataclass
class Numbered:
    """Files of records `{"ts", "n", "k"}`; every n is there once, so that it names its record."""

    path: Path
    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    places: dict[tuple[str, int], int] = field(default_factory=dict)  # file, offset -> n

    def add(self, name: str, times: Iterable[int]) -> None:
        """One more file."""
        records, data, n = [], b"", len(self.places)
        for at in times:
            record = {"ts": at, "n": n, "k": f"k{n % 3}"}
            self.places[str(self.path / name), len(data)] = n
            data += json.dumps(record).encode() + b"\n"
            records.append(record)
            n += 1
        (self.path / name).write_bytes(data)
        self.files[name] = records

    @property
    def numbers(self) -> list[int]:
        """Those of all records."""
        return [one["n"] for records in self.files.values() for one in records]

    def within(self, told: dict[str, Any]) -> list[int]:
        """The records of a range of the log."""
        file, low, high = told["from"]["file"], told["from"]["offset"], told["until"]["offset"]
        return [n for (path, at), n in self.places.items() if path == file and low <= at < high]

    def only(self, kept: Iterable[int]) -> dict[str, list[dict[str, Any]]]:
        """The files with some of their records."""
        mine = set(kept)
        return {
            name: [one for one in rows if one["n"] in mine] for name, rows in self.files.items()
        }


def run_killed(
    make: Callable[[], ms.Flow], checkpoint: Path, kills: Iterable[tuple[str, int]], **options: Any
) -> dict[str, dict[str, int]]:
    """Run a flow to its end in spite of kills at points of batches; gives the ledger.

    After every kill it starts anew, with nothing in memory.
    """
    for point, batch in kills:

        def crash(at: str, number: int, point: str = point, batch: int = batch) -> None:
            if at == point and number >= batch:
                raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(faults, "crash_point", crash)
            segments._open.cache_clear()
            try:
                return run_in_process(make(), checkpoint, **options)
            except Crash:
                balanced(checkpoint)
    segments._open.cache_clear()
    return run_in_process(make(), checkpoint, **options)


def balanced(checkpoint: Path) -> None:
    """The books of every commit that is still there add up."""
    for manifest in map(content_of, manifests_in(checkpoint / "manifests")):
        for account in manifest.ledger.values():
            assert account["offered"] == sum(account[way] for way in WAYS)
            assert all(account[way] >= 0 for way in WAYS)


def shed_of(checkpoint: Path) -> list[dict[str, Any]]:
    """The log of what was shed."""
    lines = (
        line
        for path in sorted((checkpoint / "shed").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    )
    return [json.loads(line) for line in lines]


def rows_in(directory: Path) -> list[dict[str, Any]]:
    """All rows of a Jsonl sink."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


def twice(numbers: Iterable[int]) -> list[int]:
    """Those that are there more than once."""
    return [n for n, count in Counter(numbers).items() if count > 1]

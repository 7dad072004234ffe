"""What the segments of a manifest come to, kept up to date at the cost of what changes.

The driver asks after every batch which files are no longer used, and before every batch how many
rows a table has in all its shards. Neither may cost what is stored: each batch brings the shards it
changed, and only these are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from millstream.state.bases import Change, Segments
from millstream.state.manifests import Manifest
from millstream.state.segments import Segment, SegmentFile


class Total(msgspec.Struct, frozen=True):
    """A table in all its shards: its rows, and the one place they all lie at, if they do."""

    rows: int = 0
    at: int | None = None  # a value of the column that segments are known by


class Holdings:
    """The files a manifest uses and the totals of its tables."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._uses: Counter[str] = Counter()
        self._rows: dict[tuple[str, str], int] = {}
        self._places: dict[tuple[str, str], Counter[int | None]] = {}
        self._spans: dict[tuple[str, str], Counter[tuple[int, int]]] = {}
        for owner, tables in manifest.segments.items():
            for table, shards in tables.items():
                for segments in shards.values():
                    self._count(owner, table, segments, 1)
        self._unused = [name for name in manifest.files if not self._uses[name]]

    def totals(self) -> dict[str, dict[str, Total]]:
        """Per operator and table, what lies in all shards together."""
        found: dict[str, dict[str, Total]] = {}
        for (owner, table), rows in self._rows.items():
            places = self._places[owner, table]
            at = next(iter(places)) if len(places) == 1 else None
            found.setdefault(owner, {})[table] = Total(rows, at)
        return found

    def spread(
        self, owner: str, tables: Iterable[str], change: Change | None = None
    ) -> list[Segment]:
        """Rows of some tables by what they span, those of all shards together.

        change: as they will be with it.
        """
        found: Counter[tuple[int, int]] = Counter()
        for table in tables:
            found.update(self._spans.get((owner, table), {}))
            shards = {} if change is None else change.segments.get(owner, {}).get(table, {})
            known = self.manifest.segments.get(owner, {}).get(table, {})
            for shard, segments in shards.items():
                found.subtract(_spans(known.get(shard, ())))
                found.update(_spans(segments))
        return [Segment("", 0, rows, low, high) for (low, high), rows in found.items() if rows]

    def change(self, reported: Iterable[Segments], files: Iterable[SegmentFile]) -> Change:
        """What becomes of the reports of tasks; nothing is changed yet."""
        changed: Segments = {}
        uses: Counter[str] = Counter()
        for report in reported:
            for owner, tables in report.items():
                for table, shards in tables.items():
                    known = self.manifest.segments.get(owner, {}).get(table, {})
                    for shard, segments in shards.items():
                        changed.setdefault(owner, {}).setdefault(table, {})[shard] = segments
                        uses.subtract(one.file for one in known.get(shard, ()))
                        uses.update(one.file for one in segments)
        gone = [name for name, by in uses.items() if by < 0 and not self._uses[name] + by]
        new = {file.file: file for file in files if uses[file.file] > 0}
        return Change(changed, new, [*self._unused, *gone])

    def follow(self, manifest: Manifest, change: Change) -> None:
        """Go on to a manifest that was written, which is the last one with a change."""
        for owner, tables in change.segments.items():
            for table, shards in tables.items():
                known = self.manifest.segments.get(owner, {}).get(table, {})
                for shard, segments in shards.items():
                    self._count(owner, table, known.get(shard, ()), -1)
                    self._count(owner, table, segments, 1)
        self.manifest, self._unused = manifest, []

    def _count(self, owner: str, table: str, segments: Iterable[Segment], by: int) -> None:
        place = (owner, table)
        places = self._places.setdefault(place, Counter())
        spans = self._spans.setdefault(place, Counter())
        for one in segments:
            spans[one.low, one.high] += by * one.rows
            if not spans[one.low, one.high]:
                del spans[one.low, one.high]
            self._rows[place] = self._rows.get(place, 0) + by * one.rows
            for counter, name in ((self._uses, one.file), (places, _place(one))):
                counter[name] += by  # type: ignore[index]
                if not counter[name]:  # type: ignore[index]
                    del counter[name]


def _spans(segments: Iterable[Segment]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for one in segments:
        found[one.low, one.high] += one.rows
    return found


def _place(segment: Segment) -> int | None:
    return segment.low if segment.low == segment.high else None

"""What looking at a stream gives: some of its rows, and what they were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pyarrow as pa

from millstream.showing import table_html, table_text, visible


@dataclass(frozen=True, repr=False)
class Sample:
    """Rows of a stream, computed from the first records of its sources.

    table: the rows, as Arrow. found: how many rows there were, of which the table has the first.
    records: how many records of each source were read. whole: these were all there are.
    dead: how many records became dead letters, and example: the error of the first.
    late: how many records came too late for a step, by its name.
    """

    step: str
    table: pa.Table
    found: int
    records: Mapping[str, int]
    whole: bool
    dead: int = 0
    example: str = ""
    late: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        return self.table.schema

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.table.to_pandas()

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @property
    def note(self) -> str:
        """What the rows were made of, in words."""
        read = " and ".join(
            f"{'all' if self.whole else 'the first'} {count:,} records of {name!r}"
            for name, count in self.records.items()
        )
        parts = [f"{len(self):,} of {self.found:,} rows of {self.step!r}, from {read}"]
        if self.dead:
            parts.append(f"{self.dead:,} dead letters, for example: {visible(self.example)}")
        if self.late:
            told = " and ".join(f"{count:,} for {step!r}" for step, count in self.late.items())
            parts.append(f"late records, which late() gives: {told}")
        return "; ".join(parts)

    def _values(self) -> list[list[Any]]:
        return [list(row.values()) for row in self.rows]

    def __repr__(self) -> str:
        if not self.table.column_names:
            return f"({self.note})"
        return f"{table_text(self.table.column_names, self._values())}\n({self.note})"

    def _repr_html_(self) -> str:
        table = table_html(self.table.column_names, self._values())
        return f"{table}<p><small>{escape(self.note)}</small></p>"


@dataclass(frozen=True, repr=False)
class Preview(Mapping[str, Sample]):
    """Some rows of every stream of a flow that leads somewhere, by the names of the steps."""

    samples: dict[str, Sample]

    def __getitem__(self, name: str) -> Sample:
        return self.samples[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.samples.values()))

    def _repr_html_(self) -> str:
        return "".join(sample._repr_html_() for sample in self.samples.values())


class Explained(str):
    """A plan as text, which a notebook shows as its picture."""

    draw: Callable[[], str | None]

    def __new__(cls, text: str, draw: Callable[[], str | None]) -> Explained:
        made = super().__new__(cls, text)
        made.draw = draw
        return made

    def _repr_svg_(self) -> str | None:
        return self.draw()

"""What a record of a change log says of its object: that it is so, or that it is no more.

Logs have different names for the same things; those of Debezium, Flink and Millstream's own sinks
are known. Any other word makes a dead letter of its record: a change that is not understood must
not be taken for another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Chunk, Mask

KNOWN = {
    **dict.fromkeys(("+", "u", "i", "c", "r", "+i", "+u", "insert", "update", "upsert"), "+"),
    **dict.fromkeys(("create", "read", "snapshot"), "+"),
    **dict.fromkeys(("-", "d", "-d", "-u", "delete", "remove"), "-"),
}


@dataclass(frozen=True)
class Operations:
    """The column of a log that says what happened, and what its values mean."""

    column: str
    words: tuple[tuple[str, str], ...] = ()  # beside the known ones: word -> "+" or "-"

    def removals(self, chunk: Chunk) -> tuple[Mask, dict[int, str]]:
        """Which records take their object away; and those that do not say what they do."""
        words = pc.cast(chunk.column(self.column), pa.string())
        distinct = words.dictionary_encode()
        known = KNOWN | dict(self.words)
        meaning = [
            known.get(word, known.get(word.lower())) for word in distinct.dictionary.to_pylist()
        ]
        said = [*(one or "?" for one in meaning), "?"]  # the last is null
        code = np.asarray(pc.fill_null(distinct.indices, len(meaning)))
        marks = np.array(said, object)[code]
        bad = {}
        for at in np.flatnonzero(marks == "?").tolist():
            told = "null" if code[at] == len(meaning) else repr(words[at].as_py()[:50])
            bad[at] = (
                f"{self.column!r} is {told}; expected one of +, u, - or insert, update, delete; "
                "say what other words mean with ops="
            )
        return marks == "-", bad

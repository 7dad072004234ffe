"""What the changes of a query come to, row by row."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.ops.chunks import Chunk
from millstream.run.tasks import sinking


def sign_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sinks get rows as they are inside, added or taken back, so that they can be counted."""

    def raw(chunks: list[Chunk], *_: Any, **__: Any) -> list[Chunk]:
        return [
            one.with_table(
                one.table.append_column("sign", pa.array(one.weights().astype(np.int64)))
            )
            for one in chunks
        ]

    monkeypatch.setattr(sinking, "leaving", raw)


def plain(value: Any) -> Any:
    """One way to write a number or a time, for both sides."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, float | Decimal):
        return round(float(value), 6) + 0.0
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def integrated(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """What signed rows come to; none may be taken back that is not there."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sign = row.pop("sign")
        found[tuple(map(plain, row.values()))] += sign
    assert min(found.values(), default=0) >= 0, found
    return +found

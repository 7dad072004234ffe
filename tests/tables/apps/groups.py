"""Orders as they are and their groups as changes, into tables: python groups.py KIND PLACE WORK."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.testing import run_in_process

LEAST = 500  # a group with less is not in the table: it comes, and with returns it goes


def write_orders(folder: Path) -> list[dict[str, Any]]:
    """Files of orders and returns."""
    folder.mkdir()
    rows = []
    for number in range(4):
        lines = ["id,k,v"]
        for at in range(number * 40, number * 40 + 40):
            value = at * 17 % 101 - (60 if number == 2 else 0)
            rows.append({"id": at, "k": f"k{at % 6}", "v": value})
            lines.append(f"{at},k{at % 6},{value}")
        (folder / f"part-{number}.csv").write_text("\n".join(lines) + "\n")
    return rows


def catalog(place: str) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("millstream", **properties(place))


def properties(place: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


def sink(kind: str, place: str, name: str, key: str | tuple[str, ...] = ()) -> Any:
    if kind == "delta":
        return ms.Delta(f"{place}/{name}", key=key)
    if kind == "iceberg":
        return ms.Iceberg(f"shop.{name}", catalog=properties(place), key=key)
    return ms.Postgres(place, table=name, key=key)


def make_flow(
    kind: str, place: str, work: Path, names: tuple[str, ...] = ("orders", "totals")
) -> ms.Flow:
    flow = ms.Flow("groups")
    orders = flow.source(
        ms.Files(
            work / "in", format="csv", schema="id bigint, k string, v bigint", max_files_per_batch=1
        ),
        name="orders",
    )
    orders.sink(sink(kind, place, names[0]), name="plain")
    if len(names) > 1:
        grouped = orders.key_by("k").agg(emit="delta", n=ms.count(), total=ms.sum("v"))
        grouped.where(f"total > {LEAST}").sink(sink(kind, place, names[1], "k"), name="merged")
    return flow


if __name__ == "__main__":
    kind, place, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    run_in_process(make_flow(kind, place, work, ("again",)), work / "ck", batch_rows=40)

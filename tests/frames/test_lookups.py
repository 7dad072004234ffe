"""Slates that Spark asks for by key: each is looked up, and nothing else is read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema

import millstream as ms
from millstream.errors import ConfigError
from millstream.run.datasource import MillstreamSource
from millstream.serve.slates import Snapshot
from millstream.state.segments import Missing
from millstream.testing import run_in_process


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"], slate["last"] = slate.get("n", 0) + 1, event.value["v"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("lookups")
    rows = "".join(f"2026-01-05T00:00:{i:02}Z,k{i % 7},{i}\n" for i in range(60))
    (place / "in.csv").write_text(f"ts,k,v\n{rows}")
    flow = ms.Flow("lookups")
    flow.source(ms.Files(place / "in.csv", time="ts")).key_by("k").update(count, name="counts")
    run_in_process(flow, place / "ck")
    return str(place / "ck")


def asked_for(checkpoint: str, **options: str) -> list[dict[str, Any]]:
    given = {"checkpoint": checkpoint, "slates": "counts", **options}
    source = MillstreamSource(given)  # type: ignore[arg-type]
    reader = source.reader(source.schema())
    (piece,) = reader.partitions()
    found = pa.Table.from_batches(
        reader.read(piece), to_arrow_schema(reader.schema, timezone="UTC")
    ).to_pylist()
    return [{name: row[name] for name in ("key", "n", "last")} for row in found]


K0, K1, K3 = ({"key": f"k{i}", "n": 9, "last": last} for i, last in ((0, 56), (1, 57), (3, 59)))


def test_keys_are_looked_up_and_no_other_slate_is_read(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(asked_for(checkpoint)) == 7
    monkeypatch.delattr(Snapshot, "scan")
    assert asked_for(checkpoint, key="k3") == [K3]
    assert asked_for(checkpoint, keys='["k1", "none", 7, "k0", "k1"]') == [K1, K0]


def test_a_key_that_is_not_there_has_the_columns_of_others(checkpoint: str) -> None:
    assert asked_for(checkpoint, key="none") == []
    given = {"checkpoint": checkpoint, "slates": "counts", "key": "none"}
    assert MillstreamSource(given).schema().names == ["key", "n", "last", "ts"]  # type: ignore[arg-type]


def test_conditions_of_a_query_are_left_to_spark(checkpoint: str) -> None:
    """Spark gives a reader that has taken some to other queries of its DataFrame, too."""
    source = MillstreamSource({"checkpoint": checkpoint, "slates": "counts"})  # type: ignore[arg-type]
    assert type(source.reader(source.schema())).pushFilters is DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slates": "counts", "keys": "k1,k2"}, "option keys is a list as JSON"),
        ({"slates": "counts", "keys": '["a"]', "key": "a"}, "stands without key"),
        ({"stream": "windows", "key": "a"}, "among slates only"),
    ],
)
def test_what_cannot_be_looked_up_is_said(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MillstreamSource({"checkpoint": "ck", **options})._asked()  # type: ignore[arg-type]


def test_a_lookup_begins_again_if_the_flow_has_removed_what_it_looks_into(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, gone = Snapshot._find, [Missing("a segment is gone")]

    def find_once_gone(self: Snapshot, *given: Any) -> Any:
        if gone:
            raise gone.pop()
        return find(self, *given)

    monkeypatch.setattr(Snapshot, "_find", find_once_gone)
    assert asked_for(checkpoint, key="k3") == [K3]

"""Google's and Azure's stores are what S3 is: the same tests, and a flow as a whole."""

# ruff: noqa: F811  fixtures that come from elsewhere
from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.state.storage import open_storage
from millstream.testing import run_in_process
from tests.stores.clouds import Azure, Google, bucket, cloud  # noqa: F401
from tests.stores.test_objects import (  # noqa: F401  they run here with another bucket
    test_a_create_that_is_refused_in_error_is_tried_again,
    test_a_run_that_was_overtaken_changes_nothing_its_successor_sees,
    test_a_store_that_ignores_conditions_is_refused,
    test_inputs_are_read_by_ranges,
    test_objects_are_read_whole_and_by_range,
    test_of_many_that_create_an_object_one_does,
)
from tests.stores.test_runs import (  # noqa: F401
    test_a_flow_in_a_store_gives_what_duckdb_gives,
    test_of_two_drivers_the_later_one_goes_on,
)


def test_what_is_not_there_is_said_at_once(bucket: str, cloud: Google | Azure) -> None:
    absent = open_storage(f"{cloud.scheme}://no-such-place/ck")
    for ask in (absent.names, lambda: absent.put("a", b"x"), lambda: absent.read("a")):
        with pytest.raises(ConfigError, match="://no-such-place does not exist; create it"):
            ask()


def test_a_delta_table_lies_there_too(bucket: str, tmp_path: Path) -> None:
    lake = pytest.importorskip("deltalake")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("v\n1\n2\n")
    flow = ms.Flow("lake")
    flow.source(ms.Files(tmp_path / "in")).sink(ms.Delta(f"{bucket}/table"), name="out")
    run_in_process(flow, f"{bucket}/ck")
    table = lake.DeltaTable(f"{bucket}/table", storage_options={"allow_http": "true"})
    assert sorted(table.to_pyarrow_table().column("v").to_pylist()) == [1, 2]
    again, kept = ms.Flow("again"), ms.Memory()
    again.source(ms.Delta(f"{bucket}/table")).sink(kept)
    run_in_process(again, f"{bucket}/again")
    assert sorted(row["v"] for row in kept.rows) == [1, 2]

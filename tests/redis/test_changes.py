"""Changes into Redis through SQL: the newest row of a key, and none where the row is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.testing import run_in_process


def test_a_change_log_is_mirrored_by_key(tmp_path: Path, server: Any) -> None:
    (tmp_path / "in").mkdir()
    batches = [
        [("c", {"id": 1, "v": 1}), ("c", {"id": 2, "v": 2}), ("c", {"id": 3, "v": 3})],
        [("u", {"id": 1, "v": 10}), ("d", {"id": 2, "v": 2})],
        [("c", {"id": 2, "v": 20}), ("d", {"id": 3, "v": 3})],
    ]
    for number, changes in enumerate(batches):
        sides = {"d": "before"}
        lines = [json.dumps({"op": op, sides.get(op, "after"): row}) for op, row in changes]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines) + "\n")
    flow = ms.Flow("mirror")
    flow.sql(f"""
        CREATE STREAM t (id INT, v INT, PRIMARY KEY (id))
        WITH (path = '{tmp_path}/in', format = 'debezium-json', max_files_per_batch = 1);
        CREATE SINK out WITH (sink = 'redis', url = '{server.url}', prefix = 'm:', key = 'id') AS
        SELECT id, v FROM t;
    """)
    run_in_process(flow, tmp_path / "ck")
    client = server.client()
    found = {
        key.decode().rpartition(":")[2]: json.loads(client.get(key))["row"]["v"]
        for key in client.keys("m:*:*")
    }
    assert found == {"1": 10, "2": 20}

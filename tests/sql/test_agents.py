"""SQL over what agents read: the columns and the time of what is read there."""

from __future__ import annotations

import pytest

import millstream as ms

WINDOWS = "TABLE(TUMBLE(TABLE readings, DESCRIPTOR({time}), INTERVAL '10' SECONDS))"


@pytest.mark.parametrize(
    ("reads", "query"),
    [
        (
            ms.Files("x", "json", schema="at timestamp, k string, v double", time="at"),
            f"SELECT k, SUM(v) AS t FROM {WINDOWS.format(time='at')} GROUP BY k, window_end",
        ),
        (
            ms.HostStats(every="1s"),
            f"SELECT host, AVG(cpu) FROM {WINDOWS.format(time='ts')} GROUP BY host, window_end",
        ),
    ],
    ids=["files", "figures of hosts"],
)
def test_windows_over_agents(reads: object, query: str) -> None:
    flow = ms.Flow("agents")
    flow.source(ms.Collector("127.0.0.1:9410", reads), name="readings")
    rows = flow.sql(query)
    assert len(rows.node.inputs) == 1
    with pytest.raises(ms.SqlError, match="unknown column 'nothing'"):
        flow.sql(query.replace("SUM(v)", "SUM(nothing)").replace("AVG(cpu)", "AVG(nothing)"))

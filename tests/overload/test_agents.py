"""Messages of agents that are too many: their records are counted."""

from __future__ import annotations

import json
import time
from pathlib import Path

import millstream as ms
from tests.agent.centre import Centre, agent_of, free_port
from tests.overload.support import rows_in, shed_of


def flow_of(place: Path, port: int) -> ms.Flow:
    flow = ms.Flow("agents")
    reads = ms.Files(
        place / "in",
        format="json",
        schema="ts bigint, k string",
        time="ts",
        lateness="0s",
        follow=True,
        idle_timeout=None,
    )
    spec = ms.Collector(f"127.0.0.1:{port}", reads, agents=["a"], overload=ms.drop(when=1))
    windows = flow.source(spec, name="in").key_by("k").window(ms.tumbling("10s"), fidelity=True)
    windows.agg(n=ms.count()).sink(ms.Jsonl(place / "out"))
    return flow


def test_messages_are_dropped_whole(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    port, path = free_port(), tmp_path / "in" / "log.json"
    with Centre(flow_of(tmp_path, port), tmp_path / "ck") as centre:
        centre.engine.trackers["in"].messages.most_held = 1 << 30  # type: ignore[attr-defined]
        agent = agent_of(flow_of(tmp_path, port), port, "a", tmp_path / "agents")
        deadline = time.monotonic() + 60
        for n in range(6):
            with path.open("a") as out:
                out.writelines(json.dumps({"ts": 10 * n + i, "k": "x"}) + "\n" for i in range(10))
            before = centre.engine.trackers["in"].pending()
            while centre.engine.trackers["in"].pending() == before:
                assert time.monotonic() < deadline
                agent.step()
                centre.engine.trackers["in"].poll(lambda look, paths: look(paths))
        centre.engine.pace.rows = 1
        while centre.step():
            assert time.monotonic() < deadline
        account = centre.ledger["in"]
        assert account["offered"] == 60 == account["aggregated"] + account["dropped"]
        assert account["dropped"] >= 20 and account["dropped"] == account["shed"]
        agent.close()
        shares = centre.engine.manifest.sources["in"].shares
        kept, dropped = (sum(one[at] for one in shares) for at in (2, 4))
        assert (kept, dropped) == (account["aggregated"], account["dropped"])
    assert sum(one["dropped"] for one in shed_of(tmp_path / "ck")) == account["dropped"]
    rows = rows_in(tmp_path / "out")
    assert sum(row["n"] for row in rows) <= account["aggregated"]
    assert {row["fidelity"] for row in rows} <= {1.0}  # of a window all was dropped, or nothing

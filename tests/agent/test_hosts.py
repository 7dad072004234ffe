"""Figures of a machine, by itself and through an agent."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import psutil
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.io.hosts import figures
from tests.agent.centre import Centre, agent_of, free_port


def test_a_record_is_what_psutil_says() -> None:
    given = figures(0.01, None)
    first, second = next(given), next(given)
    assert first["host"] == socket.gethostname() and first["ts"] < second["ts"]
    assert abs(second["memory"] - psutil.virtual_memory().percent) < 20
    assert all(second[name] >= 0 for name in ("swapped_in", "disk_read", "sent", "received"))
    assert set(first) == {part.split()[0] for part in ms.HostStats.schema.split(", ")}


def test_agents_send_the_figures_of_their_machines(tmp_path: Path) -> None:
    port = free_port()

    def flow(name: str) -> ms.Flow:
        made = ms.Flow("hosts")
        reads = ms.HostStats("20ms", host=name)
        source = ms.Collector(f"127.0.0.1:{port}", reads, agents=["a", "b"], boundary="20ms")
        stats = made.source(source, name="stats")
        windows = stats.key_by("host").window(ms.tumbling("200ms"), fidelity=True)
        windows.agg(n=ms.count(), cpu=ms.mean("cpu")).sink(ms.Jsonl(tmp_path / "out"))
        return made

    with Centre(flow("a"), tmp_path / "collector") as centre:
        both = [agent_of(flow(name), port, name, tmp_path / "agents") for name in "ab"]
        rows, until = [], time.monotonic() + 100
        while len(rows) < 6 and time.monotonic() < until:
            for one in both:
                one.step()
            centre.step()
            files = (tmp_path / "out").glob("*.jsonl")
            rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert {row["host"] for row in rows} == {"a", "b"}
        assert all(row["n"] > 0 and row["fidelity"] == 1.0 for row in rows)
        for one in both:
            one.close()


@pytest.mark.parametrize("given", [{"every": "often"}, {"host": ""}, {"time": "ts"}])
def test_what_it_cannot_be(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="HostStats"):
        ms.HostStats(**given)  # type: ignore[arg-type]

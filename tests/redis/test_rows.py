"""Rows of other streams in Redis: the newest per key, also after crashes and absences."""

from __future__ import annotations

import json
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.run import faults
from millstream.testing import reference, run_in_process
from tests.variants import variants

OPTIONS = {"batch_rows": 20, "batch_bytes": 1500}


class Crash(BaseException):
    """The end of a process."""


def write_input(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(count: int = 300) -> list[dict[str, Any]]:
    keys = ["a", "b c", "ü\0", "42", "*", ""]
    return [{"ts": n, "k": keys[n * 7 % 6], "m": n % 2, "v": n * n % 101} for n in range(count)]


def rows_flow(tmp: Path, sink: Any, count: int = 300) -> ms.Flow:
    flow = ms.Flow("rows")
    schema = "ts bigint, k string, m bigint, v bigint"
    path = write_input(tmp / "in.jsonl", records(count))
    source = flow.source(ms.Files(path, schema=schema, time="ts"), name="in")
    source.where("v > 3").named("big").sink(sink, name="redis")
    return flow


def expected(count: int = 300) -> dict[str, dict[str, Any]]:
    last = {}
    for row in records(count):
        if row["v"] > 3:
            key = json.dumps(row["k"]) if row["k"] == "42" else row["k"]
            last[key] = row
    return last


def contents(server: Any, head: str = "millstream:rows:big:") -> dict[str, Any]:
    client = server.client()
    found = {}
    for name in client.scan_iter(count=1000):
        if name.startswith(head.encode()):
            value = json.loads(client.get(name))
            assert list(value) == ["batch", "key", "row"]
            found[name.decode()[len(head) :]] = value["row"]
    return found


def test_the_newest_row_per_key(server: Any, tmp_path: Path) -> None:
    flow = rows_flow(tmp_path, ms.Redis(server.url, key="k"))
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    assert contents(server) == expected()
    run_in_process(flow, tmp_path / "ck2", **OPTIONS)  # another checkpoint, the same rows
    assert contents(server) == expected()


def test_several_columns_a_prefix_and_a_ttl(server: Any, tmp_path: Path) -> None:
    sink = ms.Redis(server.url, key=("k", "m"), prefix="x[", ttl="90s")
    run_in_process(rows_flow(tmp_path, sink), tmp_path / "ck", **OPTIONS)
    last = {}
    for row in records():
        if row["v"] > 3:
            last[json.dumps([row["k"], row["m"]], ensure_ascii=False, separators=(",", ":"))] = row
    assert contents(server, "x[big:") == last
    client = server.client()
    lives = {client.pttl(name) for name in client.scan_iter() if name != b"x[big"}
    assert max(lives) <= 90_000 and min(lives) > 60_000


def test_windows_and_changes_that_take_results_back(server: Any, tmp_path: Path) -> None:
    """Delta results: "u" replaces, "-" removes."""

    def totals(key: Any, rows: Any, window: Any) -> Any:
        total = sum(row["v"] for row in rows)
        return {"k": key, "total": total} if total < 60 else None

    rows = [{"ts": n, "k": "ab"[n % 2], "v": 5} for n in range(100)]
    rows += [{"ts": 3, "k": "b", "v": 1}, *({"ts": 290, "k": "a", "v": 0} for _ in range(90))]
    rows += [{"ts": 95, "k": "b", "v": 50}]
    flow = ms.Flow("deltas")
    path = write_input(tmp_path / "in.jsonl", rows)
    source = flow.source(
        ms.Files(path, schema="ts bigint, k string, v bigint", time="ts", lateness="200s"),
        name="in",
    )
    seen = ms.Memory()
    (
        source.key_by("k")
        .window(ms.tumbling("10s"), emit="delta")
        .reduce(totals)
        .named("sums")
        .sink(ms.Redis(server.url, key=("k", "window_start")), name="redis")
        .sink(seen)
    )
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    wanted: dict[tuple[str, int], int] = {}
    for row in rows:
        at = (row["k"], row["ts"] // 10 * 10)
        wanted[at] = wanted.get(at, 0) + row["v"]
    found = contents(server, "millstream:deltas:sums:")
    seconds = {
        (row["k"], int(datetime.fromisoformat(row["window_start"]).timestamp())): row["total"]
        for row in found.values()
    }
    assert seconds == {at: total for at, total in wanted.items() if total < 60}
    assert len(seconds) == len(wanted) - 1
    assert {row["op"] for row in seen.rows} == {"+", "u", "-"}


@pytest.mark.parametrize("seed", variants(range(3)))
def test_batches_published_twice_leave_the_same(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Killed after the rows were written and before that was noted, several times."""
    flow = rows_flow(tmp_path, ms.Redis(server.url, key="k"))
    seen = 0

    def crash(point: str, batch: int) -> None:
        nonlocal seen
        if point in ("after-manifest", "published") and batch % 3 == seed:
            seen += 1
            if seen % 2:
                raise Crash

    monkeypatch.setattr(faults, "crash_point", crash)
    for _ in range(50):
        try:
            run_in_process(flow, tmp_path / "ck", **OPTIONS)
            break
        except Crash:
            continue
    assert seen > 3
    assert contents(server) == expected()


def test_redis_away_stops_the_flow_and_nothing_is_missing_after(
    server: Any, tmp_path: Path
) -> None:
    sink = ms.Redis(server.url, key="k", wait="300ms")
    flow = rows_flow(tmp_path, sink, 60)
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    server.client().save()
    flow = rows_flow(tmp_path, sink)
    server.kill()
    with pytest.raises(RunError, match=r"sink 'redis': Redis at redis://127.* start it"):
        run_in_process(flow, tmp_path / "ck2", **OPTIONS)
    server.start()
    run_in_process(flow, tmp_path / "ck2", **OPTIONS)
    assert contents(server) == expected()


def test_redis_away_in_the_middle(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = rows_flow(tmp_path, ms.Redis(server.url, key="k", wait="300ms"))

    def crash(point: str, batch: int) -> None:
        if (point, batch) == ("after-manifest", 2):
            server.client().save()
            server.kill()

    monkeypatch.setattr(faults, "crash_point", crash)
    with pytest.raises(RunError, match="batch 2 is committed and will be mirrored at the next"):
        run_in_process(flow, tmp_path / "ck", **OPTIONS)
    server.start()
    monkeypatch.undo()
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    assert contents(server) == expected()


def test_a_short_absence_is_waited_for(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = rows_flow(tmp_path, ms.Redis(server.url, key="k"))
    back: list[threading.Timer] = []

    def crash(point: str, batch: int) -> None:
        if (point, batch) == ("after-manifest", 2):
            server.client().save()
            server.kill()
            back.append(threading.Timer(0.4, server.start))
            back[0].start()

    monkeypatch.setattr(faults, "crash_point", crash)
    run_in_process(flow, tmp_path / "ck", **OPTIONS)
    back[0].join()
    assert contents(server) == expected()


# -- what is refused ------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_when_it_is_written() -> None:
    flow = ms.Flow("wrong")
    source = flow.source(ms.Rate(1, limit=3), name="in")
    with pytest.raises(ConfigError, match="say which column of 'in' names a row"):
        source.sink(ms.Redis())
    source.sink(ms.Redis(key="value"))
    with pytest.raises(ConfigError, match="is mirrored there already, by 'redis'"):
        source.sink(ms.Redis(key="ts"))
    source.sink(ms.Redis(key="ts", prefix="other:"))
    updated = source.key_by("value").update(lambda event, slate, ctx: None, name="up")
    with pytest.raises(ConfigError, match="leave out key= and ttl="):
        updated.sink(ms.Redis(key="value"))
    updated.sink(ms.Redis())


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    flow = rows_flow(tmp_path, ms.Redis(key="kk"))
    with pytest.raises(ConfigError, match="'kk'"):
        flow.explain()
        run_in_process(flow, tmp_path / "ck")


def test_without_the_package_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    flow = rows_flow(tmp_path, ms.Redis(key="k"))
    assert "Redis(redis://127.0.0.1:6379/0)" in flow.explain()
    with pytest.raises(ConfigError) as caught:
        flow.start(tmp_path / "ck")
    assert str(caught.value) == "ms.Redis needs the package redis: pip install 'millstream[redis]'"


def test_the_reference_gives_the_rows(tmp_path: Path) -> None:
    """The oracle takes a Redis sink as any other."""
    flow = rows_flow(tmp_path, ms.Redis(key="k"))
    rows = reference(flow, {"in": records()})["redis"]
    assert {json.dumps(r["k"]) if r["k"] == "42" else r["k"]: r for r in rows} == expected()

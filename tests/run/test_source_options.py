"""Mistakes in the options of a source are found before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.sources.resolving import resolve_format
from millstream.testing import run_in_process

SCHEMA = "ts timestamp, host string"


@pytest.mark.parametrize("kind", ["files", "stdin", "generator", "rate"])
def test_a_participant_is_a_column(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ts,host\n2026-01-05T09:30:00Z,a\n")
    source: Any = {
        "files": lambda: ms.Files(tmp_path, time="ts", participant="hots"),
        "stdin": lambda: ms.Stdin(format="csv", schema=SCHEMA, time="ts", participant="hots"),
        "generator": lambda: ms.Generator(list, schema=SCHEMA, time="ts", participant="hots"),
        "rate": lambda: ms.Rate(1, participant="hots"),
    }[kind]()
    with pytest.raises(ms.ConfigError, match=r"source 'in': participant='hots': .* there are ts, "):
        resolve_format("in", source)


def test_the_zone_of_a_generator_without_a_schema_is_one() -> None:
    with pytest.raises(ms.ConfigError, match=r"zone= is 'Nowhere/City'"):
        resolve_format("in", ms.Generator(list, time="ts", zone="Nowhere/City"))


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"limit": -1}, {"limit": "9"}, {"rows_per_second": "1"}],
)
def test_a_rate_refuses_what_it_cannot_do(options: dict[str, Any]) -> None:
    with pytest.raises(ms.ConfigError, match=rf"Rate\({next(iter(options))}="):
        ms.Rate(**options)


def test_none_declares_no_participants(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ts,host\n5,a\n")
    flow, memory = ms.Flow("none"), ms.Memory()
    options: dict[str, Any] = {"participant": "host", "participants": None, "lateness": "0s"}
    stream = flow.source(ms.Files(tmp_path, time="ts", **options))
    stream.key_by("host").window(ms.tumbling("10s")).agg(n=ms.count()).sink(memory)
    run_in_process(flow, tmp_path / "ck")
    assert [row["n"] for row in memory.rows] == [1]
    for wrong in (5, "a", [1]):
        with pytest.raises(ms.ConfigError, match=r"participants=.*expected a list of names"):
            ms.Files(tmp_path, participant="host", participants=wrong)


def test_a_path_that_is_there_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "in[1]"
    folder.mkdir()
    for name in ("a[2].csv", "b.csv"):
        (folder / name).write_text(f"x\n{name}\n")
    for path, rows in ((folder, 2), (folder / "a[2].csv", 1)):
        assert ms.Flow("names").source(ms.Files(path)).head().found == rows

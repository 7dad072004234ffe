"""Manifests that say what has changed since a base: readers get all, and nothing else is taken."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.state import checkpoint as checkpoints
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine
from millstream.state.manifests import Manifest, list_manifests, read_manifest
from millstream.state.storage import open_storage
from millstream.testing import Driver


def flow() -> ms.Flow:
    made = ms.Flow("changes")
    source = ms.Files("nowhere", time="ts", lateness="1s", follow=True)
    stream = made.source(source, name="in").key_by("key")
    stream.window(ms.sliding("30s", "10s")).agg(n=ms.count()).sink(ms.Memory(), name="counts")
    stream.update(count, name="slates", order="arrival")
    return made


def count(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def manifests(place: Path) -> list[Manifest]:
    """All that are there, as readers get them."""
    directory = open_storage(place / "manifests")
    return [read_manifest(directory, batch) for batch in list_manifests(directory)]


def newest(place: Path) -> Manifest:
    directory = open_storage(place / "manifests")
    return read_manifest(directory, list_manifests(directory)[-1])


def step(driver: Driver, number: int) -> None:
    at = 1000.0 + 7 * number
    driver.push("in", [{"ts": at + n / 9, "key": (number * 3 + n) % 17} for n in range(5)])
    driver.step()


@pytest.fixture(autouse=True)
def changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small checkpoints write changes, too, and a new base every few batches."""
    monkeypatch.setattr(checkpoints, "_MANY_FILES", 1)
    monkeypatch.setattr(checkpoints, "_BASE_EVERY", 5)
    monkeypatch.setattr(checkpoints, "_worth_a_change", lambda change, manifest: True)


def run(place: Path, batches: int = 23, **options: Any) -> list[Any]:
    """Every manifest that is read is the one in memory; also after starts in between."""
    changed = 0
    with Driver(flow(), checkpoint=place, parallelism=2, now=2000.0, shards=8, **options) as driver:
        for number in range(batches):
            step(driver, number)
            found, now = (
                newest(place),
                driver.engine.manifest,
            )
            assert (found.segments, found.files) == (now.segments, now.files)
            changed += found.base >= 0
            if number in (3, 12):
                driver.restart()
        driver.end()
        assert changed > 15
        return sorted(map(str, driver.output("counts"))) + sorted(driver.slates("slates").items())


def test_the_same_as_with_whole_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path / "changes")
    lines, sound = examine(tmp_path / "changes")
    assert sound, lines
    expected = [n for number in range(23) for n in range(number * 3, number * 3 + 5)]
    slates = {key: {"n": sum(n % 17 == key for n in expected)} for key in range(17)}
    assert found[-17:] == sorted(slates.items())


def test_bases_are_collected_with_the_last_manifest_that_needs_them(tmp_path: Path) -> None:
    run(tmp_path, 40, retain=3)
    kept = {one.base for one in manifests(tmp_path)}
    bases = {int(path.stem) for path in (tmp_path / "manifests").glob("*.base")}
    assert bases == kept
    assert len(bases) <= 2


@pytest.mark.parametrize("batches", [6, 8])
def test_collecting_right_after_a_start_leaves_the_newest_base(
    tmp_path: Path, batches: int
) -> None:
    with Driver(flow(), checkpoint=tmp_path, now=2000.0) as driver:
        for number in range(batches):
            step(driver, number)
        driver.restart()
        driver.engine.checkpoint.collect_garbage(driver.engine.manifest, retain=1)
        driver.restart()
        found = sorted(path.suffix for path in (tmp_path / "manifests").iterdir())
        assert found == [".base", ".json", ".pages"]


def test_a_disk_that_is_full_when_pages_are_written_leaves_no_base_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = checkpoints.write_pages, []

    def full_once(*given: Any) -> None:
        tried.append(given)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*given)

    monkeypatch.setattr(checkpoints, "write_pages", full_once)
    run(tmp_path, 18)
    assert len(tried) > 2


def newest_base(place: Path) -> Path:
    found = newest(place)
    assert found.base >= 0
    return place / "manifests" / f"{found.base:08d}.base"


def test_a_base_that_is_not_what_was_written_is_refused(tmp_path: Path) -> None:
    with Driver(flow(), checkpoint=tmp_path / "ck", parallelism=2, now=2000.0) as driver:
        for number in range(9):
            step(driver, number)
    base = newest_base(tmp_path / "ck")
    older = min((tmp_path / "ck" / "manifests").glob("*.base"))
    assert older != base
    data = base.read_bytes()
    for name, content, why in (
        ("cut", data[:-30], "is damaged"),
        ("flipped", data.replace(b'"files"', b'"fileS"'), "is damaged"),
        ("another", older.read_bytes(), "is not the one"),
        ("gone", None, "is missing"),
    ):
        place = tmp_path / name
        shutil.copytree(tmp_path / "ck", place)
        other = place / "manifests" / base.name
        other.unlink()
        if content is not None:
            other.write_bytes(content)
        with pytest.raises(ms.MillstreamError, match=why):
            Checkpoint(place).latest()
        lines, sound = examine(place)
        assert not sound
        assert any(line.startswith("last good      batch") for line in lines), lines


def test_a_small_checkpoint_has_whole_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MANY_FILES", 1_000)
    with Driver(flow(), checkpoint=tmp_path, now=2000.0) as driver:
        for number in range(5):
            step(driver, number)
    assert all(one.base < 0 for one in manifests(tmp_path))
    assert not list((tmp_path / "manifests").glob("*.base"))

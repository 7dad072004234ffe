"""Checkpoints that somebody made up: forged and swapped manifests, links, directories, owners.

Each case changes a stopped run in one or two random ways and goes on. Allowed are the right answer
and a clear refusal; never a wrong answer, a write outside, or an exception of `doctor`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.state import segments
from millstream.state.doctor import examine
from millstream.testing import run_in_process
from tests.security.hostile import OPTIONS, ROWS, flow_to, forge, newest, rows_in
from tests.stored import manifests_in

Way = Callable[[Path, random.Random], None]
OUTSIDE = "outside"


def anything(tmp: Path, chance: random.Random) -> Path:
    """Any file of the checkpoint or the hidden folder of the output."""
    found = [*(tmp / "ck").rglob("*"), *(tmp / "out" / ".millstream").rglob("*")]
    return chance.choice(sorted(p for p in found if p.is_file() and not p.is_symlink()))


def a_directory(tmp: Path, chance: random.Random) -> Path:
    found = [path for path in (tmp / "ck").rglob("*") if path.is_dir() and not path.is_symlink()]
    return chance.choice([*sorted(found), tmp / "out" / ".millstream"])


def a_target(tmp: Path, chance: random.Random) -> Path:
    return chance.choice([tmp / OUTSIDE, tmp / OUTSIDE / "precious", tmp / "in.jsonl", tmp / "no"])


def link_a_file(tmp: Path, chance: random.Random) -> None:
    path = anything(tmp, chance)
    path.unlink()
    path.symlink_to(a_target(tmp, chance))


def link_a_directory(tmp: Path, chance: random.Random) -> None:
    path = a_directory(tmp, chance)
    shutil.rmtree(path)
    path.symlink_to(chance.choice([tmp / OUTSIDE, path.parent, path]))


def directory_for_a_file(tmp: Path, chance: random.Random) -> None:
    path = anything(tmp, chance)
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def pipe_for_a_file(tmp: Path, chance: random.Random) -> None:
    path = anything(tmp, chance)
    path.unlink()
    os.mkfifo(path)


def file_for_a_directory(tmp: Path, chance: random.Random) -> None:
    path = a_directory(tmp, chance)
    shutil.rmtree(path)
    path.write_text("x")


def swap_manifests(tmp: Path, chance: random.Random) -> None:
    paths = manifests_in(tmp / "ck" / "manifests")
    one, other = chance.sample(paths, 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    if chance.random() < 0.5:
        other.write_bytes(first)


def swap_files(tmp: Path, chance: random.Random) -> None:
    one, other = anything(tmp, chance), anything(tmp, chance)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def renumber(tmp: Path, chance: random.Random) -> None:
    """An older manifest as the newest, with the number and the checksum made to fit."""
    *older, last = manifests_in(tmp / "ck" / "manifests")
    number = int(last.stem)
    shutil.copy(chance.choice(older), last)
    forge(last, lambda content: content.update(batch=number))


def lead_out(tmp: Path, chance: random.Random) -> None:
    place = str(a_target(tmp, chance))
    given = chance.choice([place, os.path.relpath(place, tmp / "out"), f"../../{OUTSIDE}/precious"])

    def change(content: dict[str, Any]) -> None:
        match chance.randrange(4):
            case 0:
                content["files"] = {given: [given, 1, 1]}
            case 1:
                output = {"sink": "sink", "staged": given, "final": given, "rows": 1}
                content["outputs"] = [output | {"size": 1, "checksum": 1}]
            case 2:
                content["outputs"] = [{"sink": given, "staged": given, "final": None, "rows": 1}]
            case _:
                content["sources"] = {given: content["sources"].get("in", {})}

    forge(newest(tmp), change)


def retype(tmp: Path, chance: random.Random) -> None:
    """A field of the newest manifest becomes something else."""
    odd = chance.choice([None, -1, 2**70, "x", [], {}, [[1]], True, 1.5, {"a": {"b": []}}])

    def change(content: dict[str, Any]) -> None:
        content[chance.choice(sorted(content))] = odd

    forge(newest(tmp), change)


def forge_marker(tmp: Path, chance: random.Random) -> None:
    text = chance.choice(["0", "99999999", "1 " + "0" * 32, "-1", "9" * 5000])
    check = f"{zlib.crc32(json.dumps(text).encode()):08x}"
    (tmp / "ck" / "published").write_text(f"{text} {check}")


def forge_owner(tmp: Path, chance: random.Random) -> None:
    owner = tmp / "out" / ".millstream" / "owner"
    text = owner.read_text()
    owner.write_text(
        chance.choice([text + "x", "", "other 1234", text.replace("run 1", "run 99"), "\ud7ff"])
    )


def open_to_all(tmp: Path, chance: random.Random) -> None:
    path = chance.choice([tmp / "ck", a_directory(tmp, chance), anything(tmp, chance)])
    path.chmod(path.stat().st_mode | 0o002)


def foreign(tmp: Path, chance: random.Random) -> None:
    path = chance.choice([tmp / "ck", a_directory(tmp, chance), anything(tmp, chance)])
    os.chown(path, 12345, -1)


WAYS: list[Way] = [
    link_a_file,
    link_a_directory,
    directory_for_a_file,
    pipe_for_a_file,
    file_for_a_directory,
    swap_manifests,
    swap_files,
    renumber,
    lead_out,
    retype,
    forge_marker,
    forge_owner,
    open_to_all,
    *([foreign] if os.geteuid() == 0 else []),
]


PLANTING = (link_a_file, link_a_directory, pipe_for_a_file)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after a few batches, everything published."""
    from millstream.run.batches.engine import Engine
    from millstream.run.planning import plan_flow
    from millstream.run.tasks.executors import InProcess
    from millstream.settings import Settings
    from millstream.state.checkpoint import Checkpoint

    tmp = tmp_path_factory.mktemp("forgery")
    work = tmp / "work"
    work.mkdir()
    plan = plan_flow(flow_to(work), work / "ck")
    place = Checkpoint(work / "ck")
    place.lock()
    engine = Engine(plan, place, Settings(parallelism=1, **OPTIONS))
    engine.open(1)
    for _ in range(4):
        assert engine.step(InProcess(plan, 1))
    engine.close()
    (work / OUTSIDE).mkdir()
    (work / OUTSIDE / "precious").write_text("mine")
    shutil.copytree(work, tmp / "backup")
    return work


def case(work: Path, seed: int) -> str:
    """One case; gives how it ended."""
    shutil.rmtree(work)
    shutil.copytree(work.parent / "backup", work, symlinks=True)
    segments._open.cache_clear()
    chance = random.Random(seed)
    ways = [WAYS[seed % len(WAYS)], *chance.choices(WAYS, k=seed % 3 == 0)]
    ways.sort(key=PLANTING.__contains__)  # nobody can write to a pipe that was planted before
    told = f"case {seed}: {', '.join(way.__name__ for way in ways)}"
    for way in ways:
        with contextlib.suppress(OSError, LookupError, ValueError):  # the first left nothing to do
            way(work, chance)
    before = (work / "in.jsonl").read_bytes()
    examine(work / "ck")
    try:
        run_in_process(flow_to(work), work / "ck", **OPTIONS)
        ended = "right"
        assert rows_in(work / "out") == list(range(ROWS)), told
    except ms.MillstreamError:
        ended = "refused"
        rows = rows_in(work / "out")
        assert len(rows) == len(set(rows)), told
    assert [path.name for path in (work / OUTSIDE).iterdir()] == ["precious"], told
    assert (work / OUTSIDE / "precious").read_text() == "mine", told
    assert (work / "in.jsonl").read_bytes() == before, told
    assert not (work / "no").exists(), told
    return ended


@pytest.mark.parametrize("seed", range(len(WAYS) * 2))
def test_a_forged_checkpoint(stopped: Path, seed: int) -> None:
    case(stopped, seed)


@pytest.mark.long
def test_a_thousand_forged_checkpoints(stopped: Path) -> None:
    first = random.SystemRandom().randrange(2**32)
    print(f"cases {first} to {first + 999}")
    ended = [case(stopped, seed) for seed in range(first, first + 1000)]
    print({how: ended.count(how) for how in set(ended)})
    assert ended.count("refused") > 500

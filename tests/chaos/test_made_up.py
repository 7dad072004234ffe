"""Checkpoints whose owner made up values: every file of one is parsed, with types and ranges.

Each case changes one value somewhere in `flow.json`, a registry, a manifest or the names of a
spool, mends all checksums and goes on. Allowed are an answer (numbers that are made up are not
promised to be right) and a refusal; never another exception, a write outside, or a crash of
`doctor`.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.serve.following import Follower
from millstream.serve.status import Served
from millstream.settings import Settings
from millstream.state import segments
from millstream.state.checkpoint import Checkpoint, checksum
from millstream.state.doctor import examine
from millstream.testing import run_in_process
from tests.security.hostile import forge, newest

ROWS = 40
OPTIONS: dict[str, Any] = {"batch_rows": 10, "batch_bytes": 300}
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, -(2**63), -(2**70)),
    *(0.5, -1e300, 1e300, "", "x", "..", "../../outside/precious", "/etc/passwd", "a\0b", "\ud7ff"),
    *("0", "-1", "9" * 30, [], {}, [1], [[]], [None], {"a": 1}, {"a": {"b": []}}, {"0": 2**70}),
]


def rich(tmp: Path) -> ms.Flow:
    """Files and a generator; windows, a reduce, an updater with slates; files and a function."""

    def counted(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1

    def made() -> Iterator[dict[str, Any]]:
        for i in range(ROWS):
            yield {"ts": i, "n": i}

    flow = ms.Flow("rich")
    path = tmp / "in.jsonl"
    if not path.exists():
        path.write_text("".join(f'{{"ts": {i}, "n": {i}}}\n' for i in range(ROWS)))
    files = flow.source(ms.Files(path, schema="ts bigint, n bigint", time="ts"), name="in")
    drawn = flow.source(ms.Generator(made, schema="ts bigint, n bigint", time="ts"), name="gen")
    files.select("n").sink(ms.Jsonl(tmp / "out"), name="rows")
    keyed = files.key_by("n")
    keyed.window(ms.sliding("10s", "5s")).agg(s=ms.sum("n"), c=ms.count()).sink(
        ms.Parquet(tmp / "sums"), name="sums"
    )
    keyed.update(counted, ttl="1d").sink(ms.Memory(), name="counts")
    drawn.key_by().window(ms.session("3s")).reduce(lambda key, rows, window: {"n": len(rows)}).sink(
        ms.Call(lambda row: None), name="calls"
    )
    return flow


Place = tuple[Any, Any]  # a container, and a key or index of it


def leaves(value: Any) -> Iterator[Place]:
    """Every place of a value of JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from leaves(inner)


def make_up(value: Any, chance: random.Random) -> str:
    """Change one place; gives what became of it."""
    where, key = chance.choice(list(leaves(value)))
    match chance.randrange(8):
        case 0:
            del where[key]
            return f"without {key!r}"
        case 1 if isinstance(where, dict):
            odd = chance.choice(["x", "", "-1", "99", "../x", "a\0b"])
            where[odd] = where.pop(key)
            return f"{odd!r} for {key!r}"
        case 2 if isinstance(where[key], list) and where[key]:
            where[key].append(where[key][0])
            return f"{key!r} longer"
        case _:
            odd = chance.choice(ODD)
            where[key] = odd
            return f"{key!r}: {odd!r}"


def settle(tmp: Path) -> None:
    """The marker of what was published, without the digest."""
    text = str(int(newest(tmp).stem))
    (tmp / "ck" / "published").write_text(f"{text} {checksum(text)}")


def program(tmp: Path, chance: random.Random) -> str:
    path = tmp / "ck" / "flow.json"
    content = json.loads(path.read_bytes())
    content.pop("checksum")
    told = make_up(content, chance)
    path.write_bytes(msgspec.json.encode({**content, "checksum": checksum(content)}))
    return told


def manifest(tmp: Path, chance: random.Random) -> str:
    told = ""

    def change(content: dict[str, Any]) -> None:
        nonlocal told
        part = chance.choice([content, content["sources"], content["segments"]])
        told = make_up(part, chance)

    forge(newest(tmp), change)
    settle(tmp)
    return told


def registry(tmp: Path, chance: random.Random) -> str:
    path = tmp / "ck" / "sources" / "in.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    if chance.random() < 0.2:
        lines.append(chance.choice([*ODD, [0, 10], [0, 10, 1, 1, None, 1, 1, 1], [99, 1]]))
    told = make_up(lines, chance)
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(data)

    def change(content: dict[str, Any]) -> None:
        content["sources"]["in"].update(registry=len(data), registry_sum=zlib.crc32(data))

    forge(newest(tmp), change)
    settle(tmp)
    return told


def spool(tmp: Path, chance: random.Random) -> str:
    """Names of pieces, and the number of those that were sealed."""
    directory = tmp / "ck" / "spool" / "gen"
    told = str(chance.choice(ODD))
    found = sorted(directory.glob("*-*-*-*.arrow"))
    if chance.random() < 0.4 or not found:
        (directory / "sealed").write_bytes(told.encode("utf-8", "surrogatepass"))
        return f"sealed: {told}"
    path = chance.choice(found)
    parts = path.stem.split("-")
    parts[chance.randrange(len(parts))] = told.replace("/", "_").replace("\0", "_")
    name = "-".join(parts) + ".arrow"
    path.rename(directory / name)
    return name


FILES: list[Callable[[Path, random.Random], str]] = [program, manifest, registry, spool]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after a few batches, with state and pieces that wait."""
    tmp = tmp_path_factory.mktemp("made-up")
    work = tmp / "work"
    work.mkdir()
    plan = plan_flow(rich(work), work / "ck")
    place = Checkpoint(work / "ck")
    place.lock()
    engine = Engine(plan, place, Settings(parallelism=1, **OPTIONS))
    engine.open(1)
    for _ in range(2):
        assert engine.step(InProcess(plan, 1))
    engine.close()
    (work / "outside").mkdir()
    (work / "outside" / "precious").write_text("mine")
    shutil.copytree(work, tmp / "backup")
    return work


def case(work: Path, seed: int) -> str:
    """One case; gives how it ended."""
    shutil.rmtree(work)
    shutil.copytree(work.parent / "backup", work, symlinks=True)
    segments._open.cache_clear()
    chance = random.Random(seed)
    way = FILES[seed % len(FILES)]
    told = f"case {seed}: {way.__name__}, {way(work, chance)}"
    before = (work / "in.jsonl").read_bytes()
    try:
        examine(work / "ck")
        look(work / "ck")
        run_in_process(rich(work), work / "ck", **OPTIONS)
        ended = "went on"
    except ms.MillstreamError:
        ended = "refused"
    except Exception as error:
        raise AssertionError(f"{told}: {type(error).__name__}: {error}") from error
    assert [path.name for path in (work / "outside").iterdir()] == ["precious"], told
    assert (work / "outside" / "precious").read_text() == "mine", told
    assert (work / "in.jsonl").read_bytes() == before, told
    there = {path.name for path in work.iterdir()}
    assert there <= {"ck", "in.jsonl", "out", "outside", "sums"}, told
    return ended


def look(checkpoint: Path) -> None:
    """What a server over it tells."""
    with contextlib.suppress(ms.CheckpointError):
        Served(Follower(checkpoint)).status()


@pytest.mark.parametrize("seed", range(len(FILES) * 8))
def test_a_value_that_somebody_made_up(stopped: Path, seed: int) -> None:
    case(stopped, seed)


@pytest.mark.long
def test_many_values_that_somebody_made_up(stopped: Path) -> None:
    first = random.SystemRandom().randrange(2**32)
    print(f"cases {first} to {first + 999}")
    ended = [case(stopped, seed) for seed in range(first, first + 1000)]
    print({how: ended.count(how) for how in set(ended)})
    assert ended.count("refused") > 300

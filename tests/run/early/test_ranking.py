"""Word count to top-k: rankings with snapshots, and which places are settled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.ops.estimating.places import places
from millstream.testing import run_in_process, snapshots_in_process


def write(folder: Path, seed: int = 3) -> Counter[str]:
    """Lines of words as Zipf has them, the frequent ones further apart."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, 301) ** 1.4
    folder.mkdir()
    found: Counter[str] = Counter()
    for number in range(4):
        words = [f"w{n:03}" for n in rng.choice(300, 30_000, p=share / share.sum())]
        found.update(words)
        lines = [" ".join(words[at : at + 10]) for at in range(0, len(words), 10)]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return found


def words(folder: Path, sink: ms.Memory, k: int = 10) -> ms.Flow:
    flow = ms.Flow("words")
    lines = flow.source(ms.Files(folder, format="text"), name="lines")
    each = lines.flat_map(lambda row: [{"word": one} for one in row["value"].split()])
    counts = each.key_by("word").agg(n=ms.count()).named("counts")
    counts.key_by().agg(top=ms.top_k("word", k, by="n")).named("top").sink(sink)
    return flow


def test_a_ranking_is_looked_at_and_ends_exact(tmp_path: Path) -> None:
    exact = write(tmp_path / "in")
    plain, looked = ms.Memory(), ms.Memory()
    run_in_process(words(tmp_path / "in", plain), tmp_path / "plain")
    *found, last = snapshots_in_process(
        words(tmp_path / "in", looked), tmp_path / "ck", [0.5, 0.7, 0.9], parallelism=2
    )
    order = sorted(exact, key=lambda word: (-exact[word], word))
    assert [row["word"] for row in last.table.to_pylist()] == order[:10]
    assert [row["n"] for row in last.table.to_pylist()] == [exact[word] for word in order[:10]]
    assert looked.rows == plain.rows
    settled = []
    for one in found:
        rows = one.table.to_pylist()
        assert [row["place"] for row in rows] == list(range(1, 11))
        for row in rows:
            assert row["n_lower"] <= exact[row["word"]] <= row["n_upper"]
            if row["settled"]:
                assert order[row["place"] - 1] == row["word"]
        settled.append(sum(row["settled"] for row in rows))
    assert settled == sorted(settled)
    assert found[1].table.to_pylist()[0]["settled"]


def test_the_counts_themselves_can_be_looked_at(tmp_path: Path) -> None:
    exact = write(tmp_path / "in")
    flow = words(tmp_path / "in", ms.Memory())
    first, last = snapshots_in_process(flow, tmp_path / "ck", [0.5], step="counts")
    assert first.table.column_names == ["word", "n", "n_lower", "n_upper"]
    assert {row["word"]: row["n"] for row in last.table.to_pylist()} == exact
    with pytest.raises(ConfigError, match="there are counts, top"):
        flow.snapshots(step="other")


def test_a_ranking_has_columns_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "in")
    flow = ms.Flow("places")
    lines = flow.source(ms.Files(tmp_path / "in", format="text"), name="lines")
    counts = lines.select("value AS place").key_by("place").agg(n=ms.count())
    counts.key_by().agg(top=ms.top_k("place", 3, by="n")).named("top").sink(ms.Memory())
    with pytest.raises(ConfigError, match="'top' would have two columns 'place'"):
        flow.snapshots(checkpoint=tmp_path / "ck")


def test_places_are_settled_only_if_nobody_can_take_them() -> None:
    owner = np.zeros(4, np.int64)
    value = np.array([10.0, 7.0, 6.5, 1.0])
    found = places(owner, value, value - 0.5, value + 0.4, beyond=0.0, k=4)
    assert found.rows.tolist() == [0, 1, 2, 3]
    assert found.settled.tolist() == [True, False, False, True]
    assert not places(owner, value, value - 0.5, value + 0.4, beyond=20.0, k=4).settled.any()
    unknown = np.array([np.nan, 6.9, 6.4, 0.9])
    found = places(owner, value, unknown, value + 0.1, beyond=0.0, k=4)
    assert found.settled.tolist() == [False, False, False, False]


def test_each_owner_has_its_own_places() -> None:
    owner = np.array([0, 1, 0, 1], np.int64)
    value = np.array([1.0, 5.0, 3.0, 9.0])
    found = places(owner, value, value, value, beyond=0.0, k=1)
    assert found.rows.tolist() == [2, 3]
    assert found.place.tolist() == [1, 1]
    assert found.settled.tolist() == [True, True]

"""What segments come to is the same whether followed from batch to batch or counted anew."""

from __future__ import annotations

import random

import msgspec

from millstream.state.bases import Segments, applied
from millstream.state.holdings import Holdings, Total
from millstream.state.manifests import Manifest
from millstream.state.segments import Segment, SegmentFile


def test_followed_equals_counted_anew() -> None:
    chance = random.Random(1)
    manifest = Manifest(0, files={"unused": SegmentFile("unused", 1, 1)})
    held = Holdings(manifest)
    for batch in range(1, 200):
        name = f"file-{batch}"
        reported: Segments = {"op": {"panes": {}, "kept": {}}}
        for shard in chance.sample(range(5), 2):
            for table, shards in reported["op"].items():
                known = manifest.segments.get("op", {}).get(table, {}).get(str(shard), [])
                low = chance.randrange(3)
                new = Segment(name, shard, chance.randrange(1, 9), low, low + chance.randrange(2))
                kept = chance.sample(known, chance.randrange(len(known) + 1))
                shards[str(shard)] = [*kept, *([new] if chance.random() < 0.7 else [])]
        change = held.change([reported], [SegmentFile(name, batch, batch)])
        segments, files = applied(manifest.segments, manifest.files, change)
        after = msgspec.structs.replace(manifest, segments=segments, files=files)
        held.follow(after, change)
        manifest = after
        used = {
            one.file
            for tables in segments.values()
            for shards in tables.values()
            for several in shards.values()
            for one in several
        }
        assert set(files) == used
        anew = Holdings(manifest).totals()
        for table, total in held.totals().get("op", {}).items():
            assert total == anew.get("op", {}).get(table, Total())


def test_a_table_of_one_pane_says_so() -> None:
    segments = {"op": {"kept": {"0": [Segment("a", 0, 3, 7, 7)], "1": [Segment("a", 1, 4, 7, 7)]}}}
    held = Holdings(Manifest(0, segments=segments, files={"a": SegmentFile("a", 1, 1)}))
    assert held.totals() == {"op": {"kept": Total(7, 7)}}
    other = {"op": {"kept": {"1": [Segment("b", 0, 1, 7, 8)]}}}
    change = held.change([other], [SegmentFile("b", 1, 1)])
    held.follow(Manifest(1), change)
    assert held.totals() == {"op": {"kept": Total(4, None)}}

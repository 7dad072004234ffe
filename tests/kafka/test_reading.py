"""Ranges one after the other, as tasks read them: gaps at their ends, jumps, and nothing twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millstream.errors import RunError
from millstream.io.kafka.cluster import Cluster
from millstream.io.kafka.consuming import Stretch, Wanted, close_readers, read_stretch
from millstream.io.kafka.offsets import Offsets


def test_ranges_that_end_in_gaps_follow_each_other(topics: Any) -> None:
    topic, dice = topics.make(partitions=2), random.Random(3)
    cluster = Cluster(topics.address)
    offsets = Offsets(cluster, 10)
    producer = topics.producer(**{"transactional.id": "ranges"})
    producer.init_transactions()
    wanted: dict[int, list[bytes]] = {0: [], 1: []}
    found: dict[int, list[bytes]] = {0: [], 1: []}
    at = {0: 0, 1: 0}

    def read(part: int, end: int) -> None:
        stretch = Stretch(0, part, topic, part, at[part], end, 0)
        for block in read_stretch(cluster, Wanted(patience=5), stretch):
            found[part].extend(value for value in block.values if value is not None)
        at[part] = end

    for number in range(40):
        part, keeps = dice.randrange(2), dice.random() < 0.6
        several = [b"%d-%d" % (number, n) for n in range(dice.randrange(1, 5))]
        producer.begin_transaction()
        for one in several:
            producer.produce(topic, one, partition=part)
        (producer.commit_transaction if keeps else producer.abort_transaction)()
        wanted[part].extend(several if keeps else [])
        if dice.random() < 0.7:
            part = dice.randrange(2)
            end = offsets.ends([(topic, part)])[topic, part]
            read(part, dice.randrange(at[part], end + 1))
    for part in (0, 1):
        read(part, offsets.ends([(topic, part)])[topic, part])
    assert found == wanted
    with pytest.raises(RunError, match="there no more"):
        beyond = Stretch(0, 0, topic, 0, at[0], at[0] + 5, 0)
        list(read_stretch(cluster, Wanted(patience=0.5), beyond))
    close_readers()

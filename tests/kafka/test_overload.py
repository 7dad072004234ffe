"""Overload on a topic: what is too much is dropped, diverted or waits, every record once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from tests.overload.on_spark import check_on_spark
from tests.overload.producing import OPTIONS, POLICIES, records


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("policy", POLICIES)
def test_five_times_what_can_be_processed_from_a_topic(
    topics: Any, spark: Any, tmp_path: Path, policy: str
) -> None:
    topic = topics.make(partitions=3)

    def send() -> None:
        producer = topics.producer()
        for one in records():
            producer.produce(topic, json.dumps(one).encode(), partition=one["n"] % 3)
            if one["n"] % 500 == 0:
                producer.poll(0)
        assert producer.flush(30) == 0

    spec = ms.Kafka(topics.address, topic, format="json", overload=POLICIES[policy], **OPTIONS)
    check_on_spark(spec, send, tmp_path)

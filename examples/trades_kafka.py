"""Average prices per symbol and ten seconds, from one Kafka topic to another, each of them once.

    python scripts/kafka.py start                      # a broker at localhost:9092, or use your own
    python examples/trades_kafka.py send 20000         # makes the topics, and sends invented trades
    millstream run examples/trades_kafka.py            # Ctrl-C stops it cleanly
    python examples/trades_kafka.py show               # what readers of the averages see

Kill the flow and the broker as you like: no average is missing, none is there twice. FOLLOW=no lets
it end with what is in the topic.
"""

import json
import os
import random
import sys

import millstream as ms

SERVERS = os.environ.get("SERVERS", "localhost:9092")
TRADES, AVERAGES = "trades", "averages"

flow = ms.Flow("trades in kafka")
(
    flow.source(
        ms.Kafka(
            SERVERS,
            topic=TRADES,
            schema="ts bigint, price double",
            key="symbol",
            time="ts",
            time_unit="ms",
            lateness="2s",
            follow=os.environ.get("FOLLOW", "yes") != "no",
        ),
        name="trades",
    )
    .key_by("symbol")
    .window(ms.tumbling("10s"))
    .agg(avg=ms.mean("price"), n=ms.count())
    .sink(ms.Kafka(SERVERS, topic=AVERAGES, key="symbol"))
)


def send(number: int) -> None:
    """Trades of some minutes, in three partitions by their symbol."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": SERVERS})
    there = admin.list_topics(timeout=10).topics
    new = [NewTopic(name, num_partitions=3) for name in (TRADES, AVERAGES) if name not in there]
    for made in admin.create_topics(new).values() if new else ():
        made.result()
    producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})  # and in order
    dice = random.Random(1)
    prices = {"ACME": 50.0, "BOLT": 20.0, "CORK": 110.0, "DUST": 5.0}
    at = 1_767_605_400_000
    for _ in range(number):
        at += dice.randrange(20)
        symbol = dice.choice(list(prices))
        prices[symbol] *= 1 + dice.gauss(0, 0.0005)
        trade = {"ts": at - dice.randrange(1000), "price": round(prices[symbol], 4)}
        producer.produce(TRADES, json.dumps(trade), symbol)
        producer.poll(0)
    producer.flush()


def show() -> None:
    """All averages that are committed, as lines of JSON."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"isolation.level": "read_committed", "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": SERVERS, "group.id": "show", **settings})
    partitions = reader.list_topics(AVERAGES, timeout=10).topics[AVERAGES].partitions
    reader.assign([TopicPartition(AVERAGES, number, OFFSET_BEGINNING) for number in partitions])
    left = len(partitions)
    while left:
        message = reader.poll(10)
        if message is None or message.error() is not None:
            left -= 1  # the end of a partition
        else:
            print(message.value().decode())
    reader.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", number]:
            send(int(number))
        case ["show"]:
            show()
        case _:
            flow.run(checkpoint="ck/trades_kafka")

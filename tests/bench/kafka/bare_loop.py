"""The upper bound: a loop that reads, folds and writes, and loses all it knows when it ends.

Runs in the peers' environment: python -m tests.bench.kafka.bare_loop SERVERS EVENTS DECISIONS, POLICY in the
environment.
"""

import os
import sys
import time

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition  # type: ignore[import-not-found,unused-ignore]

from schemas.codec import encode_decisions
from schemas.dead_letters import Position
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold

RECORDS_A_TURN = 500


def main() -> None:
    servers, events, decisions = sys.argv[1:]
    policy = msgspec.json.decode(os.environ["POLICY"], type=LimiterPolicy)
    fold = InProcessFold(LimiterFold(), PolicyLog([policy]))
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench-bare", "enable.auto.commit": False})
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": "all"})
    partitions = consumer.list_topics(events).topics[events].partitions
    left = 0
    places = []
    for number in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(events, number))
        left += high - low
        places.append(TopicPartition(events, number, low))
    consumer.assign(places)
    is_first = True
    while left:
        for message in consumer.consume(RECORDS_A_TURN, 1.0):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            if is_first:
                is_first = False
                print(f"reads since {time.time_ns() // 1_000_000}", flush=True)
            left -= 1
            key, at = message.key(), (message.partition(), message.offset())
            shard = int(key.partition(b".")[0])
            result = fold.process(shard, message.value(), Position(events, *at))
            if result.outputs:
                producer.produce(decisions, key=key, value=encode_decisions(shard, result.outputs, at))
        producer.poll(0)
    producer.flush()
    consumer.close()


if __name__ == "__main__":
    main()

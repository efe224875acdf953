"""A gateway on Kafka, in short: asks whether a request may run, streams it, ends it, and reads what was decided.

python docs/examples/gateway.py 127.0.0.1:19092
"""
# ruff: noqa: INP001, T201 - a script to read and to copy

import sys
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from jobs.wiring.record_keys import record_keys
from schemas.gen.headrace.v1.decisions_pb2 import DECISION_MODE_ENFORCE, Decision, DecisionBatch, DecisionKind
from schemas.gen.headrace.v1.events_pb2 import USAGE_SOURCE_REPORTED, Event, EventBatch
from schemas.topics import SHARD_COUNT, shard_of
from udfs.domain.events.naming import attempt_event_id

Body: TypeAlias = Any  # the message of one kind, or a dict of its fields
KEYS = record_keys(SHARD_COUNT)
LATE_US = 100_000  # no event of this gateway reaches the log later than this after it happened
EVENTS, DECISIONS = "headrace.events", "headrace.decisions"


def record(shard: int, *events: Event) -> tuple[bytes, bytes]:
    """Key and value of one record: events of one shard, in order."""
    return KEYS[shard], EventBatch(shard=shard, events=events).SerializeToString()


def of_request(tenant: str, request_id: str, sequence: int, now_us: int, **body: Body) -> tuple[bytes, bytes]:
    """One event of a request's life as a record; `body` has one kind and its fields."""
    (kind,) = body
    return record(
        shard_of(tenant, SHARD_COUNT),
        Event(
            schema_version="1.2",  # without it the event is a dead letter
            event_id=attempt_event_id(tenant, request_id, 0, sequence, kind),
            sequence=sequence,
            tenant=tenant,
            request_id=request_id,
            event_time_us=now_us,
            watermark_us=now_us - LATE_US,
            source="gateway-1",
            **body,
        ),
    )


def heartbeats(now_us: int) -> list[tuple[bytes, bytes]]:
    """A record for every shard, once a second: without them a stream that just falls silent is never settled."""
    event = Event(
        schema_version="1.2", source="gateway-1", event_time_us=now_us, watermark_us=now_us - LATE_US, heartbeat={}
    )
    return [record(shard, event) for shard in range(SHARD_COUNT)]


def decided(consumer: KafkaConsumer, request_id: str) -> Iterator[Decision]:
    """The decisions on a request as they come, each once, those that bind nobody left out."""
    seen: set[str] = set()
    while True:
        for polled in consumer.poll(timeout_ms=100).values():
            for batch in polled:
                for it in DecisionBatch.FromString(batch.value).decisions:
                    if it.request_id == request_id and it.mode == DECISION_MODE_ENFORCE and it.decision_id not in seen:
                        seen.add(it.decision_id)  # at-least-once: a restarted job writes decisions again
                        yield it


def main(servers: str = "localhost:9092", events: str = EVENTS, decisions: str = DECISIONS) -> list[str]:
    """One request of tenant acme; returns the kinds of its decisions."""
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", group_id=None)
    partitions = [TopicPartition(decisions, number) for number in sorted(consumer.partitions_for_topic(decisions))]
    consumer.assign(partitions)
    consumer.seek_to_end()
    for partition in partitions:
        consumer.position(partition)  # from here on, whatever comes before the first poll
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)

    def send(*records: tuple[bytes, bytes]) -> None:
        for key, value in records:
            producer.send(events, key=key, value=value)

    tenant, request_id = "acme", f"example-{time.time_ns()}"
    prompt = {"prompt_tokens": 120, "max_tokens": 256, "api_key": "key-1", "stream": True}
    send(*heartbeats(time.time_ns() // 1_000))
    send(of_request(tenant, request_id, 1, time.time_ns() // 1_000, prompt_submitted=prompt))
    kinds: list[str] = []
    for it in decided(consumer, request_id):
        kinds.append(DecisionKind.Name(it.kind).removeprefix("DECISION_KIND_"))
        print(kinds[-1], "reserved", it.reserved_tokens, "used", it.used_tokens, "retry_at_us", it.retry_at_us)
        if kinds[-1] != "ADMIT":
            break  # THROTTLE: ask again at retry_at_us, as attempt + 1; REJECT: never; REVOKE: stop; SETTLE: done
        chunk = {"count": 64, "cumulative": 64}
        usage = {"prompt_tokens": 120, "completion_tokens": 64, "usage_source": USAGE_SOURCE_REPORTED}
        send(of_request(tenant, request_id, 2, time.time_ns() // 1_000, tokens_generated=chunk))
        send(of_request(tenant, request_id, 3, time.time_ns() // 1_000, request_completed=usage))
    producer.close()
    consumer.close()
    return kinds


if __name__ == "__main__":
    main(*sys.argv[1:2])

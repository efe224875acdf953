"""The floor of decision latency: answers each prompt with an admission and each end with a settlement, at once.

python -m tests.bench.kafka.echo SERVERS EVENTS DECISIONS, until it is terminated. The same codec, broker and clients as
the load; no state, no fold, no Flink.
"""

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from jobs.wiring.record_keys import shard_of_key
from schemas.codec import decode_events, encode_decisions
from schemas.dead_letters import Position
from schemas.decisions import Decision, DecisionKind, DecisionReason
from schemas.events import Event, PromptSubmitted, RequestCompleted
from schemas.topics import SHARD_COUNT


def answer(event: Event) -> Decision | None:
    """The decision that ends the load's waiting for one."""
    if isinstance(event, PromptSubmitted):
        kind, reason, ordinal = DecisionKind.ADMIT, DecisionReason.WITHIN_LIMITS, 0
    elif isinstance(event, RequestCompleted):
        kind, reason, ordinal = DecisionKind.SETTLE, DecisionReason.COMPLETED, 1
    else:
        return None
    return Decision(
        decision_id=f"{event.request_id}/{event.attempt}/{ordinal}",
        kind=kind,
        reason=reason,
        tenant=event.tenant,
        request_id=event.request_id,
        attempt=event.attempt,
        decided_at_us=event.event_time_us,
        caused_by=event.event_id,
    )


def main() -> None:
    servers, events, decisions = sys.argv[1:]
    consumer = KafkaConsumer(
        bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="earliest", max_poll_records=10_000
    )
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0)
    consumer.assign([TopicPartition(events, number) for number in consumer.partitions_for_topic(events)])
    # With Python's 5 ms the producer's thread would wait that long for its turn.
    sys.setswitchinterval(0.000_5)
    while True:
        for records in consumer.poll(timeout_ms=100).values():
            for record in records:
                at = Position(record.topic, record.partition, record.offset)
                found = [answer(event) for event in decode_events(record.value, at).events]
                answers = [decision for decision in found if decision is not None]
                if answers:
                    shard = shard_of_key(record.key, SHARD_COUNT) or 0
                    producer.send(decisions, key=record.key, value=encode_decisions(shard, answers))


if __name__ == "__main__":
    main()
